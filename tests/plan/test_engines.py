"""Engines out of tarballs, on this machine: what is refused, and in which words."""

import hashlib
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from beeyard.catalog import PROJECT
from beeyard.operations import engines
from tests.operations import Failed
from tests.plan.conftest import Apply

ONHOST = PROJECT / "beeyard" / "onhost"
RUNS = "#!/bin/sh\necho version: 1\n"
Arguments = Callable[..., dict[str, Any]]


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Arguments]:
    """The arguments for an engine in a tarball with these files, which a server on loopback has."""
    served = tmp_path / "served"
    served.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(served))) as server:
        Thread(target=server.serve_forever, daemon=True).start()

        def made(files: dict[str, str], **changed: Any) -> dict[str, Any]:
            tarball = served / "engine.tar.gz"
            with tarfile.open(tarball, "w:gz") as archive:
                for name, text in files.items():
                    file = tmp_path / "file"
                    file.write_text(text)
                    archive.add(file, name)
            content = tarball.read_bytes()
            return {
                "directory": str(tmp_path / "engines" / "engine"),
                "binary": "llama-server",
                "url": f"http://127.0.0.1:{server.server_port}/engine.tar.gz",
                "size": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "fetch": str(ONHOST / "fetch.sh"),
                "accelerator": "cpu",
                "tool": str(ONHOST / "engine.sh"),
                **changed,
            }

        yield made
        server.shutdown()


def left(arguments: dict[str, Any]) -> list[str]:
    folder = Path(arguments["directory"]).parent
    return sorted(file.name for file in folder.iterdir() if file.suffix != ".lock") if folder.exists() else []


def test_a_tarball_becomes_an_engine_once(apply: Apply, release: Arguments) -> None:
    arguments = release({"llama-server": RUNS, "libx.so": "x"})
    assert apply(engines.from_release, **arguments) > 0
    assert left(arguments) == ["engine"]
    assert apply(engines.from_release, **arguments) == 0


@pytest.mark.parametrize(
    "damage",
    ["rm llama-server", "truncate --size=0 libx.so", "echo y >libx.so", "chmod -x llama-server", "touch new"],
)
def test_a_damaged_engine_is_brought_again(apply: Apply, release: Arguments, damage: str) -> None:
    arguments = release({"llama-server": RUNS, "libx.so": "x"})
    apply(engines.from_release, **arguments)
    subprocess.run(["sh", "-c", damage], check=True, cwd=arguments["directory"])
    assert apply(engines.from_release, **arguments) > 0
    assert apply(engines.from_release, **arguments) == 0
    assert Path(arguments["directory"], "libx.so").read_text() == "x"


def said(
    apply: Apply, capfd: pytest.CaptureFixture[str], arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> str:
    with pytest.raises(Failed):
        apply(engines.from_release, **arguments)
    return capfd.readouterr().err + caplog.text


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (
            {"build/bin/llama-server": RUNS},
            "no llama-server; its llama-server is build/bin/llama-server. Fix: set artefact.binary to build/bin/",
        ),
        ({"README": "x", "llama-cli": "x"}, "the engine has no llama-server; there is README, llama-cli. Fix: pack"),
        ({"llama-server": "#!/bin/sh\necho no; exit 132\n"}, "the engine does not run here (exit 132): no. Fix: "),
    ],
    ids=["deeper", "none", "does-not-run"],
)  # fmt: skip
def test_a_tarball_that_holds_no_engine_is_told_apart(
    apply: Apply, release: Arguments, files: dict[str, str], complaint: str, capfd: Any, caplog: Any
) -> None:
    arguments = release(files)
    assert complaint in said(apply, capfd, arguments, caplog)
    assert "engine" not in left(arguments)


def test_a_binary_deeper_in_the_tarball_is_used_where_the_preset_names_it(apply: Apply, release: Arguments) -> None:
    arguments = release({"build/bin/llama-server": RUNS}, binary="build/bin/llama-server")
    assert apply(engines.from_release, **arguments) > 0
    assert apply(engines.from_release, **arguments) == 0


def test_a_tarball_with_another_hash_is_refused(apply: Apply, release: Arguments, capfd: Any, caplog: Any) -> None:
    arguments = release({"llama-server": RUNS}, sha256="0" * 64)
    assert f"with sha256 {'0' * 64} are wanted" in said(apply, capfd, arguments, caplog)
    assert left(arguments) == ["engine.tar.gz.wrong-sha256"]


def test_what_is_no_tarball_is_told_so(
    apply: Apply, release: Arguments, tmp_path: Path, capfd: Any, caplog: Any
) -> None:
    arguments = release({"x": "x"})
    (tmp_path / "served" / "engine.tar.gz").write_bytes(b"PK 12345")
    arguments |= {"size": 8, "sha256": hashlib.sha256(b"PK 12345").hexdigest()}
    assert "the engine's tarball cannot be unpacked (" in said(apply, capfd, arguments, caplog)
