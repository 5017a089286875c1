"""The NVIDIA driver by real apt and dpkg, from packages of its names; cards made ready, by stand-ins of its tools."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from beeyard.drivers import driver_obstacles
from beeyard.facts.driver import SCRIPT, NvidiaDriver
from beeyard.operations import drivers
from beeyard.probes import DriverProbe
from tests.apt_root import AptRoot
from tests.operations import Failed
from tests.plan.conftest import Apply

GPU = Path(drivers.__file__).parents[1] / "onhost" / "gpu.sh"
DRIVER = ("nvidia-driver", "nvidia-smi", "libcuda1")


def seen() -> DriverProbe:
    """What the fact says of a system, by the real script; as if it were no container and had a 4090."""
    run = subprocess.run(["sh", SCRIPT], check=True, capture_output=True, text=True)
    found = NvidiaDriver().process(run.stdout.splitlines())
    return {**found, "container": "", "cards": ["2684"], "distribution": "debian", "release": "12"}


def offer(apt: AptRoot, component: str = "non-free", version: str = "535.261.03-1") -> None:
    for name in DRIVER:
        apt.package(name, version, component, Source="nvidia-graphics-drivers")
    apt.package("nvidia-modprobe", "535.161.07-1", "contrib")
    apt.package("nvidia-container-toolkit", "1.18.1-1", "contrib")
    apt.package("firmware-nvidia-gsp", version, "non-free-firmware", Source="nvidia-graphics-drivers")
    apt.package("linux-headers-amd64", "6.1.176-1")
    apt.publish()
    apt.uses_component("main", "contrib", "non-free", "non-free-firmware")


@pytest.fixture(autouse=True)
def _on_debian() -> None:
    if not re.search(r"^ID=debian$", Path("/etc/os-release").read_text(), re.MULTILINE):
        pytest.skip("what this machine's distribution calls its driver's packages is not in the repository")


def test_the_driver_is_installed_once(apply: Apply, apt: AptRoot) -> None:
    offer(apt)
    apply(drivers.installed)
    assert {apt.status(name) for name in DRIVER} == {"ii 535.261.03-1"}
    assert apt.status("linux-headers-amd64") == "ii 6.1.176-1"
    assert apply(drivers.installed) == 0
    found = seen()
    assert found["installed"] == {"nvidia-driver": "535.261.03-1"}
    assert driver_obstacles(found) == []  # it waits for the boot
    old = apt.dpkg / "info/nvidia-driver.list"
    os.utime(old, (1, 1))
    (text,) = driver_obstacles(seen())
    assert "nvidia-driver 535.261.03-1 is installed, the host was booted since" in text


MOKUTIL = """#!/bin/sh
case $1 in
--sb-state) echo "{state}" ;;
--test-key) echo "$2 {key}"; exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("mokutil", "variable", "is_on", "enrolled"),
    [
        (None, None, False, ""),  # a machine without EFI
        (None, bytes([6, 0, 0, 0, 1]), True, ""),
        (None, bytes([6, 0, 0, 0, 0]), False, ""),
        (("SecureBoot disabled", "is not enrolled"), None, False, ""),
        (("SecureBoot enabled", "is not enrolled"), None, True, ""),
        (("SecureBoot enabled", "is already enrolled"), bytes([6, 0, 0, 0, 1]), True, "/var/lib/dkms/mok.pub"),
    ],
)
def test_secure_boot_is_seen_by_its_tool_or_by_the_firmwares_variable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mokutil: tuple[str, str] | None,
    variable: bytes | None,
    is_on: bool,
    enrolled: str,
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    if mokutil is not None:
        (tools / "mokutil").write_text(MOKUTIL.format(state=mokutil[0], key=mokutil[1]))
        (tools / "mokutil").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    efi = tmp_path / "sys/firmware/efi/efivars"
    efi.mkdir(parents=True)
    if variable is not None:
        (efi / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(variable)
    (tmp_path / "var/lib/dkms").mkdir(parents=True)
    (tmp_path / "var/lib/dkms/mok.pub").write_bytes(b"key")
    run = subprocess.run(["sh", SCRIPT, str(tmp_path)], check=True, capture_output=True, text=True)
    found = NvidiaDriver().process(run.stdout.splitlines())
    assert (found["secure_boot"], found["enrolled_key"]) == (is_on, enrolled)


def test_what_is_left_to_do_is_told_and_changes_nothing(
    apply: Apply, apt: AptRoot, caplog: pytest.LogCaptureFixture
) -> None:
    offer(apt)
    apply(drivers.installed)
    assert apply(drivers.awaits_reboot) == 0
    assert "the NVIDIA driver is installed (nvidia-driver 535.261.03-1) and is loaded at the next boot" in caplog.text
    assert "Fix: reboot the host, then deploy again" in caplog.text


def test_a_component_that_apt_does_not_know_is_named(apply: Apply, apt: AptRoot) -> None:
    offer(apt)
    apt.uses_component("main", "contrib")
    (text,) = driver_obstacles(seen())
    assert "apt does not know non-free, non-free-firmware here" in text


def test_a_distribution_without_the_driver_is_told(
    apply: Apply, apt: AptRoot, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Failed):
        apply(drivers.installed)
    assert "apt offers no nvidia-driver here. Fix: " in capfd.readouterr().err + caplog.text


def test_a_held_driver_survives_an_upgrade(apply: Apply, apt: AptRoot, caplog: pytest.LogCaptureFixture) -> None:
    offer(apt)
    apply(drivers.installed)
    with caplog.at_level("INFO", logger="pyinfra"):
        assert apply(drivers.held) == 1
    assert "3 packages of the NVIDIA driver are held from now on" in caplog.text
    assert apply(drivers.held) == 0
    offer(apt, version="550.163.01-2")
    apt.package("nvidia-modprobe", "570.133.07-1", "contrib")
    apt.publish()
    for command in ("update", "upgrade"):
        subprocess.run(["apt-get", "-qq", "--yes", command], check=True, capture_output=True)
    assert {apt.status(name)[2:].strip() for name in DRIVER} == {"535.261.03-1"}
    assert apt.status("nvidia-modprobe") == "ii 570.133.07-1"


def test_nothing_is_held_where_there_is_no_driver(apply: Apply, apt: AptRoot) -> None:
    assert apply(drivers.held) == 0


def tools(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment in which these are the tools."""
    for name, script in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def ready(folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (folder / "devices").write_text("Character devices:\n195 nvidia-frontend\n511 nvidia-uvm\n")
    words = ["sh", str(GPU), str(folder / "nvidia-uvm"), str(folder / "devices")]
    return subprocess.run(words, check=False, capture_output=True, text=True, env=env)


def test_cards_are_made_ready(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("devices are root's")
    log = tmp_path / "log"
    note = f'echo "$(basename "$0") $*" >>{log}'
    env = tools(tmp_path, modprobe=note, nvidia_modprobe=f"{note}; exit 1", nvidia_smi=note)
    assert ready(tmp_path, env).returncode == 0
    assert log.read_text().splitlines() == ["modprobe nvidia-uvm", "nvidia-modprobe -u -c 0", "nvidia-smi -pm 1"]
    # nvidia-modprobe made none: the device has the module's own number.
    device = (tmp_path / "nvidia-uvm").stat()
    assert (os.major(device.st_rdev), os.minor(device.st_rdev)) == (511, 0)
    assert ready(tmp_path, env).returncode == 0


def test_a_module_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    env = tools(tmp_path, modprobe='echo "modprobe: FATAL: Module nvidia-uvm not found." >&2; exit 1')
    run = ready(tmp_path, env)
    assert run.returncode == 1
    assert "nvidia-uvm is not loaded: modprobe: FATAL: Module nvidia-uvm not found.. Fix: dkms status" in run.stderr
