"""Facts that are asked together: each answer is its own, and holds until something is changed."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import Config, FactBase, FactProcessError, Inventory, QuoteString, State, StringCommand, operation
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops

from beeyard.facts.files import FileStates
from beeyard.facts.seen import Question, asked, forget, learn, look_together, seen

Commands = Generator[StringCommand, None, None]
Step = tuple[Any, tuple[Any, ...], dict[str, Any]]
found: list[Any] = []


class Said(FactBase[str]):
    """Returns what a shell prints; leaves a line in a file each time that it is asked."""

    default = str

    def command(self, script: str, log: str = "/dev/null") -> StringCommand:
        return StringCommand("echo asked >>", QuoteString(log), ";", script)

    def process(self, output: list[str]) -> str:
        if output == ["strange"]:
            raise FactProcessError("it is strange")
        return "\n".join(output)


class Elsewhere(Said):
    """The same, of a program that is not there."""

    def requires_command(self, script: str, log: str = "/dev/null") -> str:
        return "beeyard-no-such-program"


@operation()
def looks(*scripts: str, log: str) -> Commands:
    """Learn, and change nothing."""
    learn([asked(Said, script=script, log=log) for script in scripts])
    yield from ()


@operation()
def notes(script: str, log: str) -> Commands:
    """Note what is seen, and change nothing."""
    found.append(seen(Said, script=script, log=log))
    yield from ()


@operation()
def together(*questions: Question) -> Commands:
    """Note what all of them say."""
    found.append(look_together(*questions))
    yield from ()


@operation()
def changes() -> Commands:
    """Run a command."""
    yield StringCommand("true")


@operation()
def forgets() -> Commands:
    """Nothing is known."""
    forget()
    yield from ()


def run(*steps: Step) -> list[Any]:
    """Run operations one after the other, without looking for changes first, as ``pyinfra -y`` does."""
    found.clear()
    state = State(inventory=Inventory((["@local"], {})), config=Config(), check_for_changes=False)
    connect_all(state)
    try:
        for step, words, named in steps:
            add_op(state, step, *words, **named)
        run_ops(state)
    finally:
        disconnect_all(state)
    return list(found)


def test_answers_are_parted_whatever_they_end_with() -> None:
    scripts = [
        "printf a",
        "echo b",
        "printf 'c\\n\\n'",
        "true",
        "echo; echo",
        "printf 'd\\ne'",
        "exit 0",
        "cat </dev/null",
    ]
    (answers,) = run((together, tuple(asked(Said, script=script) for script in scripts), {}))
    assert answers == ["a", "b", "c\n", "", "\n", "d\ne", "", ""]


def test_an_answer_holds_until_an_operation_changes_something(tmp_path: Path) -> None:
    log, flag = tmp_path / "log", tmp_path / "flag"
    note: Step = (notes, (f"cat {flag} 2>/dev/null || true",), {"log": str(log)})
    look: Step = (looks, (f"cat {flag} 2>/dev/null || true",), {"log": str(log)})
    assert run(look, note, note) == ["", ""]
    assert log.read_text() == "asked\n"
    assert run(look, note, (changes, (), {}), note, note) == ["", "", ""]
    assert log.read_text() == "asked\n" * 3  # and together once more: the third note asks nothing


def test_what_is_left_is_asked_together_twice_and_then_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    named: dict[str, Any] = {"log": str(log)}
    look: Step = (looks, ("echo 1", "echo 2", "echo 3", "echo 4"), named)
    change: Step = (changes, (), {})
    steps = [look, change, (notes, ("echo 1",), named), change, (notes, ("echo 2",), named), change]
    assert run(*steps, (notes, ("echo 3",), named), (notes, ("echo 4",), named)) == ["1", "2", "3", "4"]
    assert len(log.read_text().split()) == 4 + 4 + 3 + 1 + 1


def test_what_was_never_learned_or_is_forgotten_is_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    named: dict[str, Any] = {"log": str(log)}
    note: Step = (notes, ("echo 1",), named)
    assert run(note, (looks, ("echo 2",), named), note) == ["1", "1"]
    assert len(log.read_text().split()) == 3
    assert run((looks, ("echo 1",), named), (forgets, (), {}), note) == ["1"]
    assert len(log.read_text().split()) == 5


def test_one_that_is_strange_spoils_no_other_and_is_told_to_who_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    named: dict[str, Any] = {"log": str(log)}
    look: Step = (looks, ("echo strange", "exit 3", "echo right"), named)
    assert run(look, (notes, ("echo right",), named)) == ["right"]
    assert len(log.read_text().split()) == 3
    assert "strange" not in caplog.text
    for script in ("echo strange", "exit 3"):
        with pytest.raises(PyinfraError):
            run(look, (notes, (script,), named))
    assert "it is strange" in caplog.text
    assert "could not load fact" in caplog.text


def test_a_fact_of_a_program_that_is_not_there_has_its_default() -> None:
    (answers,) = run((together, (asked(Elsewhere, script="echo no"), asked(Said, script="echo yes")), {}))
    assert answers == ["", "yes"]


def test_files_are_looked_at_in_three_processes_however_they_are(tmp_path: Path) -> None:
    for name in ("plain", "with space", "empty"):
        (tmp_path / name).write_text("" if name == "empty" else name)
    (tmp_path / "link").symlink_to("with space")
    (tmp_path / "loose").symlink_to("nowhere")
    (tmp_path / "folder").mkdir(mode=0o700)
    paths = [str(tmp_path / name) for name in ("plain", "with space", "empty", "link", "loose", "folder", "absent")]
    ((states,),) = run((together, (asked(FileStates, paths=paths),), {}))
    assert list(states) == paths[:-1]
    assert {state["kind"] for state in states.values()} == {"regular file", "symbolic link", "directory"}
    assert states[paths[3]]["target"] == "with space"
    assert states[paths[4]]["target"] == "nowhere"
    assert states[paths[5]]["mode"] == "700"
    assert states[paths[2]]["sha256"].startswith("e3b0c442")
    assert [path for path in paths[:-1] if states[path]["sha256"]] == paths[:3]
