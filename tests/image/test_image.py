"""What the image is and does: small, locked up, honest about itself, and gone when it is told to go."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest
from docker.models.images import Image

from beeyard.catalog import PROJECT
from beeyard.contract import from_label, parse_help
from beeyard.images import BINARY, USER_ID
from tests import engine_image
from tests.image.conftest import KEY, Servers, health, wait_for

NO_SECRET = ("token", "password", "secret", "api_key", "apikey")


def run(client: docker.DockerClient, image: Image, script: str, **options: Any) -> str:
    """What a script says in a container of the image."""
    shell = {"entrypoint": ["/bin/sh", "-c"], "remove": True, "network_mode": "none", **options}
    return bytes(client.containers.run(image, [script], **shell)).decode()


def test_its_labels_say_what_it_is(image: Image) -> None:
    labels = image.labels
    assert labels["org.opencontainers.image.source"] == "https://github.com/ggml-org/llama.cpp"
    assert labels["org.opencontainers.image.revision"] == "0" * 40
    assert labels["org.opencontainers.image.version"]
    assert labels["org.opencontainers.image.created"] == "1970-01-01T00:00:00Z"
    assert labels["beeyard.engine"] == engine_image.ENGINE
    assert labels["beeyard.dialect"] == "llama.cpp"
    assert labels["beeyard.accelerator"] == "cpu"
    assert labels["beeyard.fa-all-quants"] == "ON"
    assert labels["beeyard.cuda-architectures"] == ""


@pytest.mark.any_image
def test_its_flags_are_the_binarys_own(client: docker.DockerClient, image: Image) -> None:
    labelled = from_label(image.labels["beeyard.flags"])
    told = parse_help(run(client, image, f"{BINARY} --help"))
    assert {name: flag[1:] for name, flag in labelled.items()} == {name: flag[1:] for name, flag in told.items()}
    if engine_image.GIVEN is None:
        assert "draft-dflash" in labelled["--spec-type"].choices


@pytest.mark.any_image
def test_its_user_is_a_number_and_not_root(image: Image) -> None:
    assert image.attrs["Config"]["User"] == f"{USER_ID}:{USER_ID}"
    assert image.attrs["Config"]["StopSignal"] == "SIGTERM"


@pytest.mark.case("BLD-08")
def test_it_is_its_base_and_little_more(client: docker.DockerClient, image: Image) -> None:
    base = client.images.get(engine_image.BASE)
    more = image.attrs["Size"] - base.attrs["Size"]
    assert 0 < more < 60e6, f"{more / 1e6:.0f} MB on top of its base"


@pytest.mark.any_image
def test_it_has_nothing_that_builds_and_nothing_to_hide(client: docker.DockerClient, image: Image) -> None:
    tools = "gcc g++ cc c++ clang cmake ninja make git ccache nvcc pip curl wget"
    assert run(client, image, f"for tool in {tools}; do command -v $tool; done; true") == ""
    assert (
        run(
            client, image, "find / -xdev \\( -name .git -o -name '*.gguf' -o -name '*.o' -o -name stubs \\)", user="0"
        )
        == ""
    )
    told = json.dumps([image.history(), image.attrs["Config"]["Env"]]).lower()
    assert not [word for word in NO_SECRET if word in told]
    assert run(client, image, "find / -xdev -name '.*_history'", user="0") == ""


@pytest.mark.case("BLD-08")
@pytest.mark.any_image
def test_its_libraries_are_complete_from_any_directory(client: docker.DockerClient, image: Image) -> None:
    missing = run(client, image, "cd / && for file in /opt/llama/llama-server /opt/llama/*.so*; do ldd $file; done")
    # libcuda is the driver's: the toolkit brings it into a container on a machine with a card.
    assert not [line for line in missing.splitlines() if "not found" in line and "libcuda.so" not in line]
    # The backend for this very CPU is found and loaded.
    assert (
        "CPU" in run(client, image, "cd /tmp && /opt/llama/llama-server --list-devices 2>&1; ls /opt/llama").upper()
    )
    assert "libggml-cpu-haswell.so" in run(client, image, "ls /opt/llama")


def test_locked_up_it_turns_healthy_and_drafts(servers: Servers) -> None:
    drafter = ["--spec-type", "draft-dflash", "--spec-draft-model", "/mounted/tiny-gemma4-dflash.gguf"]
    container = servers.start(*drafter, ports={"8910/tcp": ("127.0.0.1", None)})
    assert wait_for(30, lambda: health(container) == "healthy"), container.logs()
    (binding,) = container.attrs["NetworkSettings"]["Ports"]["8910/tcp"]
    url = f"http://127.0.0.1:{binding['HostPort']}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "Please say: bees, bees, bees, bees"}], "max_tokens": 60}
    assert httpx.post(url, json=body, trust_env=False).status_code == 401
    answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60)
    timings = answer.raise_for_status().json()["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]


@pytest.mark.any_image
@pytest.mark.parametrize("arguments", [("--port", "9017"), ()], ids=["another-port", "the-usual-port"])
def test_health_is_asked_on_the_port_that_it_really_uses(servers: Servers, arguments: tuple[str, ...]) -> None:
    container = servers.start(*arguments)
    assert wait_for(30, lambda: health(container) == "healthy"), container.logs()


@pytest.mark.any_image
def test_a_server_that_does_not_answer_is_not_healthy(servers: Servers) -> None:
    container = servers.start("--host", "127.0.0.1")
    assert wait_for(30, lambda: health(container) == "healthy"), container.logs()
    container.exec_run(["sh", "-c", "kill -STOP $(cat /proc/1/task/1/children)"])
    assert container.exec_run(["timeout", "10", "/opt/llama/healthy"]).exit_code == 1


@pytest.mark.any_image
def test_it_stops_at_once_when_idle(servers: Servers) -> None:
    container = servers.start()
    assert wait_for(30, lambda: health(container) == "healthy"), container.logs()
    began = time.monotonic()
    container.stop(timeout=20)
    assert time.monotonic() - began < 2
    assert container.wait()["StatusCode"] == 0


@pytest.mark.any_image
def test_it_stops_at_once_while_it_loads(servers: Servers, folder: Path) -> None:
    # A pipe that nobody writes to is a model that loads for ever.
    slow = folder / "slow.gguf"
    os.mkfifo(slow)
    try:
        container = servers.start(model=slow.name)
        assert wait_for(
            20, lambda: container.exec_run(["sh", "-c", 'test -n "$(cat /proc/1/task/1/children)"'])[0] == 0
        )
        time.sleep(0.5)
        assert health(container) != "healthy"
        began = time.monotonic()
        container.stop(timeout=20)
        assert time.monotonic() - began < 2
        assert container.wait()["StatusCode"] == 128 + 15
    finally:
        slow.unlink()


def test_the_same_pins_give_the_same_layers(client: docker.DockerClient, image: Image) -> None:
    """All but the compiler's work is done anew; the compiler's was compared once by hand, see docs/image.md."""
    copy = "beeyard:same-again"
    base = {"BUILD_BASE": engine_image.BASE, "SERVER_BASE": engine_image.BASE, "ACCELERATOR": "cpu"}
    engine = {"ENGINE_NAME": engine_image.ENGINE, "ENGINE_DIALECT": "llama.cpp", "ENGINE_COMMIT": "0" * 40}
    command = ["docker", "buildx", "build", "--file", "Dockerfile.cuda", "--target", "server", "--tag", copy]
    command += ["--no-cache-filter", "libraries,scripts,server", "--build-context", f"source={engine_image.SOURCE}"]
    arguments = {**base, **engine, "SOURCE_DATE_EPOCH": "0", "JOBS": "auto"}
    command += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    built = subprocess.run(
        [*command, "."], check=False, capture_output=True, text=True, cwd=PROJECT,
        env={**os.environ, **engine_image.DOCKER},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-2000:]
    try:
        assert client.images.get(copy).attrs["RootFS"]["Layers"] == image.attrs["RootFS"]["Layers"]
    finally:
        client.images.remove(copy)


def test_a_clone_somewhere_else_builds_the_same_image(image: Image, presets: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(PROJECT, clone, ignore=shutil.ignore_patterns(".*", "models", "secrets"))
    (clone / ".dockerignore").write_bytes((PROJECT / ".dockerignore").read_bytes())
    words = ["image", engine_image.VARIANT, "--engine", engine_image.ENGINE, "--source", str(engine_image.SOURCE)]
    built = subprocess.run(
        [sys.executable, "-m", "beeyard.cli", *words],
        check=False, capture_output=True, text=True, cwd=clone,
        env={**os.environ, **engine_image.DOCKER, "BEEYARD_PRESETS": str(presets), "PYTHONPATH": str(clone)},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-2000:]
    shown = subprocess.run(
        ["docker", "image", "inspect", engine_image.TAG, "--format", "{{.Id}}"],
        check=True, capture_output=True, text=True, env={**os.environ, **engine_image.DOCKER},
    )  # fmt: skip
    assert shown.stdout.strip() == image.id
