"""What a deploy changes of a machine itself, by data; and apt beside somebody else's, on a real host."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beeyard.operations import drivers, kernel_settings
from beeyard.render import gpu_unit
from tests import engine_image
from tests.operations import applied
from tests.testbed.conftest import STATE, Bed

SYSTEMD = "systemd"
pytestmark = pytest.mark.hosts(SYSTEMD)
UNIT, SCRIPT = "beeyard-gpu.service", "/opt/beeyard/bin/gpu.sh"
# Of a network namespace, so that the machine below the hosts keeps its own.
TTL = "net.ipv4.ip_default_ttl"
# Stand-ins of the driver's tools, which note how they were called; the module is /dev/null's.
TOOLS = r"""
for tool in modprobe nvidia-modprobe; do
    printf '#!/bin/sh\necho "%s $*" >>/run/gpu-tools\n' "$tool" >/usr/local/sbin/$tool
done
cat >/usr/local/sbin/nvidia-smi <<'END'
#!/bin/sh
case $* in
*persistence_mode*) cat /run/persistence 2>/dev/null || echo Disabled ;;
'-pm 1') echo "nvidia-smi $*" >>/run/gpu-tools; echo Enabled >/run/persistence ;;
esac
END
chmod 755 /usr/local/sbin/*
ln -s null /dev/nvidia-uvm
"""
AWAY = (
    "rm -f /usr/local/sbin/modprobe /usr/local/sbin/nvidia-modprobe /usr/local/sbin/nvidia-smi /dev/nvidia-uvm "
    f"/run/gpu-tools /run/persistence; systemctl disable --quiet {UNIT}; rm -f /etc/systemd/system/{UNIT}"
)


def apply(operation: Any, **arguments: Any) -> int:
    data = {
        "ssh_hostname": "127.0.0.1", "ssh_port": 2201, "ssh_user": "root", "ssh_key": str(STATE / "id_ed25519"),
        "ssh_known_hosts_file": str(STATE / "known_hosts"), "ssh_strict_host_key_checking": "yes",
    }  # fmt: skip
    return applied(SYSTEMD, data, operation, **arguments)


@pytest.fixture
def tools(bed: Bed) -> Iterator[Bed]:
    assert bed.deploy(SYSTEMD).code == 0
    bed.sh(SYSTEMD, TOOLS)
    yield bed
    bed.sh(SYSTEMD, AWAY, check=False)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (
            {"llama_preset": "gpu", "llama_nvidia_driver": "install"},
            "llama_nvidia_driver is install, but this host is",
        ),
        ({"llama_limits": '{"nofile": 4096}'}, "llama_limits is for logins, which runtime systemd has none of"),
        # Its own has no compose 2.
        (
            {"llama_runtime": "compose", "llama_docker": "distribution", "llama_engine": engine_image.ENGINE},
            "the Docker of debian bookworm",
        ),
    ],
    ids=["driver", "limits", "old-docker"],
)
def test_what_a_machine_cannot_have_is_refused(bed: Bed, data: dict[str, Any], complaint: str) -> None:
    run = bed.deploy(SYSTEMD, **data)
    assert run.code != 0
    assert complaint in " ".join(run.stderr.split())
    assert "Fix: " in run.stderr
    if "llama_docker" in data:
        assert "Fix: set llama_docker to docker.com" in run.stderr


def test_a_preset_for_the_cpu_wants_no_driver(bed: Bed) -> None:
    run = bed.deploy(SYSTEMD, llama_nvidia_driver="install")
    assert run.code == 0, run.output


def test_kernel_settings_are_set_and_drift_is_set_right(bed: Bed) -> None:
    before = bed.sh(SYSTEMD, f"sysctl -n {TTL}")
    assert apply(kernel_settings.present, values={TTL: "77"}) == 2
    assert bed.sh(SYSTEMD, f"sysctl -n {TTL}") == "77"
    assert apply(kernel_settings.present, values={TTL: "77"}) == 0
    bed.sh(SYSTEMD, f"sysctl -q -w {TTL}={before}")
    assert apply(kernel_settings.present, values={TTL: "77"}) == 2
    assert apply(kernel_settings.present, values={}) == 1
    bed.sh(SYSTEMD, f"sysctl -q -w {TTL}={before}; ! test -e {kernel_settings.SYSCTL_FILE}")


def test_cards_are_ready_now_and_after_a_boot(tools: Bed) -> None:
    tools.sh(SYSTEMD, f"mkdir -p /opt/beeyard/bin && cat >{SCRIPT} <<'END'\n{gpu_script()}END")
    words = {"unit": UNIT, "definition": gpu_unit(SCRIPT).encode(), "script": SCRIPT}
    assert apply(drivers.ready_at_boot, **words) == 3
    assert tools.sh(SYSTEMD, "cat /run/gpu-tools").splitlines() == [
        "modprobe nvidia-uvm", "nvidia-modprobe -u -c 0", "nvidia-smi -pm 1"
    ]  # fmt: skip
    assert apply(drivers.ready_at_boot, **words) == 0
    assert tools.sh(SYSTEMD, f"systemd-analyze verify /etc/systemd/system/{UNIT} 2>&1 | grep -c {UNIT}; true") == "0"
    tools.sh(SYSTEMD, f"rm /run/gpu-tools /run/persistence; systemctl start {UNIT}")
    assert "nvidia-smi -pm 1" in tools.sh(SYSTEMD, "cat /run/gpu-tools")


def test_a_deploy_waits_for_another_apt(bed: Bed) -> None:
    bed.sh(SYSTEMD, "apt-get remove -y -qq ca-certificates >/dev/null 2>&1")
    bed.sh(
        SYSTEMD,
        'systemd-run --quiet --unit test-lock python3 -c "import fcntl, time; '
        "f = open('/var/lib/dpkg/lock-frontend', 'w'); "
        'fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(20)"; sleep 1',
    )
    run = bed.deploy(SYSTEMD)
    assert run.code == 0, run.output
    assert "holds /var/lib/dpkg/lock-frontend" in " ".join(run.stderr.split())
    assert bed.sh(SYSTEMD, "dpkg-query -W -f '${db:Status-Abbrev}' ca-certificates") == "ii"


def gpu_script() -> str:
    return (Path(drivers.__file__).parents[1] / "onhost" / "gpu.sh").read_text()
