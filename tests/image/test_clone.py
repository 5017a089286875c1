"""`docker compose up dflash` as one runs it in a clone: for real, with models of a Hub on this machine."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from docker.models.images import Image

from beeyard.catalog import PROJECT
from beeyard.lockfile import local_lock
from tests import engine_image
from tests.image.conftest import MEMLOCK, free_port

HUB = "http://beeyard-hub:2210/beeyard/tiny/resolve/main"
PROJECT_NAME = "beeyard-clone-test"


class Run(NamedTuple):
    """How compose ended."""

    code: int
    output: str


class Clone:
    """A folder with compose.yaml and what it needs, and compose in it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def compose(self, *words: str, **variables: str) -> Run:
        """`docker compose …` in the clone."""
        # The model containers must find the Hub, and this machine cannot lift its own limit.
        known = {"PORT": str(self.port), "MEMLOCK": str(MEMLOCK), "IMAGE": engine_image.TAG, **variables}
        files = ["--file", "compose.yaml", "--file", "compose.test.yaml"]
        run = subprocess.run(
            ["docker", "compose", "--project-name", PROJECT_NAME, "--progress", "plain", *files, *words],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, timeout=300,
            env={**os.environ, **engine_image.DOCKER, **known},
        )  # fmt: skip
        return Run(run.returncode, run.stdout)

    def ask(self) -> httpx.Response:
        """One completion, with the key that the clone's owner reads."""
        key = (self.folder / "secrets" / "api-key").read_text().strip()
        body = {"messages": [{"role": "user", "content": "Please say: bees, bees, bees, bees"}], "max_tokens": 60}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60)


def preset(presets: Path, locked: bool) -> Path:
    """Presets with a server `clone`, whose models come from the Hub of the test bed."""
    folder = presets.with_name(f"clone-{locked}")
    folder.mkdir(exist_ok=True)
    tables: dict[str, Any] = json.loads(json.dumps(engine_image.TABLES))
    files = {f"clone-{name}": f"tiny-{name}.gguf" for name in ("qwen3", "qwen3-dflash")}
    tables["models"] = {name: {"source": {"kind": "url", "url": f"{HUB}/{file}"}} for name, file in files.items()}
    if locked:
        locks = {name: local_lock(PROJECT / ".beeyard" / "tiny" / file) for name, file in files.items()}
        tables["lock"]["models"] = {name: found.model_dump(exclude_none=True) for name, found in locks.items()}
    tables["servers"] = {
        "clone": {
            "model": "clone-qwen3", "engine": engine_image.ENGINE, "default_variant": "dflash",
            "settings": {"context": 4096, "gpu_layers": 0},
            "variants": {
                "baseline": {"decoding": {"kind": "baseline"}},
                "dflash": {"decoding": {"kind": "dflash", "draft_model": "clone-qwen3-dflash"}},
            },
        }
    }  # fmt: skip
    for name, table in tables.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(table))
    return folder


def made(presets: Path, folder: Path, locked: bool = True) -> Clone:
    folder.mkdir()
    shown = engine_image.beeyard("compose", "clone", presets=preset(presets, locked))
    assert shown.returncode == 0, shown.stderr
    (folder / "compose.yaml").write_text(shown.stdout)
    network = {"networks": {"default": {"name": "beeyard-testbed", "external": True}}}
    (folder / "compose.test.yaml").write_text(yaml.safe_dump(network))
    for name in ("Dockerfile.cuda", ".dockerignore", "image", "beeyard", "presets"):
        (folder / name).symlink_to(PROJECT / name)
    return Clone(folder, free_port())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, image: Image, presets: Path) -> Iterator[Clone]:
    found = made(presets, tmp_path_factory.mktemp("clone") / "beeyard")
    # The stage that fetches is built from the project itself: a context may not lead out of it by links.
    fetch = ["docker", "build", "--file", "Dockerfile.cuda", "--target", "fetch", "--tag", "beeyard:fetch"]
    fetch += ["--build-arg", f"SERVER_BASE={engine_image.BASE}", "."]
    subprocess.run(fetch, check=True, capture_output=True, cwd=PROJECT, env={**os.environ, **engine_image.DOCKER})
    yield found
    found.compose("--profile", "*", "down", "--timeout", "5", "--volumes")


