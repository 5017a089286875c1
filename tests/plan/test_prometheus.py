"""Compose's Prometheus, for real: the distribution's, with its configuration, before a real llama-server."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from beeyard import tiny
from beeyard.catalog import PROJECT
from beeyard.dashboard import PANELS
from tests.gateways import RunningGateway, free_port_pair
from tests.needs import program
from tests.plan.conftest import free_port
from tests.real_server import KEY, Running, serving, spec_of, unpack

FOLDER = PROJECT / "observability"
# Of engines and exporters that do not run here: BeeLlama v0.4 (facts of its /metrics), dcgm-exporter, node_exporter.
ELSEWHERE = re.compile(
    r"llamacpp:spec_decode_num_\w+_total|DCGM_FI_DEV_\w+|node_filesystem_\w+_bytes|beeyard:\w+|ALERTS"
)


@contextmanager
def prometheus(folder: Path, key_file: Path, server: int) -> Iterator[Callable[[str], Any]]:
    """Run it with the project's configuration, places and names of a container changed; yields what asks it."""
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / "rules.yaml")]
    (folder / "targets").mkdir()
    for job in config["scrape_configs"]:
        if job["job_name"] == "llama-server":
            job["authorization"]["credentials_file"] = str(key_file)
            # Docker's names resolve in its own networks alone.
            job.pop("dns_sd_configs")
            job["static_configs"] = [
                {"targets": [f"127.0.0.1:{server}"], "labels": {"__meta_dns_name": "dflash", "is_real": "yes"}}
            ]
        for files in job.get("file_sd_configs", []):
            files["files"] = [one.replace("/etc/prometheus", str(folder)) for one in files["files"]]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = [
        program("prometheus", "prometheus"), f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        yield lambda query: _asked(f"http://127.0.0.1:{port}", query)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _asked(url: str, query: str) -> list[dict[str, Any]]:
    try:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, trust_env=False, timeout=10)
    except httpx.TransportError:  # it starts
        return []
    return list(answer.json()["data"]["result"]) if answer.status_code == 200 else []


def until(ask: Callable[[], Any], limit_s: float = 60) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := ask()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.name: path for path in tiny.write_all(tmp_path_factory.mktemp("tiny"))}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, binary: Path, files: dict[str, Path]) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    with serving(spec_of("tiny", "dflash"), binary, files, folder, free_port()) as running:
        yield running


def test_a_server_is_asked_with_its_key_and_the_rules_are_computed(server: Running, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    with prometheus(tmp_path, key, server.port) as ask:
        (up,) = until(lambda: ask('up{job="llama-server"} == 1'))
        assert (up["metric"]["host"], up["metric"]["accelerator"]) == ("dflash", "cuda")

        def speed() -> Any:
            httpx.post(
                f"{server.url}/completion", json={"prompt": "bees", "n_predict": 16}, timeout=60, trust_env=False,
                headers={"Authorization": f"Bearer {KEY}"},
            ).raise_for_status()  # fmt: skip
            return ask('beeyard:tokens_per_second{host="dflash"} > 0')

        until(speed)
        # A file that is put there is read without a restart.
        (tmp_path / "targets" / "node-attic.yaml").write_text(
            json.dumps([{"targets": ["127.0.0.1:9"], "labels": {"host": "attic"}}])
        )
        until(lambda: ask('up{job="node", host="attic"} == 0'))
        for panel in PANELS[:3]:
            for line in panel.lines:
                query = line.expr.replace("$__rate_interval", "30s").replace("$host", "dflash")
                (shown,) = until(lambda query=query: ask(query))  # type: ignore[misc]
                assert float(shown["value"][1]) > 0, panel.title


def test_a_wrong_key_is_a_server_that_is_down(server: Running, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("another\n")
    with prometheus(tmp_path, key, server.port) as ask:
        until(lambda: ask('up{job="llama-server"} == 0'))


def test_every_name_that_is_shown_is_one_that_is_said(server: Running, tmp_path: Path) -> None:
    gateway = RunningGateway(tmp_path, [server.port], free_port_pair(), KEY)
    try:
        said = until(lambda: _metrics(f"{gateway.stats}/metrics", {}))
        said += _metrics(f"{server.url}/metrics", {"Authorization": f"Bearer {KEY}"})
    finally:
        gateway.stop()
    known = set(re.findall(r"^([a-zA-Z_:]+)[{ ]", said, re.MULTILINE))
    shown = {
        name
        for panel in PANELS
        for line in panel.lines
        for name in re.findall(r"\b((?:llamacpp:|haproxy_|DCGM_|node_|beeyard:|ALERTS)\w*)", line.expr)
    }
    assert {name for name in shown if not ELSEWHERE.fullmatch(name)} <= known
    assert any(name.startswith("haproxy_") for name in shown & known)


def _metrics(url: str, headers: dict[str, str]) -> str:
    try:
        return httpx.get(url, headers=headers, trust_env=False, timeout=5).raise_for_status().text
    except httpx.TransportError:
        return ""
