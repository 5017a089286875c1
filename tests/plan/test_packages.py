"""apt where others use it: locks that are held, a mirror's hiccups, changed configuration, an interrupted dpkg."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beeyard.operations import packages
from tests.apt_root import AptRoot
from tests.operations import Failed
from tests.plan.conftest import Apply

# Takes a lock as apt and dpkg do.
HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def held(file: Path, seconds: float) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", HOLD, file, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_missing_package_is_installed_once(apply: Apply, apt: AptRoot) -> None:
    assert apply(packages.installed, packages=["bees"]) == 2
    assert apt.status("bees") == "ii 1"
    assert apply(packages.installed, packages=["bees"]) == 0


@pytest.mark.parametrize("lock", ["var/lib/dpkg/lock-frontend", "var/lib/apt/lists/lock"])
def test_who_holds_apts_lock_is_waited_for_and_named(
    lock: str, apply: Apply, apt: AptRoot, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    process = held(apt.directory / lock, 4)
    began = time.monotonic()
    apply(packages.installed, packages=["bees"])
    assert time.monotonic() - began > 3
    assert apt.status("bees") == "ii 1"
    assert f"apt waits: process {process.pid} (python" in caplog.text
    assert lock in caplog.text
    process.wait()


def test_a_lock_that_is_never_free_is_a_sentence_with_its_holder(
    apply: Apply, apt: AptRoot, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    process = held(apt.dpkg / "lock-frontend", 60)
    with pytest.raises(Failed):
        apply(packages.installed, packages=["bees"], wait_s=2)
    process.kill()
    process.wait()
    said = capfd.readouterr().err + caplog.text
    assert f"apt is still in use after 2 s: process {process.pid} (python" in said
    assert f"Fix: wait until it ends, or see what it does: ps -fp {process.pid}; then deploy again" in said
    assert apt.status("bees") == ""


def test_a_mirrors_hiccup_is_tried_again(apply: Apply, apt: AptRoot) -> None:
    # As many as apt itself tries for one file, so that its update fails once.
    (apt.mirror / "hiccups").write_text("5")
    apply(packages.installed, packages=["bees"])
    assert apt.status("bees") == "ii 1"


def test_a_mirror_that_is_gone_is_a_sentence(
    apply: Apply, apt: AptRoot, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (apt.mirror / "hiccups").write_text("1000")
    with pytest.raises(Failed):
        apply(packages.installed, packages=["bees"])
    said = capfd.readouterr().err + caplog.text
    assert "apt-get install --yes --no-install-recommends bees fails: Unable to locate package bees. Fix: " in said


def test_a_source_of_others_that_is_gone_stops_nothing(apply: Apply, apt: AptRoot) -> None:
    dead = f"deb [signed-by={apt.directory}/key.gpg] http://127.0.0.1:{apt.port}/gone test main\n"
    (apt.directory / "etc/apt/sources.list.d/dead.list").write_text(dead)
    apply(packages.installed, packages=["bees"])
    assert apt.status("bees") == "ii 1"


def test_a_changed_configuration_file_is_kept_and_nothing_is_asked(apply: Apply, apt: AptRoot) -> None:
    apply(packages.installed, packages=["bees"])
    (apt.directory / "etc/bees.conf").write_text("as its owner wants\n")
    apt.package("bees", version="2", files={"/etc/bees.conf": "as packed anew\n"})
    apt.package("honey", Depends="bees (>= 2)")
    apt.publish()
    apply(packages.installed, packages=["honey"])
    assert apt.status("bees") == "ii 2"
    assert (apt.directory / "etc/bees.conf").read_text() == "as its owner wants\n"


def test_an_interrupted_dpkg_is_ended(apply: Apply, apt: AptRoot) -> None:
    apt.package("honey")
    apt.publish()
    # dpkg that was unpacked and then killed: its journal is still there.
    subprocess.run(
        ["dpkg", f"--root={apt.directory}", "--log=/dev/null", "--unpack", apt.mirror / "honey_1.deb"], check=True,
        capture_output=True,
    )  # fmt: skip
    entry = (apt.dpkg / "status").read_text()
    (apt.dpkg / "updates/0000").write_text(entry)
    assert apt.status("honey").startswith("iU")
    apply(packages.installed, packages=["bees"])
    assert (apt.status("honey"), apt.status("bees")) == ("ii 1", "ii 1")
    assert list((apt.dpkg / "updates").iterdir()) == []


def test_what_apt_cannot_do_is_a_sentence(
    apply: Apply, apt: AptRoot, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    apt.package("wants-more", Depends="nobody-has-this")
    apt.publish()
    for name, complaint in (
        ("nothing-of-this-name", "Unable to locate package nothing-of-this-name. Fix: see that the host's sources"),
        ("wants-more", "you have held broken packages. Fix: run it there"),
    ):
        with pytest.raises(Failed):
            apply(packages.installed, packages=[name])
        assert complaint in capfd.readouterr().err + caplog.text


def test_an_apt_that_is_killed_leaves_no_lock_behind(apply: Apply, apt: AptRoot) -> None:
    process = held(apt.dpkg / "lock-frontend", 60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    apply(packages.installed, packages=["bees"])
    assert apt.status("bees") == "ii 1"
