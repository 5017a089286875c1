"""Engines on a real host: side by side, back and forward, damaged and mended, from tarballs and from source."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from beeyard.catalog import PROJECT
from tests.engine_wheel import real_engine
from tests.testbed.conftest import Bed

pytestmark = [pytest.mark.hosts("light"), pytest.mark.usefixtures("light")]
PREFIX = "/opt/beeyard"
ENGINES = f"{PREFIX}/engines"
TOOL = str(PROJECT / "beeyard" / "onhost" / "engine.sh")
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "core.compression=0"]
# Two units, of which a file on the host breaks one; then a step that a file on the host makes endless.
CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(engine C)
add_library(units OBJECT first.c second.c)
file(GLOB prebuilt ${CMAKE_SOURCE_DIR}/prebuilt/*)
add_custom_target(llama-server
  COMMAND sh -c "test ! -e /tmp/beeyard-hold || exec sleep 61"
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/bin
  COMMAND ${CMAKE_COMMAND} -E copy ${prebuilt} ${CMAKE_BINARY_DIR}/bin
  VERBATIM)
add_dependencies(llama-server units)
"""
SECOND = """\
#if __has_include("/tmp/beeyard-broken")
#error the second unit is broken
#endif
int second(void) { return 2; }
"""


def engines(bed: Bed) -> dict[str, str]:
    """What is in the light host's engines folder, the links with what they lead to."""
    rows = bed.sh("light", f"cd {ENGINES} && find . -mindepth 1 -maxdepth 1 -printf '%f %l\\n'").splitlines()
    return {name: target for name, _, target in (row.partition(" ") for row in rows)}


def link(bed: Bed, name: str) -> str:
    """The engine that a link leads to, without its digest."""
    return engines(bed).get(name, "").rpartition("-")[0]


def test_with_no_server_before_it_there_is_nothing_to_go_back_to(bed: Bed) -> None:
    run = bed.rollback("light")
    assert run.code != 0
    assert "no server was deployed here. Fix: deploy first" in run.stderr
    assert bed.deploy("light", llama_engine="good").code == 0
    serving = bed.serving("light")
    run = bed.rollback("light")
    assert run.code != 0
    assert "there is no server before this one here. Fix: deploy what you want" in run.stderr
    assert bed.serving("light") == serving


def test_a_rollback_returns_to_engine_and_spec_and_a_second_one_goes_forward_again(bed: Bed) -> None:
    before = bed.serving("light")
    run = bed.deploy("light", llama_engine="good-too", llama_variant="baseline")
    assert run.code == 0, run.output
    after = bed.serving("light")
    assert link(bed, "current") == "good-too"
    assert link(bed, "previous") == "good"
    for there, serves, engine in (("tiny dflash", before, "good"), ("tiny baseline", after, "good-too")):
        run = bed.rollback("light")
        assert run.code == 0, run.output
        assert bed.serving("light") == serves
        assert link(bed, "current") == engine
        assert f"to {there} on test engine {engine}" in run.stderr
        assert "the next deploy brings what the inventory says" in run.stderr


def test_a_rollback_that_fails_the_gate_ends_in_the_server_that_ran(bed: Bed) -> None:
    serving, links = bed.serving("light"), engines(bed)
    (binary,) = (f"{ENGINES}/{target}/llama-server" for name, target in links.items() if name == "previous")
    bed.sh(
        "light",
        f"mv {binary} {binary}.good; printf '#!/bin/sh\\necho out of order; exit 3\\n' >{binary}; chmod +x {binary}",
    )
    try:
        run = bed.rollback("light")
        assert run.code != 0
        assert "tiny dflash on test engine good failed the gate" in run.stderr
        assert "out of order" in run.stderr
        assert bed.serving("light") == serving
        assert engines(bed) == links
    finally:
        bed.sh("light", f"mv {binary}.good {binary}")


def test_a_damaged_engine_is_noticed_and_brought_again_by_the_next_deploy(bed: Bed) -> None:
    data: dict[str, Any] = {"llama_engine": "good-too", "llama_variant": "baseline"}
    bed.sh("light", f"cd {ENGINES}/current/ && truncate --size=1000 libmtmd.so.0 && rm llama-server")
    run = bed.deploy("light", **data)
    assert run.code == 0, run.output
    assert "is damaged: libmtmd.so.0, llama-server. It is brought again" in run.stderr
    assert bed.state("light")["runs_its_command"] is True
    assert bed.sh("light", f"sh {PREFIX}/bin/engine.sh look $(readlink -f {ENGINES}/current)") == "intact"


# ------------------------------------------------------------------------------------- compiled on the host


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, bed: Bed) -> Iterator[tuple[str, str]]:
    """A git server on this machine that the light host reaches, and the commit there that makes a real engine."""
    base = tmp_path_factory.mktemp("git")
    tree = base / "engine"
    (tree / "prebuilt").mkdir(parents=True)
    for name, content in real_engine():
        (tree / "prebuilt" / name).write_bytes(content)
        (tree / "prebuilt" / name).chmod(0o755)
    (tree / "CMakeLists.txt").write_text(CMAKE)
    (tree / "first.c").write_text("int first(void) { return 1; }\n")
    (tree / "second.c").write_text(SECOND)
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*GIT, "-C", str(tree), *words], check=True)
    for setting in ("uploadpack.allowAnySHA1InWant=true", "pack.compression=0"):
        subprocess.run(["git", "-C", str(tree), "config", *setting.split("=")], check=True)
    commit = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    # The hosts' way out leads to this machine.
    here = bed.sh("light", "ip route show default").split()[2]
    with socket.socket() as found:
        found.bind((here, 0))
        port = found.getsockname()[1]
    command = ["git", "daemon", "--reuseaddr", "--export-all", f"--base-path={base}", f"--listen={here}"]
    with subprocess.Popen([*command, f"--port={port}"], stderr=subprocess.DEVNULL) as server:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex((here, port)) == 0:
                    break
            time.sleep(0.05)
        yield f"git://{here}:{port}/engine/.git", commit
        server.terminate()


