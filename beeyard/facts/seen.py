"""
Facts of a host that are asked together, in one command, and hold until something is changed there.

pyinfra asks one fact a command and forgets the answer. Over SSH a command costs two round trips and some processes;
so a deploy says beforehand what it will ask (``look_together``, ``learn``), and operations ask for facts by ``seen``.
"""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from pyinfra import host, state
from pyinfra.api import FactBase, FactProcessError, StringCommand

Answer = TypeVar("Answer")
# No answer has it: it is another one in each run.
MARK = f"beeyard-{secrets.token_hex(8)} "


class Question(NamedTuple):
    """A fact with its arguments; ``asked`` makes one."""

    fact: type[FactBase[Any]]
    arguments: dict[str, Any]

    @property
    def key(self) -> str:
        """The same for the same question."""
        return f"{self.fact.__module__}.{self.fact.__qualname__} {sorted(self.arguments.items())!r}"


class Moment(NamedTuple):
    """How long an answer holds: while a run is in the same phase, and the same operations have changed something."""

    is_executing: bool
    changes: int


class Look(NamedTuple):
    """One look at a host: when, what was asked, what is known by it, and how often it may be taken again."""

    moment: Moment
    questions: Sequence[Question]
    known: dict[str, Any]
    again: int


# Where one thing is repaired, what is left is asked together once more. Where all is new, each operation changes what
# was seen, and the next one asks alone.
AGAIN = 2

_looks: WeakKeyDictionary[Any, Look] = WeakKeyDictionary()


class Answers(FactBase[list[tuple[int, list[str]]]]):
    """Returns the exit status and the lines of each of the given questions' commands."""

    default = list

    def command(self, questions: Sequence[Question]) -> StringCommand:
        """One after the other, each in a shell of its own and followed by a line that says how it ended."""
        bits: list[Any] = []
        for question in questions:
            fact = question.fact()
            needs = fact.requires_command(**question.arguments)
            has = [f"command -v {needs} >/dev/null 2>&1 || exit 127;"] if needs else []
            bits += ["(", *has, fact.command(**question.arguments), "\n", f");printf '\\n{MARK}%s\\n' $?;"]
        return StringCommand(*bits)

    def process(self, output: list[str]) -> list[tuple[int, list[str]]]:
        """Part them where each ended."""
        found, lines = [], list[str]()
        for line in output:
            if line.startswith(MARK):
                # The mark begins a line also after a last line that did not end: then this one is empty.
                found.append((int(line.removeprefix(MARK)), lines[:-1] if lines and not lines[-1] else lines))
                lines = []
            else:
                lines.append(line)
        return found


def asked(fact: type[FactBase[Any]], **arguments: Any) -> Question:
    """The question that ``seen`` asks with the same arguments."""
    return Question(fact, arguments)


def look_together(*questions: Question) -> list[Any]:
    """
    Ask the current host all of these in one command, and know the answers until something is changed there.

    One that fails or is not understood is asked again alone, and pyinfra tells what is wrong with it.

    :return: an answer each
    """
    _look(questions, AGAIN)
    return [seen(question.fact, **question.arguments) for question in questions]


def learn(questions: Sequence[Question]) -> None:
    """The same for those who ask later; what fails is asked again only by them."""
    _look(questions, AGAIN)


def seen(fact: type[FactBase[Answer]], **arguments: Any) -> Answer:
    """
    What the current host says to a question, as far as that is known; else it is asked now.

    For deploys, and for operations before their first command: what they change themselves is known to be changed
    only when they end.
    """
    question, look = Question(fact, arguments), _looks.get(_this_host())
    if look is not None and look.moment != _now():
        left = _from(question, look.questions)
        if left and look.again:
            look = _look(left, look.again - 1)
    if look is not None and look.moment == _now() and question.key in look.known:
        answer: Answer = look.known[question.key]
        return answer
    return host.get_fact(fact, **arguments)


def forget() -> None:
    """Nothing that was seen of the current host holds any more."""
    _looks.pop(_this_host(), None)


def _look(questions: Sequence[Question], again: int) -> Look:
    answers = host.get_fact(Answers, questions=list(questions)) if questions else []
    known: dict[str, Any] = {}
    for question, (status, lines) in zip(questions, answers, strict=False):
        if status == 0:
            fact = question.fact()
            try:
                known[question.key] = fact.process(lines) if lines else fact.default()
            except FactProcessError:
                continue
    look = _looks[_this_host()] = Look(_now(), questions, known, again)
    return look


def _from(question: Question, questions: Sequence[Question]) -> Sequence[Question]:
    """That one and those after it, which operations ask in their order; none if it is not among them."""
    keys = [one.key for one in questions]
    return questions[keys.index(question.key) :] if question.key in keys else ()


def _this_host() -> Any:
    # ``host`` itself stands for whichever host is the current one.
    return state.inventory.get_host(host.name)


def _now() -> Moment:
    done = state.ops[_this_host()].values()
    return Moment(bool(state.is_executing), sum(operation.operation_meta.executed for operation in done))
