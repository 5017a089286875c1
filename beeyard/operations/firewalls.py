"""Operations on a host's firewall."""

import socket
from collections.abc import Generator

from pyinfra import host, logger
from pyinfra.api import FunctionCommand, Host, QuoteString, State, StringCommand, operation

from beeyard.facts.files import FileStates
from beeyard.facts.units import UnitStates
from beeyard.operations.file_set import Directory, File, as_wanted, put

CONNECT_S = 10


@operation()
def in_force(
    rules: File, unit: File, tool: File, address: str | None, port: int, clock_s: int = 60
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """
    Ensure that rules of nftables are in force, now and at boot. New ones are taken back by the host itself after
    ``clock_s`` seconds unless a new connection to its SSH server comes through from here before.

    + rules: the file that is loaded at boot
    + unit: systemd's unit that does so
    + tool: firewall.sh on the host
    + address: where SSH answers, from here; None where the host is this machine
    + port: and at which port
    + clock_s: seconds
    """
    there = host.get_fact(FileStates, paths=[rules.path, unit.path, tool.path])
    name = unit.path.rpartition("/")[2]
    runs = host.get_fact(UnitStates, units=[name]).get(name) == {"active": "active", "enabled": "enabled"}
    wrong = [item for item in (tool, unit, rules) if not as_wanted(item, there.get(item.path))]
    if not wrong and runs:
        host.noop("the firewall is in force")
        return
    for item in (tool, unit):
        if item in wrong:
            yield from put(item)
    if rules in wrong:
        beside = rules._replace(path=f"{rules.path}.try")
        yield from put(Directory(rules.path.rpartition("/")[0]))
        yield from put(beside)
        script, fresh, kept = QuoteString(tool.path), QuoteString(beside.path), QuoteString(rules.path)
        yield StringCommand("sh", script, "try", fresh, str(clock_s), kept)
        if address is not None:
            yield FunctionCommand(_comes_through, (), {"address": address, "port": port})
        yield StringCommand("sh", script, "keep", kept, fresh)
    yield StringCommand("systemctl daemon-reload")
    yield StringCommand("systemctl enable --now --quiet", QuoteString(name))


def _comes_through(state: State, host: Host, address: str, port: int) -> bool:
    """Whether SSH answers a connection that is new: those that were open go on whatever the rules say."""
    try:
        with socket.create_connection((address, port), CONNECT_S) as line:
            line.settimeout(CONNECT_S)
            if line.recv(4) == b"SSH-":
                return True
            why = "no SSH server answers"
    except OSError as error:
        why = str(error)
    logger.error(
        f"{host.print_prefix}with the new firewall no new connection to {address}:{port} comes through ({why}), so "
        "the host takes it back within a minute. Fix: see that ssh_hostname and ssh_port lead straight to its SSH "
        "server; through a jump host a firewall cannot be tried"
    )
    return False
