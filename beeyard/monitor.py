"""A monitor: Prometheus over all servers and gateways of an inventory. Its files from data. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import yaml
from pydantic import Field, StringConstraints, ValidationError

from beeyard.catalog import Catalog, CatalogError, Strict, sentence
from beeyard.gateway import file_name, gateway_settings, reached, seen_from_elsewhere
from beeyard.render import rendered, systemd_quoted
from beeyard.spec import host_settings
from beeyard.tunnel import Forward, Ssh, authorized, kept_open

# The group of an inventory whose hosts watch the others, and what their keys in its data begin with.
GROUP: Final = "monitor"
PREFIX: Final = "monitor_"
UNIT: Final = "beeyard-prometheus.service"
TUNNELS: Final = "beeyard-watch-"
# The user of the distribution's package, whom our unit runs as, too.
USER: Final = "prometheus"
FIRST_TUNNEL_PORT: Final = 9500
SCRAPE: Final = "15s"


class MonitorSettings(Strict):
    """What an inventory may say of a monitor; each key with ``monitor_`` before it."""

    # Whether the monitor's host serves a model, too.
    serves: bool = False
    # Of its loopback: Prometheus itself asks nobody who he is.
    port: int = Field(default=9090, ge=1, le=65535)
    retention: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[hdwy]$")] = "30d"
    # Who is told of alerts: HOST:PORT of an Alertmanager.
    alertmanager: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+:[0-9]{1,5}$")] | None = None
    prefix: Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9/._-]+$")] = "/etc/beeyard-monitor"


class Endpoint(NamedTuple):
    """What says metrics on a host: by which address and port there, and whether it wants the server's key."""

    job: str
    address: str
    port: int
    labels: Mapping[str, str] = {}
    wants_key: bool = False


class Watched(NamedTuple):
    """A host with what is asked of it. ``ports``: of the monitor's side, one for each endpoint."""

    host: str
    endpoints: tuple[Endpoint, ...]
    # None: the monitor's own host.
    ssh: Ssh | None
    ports: tuple[int, ...]

    @property
    def unit(self) -> str:
        """The name of the unit that keeps the way to it open."""
        return f"{TUNNELS}{file_name(self.host)}.service"


class Monitor(NamedTuple):
    """One monitor, resolved."""

    name: str
    settings: MonitorSettings
    watched: tuple[Watched, ...]

    @property
    def config(self) -> str:
        """Prometheus' configuration on its host."""
        return f"{self.settings.prefix}/prometheus.yml"

    @property
    def rules(self) -> str:
        """Recording and alert rules."""
        return f"{self.settings.prefix}/rules.yaml"

    @property
    def tunnelled(self) -> list[Watched]:
        """Those that a tunnel leads to."""
        return [one for one in self.watched if one.ssh is not None]

    @property
    def servers(self) -> list[str]:
        """Hosts whose servers want their key."""
        return [one.host for one in self.watched if any(end.wants_key for end in one.endpoints)]

    def key_file(self, host: str) -> str:
        """Where a server's key is, for Prometheus alone."""
        return f"{self.settings.prefix}/keys/{file_name(host)}"


def monitor_settings(data: Mapping[str, Any]) -> MonitorSettings:
    """
    Ours among a monitor's data, validated.

    :raises CatalogError: an unknown key, a wrong value.
    """
    ours = {key.removeprefix(PREFIX): value for key, value in data.items() if key.startswith(PREFIX)}
    try:
        return MonitorSettings(**ours)
    except ValidationError as error:
        raise CatalogError(f"host data (keys monitor_…): {sentence(error)}") from error


def resolve_monitor(
    name: str,
    data: Mapping[str, Any],
    servers: Mapping[str, Mapping[str, Any]],
    gateways: Mapping[str, Mapping[str, Any]],
    catalog: Catalog,
) -> Monitor:
    """
    The monitor of a host, and what it watches.

    :param servers: data of all hosts of the inventory that serve, by name
    :param gateways: data of all that are gateways
    :raises CatalogError: its data is wrong, or there is nothing to watch.
    """
    settings, port, found = monitor_settings(data), FIRST_TUNNEL_PORT, list[Watched]()
    for host in dict.fromkeys([*servers, *gateways]):
        of = servers.get(host) or gateways[host]
        ends = (*_server(host, servers, catalog), *_gateway(host, gateways), *_exporters(of))
        if not ends:
            continue
        ssh = None if host == name else reached(host, of)
        ports = tuple(one.port if ssh is None else port + place for place, one in enumerate(ends))
        port += 0 if ssh is None else len(ends)
        found.append(Watched(host, ends, ssh, ports))
    if not found:
        raise CatalogError(
            f"monitor {name} has nothing to watch: no host of the inventory serves, none is a gateway. Fix: add "
            "hosts, or monitor_serves: true if it serves itself"
        )
    return Monitor(name, settings, tuple(found))


