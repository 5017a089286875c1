"""Key files on this machine: private, written whole, and all known to what must not show them."""

from pathlib import Path

import pytest

from beeyard import keys


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(keys, "KEYS", tmp_path / "keys")
    monkeypatch.setattr(keys, "GATEWAY", tmp_path / "gateway")
    monkeypatch.delenv(keys.VARIABLE, raising=False)
    return tmp_path


def test_a_key_is_made_once_and_its_owners_alone(folders: Path) -> None:
    first = keys.inner_key("tiny")
    assert keys.inner_key("tiny") == first != keys.inner_key("smol")
    file = folders / "gateway" / "inner-tiny"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_key_that_is_written_again_stays_private(folders: Path) -> None:
    file = folders / "keys" / "attic"
    keys.write_private(file, b"one\n")
    file.chmod(0o644)
    keys.write_private(file, b"two\n")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("two\n", 0o600)
    assert [path.name for path in file.parent.iterdir()] == ["attic"]
    assert keys.known_key("attic") == "two"
    assert keys.known_key("cellar") is None


def test_hosts_and_gateways_keys_are_all_secrets() -> None:
    assert keys.every_secret() == []
    keys.write_private(keys.key_copy("@local"), b"of-the-host\n")
    keys.write_private(keys.GATEWAY / "users" / "alice", b"of-alice\n")
    assert keys.every_secret() == ["of-the-host", "of-alice"]
