"""A monitor from an inventory's data: what it asks, by which way, and what Prometheus' own tool says of it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from beeyard.catalog import PRESETS, PROJECT, CatalogError, load_catalog
from beeyard.monitor import Monitor, Watched, authorized_key, prometheus_config, resolve_monitor, units
from tests.needs import program

CATALOG = load_catalog([PRESETS])
SERVERS: dict[str, dict[str, Any]] = {
    "attic": {"llama_preset": "tiny", "ssh_hostname": "192.0.2.10", "llama_bind": "192.0.2.10"},
    "pod": {
        "llama_preset": "gemma-4-31b", "ssh_hostname": "203.0.113.7", "ssh_port": 40022, "ssh_user": "me",
        "llama_exporters": {"dcgm": 9400},
    },
}  # fmt: skip
GATEWAYS: dict[str, dict[str, Any]] = {"door": {"ssh_hostname": "192.0.2.2", "gateway_stats_port": 8999}}


def monitor(name: str = "door", **data: Any) -> Monitor:
    return resolve_monitor(name, data, SERVERS, GATEWAYS, CATALOG)


def by_job(found: Monitor) -> dict[tuple[str, str], dict[str, Any]]:
    jobs = yaml.safe_load(prometheus_config(found))["scrape_configs"]
    one = {}
    for job in jobs:
        (static,) = job["static_configs"]
        one[static["labels"]["host"], static["labels"]["job"]] = {**job, **static}
    return one


def test_every_server_exporter_and_gateway_is_asked_by_its_own_way() -> None:
    jobs = by_job(monitor())
    assert set(jobs) == {("attic", "llama-server"), ("pod", "llama-server"), ("pod", "dcgm"), ("door", "gateway")}
    # The gateway is the monitor's own host; to the others lead tunnels, each to a port of its own.
    assert jobs["door", "gateway"]["targets"] == ["127.0.0.1:8999"]
    assert [jobs[one]["targets"] for one in jobs if one[0] != "door"] == [
        ["127.0.0.1:9500"], ["127.0.0.1:9501"], ["127.0.0.1:9502"],
    ]  # fmt: skip
    assert jobs["attic", "llama-server"]["labels"]["accelerator"] == "cpu"
    assert jobs["pod", "llama-server"]["labels"]["accelerator"] == "cuda"


def test_the_tunnels_open_what_is_asked_and_nothing_else() -> None:
    found = monitor()
    attic, pod = found.tunnelled
    unit = units(found)["beeyard-watch-pod.service"]
    assert '"-L" "127.0.0.1:9501:127.0.0.1:8910" "-L" "127.0.0.1:9502:127.0.0.1:9400" "me@203.0.113.7"' in unit
    assert '"-L" "127.0.0.1:9500:192.0.2.10:8910"' in units(found)["beeyard-watch-attic.service"]
    assert "User=prometheus" in unit
    assert opened(attic) == ["192.0.2.10:8910"]
    assert opened(pod) == ["127.0.0.1:8910", "127.0.0.1:9400"]
    assert authorized_key("ssh-ed25519 AAAA me", pod).startswith("restrict,port-forwarding,permitopen=")
    assert 'command="/bin/false"' in authorized_key("ssh-ed25519 AAAA me", pod)


def opened(watched: Watched) -> list[str]:
    options = authorized_key("ssh-ed25519 AAAA me", watched).split(" ")[0].split(",")
    return [one.removeprefix('permitopen="').rstrip('"') for one in options if one.startswith("permitopen")]


def test_keys_are_files_of_their_own_and_servers_alone_get_them() -> None:
    for (host, job), found in by_job(monitor()).items():
        wanted = f"/etc/beeyard-monitor/keys/{host}" if job == "llama-server" else None
        assert found.get("authorization", {}).get("credentials_file") == wanted


def test_prometheus_itself_is_on_loopback_and_as_long_as_is_asked() -> None:
    unit = units(monitor(monitor_port=9091, monitor_retention="90d"))["beeyard-prometheus.service"]
    assert '"--web.listen-address=127.0.0.1:9091"' in unit
    assert '"--storage.tsdb.retention.time=90d"' in unit


@pytest.mark.parametrize("data", [{}, {"monitor_alertmanager": "alerts.lan:9093"}])
def test_promtool_takes_the_configuration(tmp_path: Path, data: dict[str, Any]) -> None:
    found = monitor(monitor_prefix=str(tmp_path), **data)
    (tmp_path / "keys").mkdir()
    for host in found.servers:
        Path(found.key_file(host)).write_text("a key\n")
    Path(found.rules).write_bytes((PROJECT / "observability" / "rules.yaml").read_bytes())
    Path(found.config).write_text(prometheus_config(found))
    run = subprocess.run(
        [program("promtool", "prometheus"), "check", "config", found.config],
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert ("alerts.lan:9093" in prometheus_config(found)) is bool(data)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"monitor_retention": "a month"}, "retention is 'a month'"),
        ({"monitor_bind": "0.0.0.0"}, "unknown key 'bind'"),
        ({"monitor_alertmanager": "alerts"}, "alertmanager is 'alerts'"),
    ],
)
def test_wrong_data_is_refused_by_name(data: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CatalogError) as error:
        monitor(**data)
    assert complaint in str(error.value)
    assert "Fix: " in str(error.value)


def test_a_server_that_says_no_metrics_is_not_taken_for_dead() -> None:
    silent = {"attic": {**SERVERS["attic"], "llama_settings": {"metrics": False}}}
    assert set(by_job(resolve_monitor("door", {}, silent, GATEWAYS, CATALOG))) == {("door", "gateway")}


def test_exporters_of_a_gateway_that_serves_nothing_are_asked_too() -> None:
    doors = {"door": {**GATEWAYS["door"], "llama_exporters": {"node": 9100}}}
    jobs = by_job(resolve_monitor("eye", {}, {}, doors, CATALOG))
    assert set(jobs) == {("door", "gateway"), ("door", "node")}


def test_nothing_to_watch_is_said() -> None:
    with pytest.raises(CatalogError, match=r"monitor eye has nothing to watch: .* Fix: add hosts"):
        resolve_monitor("eye", {}, {}, {}, CATALOG)
