"""What is told of hosts that serve, over ssh: a systemd host and a pod with the tiny pair, then without."""

import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from beeyard.catalog import PROJECT
from tests.testbed.conftest import PREFIX, Bed

HOSTS = ["systemd", "pod"]

# printf is the shell's own: no process list shows what it prints.
ASK = r"""
printf 'header = "Authorization: Bearer %s"\n' "$(cat {key})" |
    curl --silent --show-error --fail --output /dev/null --config - --header 'Content-Type: application/json' \
        --data '{{"prompt": "bees", "n_predict": 4}}' http://127.0.0.1:8910/completion
"""


def beeyard(bed: Bed, *words: str) -> "subprocess.CompletedProcess[str]":
    """As a user calls it."""
    return subprocess.run(
        [sys.executable, "-m", "beeyard.cli", *words], check=False, capture_output=True, text=True, cwd=PROJECT,
        env=bed.environment, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module", params=HOSTS)
def host(bed: Bed, request: pytest.FixtureRequest) -> str:
    name: str = request.param
    run = bed.deploy(name)
    assert run.code == 0, run.output
    return name


def status(bed: Bed, host: str, *words: str) -> tuple[int, dict[str, Any]]:
    run = beeyard(bed, "status", "testbed", "--limit", host, "--json", *words)
    (found,) = json.loads(run.stdout)
    return run.returncode, found


def test_status_tells_what_serves_and_that_it_drafts(bed: Bed, host: str) -> None:
    code, found = status(bed, host)
    assert code == 0, found
    assert (found["name"], found["state"], found["variant"]) == (host, "serving", "dflash")
    assert found["runtime"] == ("systemd" if host == "systemd" else "supervisor")
    assert (found["slots"], found["queued"], found["drift"]) == (1, 0, [])
    # The gate asked it.
    assert found["tokens_per_s"] > 0
    assert found["acceptance"] > 0
    assert found["uptime_s"] > 0


def test_status_tells_of_drift_when_the_inventory_asks_for_another_server(bed: Bed, host: str) -> None:
    code, found = status(bed, host, "--data", "llama_variant=baseline")
    assert code == 6
    assert found["state"] == "serving"
    assert found["drift"][0] == "variant is dflash, wanted is baseline. Fix: deploy"


def test_doctor_passes_a_host_that_is_well_and_its_bundle_holds_no_secret(
    bed: Bed, host: str, tmp_path: Path
) -> None:
    file = tmp_path / "bundle.json"
    run = beeyard(bed, "doctor", "testbed", "--limit", host, "--json", "--bundle", str(file))
    checks = {check["name"]: check for check in json.loads(run.stdout)[host]}
    failed = {name: check["said"] for name, check in checks.items() if check["is_good"] is False}
    # Containers share one clock, which may be nobody's to synchronise.
    assert set(failed) <= {"time"}, failed
    assert checks["flags"]["is_good"] is True
    text = file.read_text()
    key = (PROJECT / ".beeyard" / "keys" / host).read_text().strip()
    assert key not in text
    assert str(PROJECT) not in text
    assert host not in json.loads(text)["servers"]
    assert "--spec-type" in text


def test_drift_finds_nothing_after_a_deploy_and_what_somebody_changed_later(bed: Bed, host: str) -> None:
    run = beeyard(bed, "drift", "testbed", "--limit", host)
    assert run.returncode == 0, run.stdout + run.stderr
    key = f"{PREFIX[host]}/etc/api-key"
    bed.sh(host, f"chmod 644 {key}")
    run = beeyard(bed, "drift", "testbed", "--limit", host, "--json")
    assert run.returncode == 6, run.stdout + run.stderr
    found = json.loads(run.stdout)["drift"]
    assert {"host": host, "by": "a deploy would change", "what": "Serve | API key"} in found
    assert any("the key is the servers alone" in one["what"] for one in found)
    assert bed.deploy(host).code == 0
    assert beeyard(bed, "drift", "testbed", "--limit", host).returncode == 0


def test_logs_show_the_last_lines_and_follow_until_stopped(bed: Bed, host: str) -> None:
    run = beeyard(bed, "logs", "testbed", "--limit", host, "--lines", "400")
    assert run.returncode == 0, run.stdout + run.stderr
    assert " slot " in run.stdout, run.stdout
    words = [sys.executable, "-m", "beeyard.cli", "logs", "testbed", "--limit", host, "--lines", "0", "--follow"]
    following = subprocess.Popen(words, cwd=PROJECT, env=bed.environment, text=True, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        pattern = "[j]ournalctl.*--follow" if host == "systemd" else "[t]ail.*--follow=name"
        while not bed.sh(host, f"pgrep -f '{pattern}' || true").strip():
            assert time.monotonic() < deadline, "nothing follows there"
            time.sleep(0.5)
        bed.sh(host, ASK.format(key=f"{PREFIX[host]}/etc/api-key"))  # a request that is let in is logged
        assert following.stdout is not None
        readable, _, _ = select.select([following.stdout], [], [], 60)
        assert readable, "nothing was said within a minute"
        assert following.stdout.readline().strip()
    finally:
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 0
    deadline = time.monotonic() + 20
    while bed.sh(host, f"pgrep -f '{pattern}' || true").strip():
        assert time.monotonic() < deadline, "what follows goes on there"
        time.sleep(0.5)
