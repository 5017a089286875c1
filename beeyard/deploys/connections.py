"""The connection to the current host."""

import socket
from typing import Any

from paramiko import SSHClient
from pyinfra import host


def host_key(there: Any) -> str:
    """
    The key of a host's SSH server, as a line of known_hosts has it behind the name; empty where it is not by SSH.

    :param there: a connected host of the inventory
    """
    client = getattr(there.connector, "client", None)
    transport = client.get_transport() if isinstance(client, SSHClient) else None
    if transport is None:
        return ""
    key = transport.get_remote_server_key()
    return f"{key.get_name()} {key.get_base64()}"


def quicken() -> None:
    """
    Send each small request at once.

    paramiko leaves Nagle's algorithm on: a request waits for the peer to acknowledge the one before, which it does
    after 40 ms. pyinfra has no setting for it; docs/converge.md has the figures.
    """
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if isinstance(client, SSHClient) else None
    # Behind a jump host or a proxy command it is no socket of the system's.
    if transport is not None and isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
