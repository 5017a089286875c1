"""Locking against a Hub that speaks the real one's API, its refusals included."""

import hashlib
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGUFWriter

from beeyard.catalog import PROJECT, CatalogError, HubFile, load_catalog
from beeyard.hub import file_url, lock_file
from beeyard.lockfile import add_model

COMMIT = "1234567890abcdef1234567890abcdef12345678"


def model(words: int = 300, architecture: str = "gemma4") -> bytes:
    """A GGUF file of a header and a little more."""
    with tempfile.TemporaryDirectory() as folder:
        writer = GGUFWriter(f"{folder}/m.gguf", architecture)
        writer.add_block_count(60)
        writer.add_head_count(32)
        writer.add_head_count_kv([16] * 5 + [4])
        writer.add_sliding_window(1024)
        writer.add_token_list([f"word{number}" for number in range(words)])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return Path(f"{folder}/m.gguf").read_bytes() + bytes(range(256)) * 40


CONTENT = model()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A running Hub, HF_ENDPOINT set to it; returns the folder of its one repository, bees/honey."""
    repository = tmp_path / "models" / "bees" / "honey"
    repository.mkdir(parents=True)
    (repository / "honey-Q4.gguf").write_bytes(CONTENT)
    (repository / ".revision").write_text(COMMIT)
    port, cdn = free_port(), free_port()
    script = str(PROJECT / "tests" / "testbed" / "hub.py")
    options = ["--root", str(tmp_path), "--host", "127.0.0.1", "--port", str(port), "--cdn-port", str(cdn)]
    process = subprocess.Popen([sys.executable, script, *options])
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield repository
    process.terminate()
    process.wait(10)


def source(repository: str = "bees/honey", file: str = "honey-Q4.gguf", revision: str = "main") -> HubFile:
    return HubFile(kind="hub", repository=repository, file=file, revision=revision)


def test_it_locks_commit_size_and_sha256(hub: Path) -> None:
    found = lock_file(source())
    assert found.size == len(CONTENT)
    assert found.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert found.revision == COMMIT
    assert file_url(source(), COMMIT).endswith(f"/bees/honey/resolve/{COMMIT}/honey-Q4.gguf")
    assert hub.is_dir()


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (
            source(repository="bees/wasps"),
            "bees/wasps does not exist, or is private. Fix: correct its name, or set HF_TOKEN",
        ),
        (source(file="honey-Q5.gguf"), "has no honey-Q5.gguf. Fix: use one of: honey-Q4.gguf"),
        (source(revision="v9"), "there is no such revision"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_refusals_are_told_apart(wanted: HubFile, complaint: str) -> None:
    with pytest.raises(CatalogError, match=re.escape(complaint)):
        lock_file(wanted)


def test_a_hub_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(CatalogError, match="Fix: check the network"):
        lock_file(source())


def test_a_token_with_white_space_inside_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_CANARY two")
    with pytest.raises(CatalogError) as error:
        lock_file(source())
    assert "CANARY" not in str(error.value)


def test_the_lock_keeps_its_comments_and_its_other_lines(hub: Path, tmp_path: Path) -> None:
    file = tmp_path / "lock.yaml"
    before = (
        "# kept\nengines: {}\nmodels:\n  a:  # kept too\n    size: 1\n  smollm2-135m-instruct-q4_1:\n    size: 5\n"
    )
    file.write_text(before)
    add_model(file, "smollm2-135m-instruct-q4_1", lock_file(source()))
    add_model(file, "tiny-stuck", lock_file(source()))
    text = file.read_text()
    assert text.startswith("# kept\nengines: {}\nmodels:\n  a:  # kept too\n    size: 1\n")
    assert text.count(f"size: {len(CONTENT)}") == 2
    assert "size: 5" not in text
    assert hub.is_dir()


def test_the_shipped_lock_is_what_the_tool_would_write(tmp_path: Path) -> None:
    shipped = PROJECT / "presets" / "lock.yaml"
    copy = tmp_path / "lock.yaml"
    copy.write_text(shipped.read_text())
    for name, entry in load_catalog([PROJECT / "presets"]).lock.models.items():
        add_model(copy, name, entry)
    assert copy.read_text() == shipped.read_text()
