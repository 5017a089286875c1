"""The look at a running server: a real one with real DFlash, its counters, its log, and no key anywhere."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from beeyard import onhost, tiny
from beeyard.catalog import PROJECT
from beeyard.cli import app
from beeyard.examination import Running
from tests.plan.conftest import free_port
from tests.real_server import KEY, serving, spec_of, unpack
from tests.real_server import Running as Process

SCRIPT = Path(onhost.__file__).parent / "look.py"


def look(prefix: Path, pid: int, lines: int = 0) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.read_text(), str(prefix), str(pid), str(lines)],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(run.stdout)
    Running.model_validate(found)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("served")
    binary = unpack(tmp_path_factory.mktemp("engine"))
    files = {path.name: path for path in tiny.write_all(tmp_path_factory.mktemp("tiny"))}
    with serving(spec_of("tiny", "dflash"), binary, files, folder, free_port()) as running:
        yield running


@pytest.fixture
def prefix(server: Process, tmp_path: Path) -> Path:
    """As a deploy leaves it, for runtime supervisor; the log is the server's own."""
    (tmp_path / "current").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "llama-server.log").symlink_to(server.log)
    key_file = server.log.with_name("key")
    key_file.chmod(0o600)
    facts = {"runtime": "supervisor", "api_key_file": str(key_file), "url": server.url, "argv": server.command}
    (tmp_path / "current" / "server.json").write_text(json.dumps(facts))
    return tmp_path


def test_it_sees_rates_drafts_slots_and_age(server: Process, prefix: Path) -> None:
    httpx.post(
        f"{server.url}/v1/completions", headers={"Authorization": f"Bearer {KEY}"}, timeout=60,
        json={"prompt": "bees " * 20, "max_tokens": 48, "temperature": 0},
    ).raise_for_status()  # fmt: skip
    found = look(prefix, server.process.pid, 5)
    assert found["health"] == 200
    assert found["counters"]["tokens_predicted_total"] >= 48
    assert found["counters"]["tokens_predicted_seconds_total"] > 0
    assert (found["slots"], found["busy"]) == (1, 0)
    assert found["log_drafted"] > 0
    assert 0 <= found["log_accepted"] <= found["log_drafted"]
    assert 0 < found["uptime_s"] < 600
    assert len(found["log"]) == 5
    assert (found["key_file"]["mode"], found["key_file"]["keys"], found["key_file"]["shortest"]) == ("0600", 1, 43)
    assert found["key_seen_in"] == []
    assert KEY not in json.dumps(found)


def test_a_key_that_is_in_the_log_is_told_and_not_shown(server: Process, prefix: Path) -> None:
    log = prefix / "log" / "llama-server.log"
    log.unlink()
    log.write_text(f"somebody logged {KEY} here\n")
    (prefix / "current" / "definition").write_text(f"--api-key {KEY}\n")
    found = look(prefix, server.process.pid, 5)
    assert found["key_seen_in"] == ["its definition", "its log"]
    assert found["log"] == ["somebody logged <key> here"]
    assert KEY not in json.dumps(found)


def test_a_server_that_is_gone_and_one_that_never_was_are_told(prefix: Path, tmp_path: Path) -> None:
    file = prefix / "current" / "server.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, "url": f"http://127.0.0.1:{free_port()}"}))
    found = look(prefix, 0)
    assert (found["health"], found["uptime_s"], found["log"]) == (0, None, [])
    assert "slots" not in found
    assert look(tmp_path / "nowhere", 0) == {}


def test_status_tells_of_a_host_where_nothing_was_deployed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["status", "local", "--json", "--data", f"llama_prefix={tmp_path}"])
    assert result.exit_code == 6, result.output
    (found,) = json.loads(result.output)
    assert (found["name"], found["state"], found["drift"]) == ("@local", "not deployed", [])


def test_doctor_tells_of_a_host_where_nothing_was_deployed_and_writes_its_bundle(tmp_path: Path) -> None:
    file = tmp_path / "bundle.json"
    words = ["doctor", "local", "--json", "--bundle", str(file), "--data", f"llama_prefix={tmp_path}"]
    result = CliRunner().invoke(app, [*words, "--data", f"llama_port={free_port()}"])
    assert result.exit_code == 6, result.output
    checks = {check["name"]: check for check in json.loads(result.stdout)["@local"]}
    assert checks["plan"]["is_good"] is True
    assert checks["server"]["said"] == "no server was deployed here. Fix: deploy"
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["beeyard_bundle"] == 1


def test_drift_tells_what_a_deploy_would_change_and_that_a_host_is_not_reached(tmp_path: Path) -> None:
    words = ["drift", "local", "--no-verify", "--json", "--tell", f"cat >{tmp_path}/told"]
    result = CliRunner().invoke(
        app, [*words, "--data", f"llama_prefix={tmp_path}/p", "--data", f"llama_port={free_port()}"]
    )
    assert result.exit_code == 6, result.output
    found = json.loads(result.stdout)
    assert {"host": "@local", "by": "a deploy would change", "what": "Serve | Switch under the gate"} in found[
        "drift"
    ]
    assert json.loads((tmp_path / "told").read_text()) == found
    assert not (tmp_path / "p").exists()
    result = CliRunner().invoke(app, ["drift", "local", "--no-verify", "--data", "llama_variant=nothing"])
    assert result.exit_code == 1, result.output
    assert "[@local]" in result.stdout
    assert "Fix: " in result.stdout


def test_logs_show_the_last_lines_and_go_on_until_they_are_stopped(server: Process, prefix: Path) -> None:
    words = [sys.executable, "-m", "beeyard.cli", "logs", "local", "--data", f"llama_prefix={prefix}"]
    run = subprocess.run([*words, "--lines", "2"], check=False, capture_output=True, text=True, cwd=PROJECT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == server.log.read_text().splitlines()[-2:]
    following = subprocess.Popen([*words, "--lines", "1", "--follow"], cwd=PROJECT, text=True, stdout=subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline().strip() == server.log.read_text().splitlines()[-1].strip()
    with server.log.open("a") as log:
        log.write("and this comes later\n")
    assert following.stdout.readline() == "and this comes later\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(20) == 0
    assert str(prefix) not in subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
