"""Put a gateway in place on a host of group `gateway`: HAProxy, its files and units, tunnels, keys, certificate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyinfra import host, logger
from pyinfra.api import deploy
from pyinfra.facts.server import Command

from beeyard import onhost
from beeyard.catalog import PROJECT, CatalogError, load_catalog
from beeyard.certificates import internal_certificate, joined, public_ssh_key, tunnel_key
from beeyard.deploys.connections import host_key
from beeyard.deploys.surveyed import may_look, refused
from beeyard.facts.units import Lines, OwnService
from beeyard.gateway import (
    CADDY_UNIT,
    GROUP,
    UNIT,
    WATCH_UNIT,
    Gateway,
    authorized_key,
    caddyfile,
    files,
    resolve_gateway,
    tunnel_unit,
    units,
)
from beeyard.keys import AUTHORITY, GATEWAY, inner_key, made_key
from beeyard.monitor import GROUP as MONITORS
from beeyard.operations import gateways, packages
from beeyard.operations.file_set import Directory, File, Item
from beeyard.operations.gateways import Behind
from beeyard.spec import ServerSpec, host_settings

ONHOST = Path(onhost.__file__).parent
# The user of the distribution's package, whom our unit runs as, too.
USER = "haproxy"
UNITS = "/etc/systemd/system"
IS_ROOT_UNDER_SYSTEMD = 'test -d /run/systemd/system && test "$(id -u)" = 0 && echo yes || echo no'
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"


def serves(one: Any = host) -> bool:
    """Whether a host has a server of its own: all but those that are gateways or monitors alone."""
    is_other = is_gateway(one) or MONITORS in one.groups
    return not is_other or bool(one.data.get("gateway_serves") or one.data.get("monitor_serves"))


def is_gateway(one: Any) -> bool:
    """Whether a host of the inventory is a gateway."""
    return GROUP in one.groups


def gateway_plan() -> Gateway | None:
    """The gateway that the current host is; None if it is none, or cannot be, which was told then."""
    if GROUP not in host.groups:
        return None
    try:
        may_look()
        return _resolved(host)
    except CatalogError as error:
        refused([str(error)])
    return None


def gateways_before(name: str) -> list[Gateway]:
    """
    The gateways of the inventory that have a host behind them.

    :raises CatalogError: one of them cannot be.
    """
    found = [_resolved(one) for one in host.state.inventory if GROUP in one.groups]
    return [one for one in found if name in [backend.host for backend in one.backends]]


def behind(name: str) -> Behind | None:
    """How the current host is drained; None where no gateway is before it, or its data says not to."""
    if not host_settings(host.data.dict()).drain:
        return None
    for gateway in gateways_before(name):
        (server,) = (one.name for one in gateway.backends if one.host == name)
        return Behind(gateway.name, gateway.tool, gateway.places.socket, server, gateway.settings.drain_wait)
    return None


def _resolved(one: Any) -> Gateway:
    others = {other.name: other.data.dict() for other in one.state.inventory if serves(other)}
    return resolve_gateway(one.name, one.data.dict(), others, load_catalog())


@deploy("Let the gateway in")
def let_gateway_in(spec: ServerSpec) -> None:
    """Where a gateway reaches this host's server by a tunnel, its key may open that and nothing else."""
    for gateway in gateways_before(host.name):
        if host.name in [one.host for one in gateway.tunnelled]:
            line = authorized_key(public_ssh_key(_tunnel_key(gateway)), spec.port)
            gateways.let_in(name=f"Let {gateway.name}'s tunnel in", line=line, _sudo=False)