@pytest.fixture
def compiled(bed: Bed, source: tuple[str, str], tmp_path: Path) -> dict[str, Any]:
    """What a deploy is given, so that the light host compiles its engine."""
    mirror, commit = source
    engine = {
        "title": "test engine compiled", "repository": "https://example.invalid/engine", "commit": commit,
        "dialect": "llama.cpp", "flags": "llama.cpp-b10068", "accelerator": "cpu", "packages": ["libgomp1"],
        "artefact": {"kind": "source", "mirror": mirror},
    }  # fmt: skip
    (tmp_path / "engines.yaml").write_text(yaml.safe_dump({"compiled": engine}))
    presets = os.pathsep.join([bed.environment["BEEYARD_PRESETS"], str(tmp_path)])
    return {"env": {"BEEYARD_PRESETS": presets}, "llama_engine": "compiled"}


def test_a_unit_that_does_not_compile_is_named_and_stops_nothing(bed: Bed, compiled: dict[str, Any]) -> None:
    serving = bed.serving("light")
    bed.sh("light", "touch /tmp/beeyard-broken")
    try:
        run = bed.deploy("light", **compiled)
    finally:
        bed.sh("light", "rm /tmp/beeyard-broken")
    assert run.code != 0
    assert "the engine does not compile: CMakeFiles/units.dir/second.c.o (" in run.stderr
    assert "#error the second unit is broken" in run.stderr
    assert "Fix: " in run.stderr
    assert f"tail -F {PREFIX}/log/build.log" in run.stderr
    assert bed.serving("light") == serving


def build(bed: Bed, name: str, repository: str, commit: str) -> str:
    """What the deploy has the host do, and what came of it; a shell's words."""
    return f"sh {PREFIX}/bin/engine.sh build {ENGINES}/{name} llama-server cpu '' {repository} {commit}"


def test_a_commit_that_is_not_in_the_repository_is_named(bed: Bed, source: tuple[str, str]) -> None:
    said = bed.sh("light", build(bed, "nowhere-0", source[0], "1" * 40) + " 2>&1", check=False)
    assert said.startswith(f"commit {'1' * 40} is not in {source[0]}. Fix: correct the engine's commit")


def test_a_repository_that_does_not_answer_is_named(bed: Bed) -> None:
    said = bed.sh("light", build(bed, "nowhere-0", "git://127.0.0.1:1/engine", "1" * 40) + " 2>&1", check=False)
    assert said.startswith(f"git://127.0.0.1:1/engine does not give commit {'1' * 40} (fatal: ")
    assert "Fix: check that this host reaches it, or name a mirror" in said


def test_a_killed_build_goes_on_where_it_was(bed: Bed, compiled: dict[str, Any], source: tuple[str, str]) -> None:
    name = bed.sh("light", f"basename {PREFIX}/build/compiled-*")
    bed.sh("light", f"touch /tmp/beeyard-hold; nohup {build(bed, name, *source)} >/dev/null 2>&1 </dev/null & exit 0")
    deadline = time.monotonic() + 60
    while not bed.sh("light", "pgrep -f '[s]leep 61' || true"):
        assert time.monotonic() < deadline, bed.sh("light", f"tail {PREFIX}/log/build.log")
        time.sleep(0.2)
    killed = bed.sh(
        "light",
        "pkill -9 -f '[e]ngine.sh (build )?/opt'; pkill -9 ninja; pkill -9 -f '[s]leep 61'; "
        f"rm /tmp/beeyard-hold; grep -c 'Building C object' {PREFIX}/log/build.log",
    )
    assert killed == "1"  # the first of two had been compiled before the second failed
    run = bed.deploy("light", **compiled)
    assert run.code == 0, run.output
    log = bed.sh("light", f"cat {PREFIX}/log/build.log")
    assert "compiling with" in log
    assert "Building C object" not in log


def test_what_was_compiled_serves_and_of_the_older_engines_one_is_kept(bed: Bed, compiled: dict[str, Any]) -> None:
    bed.sh("light", f"mkdir -p {ENGINES}/of-somebody-else")
    assert bed.deploy("light", **compiled).changed == []
    assert "/engines/compiled-" in bed.serving("light")[0]
    assert link(bed, "current") == "compiled"
    names = {name.rpartition("-")[0] for name, target in engines(bed).items() if not target}
    assert names == {"compiled", "good-too", "of-somebody"}
    assert bed.sh("light", f"ls {PREFIX}/build") == "lock"


# ------------------------------------------------------------------------------------- what an engine must be


def put(folder: Path, binary: str = "llama-server") -> subprocess.CompletedProcess[str]:
    """What a host does with an engine that it unpacked."""
    command = ["sh", TOOL, "put", str(folder), str(folder.parent / "engine"), binary, "cpu"]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_library_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    for name, content in real_engine():
        if name not in ("libmtmd.so.0", "libggml-base.so.0"):
            (folder / name).write_bytes(content)
    run = put(folder)
    assert run.returncode != 0
    assert run.stderr.startswith(
        "the engine misses libggml-base.so.0, libmtmd.so.0 here. Fix: put the library beside"
    )
    assert list(tmp_path.iterdir()) == []
