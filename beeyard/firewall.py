"""nftables' rules of a host from what it serves: SSH and that are open, nothing else. Pure."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from beeyard.catalog import PROJECT, CatalogError

FILE: Final = "/etc/nftables.d/beeyard.nft"
UNIT: Final = "beeyard-firewall.service"


def rules(ssh_ports: Sequence[int], open_ports: Sequence[int], networks: Sequence[str] = ()) -> str:
    """
    The whole of our table.

    :param ssh_ports: what sshd listens on; at least one, or nobody would come back in
    :param open_ports: TCP ports of what the host serves to others
    :param networks: who may reach those, as 192.0.2.0/24; none: everyone
    :raises CatalogError: no SSH port, or a network that is none.
    """
    if not ssh_ports:
        raise CatalogError(
            "no port of SSH is known, and a firewall without one would lock everybody out. Fix: set ssh_port in the "
            "inventory"
        )
    families: dict[str, list[str]] = {}
    for text in networks:
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise CatalogError(f"{text!r} is no network ({error}). Fix: as in 192.0.2.0/24") from error
        families.setdefault("ip" if network.version == 4 else "ip6", []).append(str(network))
    return (
        _environment()
        .get_template("beeyard.nft.j2")
        .render(
            ssh_ports=", ".join(str(port) for port in sorted(set(ssh_ports))),
            open_ports=", ".join(str(port) for port in sorted(set(open_ports))),
            from_networks=[(family, ", ".join(found)) for family, found in families.items()],
        )
    )


def unit() -> str:
    """systemd's unit that loads them at boot, before the network is up."""
    return _environment().get_template("beeyard-firewall.service.j2").render(file=FILE)


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(PROJECT / "templates"), undefined=StrictUndefined, autoescape=False,  # noqa: S701
        keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
