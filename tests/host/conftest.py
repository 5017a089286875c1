"""
Testinfra connections to the very hosts that pyinfra deployed to.

Run: make verify TARGET=homelab. Hosts and their data come from pyinfra itself, the spec from the same function.
"""

import json
import os
import shlex
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

from beeyard.catalog import PROJECT, load_catalog
from beeyard.deploys.carried_images import looked_for
from beeyard.gateway import GROUP
from beeyard.spec import HostKind, ServerSpec, host_settings, resolve
from beeyard.survey import DECIDED, Carried


def _overrides() -> list[str]:
    return [word for pair in shlex.split(os.environ.get("DATA", "")) for word in ("--data", pair)]


@cache
def _inventory() -> list[dict[str, Any]]:
    target = os.environ.get("TARGET")
    if target is None:
        pytest.exit("name an inventory, as in TARGET=homelab", returncode=2)
    command = [
        sys.executable,
        "-m",
        "pyinfra",
        *_overrides(),
        f"inventories/{target}.py",
        "debug-inventory",
        "--json",
    ]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=PROJECT)
    if run.returncode != 0:
        pytest.exit(f"pyinfra cannot read inventories/{target}.py: {run.stderr.strip()}", returncode=2)
    found: list[dict[str, Any]] = json.loads(run.stdout)
    limit = os.environ.get("LIMIT")
    # A gateway alone has no server of its own.
    serving = [
        machine for machine in found if GROUP not in machine["groups"] or machine["data"].get("gateway_serves")
    ]
    return [machine for machine in serving if limit in (None, machine["name"])]


def _connect(machine: dict[str, Any]) -> Host:
    data = machine["data"]
    if machine["name"] == "@local":
        return testinfra.get_host("local://")
    user, port = data.get("ssh_user") or "root", data.get("ssh_port") or 22
    options = []
    if data.get("ssh_known_hosts_file"):
        options.append(f"-o UserKnownHostsFile={PROJECT / data['ssh_known_hosts_file']}")
    return testinfra.get_host(
        f"ssh://{user}@{data.get('ssh_hostname') or machine['name']}:{port}",
        ssh_identity_file=str(PROJECT / data["ssh_key"]) if data.get("ssh_key") else None,
        ssh_extra_args=" ".join(options) or None,
        sudo=bool(data.get("_sudo")),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run of every test a host."""
    if "machine" in metafunc.fixturenames:
        machines = _inventory()
        metafunc.parametrize("machine", machines, ids=[m["name"] for m in machines], scope="session")


@pytest.fixture(scope="session")
def server(machine: dict[str, Any]) -> Host:
    return _connect(machine)


@pytest.fixture(scope="session")
def spec(machine: dict[str, Any], server: Host) -> ServerSpec:
    prefix = host_settings(machine["data"]).prefix
    decided = server.run("cat %s", f"{prefix}/current/{DECIDED}")
    data = {**machine["data"], **(json.loads(decided.stdout)["decided"] if decided.rc == 0 else {})}
    rows = server.run("nvidia-smi --query-gpu=index,uuid,compute_cap --format=csv,noheader")
    found = [[word.strip() for word in row.split(",")] for row in rows.stdout.splitlines()] if rows.rc == 0 else []
    cards = [row for row in found if data.get("llama_card", row[1]) in row[:2]]
    kind = HostKind(
        has_systemd=server.run("test -d /run/systemd/system").rc == 0,
        is_root=server.check_output("id -u") == "0",
        compute_capabilities=tuple(sorted({row[2] for row in cards})),
        has_cdi=server.run("grep -qs nvidia.com/gpu /etc/cdi/* /var/run/cdi/*").rc == 0,
        card=cards[0][1] if len(cards) < len(found) else None,
    )
    found_spec = resolve(data, load_catalog(), kind)
    for image in looked_for(found_spec).values():
        return found_spec.carrying(image.id) if isinstance(image, Carried) else pytest.fail(image)
    return found_spec
