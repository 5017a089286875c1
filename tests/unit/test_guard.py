"""The parts of the guard that need no server: what is nonsense, and what it makes of a broken host."""

import json
from pathlib import Path

import pytest

from beeyard.onhost.guard import GateFailed, Refused, Server, current, main, nonsense

GOOD = [
    "The quick brown bees visit every flower in the garden before the rain begins.",
    "bee honey hive queen worker drone pollen nectar comb wax wing",
    "def push(self, item):\n    self.items.append(item)\n",
    "ja",
    "```",
    "The bees fly. The bees fly. The bees fly. The bees fly.",
]
BAD = {
    "": "empty",
    " \n\t ": "empty",
    "/" * 64: "one token",
    "bee " * 20: "one token",
    "\n\n?\n\n?" * 12: "one token",
}


@pytest.mark.parametrize("text", GOOD)
def test_real_answers_pass(text: str) -> None:
    assert nonsense(text) is None


@pytest.mark.parametrize(("text", "fault"), BAD.items())
def test_nonsense_is_named(text: str, fault: str) -> None:
    assert (nonsense(text) or "").startswith(fault)


def server(prefix: Path, key: str) -> Server:
    folder = prefix / "servers" / "abc"
    folder.mkdir(parents=True)
    (prefix / "key").write_text(key)
    facts = {"argv": ["x"], "url": "http://127.0.0.1:1", "port": 1, "title": "t", "api_key_file": str(prefix / "key")}
    (folder / "server.json").write_text(json.dumps(facts))
    return Server(folder)


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n"])
def test_a_key_file_without_a_key_never_passes(tmp_path: Path, content: str) -> None:
    with pytest.raises(GateFailed, match="holds no key, so anyone could use it"):
        server(tmp_path, content).key()


def test_the_key_is_taken_as_it_is(tmp_path: Path) -> None:
    assert server(tmp_path, '# note\nsk-\'a "b" $c %d\n').key() == 'sk-\'a "b" $c %d'


def test_a_host_where_nothing_was_deployed_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert current(tmp_path) is None
    assert main(["state", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"current": None}
    assert main(["gate", str(tmp_path)]) == 4
    assert "Fix: deploy first" in capsys.readouterr().err


def test_a_definition_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="Fix: deploy again"):
        Server(tmp_path / "servers" / "gone")
