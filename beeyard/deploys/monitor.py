"""Put a monitor in place on a host of group `monitor`: Prometheus, its rules and keys, tunnels to what it watches."""

from pathlib import Path

from pyinfra import host, logger
from pyinfra.api import deploy

from beeyard.catalog import PROJECT, CatalogError, load_catalog
from beeyard.certificates import public_ssh_key, tunnel_key
from beeyard.deploys.gateway import UNITS, host_keys, is_gateway, is_root_under_systemd, serves
from beeyard.deploys.surveyed import may_look, refused
from beeyard.facts.units import OwnService
from beeyard.keys import GATEWAY, known_key
from beeyard.monitor import (
    GROUP,
    TUNNELS,
    UNIT,
    USER,
    Monitor,
    authorized_key,
    prometheus_config,
    resolve_monitor,
    units,
)
from beeyard.operations import gateways, packages
from beeyard.operations.file_set import Directory, File, Item

RULES = PROJECT / "observability" / "rules.yaml"
PACKAGE, ITS_CONFIG = "prometheus", "/etc/prometheus/prometheus.yml"


def monitor_plan() -> Monitor | None:
    """The monitor that the current host is; None if it is none, or cannot be, which was told then."""
    if GROUP not in host.groups:
        return None
    try:
        may_look()
        return _resolved(host.name)
    except CatalogError as error:
        refused([str(error)])
    return None


def _resolved(name: str) -> Monitor:
    everyone = {one.name: one for one in host.state.inventory}
    servers = {one.name: one.data.dict() for one in everyone.values() if serves(one)}
    doors = {one.name: one.data.dict() for one in everyone.values() if is_gateway(one)}
    return resolve_monitor(name, everyone[name].data.dict(), servers, doors, load_catalog())


def let_monitors_in() -> None:
    """Where a monitor reaches this host by a tunnel, its key may open what says metrics and nothing else."""
    try:
        monitors = [_resolved(one.name) for one in host.state.inventory if GROUP in one.groups]
    except CatalogError as error:
        refused([str(error)])
        return
    for monitor in monitors:
        for watched in monitor.tunnelled:
            if watched.host == host.name:
                line = authorized_key(public_ssh_key(_tunnel_key(monitor)), watched)
                gateways.let_in(name=f"Let monitor {monitor.name} in", line=line, _sudo=False)


@deploy("Monitor")
def put_monitor(monitor: Monitor) -> None:
    """Prometheus from the distribution, under a unit of ours beside its own, with a configuration of ours."""
    if not is_root_under_systemd("a monitor"):
        return
    if host.get_fact(OwnService, package=PACKAGE, config=ITS_CONFIG):
        refused(
            [
                "a Prometheus of your own runs here. Fix: give it observability/rules.yaml and the targets that "
                "docs/gateway.md names, or end it by `systemctl disable --now prometheus`"
            ]
        )
        return
    try:
        known_hosts = host_keys([one.host for one in monitor.tunnelled])
    except CatalogError as error:
        refused([str(error)])
        return
    prefix = monitor.settings.prefix
    packages.installed(name="Install packages", packages=[PACKAGE, "openssh-client"])
    # The package starts it, at every address.
    gateways.stopped(name="Stop the package's own Prometheus", units=["prometheus.service"])
    items: list[Item] = [
        Directory(prefix, "700", USER),
        Directory(f"{prefix}/keys", "700", USER),
        File(monitor.rules, RULES.read_bytes(), "644", USER),
    ]
    if monitor.tunnelled:
        items.append(File(f"{prefix}/tunnel-key", _tunnel_key(monitor).read_bytes(), "600", USER))
        items.append(File(f"{prefix}/known_hosts", known_hosts.encode(), "644", USER))
    gateways.serving(
        name="Prometheus",
        items=items,
        config=File(monitor.config, prometheus_config(monitor).encode(), "600", USER),
        units=[File(f"{UNITS}/{name}", text.encode()) for name, text in units(monitor).items()],
        main=UNIT,
        ours=[TUNNELS],
        check="promtool check config",
        # Its port and its retention are in its unit.
        restarts=True,
        # A server that never came up has none, and is told of by the alert that it is down.
        keys=lambda: [
            File(monitor.key_file(one), f"{known_key(one) or ''}\n".encode(), "600", USER) for one in monitor.servers
        ],
    )
    logger.info(
        f"{host.print_prefix}monitor of {', '.join(one.host for one in monitor.watched)}: "
        f"http://127.0.0.1:{monitor.settings.port} there"
    )


@deploy("Stop the monitor")
def stop_monitor() -> None:
    """Prometheus and the tunnels; files stay."""
    plan = monitor_plan()
    if plan is not None:
        gateways.stopped(name="Stop Prometheus and the tunnels", units=[UNIT, *(one.unit for one in plan.tunnelled)])


def _tunnel_key(monitor: Monitor) -> Path:
    return tunnel_key(GATEWAY / f"watch-{monitor.name}")
