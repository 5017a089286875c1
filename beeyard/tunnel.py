"""SSH to a host the way that its inventory says, by the ssh command: a tunnel to its server, a command there."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from beeyard.catalog import PROJECT, CatalogError, Strict

CONNECT_S: Final = 20
POLL_S = 0.05
# What pyinfra's ssh_strict_host_key_checking is called by ssh.
CHECKING = {"yes": "yes", "no": "no", "off": "no", "accept-new": "accept-new", "ask": "yes"}


class Ssh(Strict):
    """How a host is reached; empty text and None leave it to the user's own configuration of ssh."""

    hostname: str
    user: str = ""
    port: int | None = None
    key: str = ""
    known_hosts: str = ""
    checking: str = ""
    config_file: str = ""

    @classmethod
    def of_data(cls, name: str, data: Mapping[str, Any]) -> "Ssh":
        """
        From pyinfra's data of a host.

        :param name: the host's own, its address where there is no ssh_hostname
        """
        return cls(
            hostname=str(data.get("ssh_hostname") or name),
            user=str(data.get("ssh_user") or ""),
            port=int(data["ssh_port"]) if data.get("ssh_port") else None,
            key=str(data.get("ssh_key") or ""),
            known_hosts=str(data.get("ssh_known_hosts_file") or ""),
            checking=str(data.get("ssh_strict_host_key_checking") or ""),
            config_file=str(data.get("ssh_config_file") or ""),
        )

    def words(self, *options: str) -> list[str]:
        """The ssh command up to the host; it asks nobody for a password, and what follows runs there."""
        found = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}", *options]
        pairs = (
            ("-F", self.config_file),
            ("-p", str(self.port or "")),
            ("-i", self.key),
            ("-l", self.user),
            ("-o", f"UserKnownHostsFile={self.known_hosts}" if self.known_hosts else ""),
            ("-o", f"StrictHostKeyChecking={CHECKING[self.checking]}" if self.checking in CHECKING else ""),
        )
        for flag, value in pairs:
            found += [flag, value] if value else []
        return [*found, self.hostname]


@contextmanager
def tunnel(ssh: Ssh, port: int) -> Iterator[str]:
    """
    The address at which a port of the host's loopback answers here, while it is open.

    A server behind it may be started anew as often as it likes.

    :raises CatalogError: ssh cannot connect, or may not forward.
    """
    here = _free_port()
    words = ssh.words("-N", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15",
                      "-L", f"127.0.0.1:{here}:127.0.0.1:{port}")  # fmt: skip
    with tempfile.TemporaryFile() as said:
        try:
            # Its own session: an interrupt at the terminal is ours to handle, and the way to the host stays open.
            process = subprocess.Popen(
                words, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        except FileNotFoundError as error:
            raise CatalogError(
                "there is no ssh here to open a tunnel with. Fix: install the OpenSSH client, or name a --url"
            ) from error
        try:
            _await(process, here, ssh, said)
            yield f"http://127.0.0.1:{here}"
        finally:
            process.terminate()
            process.wait()


def _await(process: "subprocess.Popen[bytes]", port: int, ssh: Ssh, said: Any) -> None:
    deadline = time.monotonic() + CONNECT_S + 5
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(POLL_S)
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    why = lines[-1] if lines else "it says nothing"
    raise CatalogError(
        f"no tunnel to {ssh.hostname}: ssh says {why!r}. Fix: see that `ssh {ssh.hostname}` works without a password "
        "and may forward, or open a way yourself and name it with --url"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Forward(NamedTuple):
    """A port of this end's loopback that leads to one at the other end, by the address that it listens on there."""

    port: int
    address: str
    to: int


def kept_open(ssh: Ssh, name: str, forwards: Iterable[Forward], folder: str) -> list[str]:
    """
    The ssh that a unit keeps open between two hosts of an inventory, as root of neither.

    It has a key of its own, which the other host lets do this and nothing else, and knows that host's key.

    :param name: the other host's, in the inventory and in known_hosts
    :param folder: where ``tunnel-key`` and ``known_hosts`` are
    """
    options = (
        "BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=10", "ServerAliveCountMax=3",
        "StrictHostKeyChecking=yes", f"UserKnownHostsFile={folder}/known_hosts", "IdentitiesOnly=yes",
        f"HostKeyAlias={name}", "ConnectTimeout=10", "Compression=no",
    )  # fmt: skip
    words = [word for option in options for word in ("-o", option)]
    port = ["-p", str(ssh.port)] if ssh.port else []
    ways = [word for one in forwards for word in ("-L", f"127.0.0.1:{one.port}:{one.address}:{one.to}")]
    return [
        "/usr/bin/ssh", "-N", "-F", "none", *words, "-i", f"{folder}/tunnel-key", *port, *ways,
        f"{ssh.user or 'root'}@{ssh.hostname}",
    ]  # fmt: skip


def authorized(public_key: str, targets: Iterable[tuple[str, int]], comment: str) -> str:
    """The line of authorized_keys that lets a key open these addresses and ports, and do nothing else."""
    kind, text, *_ = public_key.split()
    opens = "".join(f'permitopen="{address}:{port}",' for address, port in targets)
    return f'restrict,port-forwarding,{opens}command="/bin/false" {kind} {text} {comment}'
