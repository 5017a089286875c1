"""A gateway's tunnel through a real sshd: it opens one port, and nothing else."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from beeyard.certificates import public_ssh_key, tunnel_key
from beeyard.gateway import Backend, Places, authorized_key, tunnel_command
from beeyard.tunnel import Ssh
from tests.needs import program
from tests.plan.conftest import free_port
from tests.stand_in import Stand, stand_in


@pytest.fixture
def server() -> Iterator[Stand]:
    with stand_in() as found:
        yield found


@pytest.fixture
def backend(server: Stand, tmp_path: Path) -> Iterator[Backend]:
    """A host of the current user, whose server listens on loopback."""
    if os.geteuid() != 0:
        pytest.skip("sshd is root's to start, as make test has it")
    sshd = program("sshd", "openssh-server")
    port, model_port = free_port(), int(server.url.rpartition(":")[2])
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "host")], check=True)
    kind, text, *_ = (tmp_path / "host.pub").read_text().split()
    (tmp_path / "known_hosts").write_text(f"pod {kind} {text}\n")
    public = public_ssh_key(tunnel_key(tmp_path / "tunnel-key"))
    (tmp_path / "authorized_keys").write_text(authorized_key(public, model_port) + "\n")
    options = [
        f"Port={port}", "ListenAddress=127.0.0.1", f"HostKey={tmp_path}/host", "StrictModes=no", "UsePAM=no",
        f"AuthorizedKeysFile={tmp_path}/authorized_keys", "PasswordAuthentication=no", f"PidFile={tmp_path}/pid",
        "PermitRootLogin=prohibit-password",
    ]  # fmt: skip
    Path("/run/sshd").mkdir(exist_ok=True)
    words = [sshd, "-D", "-e", "-f", "/dev/null", *(word for option in options for word in ("-o", option))]
    process = subprocess.Popen(words, stderr=(tmp_path / "sshd.log").open("wb"))
    time.sleep(0.5)
    ssh = Ssh(hostname="127.0.0.1", user="root", port=port)
    yield Backend(
        name="pod", host="pod", address="127.0.0.1", port=free_port(), slots=1, ssh=ssh, tunnelled_port=model_port
    )
    process.terminate()
    process.wait()


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def open_for(words: list[str], port: int, seconds: float = 6) -> bool:
    """Whether something answers at the port while the command runs."""
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + seconds
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if answers(port):
                    return True
                time.sleep(0.1)
            return False
        finally:
            process.kill()


def test_the_server_answers_through_it(backend: Backend, tmp_path: Path) -> None:
    assert open_for(tunnel_command(backend, Places(folder=str(tmp_path))), backend.port)


def test_its_key_opens_nothing_else(backend: Backend, tmp_path: Path) -> None:
    places = Places(folder=str(tmp_path))
    with stand_in() as other:
        wrong = backend.model_copy(update={"tunnelled_port": int(other.url.rpartition(":")[2])})
        assert not open_for(tunnel_command(wrong, places), backend.port, 3)
    words = [word for word in tunnel_command(backend, places) if word != "-N"]
    run = subprocess.run([*words, "id"], check=False, capture_output=True, text=True, timeout=20)
    assert run.returncode != 0
    assert "uid=" not in run.stdout


def test_another_host_in_its_place_is_not_believed(backend: Backend, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    kind, text, *_ = (tmp_path / "other.pub").read_text().split()
    (tmp_path / "known_hosts").write_text(f"pod {kind} {text}\n")
    assert not open_for(tunnel_command(backend, Places(folder=str(tmp_path))), backend.port, 3)