def container(clone: Clone, service: str) -> dict[str, Any]:
    (name,) = clone.compose("ps", "--all", "--quiet", service).output.split()
    shown = subprocess.run(
        ["docker", "container", "inspect", name], check=True, capture_output=True, text=True,
        env={**os.environ, **engine_image.DOCKER},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(shown.stdout)[0]
    return found


def test_one_command_fetches_makes_a_key_and_serves_with_accepted_drafts(clone: Clone) -> None:
    run = clone.compose("up", "--detach", "--wait", "dflash")
    assert run.code == 0, run.output
    answer = clone.ask()
    assert answer.status_code == 200, answer.text
    timings = answer.json()["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    logs = clone.compose("logs", "models").output
    assert "made a key: secrets/api-key" in logs
    assert "tiny-qwen3.gguf: 1914976 bytes, verified" in logs


def test_the_key_is_nowhere_but_in_its_file(clone: Clone) -> None:
    key = (clone.folder / "secrets" / "api-key").read_text().strip()
    assert len(key) >= 32
    file = (clone.folder / "secrets" / "api-key").stat()
    assert (file.st_uid, file.st_mode & 0o777) == (8910, 0o440)
    for service in ("models", "dflash"):
        assert key not in json.dumps(container(clone, service))
    assert key not in clone.compose("logs").output
    body = {"messages": [{"role": "user", "content": "x"}]}
    url = f"http://127.0.0.1:{clone.port}/v1/chat/completions"
    assert httpx.post(url, json=body, trust_env=False).status_code == 401


def test_it_listens_on_loopback_alone_and_locked_up(clone: Clone) -> None:
    found = container(clone, "dflash")
    assert found["NetworkSettings"]["Ports"]["8910/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": str(clone.port)}]
    assert found["HostConfig"]["ReadonlyRootfs"] is True
    assert found["HostConfig"]["CapDrop"] == ["ALL"]
    assert found["State"]["Health"]["Status"] == "healthy"
    mounts = {mount["Destination"]: mount["RW"] for mount in found["Mounts"]}
    assert mounts == {"/models": False, "/run/secrets": False}


def test_a_second_up_leaves_it_as_it_is(clone: Clone) -> None:
    before = container(clone, "dflash")["State"]["StartedAt"]
    run = clone.compose("up", "--detach", "--wait", "dflash")
    assert run.code == 0, run.output
    assert container(clone, "dflash")["State"]["StartedAt"] == before


def test_the_other_variant_beside_it_is_refused_clearly(clone: Clone) -> None:
    run = clone.compose("up", "--detach", "baseline")
    assert run.code != 0
    assert f"127.0.0.1:{clone.port}" in run.output
    assert "port is already allocated" in run.output
    assert clone.ask().status_code == 200


def test_one_after_the_other_works(clone: Clone) -> None:
    assert clone.compose("stop", "dflash").code == 0
    run = clone.compose("up", "--detach", "--wait", "baseline")
    assert run.code == 0, run.output
    assert "draft_n" not in clone.ask().json()["timings"]
    assert clone.compose("stop", "baseline").code == 0


def test_a_changed_context_makes_it_anew(clone: Clone) -> None:
    run = clone.compose("up", "--detach", "--wait", "dflash", CTX_SIZE="2048")
    assert run.code == 0, run.output
    words = container(clone, "dflash")["Config"]["Cmd"]
    assert words[words.index("--ctx-size") + 1] == "2048"


def test_models_that_are_not_locked_are_not_run(clone: Clone, presets: Path, tmp_path: Path) -> None:
    clone.compose("--profile", "*", "down", "--timeout", "5")
    unlocked = made(presets, tmp_path / "unlocked", locked=False)
    run = unlocked.compose("up", "--detach", "dflash")
    assert run.code != 0
    assert 'service "models" didn\'t complete successfully' in run.output
    logs = unlocked.compose("logs", "models").output
    assert "model tiny-qwen3.gguf is not in presets/lock.yaml. Fix: run `beeyard lock` for it" in logs
    unlocked.compose("--profile", "*", "down", "--timeout", "5")
