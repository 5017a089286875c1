"""Drift's report, its ways to tell of it, and its units; hosts are looked at in tests/plan and tests/testbed."""

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from beeyard.catalog import CatalogError
from beeyard.drifting import Difference, Found, as_json, differences, tell, units
from beeyard.hosts import Target
from tests.needs import program

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
<testcase classname="tests.host.test_server" name="test_requests_need_the_key[attic]" time="0.1" />
<testcase classname="tests.host.test_server" name="test_the_key_is_the_servers_alone[attic]" time="0.1">
<failure message="AssertionError: assert 420 == 384&#10;  +  where 420 = file.mode">def test…</failure></testcase>
<testcase classname="tests.host.test_server" name="test_it_answers_and_drafts_if_it_should[@local]" time="0.1">
<error message="failed on setup with &quot;RuntimeError: no route&quot;">…</error></testcase>
<testcase classname="tests.host.test_server" name="test_it_comes_back_after_it_was_killed[attic]" time="0.0">
<skipped type="pytest.skip" message="KILL=0" /></testcase>
</testsuite></testsuites>"""
FOUND = Found((Difference(host="attic", by="not so", what="it serves"),), ("[loft] Could not connect. Fix: see",))


class Posted(BaseHTTPRequestHandler):
    bodies: list[Any] = []

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204 if self.path == "/good" else 403)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Posted)
    Posted.bodies.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_what_failed_is_told_by_host_and_in_words() -> None:
    assert differences(REPORT) == [
        Difference(
            host="attic", by="not so", what="the key is the servers alone (AssertionError: assert 420 == 384)"
        ),
        Difference(
            host="@local",
            by="not so",
            what='it answers and drafts if it should (failed on setup with "RuntimeError: no route")',
        ),
    ]


def test_the_report_is_for_machines_and_for_chats() -> None:
    found = as_json("homelab", FOUND)
    assert found["drift"] == [{"host": "attic", "by": "not so", "what": "it serves"}]
    assert found["text"] == "Beeyard: drift of homelab\n[attic] not so: it serves\n[loft] Could not connect. Fix: see"
    many = Found(tuple(Difference(host="attic", by="not so", what="x" * 90) for _ in range(50)))
    assert len(as_json("homelab", many)["content"]) < 2000


def test_a_command_and_a_webhook_get_the_report(tmp_path: Path, hook: str) -> None:
    (tmp_path / "hook").write_text(f"{hook}/good\n")
    report = as_json("homelab", FOUND)
    assert tell(report, f"cat >{tmp_path}/got", tmp_path / "hook") == []
    assert json.loads((tmp_path / "got").read_text()) == report
    assert Posted.bodies == [report]


def test_whoever_cannot_be_told_is_named_but_not_the_webhooks_address(tmp_path: Path, hook: str) -> None:
    (tmp_path / "hook").write_text(f"{hook}/secret-path\n")
    faults = tell(as_json("homelab", FOUND), "exit 3", tmp_path / "hook")
    assert faults[0].startswith("the command that is to tell ended with 3. Fix: ")
    assert faults[1].startswith("the webhook answers 403. Fix: ")
    (tmp_path / "hook").write_text("http://127.0.0.1:1/secret-path")
    faults += tell(as_json("homelab", FOUND), None, tmp_path / "hook")
    faults += tell(as_json("homelab", FOUND), None, tmp_path / "nothing")
    assert [fault.partition(". Fix: ")[0].split(" (")[0] for fault in faults[2:]] == [
        "the webhook was not reached", f"{tmp_path}/nothing: No such file or directory"
    ]  # fmt: skip
    assert not any("secret-path" in fault for fault in faults)


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    found = units(Target("local", {}), "root", "*-*-* 03:30:00", "mail -s 'drift at 100%' me", tmp_path / "hook")
    for name, text in found.items():
        (tmp_path / name).write_text(text)
    assert set(found) == {"beeyard-drift-local.service", "beeyard-drift-local.timer"}
    check = [
        program("systemd-analyze", "systemd"),
        "verify",
        "--recursive-errors=no",
        *(str(tmp_path / name) for name in found),
    ]
    run = subprocess.run(check, check=False, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    run = subprocess.run(
        [program("systemd-analyze", "systemd"), "calendar", "*-*-* 03:30:00"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0
    assert "\"mail -s 'drift at 100%%' me\"" in found["beeyard-drift-local.service"]


def test_a_unit_holds_no_line_break() -> None:
    with pytest.raises(CatalogError, match="a unit cannot hold a line break"):
        units(Target("local", {}), "root", "daily", "a\nExecStartPre=b", None)
