"""The flag contract: what a llama-server's own --help offers, against the arguments it is to be given. Pure."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

FLAGS = Path(__file__).parent / "flags"


class Flag(NamedTuple):
    """One option: the spelling it is listed under, whether a value follows it, and the values it allows."""

    name: str
    takes_value: bool
    choices: tuple[str, ...] = ()


# Every spelling of every option.
FlagTable = Mapping[str, Flag]

_SPELLINGS = r"-{1,2}[A-Za-z][\w-]*"
_LINE = re.compile(rf"^({_SPELLINGS}(?:,\s+{_SPELLINGS})*)(?:\s(\S.*?))?(?:\s{{2,}}.*)?$")
_BRACKETS = re.compile(r"^[\[{<](.+)[\]}>]$")
_ALLOWED = re.compile(r"^\s+allowed values: (.+)$")
_WORD = re.compile(r"^[\w.+-]+$")


def parse_help(text: str) -> FlagTable:
    """
    Read the output of ``llama-server --help``.

    :raises ValueError: the text lists no options, so it is not that program's help.
    """
    table: dict[str, Flag] = {}
    spellings: list[str] = []
    for line in text.splitlines():
        option = _LINE.match(line)
        allowed = _ALLOWED.match(line)
        if option:
            spellings = re.split(r",\s+", option[1])
            hint = option[2]
            flag = Flag(spellings[-1], takes_value=hint is not None, choices=_choices(hint or ""))
            table.update(dict.fromkeys(spellings, flag))
        elif allowed and spellings:
            flag = table[spellings[0]]._replace(choices=tuple(re.split(r",\s*", allowed[1].strip())))
            table.update(dict.fromkeys(spellings, flag))
    if "--model" not in table or "--port" not in table:
        raise ValueError(f"not the help of a llama-server: {text.strip()[:80]!r}")
    return table


def _choices(hint: str) -> tuple[str, ...]:
    bracketed = _BRACKETS.match(hint)
    inner = bracketed[1] if bracketed else hint
    words = re.split(r"[|,]", inner)
    listed = len(words) > 1 and all(_WORD.match(word) for word in words)
    # `lo-hi` lists and `N,M` placeholders are hints, not choices.
    return tuple(words) if listed and not any(word.isupper() for word in words) else ()


@cache
def load_table(name: str) -> FlagTable:
    """
    The flags of a known engine: one line an option, its spellings, then what may follow.

    :raises FileNotFoundError: there is no such table under beeyard/flags/.
    """
    return _table(yaml.safe_load((FLAGS / f"{name}.yaml").read_text()))


def _table(rows: Mapping[str, bool | Sequence[str]]) -> FlagTable:
    table: dict[str, Flag] = {}
    for spelled, value in rows.items():
        spellings = spelled.split(" ")
        choices = () if isinstance(value, bool) else tuple(value)
        table.update(dict.fromkeys(spellings, Flag(spellings[0], value is not False, choices)))
    return table


def to_label(table: FlagTable) -> str:
    """A table as one line of JSON, for an image's label."""
    spelled: dict[Flag, list[str]] = {}
    for spelling, flag in table.items():
        spelled.setdefault(flag, []).append(spelling)
    rows = {" ".join(spellings): flag.choices or flag.takes_value for flag, spellings in spelled.items()}
    return json.dumps(rows, separators=(",", ":"))


def from_label(text: str) -> FlagTable:
    """
    The table that :func:`to_label` wrote.

    :raises ValueError: it did not write this.
    """
    rows = json.loads(text)
    if not isinstance(rows, dict):
        raise ValueError(f"not a table of flags: {text[:40]!r}")
    return _table(rows)


def changes(old: FlagTable, new: FlagTable) -> tuple[list[str], list[str]]:
    """What of a table a newer engine has no longer, and what it has beside it, a sentence each."""
    lost: list[str] = []
    for name, flag in old.items():
        now = new.get(name)
        if now is None:
            lost.append(f"{name} is gone")
        elif now.takes_value != flag.takes_value:
            lost.append(f"{name} takes {'a' if now.takes_value else 'no'} value now")
        elif now.choices and (gone := [word for word in flag.choices if word not in now.choices]):
            lost.append(f"{name} does not take {', '.join(gone)} any more")
    gained = [f"{name} is new" for name in new if name not in old]
    for name, flag in old.items():
        if flag.choices and name in new and (more := [w for w in new[name].choices if w not in flag.choices]):
            gained.append(f"{name} also takes {', '.join(more)}")
    return lost, gained


def options(arguments: Iterable[str]) -> dict[str, list[str]]:
    """
    A command's flags in their order, each with what follows it; the program itself is called ``program``.

    A number is no flag, also a negative one. A flag that stands there twice has the values of both.
    """
    found: dict[str, list[str]] = {}
    flag = "program"
    for word in arguments:
        if found and re.match(r"-[^\d.]", word):
            flag, equals, value = word.partition("=")
            found.setdefault(flag, []).extend([value] if equals else [])
        else:
            found.setdefault(flag, []).append(word)
    return found


def violations(arguments: Sequence[str], table: FlagTable, engine: str) -> list[str]:
    """
    What of an argument list (the binary first) the engine would not take, a sentence each.

    A choice list that has ``<int>`` in it takes any whole number; comma lists are checked word by word.
    """
    found: list[str] = []
    words = list(arguments[1:])
    while words:
        word = words.pop(0)
        flag = table.get(word)
        if flag is None:
            near = difflib.get_close_matches(word, table, n=3)
            offers = f"it offers {', '.join(near)}" if near else "it offers nothing like it"
            found.append(f"{engine} does not know {word}; {offers}")
            while words and not words[0].startswith("-"):  # its value is not a second finding
                words.pop(0)
        elif flag.takes_value and not words:
            found.append(f"{engine}'s {word} wants a value and gets none")
        elif flag.takes_value:
            value = words.pop(0)
            if flag.choices and not _allowed(value, flag.choices):
                found.append(f"{engine}'s {word} does not take {value!r}; it takes {', '.join(flag.choices)}")
    return found


def _allowed(value: str, choices: tuple[str, ...]) -> bool:
    number = "<int>" in choices and re.fullmatch(r"-?\d+", value) is not None
    return number or all(word in choices for word in value.split(","))
