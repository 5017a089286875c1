"""Facts about files."""

import json
from typing import Any, TypedDict

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard.facts.errors import not_understood


class FileState(TypedDict):
    """One file as it is. ``kind`` is as stat says it: regular file, directory, symbolic link."""

    kind: str
    mode: str
    owner: str
    uid: str
    target: str | None
    sha256: str | None


LOOK = r"""
for path do
    [ -e "$path" ] || [ -L "$path" ] || continue
    stat --format='%F|%a|%U|%u' -- "$path" | sed 's/regular empty file/regular file/'
    if [ -L "$path" ]; then readlink -- "$path"
    elif [ -f "$path" ]; then sha256sum <"$path" | cut -c1-64
    else echo; fi
    printf '%s\n' "$path"
done
"""


class FileStates(FactBase[dict[str, FileState]]):
    """Returns mode, owner and sha256 (or link target) of those of the given paths that are there."""

    default = dict

    def command(self, paths: list[str]) -> StringCommand:
        """One command for all of them."""
        return StringCommand("sh -c", QuoteString(LOOK), "look", *(QuoteString(path) for path in paths))

    def process(self, output: list[str]) -> dict[str, FileState]:
        """Read LOOK's three lines a path."""
        found: dict[str, FileState] = {}
        try:
            for described, content, path in zip(output[::3], output[1::3], output[2::3], strict=True):
                kind, mode, owner, uid = described.split("|")
                found[path] = FileState(
                    kind=kind,
                    mode=mode,
                    owner=owner,
                    uid=uid,
                    target=content if kind == "symbolic link" else None,
                    sha256=content if kind == "regular file" else None,
                )
        except ValueError:
            raise not_understood("its files", repr(output)) from None
        return found


class JsonFile(FactBase[dict[str, Any]]):
    """Returns what is in a file of ours, a JSON object; an empty one where there is none, or another thing."""

    default = dict

    def command(self, path: str) -> StringCommand:
        """Read it, if it is there."""
        return StringCommand("cat", QuoteString(path), "2>/dev/null || echo '{}'")

    def process(self, output: list[str]) -> dict[str, Any]:
        """As it is."""
        try:
            found = json.loads("\n".join(output))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
