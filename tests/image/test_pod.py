"""The life of a rented pod that started from our image, in order: ssh in, deploy, lose the container, serve again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import docker
import pytest
import yaml
from docker.models.containers import Container
from docker.models.volumes import Volume

from beeyard.catalog import PROJECT
from beeyard.tiny import write_all
from tests import engine_image
from tests.image.conftest import free_port, wait_for

PREFIX = "/workspace/beeyard"
INVENTORY = """\
pod = [("rented", {{
    "ssh_hostname": "127.0.0.1", "ssh_port": {port}, "ssh_user": "root", "ssh_key": {key!r},
    "ssh_known_hosts_file": {known!r}, "ssh_strict_host_key_checking": "accept-new",
    "llama_preset": "tiny", "llama_engine": {engine!r}, "llama_prefix": {prefix!r},
}})]
"""


class Pod:
    """A pod at a provider: a container that comes and goes, and a volume that stays."""

    def __init__(self, client: docker.DockerClient, image: str, volume: Volume, folder: Path) -> None:
        self.client, self.image, self.volume, self.folder = client, image, volume, folder
        self.port = free_port()
        self.container: Container | None = None
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id")], check=True)

    def start(self, **variables: str) -> None:
        """From the image, with an empty container around the volume."""
        if self.container is not None:
            self.container.remove(force=True)
        (self.folder / "known_hosts").unlink(missing_ok=True)
        environment = {"PUBLIC_KEY": (self.folder / "id.pub").read_text().strip(), **variables}
        self.container = self.client.containers.run(
            self.image, detach=True, environment=environment, ports={"22/tcp": ("127.0.0.1", self.port)},
            volumes={self.volume.name: {"bind": "/workspace", "mode": "rw"}}, labels={"beeyard.test": "1"},
        )  # fmt: skip

    def inside(self, script: str) -> str:
        """What a script prints in it, whatever became of sshd."""
        assert self.container is not None
        output = self.container.exec_run(["sh", "-c", script]).output
        assert isinstance(output, bytes)
        return output.decode()

    def ssh(self, script: str) -> subprocess.CompletedProcess[str]:
        """As its tenant does."""
        options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=5"]
        options += ["-o", f"UserKnownHostsFile={self.folder / 'known_hosts'}", "-F", "none"]
        command = ["ssh", *options, "-i", str(self.folder / "id"), "-p", str(self.port), "root@127.0.0.1", script]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)

    def serves(self) -> bool:
        """Whether its server says that it is ready."""
        return self.inside("curl --silent --max-time 2 http://127.0.0.1:8910/health") == '{"status":"ok"}'

    def log(self) -> str:
        """What the provider shows as the container's log."""
        assert self.container is not None
        return str(self.container.logs().decode())


class Deployed(NamedTuple):
    """How a deploy ended, and how many of its operations changed something."""

    code: int
    output: str
    changes: int


