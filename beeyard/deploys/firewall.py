"""Close a host but for SSH and what it serves to others, where its data asks for it."""

from pathlib import Path

from pyinfra import host
from pyinfra.api import deploy
from pyinfra.connectors.local import LocalConnector

from beeyard import onhost
from beeyard.catalog import CatalogError
from beeyard.deploys.gateway import is_root_under_systemd
from beeyard.deploys.surveyed import refused
from beeyard.facts.ssh import SshPorts
from beeyard.firewall import FILE, UNIT, rules, unit
from beeyard.gateway import Gateway
from beeyard.operations import firewalls, packages
from beeyard.operations.file_set import File
from beeyard.spec import ServerSpec, host_settings

TOOL = "/usr/local/sbin/beeyard-firewall"


def put_firewall(spec: ServerSpec | None, gateway: Gateway | None) -> None:
    """Of what runs there, only what listens beyond loopback is opened."""
    settings = host_settings(host.data.dict()) if spec is not None else None
    asked = [settings is not None and settings.firewall, gateway is not None and gateway.settings.firewall]
    if not any(asked):
        return
    ports, networks = [], list(settings.open_to if settings is not None else ())
    if spec is not None and not spec.is_loopback:
        ports.append(spec.port)
    if gateway is not None:
        ports += gateway.open_ports
        networks += gateway.settings.open_to
    close(ports=ports, networks=networks)


@deploy("Firewall")
def close(ports: list[int], networks: list[str]) -> None:
    """nftables from the distribution, a table of our own, tried with a clock before it is kept."""
    if not is_root_under_systemd("a firewall"):
        return
    is_here = isinstance(host.connector, LocalConnector)
    ssh_port = int(host.data.get("ssh_port") or 22)
    found = host.get_fact(SshPorts, _sudo=False) or [ssh_port]
    try:
        text = rules(found, ports, networks)
    except CatalogError as error:
        refused([str(error)])
        return
    packages.installed(name="Install packages", packages=["nftables"])
    firewalls.in_force(
        name="Rules",
        rules=File(FILE, text.encode()),
        unit=File(f"/etc/systemd/system/{UNIT}", unit().encode()),
        tool=File(TOOL, (Path(onhost.__file__).parent / "firewall.sh").read_bytes(), "755"),
        address=None if is_here else str(host.data.get("ssh_hostname") or host.name),
        port=ssh_port,
    )
