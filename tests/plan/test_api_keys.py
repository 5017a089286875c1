"""The API key: made once, the same here and there, seen by nobody else."""

from pathlib import Path

import pytest

from beeyard.operations import api_keys
from tests.plan.conftest import Apply

ODD = """sk-"two" 'one' $HOME %p \\ `id` and spaces"""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc" / "api-key", tmp_path / "keys" / "host"


def apply_to(apply: Apply, places: tuple[Path, Path], given: str | None = None) -> int:
    there, here = places
    return apply(api_keys.present, path=str(there), owner=None, local=str(here), given=given)


def test_it_makes_a_key_of_at_least_32_characters_then_leaves_it(apply: Apply, places: tuple[Path, Path]) -> None:
    assert apply_to(apply, places) > 0
    there, here = places
    assert there.read_text() == here.read_text()
    assert len(there.read_text().strip()) >= 32
    assert [path.stat().st_mode & 0o777 for path in places] == [0o600, 0o600]
    assert apply_to(apply, places) == 0


def test_it_takes_over_the_hosts_own_key(apply: Apply, places: tuple[Path, Path]) -> None:
    there, here = places
    there.write_text("made-by-another-controller-0123456789\n")
    there.chmod(0o600)
    assert apply_to(apply, places) > 0
    assert here.read_text() == "made-by-another-controller-0123456789\n"
    assert apply_to(apply, places) == 0


@pytest.mark.parametrize("damage", ["content", "mode", "gone"])
def test_it_repairs_the_hosts_key(apply: Apply, places: tuple[Path, Path], damage: str) -> None:
    apply_to(apply, places)
    there, here = places
    match damage:
        case "content":
            there.write_text("changed\n")
        case "mode":
            there.chmod(0o644)
        case _:
            there.unlink()
    assert apply_to(apply, places) > 0
    assert there.read_text() == here.read_text()
    assert there.stat().st_mode & 0o777 == 0o600
    assert apply_to(apply, places) == 0


def test_a_given_key_may_hold_anything(
    apply: Apply, places: tuple[Path, Path], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert apply_to(apply, places, ODD) > 0
    assert [path.read_text() for path in places] == [f"{ODD}\n"] * 2
    assert apply_to(apply, places, ODD) == 0
    assert ODD not in "".join(capfd.readouterr()) + caplog.text