@pytest.fixture(scope="module")
def pod(client: docker.DockerClient, presets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("pod")
    write_all(PROJECT / ".beeyard" / "tiny")
    image = engine_image.build(presets, "--pod")
    volume = client.volumes.create(labels={"beeyard.test": "1"})
    made = Pod(client, image, volume, folder)
    made.start()
    yield made
    if made.container is not None:
        made.container.remove(force=True)
    volume.remove()


def deploy(pod: Pod, presets: Path, **data: Any) -> Deployed:
    """As a user would."""
    inventory = pod.folder / "rented.py"
    inventory.write_text(
        INVENTORY.format(
            port=pod.port, key=str(pod.folder / "id"), known=str(pod.folder / "known_hosts"),
            engine=engine_image.ENGINE, prefix=PREFIX,
        )
    )  # fmt: skip
    words = [word for key, value in data.items() for word in ("--data", f"{key}={value}")]
    run = subprocess.run(
        [sys.executable, "-m", "pyinfra", *words, str(inventory), "deploy.py", "--yes", "--json"],
        check=False, capture_output=True, text=True, cwd=PROJECT, timeout=300,
        env={**os.environ, "BEEYARD_PRESETS": str(presets), "PYINFRA_PROGRESS": "off"},
    )  # fmt: skip
    totals = json.loads(run.stdout)["results"]["totals"] if run.returncode == 0 else {"success": 0}
    return Deployed(run.returncode, run.stdout + run.stderr, totals["success"])


def test_its_tenants_key_opens_it_and_no_password_does(pod: Pod) -> None:
    assert wait_for(20, lambda: pod.ssh("true").returncode == 0), pod.log()
    settings = pod.ssh("sshd -T -o PermitRootLogin=prohibit-password -o PasswordAuthentication=no").stdout
    assert "passwordauthentication no" in settings
    assert pod.ssh("cat /proc/1/comm").stdout == "tini\n"


def test_it_brings_its_own_ssh_host_key(pod: Pod, client: docker.DockerClient) -> None:
    # One in the image would be known to whoever pulls it.
    shown = client.containers.run(pod.image, entrypoint=["ls", "/etc/ssh"], remove=True).decode()
    assert "sshd_config" in shown
    assert "ssh_host_" not in shown
    assert "ssh_host_ed25519_key" in pod.ssh("ls /etc/ssh").stdout


def test_a_deploy_serves_with_the_engine_that_the_image_holds(pod: Pod, presets: Path) -> None:
    run = deploy(pod, presets)
    assert run.code == 0, run.output
    assert "rented serves tiny, variant dflash, on llama.cpp b11434 (supervisor)" in run.output
    assert "drafted tokens accepted" in run.output
    assert pod.ssh("tr '\\0' ' ' </proc/$(pgrep llama-server)/cmdline").stdout.startswith("/opt/llama/llama-server ")
    assert pod.ssh(f"ls {PREFIX}/engines").stdout == ""


def test_a_second_deploy_changes_nothing(pod: Pod, presets: Path) -> None:
    run = deploy(pod, presets)
    assert (run.code, run.changes) == (0, 0), run.output


def test_a_new_container_around_the_volume_serves_again_by_itself(pod: Pod, presets: Path) -> None:
    key = pod.ssh(f"sha256sum <{PREFIX}/etc/api-key").stdout
    pod.start()
    assert wait_for(40, pod.serves), pod.log()
    # The gate asks it first, which takes its time on a busy machine.
    assert wait_for(120, lambda: "it serves again" in pod.log()), pod.log()
    assert wait_for(20, lambda: pod.ssh("true").returncode == 0)
    assert pod.ssh(f"sha256sum <{PREFIX}/etc/api-key").stdout == key
    owners = pod.ssh(f"stat -c %U {PREFIX}/etc/api-key; ps -o user= -p $(pgrep llama-server)").stdout.split()
    assert owners == ["beeyard", "beeyard"]
    run = deploy(pod, presets)
    assert (run.code, run.changes) == (0, 0), run.output


def test_the_same_container_started_again_serves_too_and_knows_its_tenant_once(pod: Pod) -> None:
    assert pod.container is not None
    pod.container.restart(timeout=10)
    assert wait_for(40, pod.serves), pod.log()
    assert wait_for(20, lambda: pod.ssh("true").returncode == 0)
    assert pod.ssh("wc -l </root/.ssh/authorized_keys").stdout.strip() == "1"


def test_sshd_that_dies_is_started_again(pod: Pod) -> None:
    pod.inside("pkill -x -o sshd")
    assert wait_for(20, lambda: pod.ssh("true").returncode == 0), pod.log()


def test_it_stops_within_seconds(pod: Pod) -> None:
    assert pod.container is not None
    began = time.monotonic()
    pod.container.stop(timeout=30)
    assert time.monotonic() - began < 10


def test_a_pod_that_nobody_could_log_into_says_so(pod: Pod) -> None:
    pod.start(PUBLIC_KEY="")
    assert wait_for(10, lambda: "nobody can log in: no public key was given. Fix: set PUBLIC_KEY" in pod.log())
    pod.start()
    assert wait_for(40, pod.serves), pod.log()


def test_an_engine_that_the_image_does_not_hold_is_not_taken_from_it(pod: Pod, presets: Path, tmp_path: Path) -> None:
    other = {**engine_image.TABLES["engines"][engine_image.ENGINE], "commit": "1" * 40}
    for name, table in {**engine_image.TABLES, "engines": {engine_image.ENGINE: other}}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(table))
    assert wait_for(20, lambda: pod.ssh("true").returncode == 0)
    run = deploy(pod, tmp_path)
    assert run.code != 0
    assert f"engine '{engine_image.ENGINE}' has no tarball in presets/lock.yaml. Fix: " in run.output
    assert pod.serves()
