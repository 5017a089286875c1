"""Operations on this machine, and a small Hub."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from gguf import GGUFWriter

from beeyard.catalog import PROJECT
from tests.apt_root import AptRoot
from tests.operations import applied

Apply = Callable[..., int]


@pytest.fixture
def apply() -> Apply:
    """Apply an operation to @local; returns how many commands it needed: 0 means that nothing was to be done."""
    return partial(applied, "@local", {})


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


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AptRoot]:
    """A system with a repository of one package, bees."""
    if os.geteuid() != 0:
        pytest.skip("packages are root's")
    root = AptRoot(tmp_path / "root", free_port())
    root.package("bees", files={"/etc/bees.conf": "as packed\n"})
    root.publish()
    for key, value in root.environment.items():
        monkeypatch.setenv(key, value)
    process = root.serve()
    yield root
    process.terminate()
    process.wait(10)
