"""sysctl and limits on this machine: its real /proc, files elsewhere."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from beeyard.operations import kernel_settings
from tests.operations import Failed
from tests.plan.conftest import Apply

SWAPPINESS = Path("/proc/sys/vm/swappiness")


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    running = subprocess.Popen(["sleep", "600"])
    yield running
    running.kill()
    running.wait()


def test_settings_are_written_once_and_taken_away(apply: Apply, tmp_path: Path) -> None:
    file = tmp_path / "80-beeyard.conf"
    values = {"vm.swappiness": SWAPPINESS.read_text().strip(), "net.ipv4.tcp_rmem": "4096 131072 6291456"}
    values["net.ipv4.tcp_rmem"] = " ".join(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split())
    apply(kernel_settings.present, values=values, path=str(file))
    assert f"vm.swappiness = {values['vm.swappiness']}\n" in file.read_text()
    assert apply(kernel_settings.present, values=values, path=str(file)) == 0
    assert apply(kernel_settings.present, values={}, path=str(file)) == 1
    assert not file.exists()
    assert apply(kernel_settings.present, values={}, path=str(file)) == 0


def test_a_setting_that_the_kernel_has_not_is_a_sentence_and_no_file(
    apply: Apply, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "80-beeyard.conf"
    with pytest.raises(Failed):
        apply(kernel_settings.present, values={"vm.bees": "1"}, path=str(file))
    said = capfd.readouterr().err + caplog.text
    assert "sysctl vm.bees cannot be set to 1: " in said
    assert "Fix: take it out of llama_sysctl" in said
    assert not file.exists()


def test_limits_hold_for_logins_and_for_what_runs(
    apply: Apply, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    file, pid_file = tmp_path / "80-beeyard.conf", tmp_path / "pid"
    pid_file.write_text(f"{process.pid}\n")
    words = {"users": ["root", "bees"], "pids": [], "pid_file": str(pid_file), "path": str(file)}
    # Lower than they are, which any machine lets us do.
    apply(kernel_settings.limited, limits={"memlock": "64", "nofile": "512"}, **words)
    assert "root - memlock 64\nroot - nofile 512\nbees - memlock 64\nbees - nofile 512\n" in file.read_text()
    lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    found = {line[:26].strip(): line[26:].split()[:2] for line in lines}
    assert found["Max locked memory"] == ["65536", "65536"]
    assert found["Max open files"] == ["512", "512"]
    assert apply(kernel_settings.limited, limits={"memlock": "64", "nofile": "512"}, **words) == 0
    assert apply(kernel_settings.limited, limits={}, **words) == 1
    assert not file.exists()


def test_a_limit_that_cannot_be_raised_is_a_sentence_and_no_file(
    apply: Apply,
    tmp_path: Path,
    process: "subprocess.Popen[bytes]",
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    more_than_any = int(Path("/proc/sys/fs/nr_open").read_text()) + 1
    file = tmp_path / "80-beeyard.conf"
    words = {"users": ["root"], "pids": [process.pid], "pid_file": str(tmp_path / "none"), "path": str(file)}
    with pytest.raises(Failed):
        apply(kernel_settings.limited, limits={"nofile": str(more_than_any)}, **words)
    assert "this host does not let root raise limits (" in capfd.readouterr().err + caplog.text
    assert not file.exists()
