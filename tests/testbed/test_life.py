"""The life of a server on a systemd host and on a pod, in order: each test goes on where the one before ended."""

import re
import shlex
import time
from typing import Any

import pytest

from tests.testbed.conftest import PREFIX, Bed

HOSTS = ["systemd", "pod"]
pytestmark = pytest.mark.parametrize("host", HOSTS, scope="module")


def test_a_first_deploy_ends_in_a_server_that_drafts(bed: Bed, host: str) -> None:
    bed.wipe(host)
    run = bed.deploy(host)
    assert run.code == 0, run.output
    assert f"{host} serves tiny, variant dflash" in run.stderr
    assert "drafted tokens accepted" in run.stderr
    assert "tunnel: ssh -N -L 8910:127.0.0.1:8910" in run.stderr
    assert "draft-dflash" in bed.serving(host)


def test_a_second_deploy_changes_nothing(bed: Bed, host: str) -> None:
    before = bed.state(host)["pid"]
    run = bed.deploy(host)
    assert run.code == 0, run.output
    assert run.changed == []
    assert bed.state(host)["pid"] == before


def test_what_runs_is_what_the_spec_says(bed: Bed, host: str) -> None:
    said = bed.verify(host)
    assert "10 passed" in said, said
    assert "failed" not in said


def test_it_switches_to_another_variant_and_back(bed: Bed, host: str) -> None:
    for variant, drafts in (("baseline", False), ("dflash", True)):
        run = bed.deploy(host, llama_variant=variant)
        assert run.code == 0, run.output
        assert ("draft-dflash" in bed.serving(host)) is drafts
        assert bed.deploy(host, llama_variant=variant).changed == []


@pytest.mark.case("DFL-07")
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"llama_preset": "broken", "llama_variant": "dies"}, "its process died while it loaded"),
        ({"llama_preset": "broken", "llama_variant": "hangs"}, "it was not ready after 4 s (/health answers 503)"),
        ({"llama_preset": "stuck"}, "its answer is one token over and over"),
        ({"llama_preset": "broken", "llama_variant": "never-drafts"}, "it never drafted"),
        ({"llama_gate_min_acceptance": 0.99}, "and 99.0% are wanted (llama_gate_min_acceptance)"),
    ],
    ids=["dies", "hangs", "garbage", "never-drafts", "too-few-accepted"],
)
def test_a_switch_that_fails_the_gate_ends_in_the_server_before_it(
    bed: Bed, host: str, data: dict[str, Any], complaint: str
) -> None:
    before = bed.serving(host)
    run = bed.deploy(host, **data)
    assert run.code != 0
    assert complaint in run.stderr
    assert "did not pass the gate; the previous server serves again" in run.stderr
    assert "log lines:" in run.stderr
    assert "Fix: " in run.stderr
    assert bed.serving(host) == before
    # At most the pruned definition is written again.
    assert bed.deploy(host).changed in ([], ["Serve | Write the server's definition"])


def test_a_drafter_that_is_good_enough_passes_and_says_how_good(bed: Bed, host: str) -> None:
    run = bed.deploy(host, llama_gate_min_acceptance=0.2)
    assert run.code == 0, run.output
    assert re.search(r"drafted tokens accepted, \d\d\.\d% of \d+ in everyday answers", run.stderr), run.stderr
    assert bed.deploy(host).code == 0


@pytest.mark.case("DFL-01")
def test_arguments_that_the_engine_does_not_know_stop_nothing(bed: Bed, host: str) -> None:
    before = bed.state(host)["pid"]
    run = bed.deploy(host, llama_preset="broken", llama_variant="unknown-flag")
    assert run.code != 0
    assert "test engine old-help does not know --jinja; it offers --ninja" in run.stderr
    assert "Nothing was stopped. Fix: " in run.stderr
    assert bed.state(host)["pid"] == before


def test_a_crash_is_healed_without_a_deploy(bed: Bed, host: str) -> None:
    before = bed.state(host)["pid"]
    bed.sh(host, f"kill -9 {before}")
    deadline = time.monotonic() + 30
    while not bed.serving(host):
        assert time.monotonic() < deadline, "it did not come back"
        time.sleep(0.2)
    assert bed.state(host)["pid"] != before
    assert bed.deploy(host).changed == []


def test_a_stopped_server_is_started_by_one_deploy(bed: Bed, host: str) -> None:
    bed.sh(host, f"python3 {PREFIX[host]}/bin/guard.py stop {PREFIX[host]}")
    assert bed.serving(host) == []
    run = bed.deploy(host)
    assert run.code == 0, run.output
    assert run.totals["success"] == 1
    assert "draft-dflash" in bed.serving(host)


def test_it_is_back_after_a_reboot_and_one_deploy(bed: Bed, host: str) -> None:
    if host == "systemd":
        boot = bed.boot(host)
        bed.sh(host, "systemctl reboot", check=False)
        deadline = time.monotonic() + 60
        while bed.boot(host) in ("", boot) or not bed.serving(host):
            assert time.monotonic() < deadline, "the unit did not start at boot"
            time.sleep(0.3)
        assert bed.deploy(host).changed == []
    else:
        key = bed.sh(host, f"sha256sum <{PREFIX[host]}/etc/api-key")
        bed.recreate(host)
        assert bed.sh(host, "command -v curl; pgrep llama-server", check=False).endswith("curl")
        run = bed.deploy(host)
        assert run.code == 0, run.output
        assert "draft-dflash" in bed.serving(host)
        assert bed.sh(host, f"sha256sum <{PREFIX[host]}/etc/api-key") == key
        assert bed.deploy(host).changed == []


def test_with_no_server_before_it_a_failed_one_ends_stopped_and_says_so(bed: Bed, host: str) -> None:
    bed.wipe(host)
    run = bed.deploy(host, llama_preset="stuck")
    assert run.code != 0
    assert "there is no previous server: it is stopped" in run.stderr
    assert bed.serving(host) == []
    assert bed.state(host) == {"current": None}
    assert bed.sh(host, "pgrep llama-server", check=False) == ""
    run = bed.deploy(host)
    assert run.code == 0, run.output


def test_a_path_with_a_space_serves_too(bed: Bed, host: str) -> None:
    bed.wipe(host)
    prefix = "/srv/my bees"
    try:
        run = bed.deploy(host, llama_prefix=prefix)
        assert run.code == 0, run.output
        assert prefix in bed.serving(host)[0]
        assert bed.deploy(host, llama_prefix=prefix).changed == []
    finally:
        quoted = shlex.quote(prefix)
        bed.sh(host, f"python3 {quoted}/bin/guard.py stop {quoted}; rm -rf {quoted}")


def test_debians_own_engine_serves_where_the_host_has_it(bed: Bed, host: str) -> None:
    run = bed.deploy(host, llama_engine="llama.cpp-debian")
    if host == "systemd":  # Debian 12
        assert run.code != 0
        assert "package llama.cpp: this distribution offers none, 0.7.0 is wanted. Fix: " in run.stderr
        return
    assert run.code == 0, run.output
    running = bed.serving(host)
    assert running[0] == "/usr/bin/llama-server"
    assert running[running.index("--load-mode") + 1] == "mlock"
    assert bed.deploy(host, llama_engine="llama.cpp-debian").changed == []