@deploy("Gateway")
def put_gateway(gateway: Gateway) -> None:
    """HAProxy from the distribution, under a unit of ours beside its own, with a configuration of ours."""
    settings, places = gateway.settings, gateway.places
    if not is_root_under_systemd("a gateway"):
        return
    caddy = ["caddy"] if settings.tls == "acme" else []
    ssh = ["openssh-client"] if gateway.tunnelled else []
    if settings.tls == "acme" and host.get_fact(OwnService, package="caddy", config="/etc/caddy/Caddyfile"):
        refused(
            [
                "a Caddy of your own serves here, and gateway_tls acme wants ports 80 and 443. Fix: end it by "
                "`systemctl disable --now caddy`, or set gateway_tls to files or internal-ca"
            ]
        )
        return
    keys = {user: made_key(GATEWAY / "users" / user) for user in settings.users}
    try:
        pem = _certificate(gateway)
        acme_root = _acme_root(settings.acme_root)
        known_hosts = host_keys([one.host for one in gateway.tunnelled])
    except CatalogError as error:
        refused([str(error)])
        return
    packages.installed(name="Install packages", packages=["haproxy", "python3", "ca-certificates", *ssh, *caddy])
    if caddy:
        # The package starts it, and two at port 80 share what comes in.
        gateways.stopped(name="Stop the package's own Caddy", units=["caddy.service"])
    content = files(gateway, places, keys, inner_key(gateway.preset))
    config = File(places.config, content.pop("haproxy.cfg").encode(), "600", USER)
    items: list[Item] = [
        Directory(places.folder, "700", USER),
        File(gateway.tool, (ONHOST / "gateway.py").read_bytes(), "644", USER),
        *(File(f"{places.folder}/{name}", text.encode(), "600", USER) for name, text in content.items()),
    ]
    if pem is not None:
        items.append(File(f"{places.folder}/tls.pem", pem, "600", USER))
    if gateway.tunnelled:
        key = _tunnel_key(gateway).read_bytes()
        items.append(File(f"{places.folder}/tunnel-key", key, "600", USER))
        items.append(File(f"{places.folder}/known_hosts", known_hosts.encode(), "644", USER))
    if caddy:
        items.append(File(places.caddyfile, caddyfile(gateway, places).encode(), "644", USER))
    if acme_root is not None:
        items.append(File(places.acme_root, acme_root, "644", USER))
    gateways.serving(
        name="HAProxy",
        items=items,
        config=config,
        units=[File(f"{UNITS}/{name}", text.encode()) for name, text in units(gateway, places).items()],
        main=UNIT,
        ours=["beeyard-tunnel-", CADDY_UNIT],
        reloads={CADDY_UNIT: places.caddyfile} if caddy else None,
    )
    scheme = "http" if settings.tls is None else "https"
    logger.info(
        f"{host.print_prefix}gateway for {gateway.preset}: {scheme}://{settings.bind}:{settings.port}/v1 before "
        f"{', '.join(one.host for one in gateway.backends)}; keys of users: "
        f"{(GATEWAY / 'users').relative_to(PROJECT)} here"
    )


def is_root_under_systemd(what: str) -> bool:
    """Whether the current host has what keeps this; it was told if not."""
    if host.get_fact(Command, command=IS_ROOT_UNDER_SYSTEMD) == "yes":
        return True
    refused(
        [
            f"{what} is kept by systemd, as root, and this host has not both. Fix: choose another host, or add "
            "_sudo: true to its data"
        ]
    )
    return False


@deploy("Stop the gateway")
def stop_gateway() -> None:
    """HAProxy and the tunnels; files stay."""
    plan = gateway_plan()
    if plan is not None:
        caddy = [CADDY_UNIT] if plan.settings.tls == "acme" else []
        names = [WATCH_UNIT, UNIT, *caddy, *(tunnel_unit(one) for one in plan.tunnelled)]
        gateways.stopped(name="Stop HAProxy and the tunnels", units=names)


def _tunnel_key(gateway: Gateway) -> Path:
    return tunnel_key(GATEWAY / f"tunnel-{gateway.name}")


def _certificate(gateway: Gateway) -> bytes | None:
    """Chain and key in one file, as HAProxy wants it."""
    settings = gateway.settings
    if settings.tls == "files":
        return joined(PROJECT / str(settings.certificate), PROJECT / str(settings.certificate_key))
    if settings.tls == "internal-ca":
        return internal_certificate(AUTHORITY, settings.names)
    return None


def _acme_root(file: str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return (PROJECT / file).read_bytes()
    except OSError as error:
        raise CatalogError(f"gateway_acme_root {file} cannot be read: {error}. Fix: correct the path") from error


def host_keys(names: Sequence[str]) -> str:
    """
    What hosts of the inventory say of themselves, over the connections that this deploy has to them, as known_hosts.

    :raises CatalogError: one has no key to be known by.
    """
    everyone: Mapping[str, Any] = {one.name: one for one in host.state.inventory}
    lines = []
    for name in names:
        there = everyone[name]
        if not there.connected:
            there.connect(reason="for its host key", show_errors=False, raise_exceptions=True)
        # The very key by which this connection knows it; without one (this machine itself), its file.
        key = host_key(there) or " ".join(there.get_fact(Lines, path=HOST_KEY))
        if not key:
            raise CatalogError(f"{name} has no {HOST_KEY}, by which others would know it. Fix: ssh-keygen -A there")
        lines.append(f"{name} {' '.join(key.split()[:2])}\n")
    return "".join(lines)
