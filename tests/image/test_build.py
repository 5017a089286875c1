"""Builds that cannot end well: each ends in one sentence with its Fix, and leaves no image."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from beeyard.catalog import PROJECT
from tests import engine_image

SCRIPT = PROJECT / "image" / "build-engine.sh"
# What nvcc 12.4 says, as far as the script asks it.
NVCC = """#!/bin/sh
case $1 in
--list-gpu-arch) for arch in 50 52 53 60 61 62 70 72 75 80 86 87 89 90; do echo "compute_$arch"; done ;;
--version) echo "Cuda compilation tools, release 12.4, V12.4.131" ;;
esac
"""
ENGINE = """\
cmake_minimum_required(VERSION 3.18)
project(engine C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_executable(llama-server main.c)
"""
MAIN = """\
#include <stdio.h>
int main(void) { puts("--model FNAME\\n--port PORT"); return 0; }
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The smallest source that passes for an engine's."""
    made = tmp_path / "source"
    made.mkdir()
    (made / "CMakeLists.txt").write_text(ENGINE)
    (made / "main.c").write_text(MAIN)
    return made


def script(tmp_path: Path, tree: Path, tools: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """The script that compiles, with some tools in front of the real ones."""
    tools_dir = tmp_path / "bin"
    tools_dir.mkdir(exist_ok=True)
    for name, text in tools.items():
        executable(tools_dir / name, text)
    env = {
        **os.environ, "PATH": f"{tools_dir}:{os.environ['PATH']}", "NVCC": str(tools_dir / "nvcc"),
        "GPUS": str(PROJECT / "presets" / "gpus.yaml"), "BUILD_DIR": str(tmp_path / "build"),
        "CCACHE_DIR": str(tmp_path / "ccache"), "ACCELERATOR": "cuda", "CUDA_ARCHITECTURES": "",
        "FA_ALL_QUANTS": "ON", "JOBS": "auto", "ENGINE_COMMIT": "0" * 40, "SOURCE_DATE_EPOCH": "0", **variables,
    }  # fmt: skip
    return subprocess.run(
        ["bash", str(SCRIPT), str(tree), str(tmp_path / "layer/opt/llama")],
        check=False, capture_output=True, text=True, env=env, timeout=120,
    )  # fmt: skip


CMAKE = '#!/bin/sh\ncase $1 in -S) mkdir -p "$4"; echo "configured: $*" ;; *) echo "$OUTPUT"; exit 1 ;; esac\n'


@pytest.mark.case("BLD-01", "BLD-06")
def test_the_default_is_every_card_that_this_cuda_knows(tmp_path: Path, tree: Path) -> None:
    run = script(tmp_path, tree, {"nvcc": NVCC, "cmake": CMAKE}, CONFIGURE_ONLY="1")
    assert run.returncode == 0, run.stderr
    assert "architectures: 80;86;89;90\n" in run.stderr
    for option in (
        "-DGGML_CUDA=ON", "-DGGML_CUDA_FA_ALL_QUANTS=ON", "-DGGML_CUDA_NCCL=OFF", "-DGGML_NATIVE=OFF",
        # libcuda is the driver's, which no build has; and nothing is downloaded for the web UI.
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
    ):  # fmt: skip
        assert f" {option}" in run.stdout
    assert " -DCMAKE_CUDA_ARCHITECTURES=80-real;86-real;89-real;90-real " in run.stdout
    assert "native" not in run.stdout.replace("GGML_NATIVE", "")


@pytest.mark.case("BLD-09")
def test_a_compiler_that_nvcc_takes_is_used_for_everything(tmp_path: Path, tree: Path) -> None:
    run = script(tmp_path, tree, {"nvcc": NVCC, "cmake": CMAKE}, CONFIGURE_ONLY="1", HOST_CXX="/usr/bin/g++-13")
    for option in (
        "C_COMPILER=/usr/bin/gcc-13",
        "CXX_COMPILER=/usr/bin/g++-13",
        "CUDA_HOST_COMPILER=/usr/bin/g++-13",
    ):
        assert f" -DCMAKE_{option}" in run.stdout


def test_a_source_with_the_newer_name_for_all_quants_gets_that(tmp_path: Path, tree: Path) -> None:
    (tree / "ggml").mkdir()
    (tree / "ggml" / "CMakeLists.txt").write_text('set(GGML_CUDA_FA_QUANTS "" CACHE STRING "")\n')
    for wanted, option in (("ON", "-DGGML_CUDA_FA_QUANTS=all"), ("OFF", "-DGGML_CUDA_FA_ALL_QUANTS=OFF")):
        run = script(tmp_path, tree, {"nvcc": NVCC, "cmake": CMAKE}, CONFIGURE_ONLY="1", FA_ALL_QUANTS=wanted)
        assert f" {option} " in run.stdout


@pytest.mark.case("BLD-02")
@pytest.mark.parametrize(
    ("architectures", "complaint"),
    [
        (
            "89;120",
            "CUDA 12.4 does not know architecture 120 (NVIDIA GeForce RTX 5090), which wants CUDA 12.8 or newer",
        ),
        ("120a-real", "does not know architecture 120 (NVIDIA GeForce RTX 5090)"),
        ("77", "CUDA 12.4 does not know architecture 77, and no card of presets/gpus.yaml has it"),
        ("native", "CUDA architecture 'native' cannot be known in a build"),
        ("x", "CUDA architecture 'x' is not a number"),
        ("89-virtual", "CUDA architecture '89-virtual' is not a number"),
        ("120f", "CUDA architecture '120f' is not a number"),
    ],
)
def test_an_architecture_that_cuda_does_not_know_stops_before_the_first_file(
    tmp_path: Path, tree: Path, architectures: str, complaint: str
) -> None:
    run = script(tmp_path, tree, {"nvcc": NVCC, "cmake": CMAKE}, CUDA_ARCHITECTURES=architectures)
    assert run.returncode != 0
    assert complaint in run.stderr
    assert "Fix: " in run.stderr
    assert "configured" not in run.stdout


@pytest.mark.case("BLD-04")
@pytest.mark.parametrize(
    ("output", "jobs", "complaint"),
    [
        ("Killed signal terminated program cc1plus", "8", "want of memory at 8 jobs. Fix: build with JOBS=4"),
        ("'cicc' died due to signal 9\nKilled", "1", "memory with 1 job. Fix: give the build more memory"),
        ("x.o: No space left on device", "2", "the disk is full. Fix: free space where Docker keeps its data"),
        ("x.c:1: error: y", "2", "the engine does not compile (x.c:1: error: y). Fix: read the first error above"),
        ("FAILED: [code=1] a/x.o\nx.c:2: error: y", "2", "engine does not compile: a/x.o (x.c:2: error: y). Fix: "),
    ],
)  # fmt: skip
def test_a_compiler_that_fails_is_told_apart(
    tmp_path: Path, tree: Path, output: str, jobs: str, complaint: str
) -> None:
    run = script(tmp_path, tree, {"cmake": CMAKE}, ACCELERATOR="cpu", OUTPUT=output, JOBS=jobs)
    assert run.returncode != 0
    assert complaint in run.stderr


@pytest.mark.case("BLD-04")
def test_jobs_go_by_memory_as_well_as_by_cores(tmp_path: Path, tree: Path) -> None:
    run = script(tmp_path, tree, {"cmake": CMAKE, "nproc": "#!/bin/sh\necho 4096\n"}, ACCELERATOR="cpu", OUTPUT="x")
    memory = int(run.stdout.split(" MiB of memory")[0].rpartition(" ")[2])
    assert f"compiling with {memory // 1024} jobs (4096 cores" in run.stdout


def test_a_folder_without_an_engine_is_refused(tmp_path: Path) -> None:
    run = script(tmp_path, tmp_path, {"cmake": CMAKE}, ACCELERATOR="cpu")
    assert f"there is no engine in {tmp_path}. Fix: " in run.stderr


# ------------------------------------------------------------------------------------- through `beeyard image`


def image(presets: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    run = engine_image.beeyard("image", *words, presets=presets, env=env)
    assert "Traceback" not in run.stderr
    return run


def changed(presets: Path, tmp_path: Path, **tables: dict[str, Any]) -> Path:
    """The presets with some tables replaced."""
    folder = tmp_path / "presets"
    shutil.copytree(presets, folder)
    for name, table in tables.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(table))
    return folder


def test_an_unlocked_base_is_refused_with_the_command_that_locks_it(presets: Path) -> None:
    run = image(presets, "cuda12")
    assert run.returncode == 2
    assert "has no digest in presets/lock.yaml. Fix: run `make lock-images`" in run.stderr


def test_a_base_that_cannot_be_had_is_named(presets: Path, tmp_path: Path) -> None:
    base = "127.0.0.1:9/bees/base:1"
    folder = changed(
        presets, tmp_path, images={"cpu": {"build_base": base, "server_base": base}}, lock={"bases": {base: "local"}}
    )
    run = image(folder, "cpu", "--engine", engine_image.ENGINE, "--source", str(engine_image.SOURCE))
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith(f"the base image {base} cannot be had. Fix: ")


@pytest.fixture
def repository(tree: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a git server on loopback that has the tree in one commit; its commit is in `commit`."""
    bare = tmp_path / "git" / "engine.git"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(tree)]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run(["git", "clone", "--quiet", "--bare", str(tree), str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "config", "uploadpack.allowAnySHA1InWant", "true"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / "commit").write_text(commit)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = ["git", "daemon", "--reuseaddr", "--export-all", f"--base-path={bare.parent}", "--listen=127.0.0.1"]
    with subprocess.Popen([*command, f"--port={port}"], stderr=subprocess.DEVNULL) as server:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"git://127.0.0.1:{port}/engine"
        server.terminate()


def pinned(presets: Path, tmp_path: Path, repository: str, commit: str) -> Path:
    engine = {**engine_image.TABLES["engines"][engine_image.ENGINE], "repository": repository, "commit": commit}
    return changed(presets, tmp_path, engines={"small": {**engine, "title": "a small engine"}})


def test_the_pinned_commit_is_what_is_built(presets: Path, tmp_path: Path, repository: str) -> None:
    folder = pinned(presets, tmp_path, repository, (tmp_path / "commit").read_text())
    run = image(folder, "cpu", "--engine", "small")
    assert run.returncode == 0, run.stderr[-2000:]
    assert "beeyard:small-cpu: " in run.stdout
    subprocess.run(
        ["docker", "image", "rm", "beeyard:small-cpu"], check=True, env={**os.environ, **engine_image.DOCKER}
    )


def test_a_commit_that_does_not_exist_is_named(presets: Path, tmp_path: Path, repository: str) -> None:
    run = image(pinned(presets, tmp_path, repository, "1" * 40), "cpu", "--engine", "small")
    assert run.returncode == 2
    said = run.stderr.splitlines()[-1]
    assert said.startswith(f"commit {'1' * 40} is not in {repository}")
    assert said.endswith("Fix: correct the engine's commit in presets/engines.yaml")


def test_a_machine_without_docker_is_told_so(presets: Path, tmp_path: Path) -> None:
    run = image(presets, "cpu", "--engine", engine_image.ENGINE, PATH=str(tmp_path))
    assert (run.returncode, run.stderr) == (
        2, "there is no docker on this machine. Fix: install Docker Engine with buildx, then run again\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        (
            "version) echo 'Cannot connect to the Docker daemon' >&2; exit 1 ;;",
            "the Docker Engine does not answer: Cannot",
        ),
        ("version) echo 20.10.24 ;;", "Docker Engine 20.10.24 is too old for Dockerfile.cuda; 23 or newer is wanted"),
        ("version) echo 27.0.1 ;; buildx) exit 1 ;;", "docker has no buildx. Fix: "),
    ],
    ids=["silent", "old", "no-buildx"],
)
def test_a_docker_that_will_not_do_is_told_apart(presets: Path, tmp_path: Path, answers: str, complaint: str) -> None:
    executable(tmp_path / "docker", f"#!/bin/sh\ncase $1 in {answers} esac\n")
    run = image(presets, "cpu", "--engine", engine_image.ENGINE, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert run.returncode == 2
    assert complaint in run.stderr


@pytest.mark.case("BLD-08")
def test_a_full_disk_is_refused_before_the_build(presets: Path, tmp_path: Path) -> None:
    root = "/proc/self"  # a file system that has nothing free
    answers = f"version) echo 27.0.1 ;; info) echo {root} ;;"
    executable(tmp_path / "docker", f"#!/bin/sh\ncase $1 in {answers} esac\n")
    run = image(presets, "cpu", "--engine", engine_image.ENGINE, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert f"{root}, where Docker keeps its data, has 0.0 GiB free" in run.stderr
    assert f"building {engine_image.TAG} wants 4 GiB. Fix: " in run.stderr
