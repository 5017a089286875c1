"""Files, directories and links: put right once, then left alone, one thing at a time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from beeyard.operations import file_set
from beeyard.operations.file_set import Directory, File, Item, Link
from tests.plan.conftest import Apply


@pytest.fixture
def items(tmp_path: Path) -> list[Item]:
    base = f"{tmp_path}/a place with $PACES"
    return [
        Directory(base),
        Directory(f"{base}/in"),
        File(f"{base}/in/plain.txt", b"line\nwith 'quotes' and $HOME and \x00 bytes\xff"),
        File(f"{base}/in/secret", b"hush", mode="600"),
        Link(f"{base}/current", "in/plain.txt"),
    ]


def test_it_writes_all_then_changes_nothing(apply: Apply, items: list[Item]) -> None:
    assert apply(file_set.present, items=items) == len(items)
    for item in items:
        path = Path(item.path)
        if isinstance(item, File):
            assert path.read_bytes() == item.content
            assert f"{path.stat().st_mode & 0o777:o}" == item.mode
    assert apply(file_set.present, items=items) == 0


def test_it_repairs_what_was_damaged_and_only_that(apply: Apply, items: list[Item]) -> None:
    apply(file_set.present, items=items)
    folder, _, plain, secret, link = (Path(item.path) for item in items)

    def redirect() -> None:
        link.unlink()
        link.symlink_to("elsewhere")

    damages: list[Callable[[], object]] = [
        lambda: plain.write_text("edited"),
        lambda: secret.chmod(0o644),
        redirect,
        link.unlink,
        lambda: folder.chmod(0o777),
    ]
    for damage in damages:
        damage()
        assert apply(file_set.present, items=items) == 1
        assert apply(file_set.present, items=items) == 0
