"""`prune.py` on this machine: what it removes is ours, and named by nobody."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from beeyard.catalog import PROJECT, load_catalog

LOCK = load_catalog([PROJECT / "presets"]).lock.models["tiny-gemma4"]
KEPT = f"{LOCK.sha256[:12]}/tiny-gemma4.gguf"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A host's prefix with models: named, named by the server before, named by nobody, and somebody else's."""
    made = tmp_path / "é"  # which server.json writes as \\u00e9
    for name in (KEPT, "aaaaaaaaaaaa/old.gguf", "bbbbbbbbbbbb/before.gguf", "mine/own.gguf"):
        file = made / "models" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * 1000)
        if "mine" not in name:
            Path(f"{file}.verified").write_text("stamp")
            Path(f"{file}.lock").touch()
    (made / "models" / "aaaaaaaaaaaa" / "broken.gguf.partial").write_bytes(b"y")
    (made / "models" / "aaaaaaaaaaaa" / "broken.gguf.lock").touch()
    (made / "models" / "aaaaaaaaaaaa" / "broken.gguf.partial.67108864").write_bytes(b"y")
    (made / "models" / "cccccccccccc").mkdir()
    (made / "models" / "cccccccccccc" / "no-stamp.gguf").write_bytes(b"z")
    server = made / "servers" / "0123456789ab"
    server.mkdir(parents=True)
    argv = ["/x/llama-server", "-m", f"{made}/models/bbbbbbbbbbbb/before.gguf"]
    (server / "server.json").write_text(json.dumps({"argv": argv}, indent=1))
    return made


def prune(prefix: Path, *options: str) -> subprocess.CompletedProcess[str]:
    data = ("llama_preset=tiny", f"llama_prefix={prefix}")
    words = [word for pair in data for word in ("--data", pair)]
    return subprocess.run(
        [sys.executable, "-m", "pyinfra", *options, *words, "inventories/local.py", "prune.py"],
        check=False, capture_output=True, text=True, cwd=PROJECT, timeout=120, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYINFRA_PROGRESS": "off"},
    )  # fmt: skip


def files(prefix: Path) -> set[str]:
    models = prefix / "models"
    return {str(file.relative_to(models)) for file in models.rglob("*") if file.suffix in (".gguf", ".partial")}


def test_what_nothing_names_goes_and_the_rest_stays(prefix: Path) -> None:
    before = files(prefix)
    shown = prune(prefix, "--dry")
    assert "aaaaaaaaaaaa/old.gguf (0.00 GB)" in shown.stderr, shown.stderr
    assert files(prefix) == before
    run = prune(prefix, "-y")
    assert run.returncode == 0, run.stderr
    assert files(prefix) == {
        KEPT, "bbbbbbbbbbbb/before.gguf", "cccccccccccc/no-stamp.gguf", "mine/own.gguf"
    }  # fmt: skip
    assert not (prefix / "models" / "aaaaaaaaaaaa").exists()
    assert "everything in" in prune(prefix, "-y").stderr


def test_where_nothing_is_stored_nothing_is_done(tmp_path: Path) -> None:
    run = prune(tmp_path / "none", "-y")
    assert run.returncode == 0, run.stderr
    assert "everything in" in run.stderr