def _server(host: str, servers: Mapping[str, Mapping[str, Any]], catalog: Catalog) -> list[Endpoint]:
    if host not in servers:
        return []
    spec = seen_from_elsewhere(servers[host], catalog)
    labels = {"accelerator": "cuda" if spec.wants_gpu else "cpu"}
    address, _, _ = spec.url.removeprefix("http://").rpartition(":")
    # A server without --metrics answers 501, and would be told of as down.
    return [Endpoint("llama-server", address, spec.port, labels, wants_key=True)] if spec.settings.metrics else []


def _exporters(data: Mapping[str, Any]) -> list[Endpoint]:
    # A gateway's host may serve nothing.
    exporters = host_settings({"llama_preset": "", **data}).exporters
    return [Endpoint(job, "127.0.0.1", port) for job, port in sorted(exporters.items())]


def _gateway(host: str, gateways: Mapping[str, Mapping[str, Any]]) -> list[Endpoint]:
    if host not in gateways:
        return []
    return [Endpoint("gateway", "127.0.0.1", gateway_settings(gateways[host]).stats_port)]


def prometheus_config(monitor: Monitor) -> str:
    """Prometheus' configuration. No key is in it: those are in files beside it."""
    jobs = [
        {
            "job_name": f"{one.host}: {end.job}",
            "static_configs": [
                {
                    "targets": [f"{end.address if one.ssh is None else '127.0.0.1'}:{port}"],
                    # The name by which rules and dashboard know it, whatever host it is of.
                    "labels": {"job": end.job, "host": one.host, **end.labels},
                }
            ],
            **({"authorization": {"credentials_file": monitor.key_file(one.host)}} if end.wants_key else {}),
        }
        for one in monitor.watched
        for end, port in zip(one.endpoints, one.ports, strict=True)
    ]
    found: dict[str, Any] = {
        "global": {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE},
        "rule_files": [monitor.rules],
        "scrape_configs": jobs,
    }
    if monitor.settings.alertmanager is not None:
        targets = [{"targets": [monitor.settings.alertmanager]}]
        found["alerting"] = {"alertmanagers": [{"static_configs": targets}]}
    title = f"# Monitor {monitor.name}. Written by Beeyard: change the inventory, not this file.\n"
    return title + yaml.safe_dump(found, sort_keys=False, allow_unicode=True)


def units(monitor: Monitor) -> dict[str, str]:
    """systemd's units by name: Prometheus, and a tunnel to each other host."""
    settings = monitor.settings
    words = [
        "/usr/bin/prometheus", f"--config.file={monitor.config}", "--storage.tsdb.path=/var/lib/beeyard-prometheus",
        f"--storage.tsdb.retention.time={settings.retention}", f"--web.listen-address=127.0.0.1:{settings.port}",
    ]  # fmt: skip
    found = {UNIT: rendered("beeyard-prometheus.service.j2", name=monitor.name, exec_start=systemd_quoted(words))}
    for one in monitor.tunnelled:
        assert one.ssh is not None, "whom no tunnel leads to"  # noqa: S101
        ways = [Forward(port, end.address, end.port) for port, end in zip(one.ports, one.endpoints, strict=True)]
        found[one.unit] = rendered(
            "beeyard-tunnel.service.j2", name=one.host, what="metrics", user=USER,
            exec_start=systemd_quoted(kept_open(one.ssh, one.host, ways, settings.prefix)),
        )  # fmt: skip
    return found


def authorized_key(public_key: str, watched: Watched) -> str:
    """The line of a watched host that lets the monitor reach what says metrics, and do nothing else there."""
    return authorized(public_key, [(end.address, end.port) for end in watched.endpoints], "beeyard-monitor")
