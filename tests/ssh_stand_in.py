"""A pod's sshd on loopback: real SSH, whose commands run on this machine in a folder that stands for /workspace."""

import logging
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

WORKSPACE = "/workspace/beeyard"
# Whoever only knocks, to see whether SSH answers, is no error.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@dataclass
class Sshd:
    """Where it answers, whom it lets in, and what it ran."""

    folder: Path
    public_key: str
    port: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def prefix(self) -> Path:
        return self.folder / "workspace"


class _Session(paramiko.ServerInterface):
    def __init__(self, sshd: Sshd) -> None:
        self.sshd, self.script, self.is_asked = sshd, b"", threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        is_ours = key.get_base64() == self.sshd.public_key.split()[1]
        return int(AUTH_SUCCESSFUL if username == "root" and is_ours else AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.script = command
        self.is_asked.set()
        return True


def _serve(connection: socket.socket, sshd: Sshd, host_key: paramiko.PKey) -> None:
    transport = paramiko.Transport(connection)
    try:
        transport.add_server_key(host_key)
        session = _Session(sshd)
        transport.start_server(server=session)
        channel = transport.accept(20)
        if channel is None or not session.is_asked.wait(10):
            return
        given = b""
        while piece := channel.recv(65536):
            given += piece
        script = session.script.decode()
        for there, here in ((WORKSPACE, sshd.prefix), ("/tmp/beeyard-watch", sshd.folder / "run" / "beeyard-watch")):
            script = script.replace(there, str(here))
        sshd.ran.append(session.script.decode())
        paths = {"BEEYARD_PREFIX": str(sshd.prefix), "BEEYARD_RUN": str(sshd.folder / "run")}
        done = subprocess.run(
            ["sh", "-c", script], check=False, input=given, capture_output=True, timeout=20,
            # As sshd does it: nothing of the container's environment.
            env={"PATH": os.environ["PATH"], "HOME": str(sshd.folder), **paths, **sshd.environment},
        )  # fmt: skip
        channel.sendall(done.stdout)
        channel.sendall_stderr(done.stderr)
        channel.send_exit_status(done.returncode)
        channel.close()
        transport.join(5)  # until the client has hung up
    except (OSError, EOFError, paramiko.SSHException):
        pass  # what only knocked to see whether SSH answers
    finally:
        transport.close()


@contextmanager
def listening(folder: Path, public_key: str) -> Iterator[Sshd]:
    """Let it answer until the end of the block; what it started is ended by its id."""
    sshd = Sshd(folder, public_key)
    (folder / "run").mkdir(parents=True, exist_ok=True)
    host_key = paramiko.ECDSAKey.generate()
    listener = socket.create_server(("127.0.0.1", 0))
    sshd.port = listener.getsockname()[1]

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_serve, args=(connection, sshd, host_key), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield sshd
    finally:
        listener.close()
