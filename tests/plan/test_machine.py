"""The whole of machine.sh on this machine, with stand-ins for what it has not: cards, pods, control groups."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import Config, FactBase, Inventory, State
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import PyinfraError

from beeyard.facts.docker import DockerEngine
from beeyard.facts.machine import MachineFacts
from beeyard.machine import Machine

Look = Callable[..., Machine]
# What the smallest system has. Nothing of NVIDIA, Docker, systemd, curl, Python or a compiler.
TOOLS = """
    sh timeout mktemp rm cat sed grep awk tr head tail cut dirname df id uname nproc getconf sleep readlink
"""
PATH = os.environ["PATH"]
ROOT = {
    "proc/meminfo": "MemTotal:       65536000 kB\nMemFree:  1 kB\nMemAvailable:   61440000 kB\n",
    "proc/self/status": "VmLck:\t0 kB\nCapEff:\t00000000a80425fb\n",
    "proc/self/environ": "PATH=/usr/bin:/bin\0",
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "1 1 0:1 / / rw - overlay overlay rw\n",
    "proc/1/cgroup": "0::/\n",
    "proc/1/environ": "HOME=/root\0",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu avx avx2\n\nprocessor\t: 1\nflags\t\t: fpu avx avx2\n",
    "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
    "etc/os-release": 'NAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n',
}
# As nvidia-smi answers: the fields that it is asked for, of each card; it knows those that its first card has.
SMI = r"""#!/bin/sh
case ${1:-} in
--query-gpu=*)
    fields=$(echo "${1#--query-gpu=}" | tr , ' ')
    for field in $fields; do
        grep -q "^$field=" "$0.card0" || {
            printf 'Field "%s" is not a valid field to query.\n\n' "$field"
            exit 2
        }
    done
    for card in "$0".card*; do
        row=
        for field in $fields; do row="$row, $(sed -n "s/^$field=//p" "$card")"; done
        echo "${row#, }"
    done
    ;;
--query-compute-apps=gpu_uuid,pid,process_name,used_memory) cat "$0.apps" ;;
'') cat "$0.table" ;;
*) exit 1 ;;
esac
"""
TABLE = """\
Tue Sep 30 09:12:44 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
"""
RTX_3090 = {
    "index": "0",
    "uuid": "GPU-8f6dd7a4-0a6e-0f2b-7d64-1b1c5b8b0a11",
    "name": "NVIDIA GeForce RTX 3090",
    "compute_cap": "8.6",
    "memory.total": "24576",
    "memory.free": "24124",
    "driver_version": "550.54.14",
    "ecc.mode.current": "[N/A]",
    "mig.mode.current": "[N/A]",
    "power.limit": "350.00",
    "temperature.gpu": "34",
}
RTX_4090 = {
    **RTX_3090,
    "index": "1",
    "uuid": "GPU-3c0b5b3e-9f0f-4e6c-9d0e-6a4f5b1c2d33",
    "name": "NVIDIA GeForce RTX 4090",
    "compute_cap": "8.9",
    "memory.total": "24564",
    "memory.free": "5210",
    "ecc.mode.current": "Disabled",
    "power.limit": "450.00",
}
BROKEN = "#!/bin/sh\ncat <<'SAID'\n{said}\nSAID\nexit {status}\n"


class Place:
    """A host: its commands, and its files under another root."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.root = folder / "bin", folder / "root"
        self.bin.mkdir()
        for tool in TOOLS.split():
            self.link(tool)
        for path, text in ROOT.items():
            self.write(path, text)

    def link(self, tool: str) -> None:
        """A command of this machine."""
        found = shutil.which(tool, path=PATH)
        assert found is not None, tool
        (self.bin / tool).symlink_to(Path(found).resolve())

    def command(self, name: str, script: str) -> Path:
        """A stand-in."""
        file = self.bin / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script)
        file.chmod(0o755)
        return file

    def write(self, path: str, text: str) -> None:
        """A file."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def cards(self, *cards: dict[str, str], apps: str = "", table: str = TABLE) -> None:
        """Cards, and an nvidia-smi for them."""
        smi = self.command("nvidia-smi", SMI)
        for number, card in enumerate(cards):
            Path(f"{smi}.card{number}").write_text("".join(f"{name}={value}\n" for name, value in card.items()))
        Path(f"{smi}.apps").write_text(apps)
        Path(f"{smi}.table").write_text(table)

    def look(self, **arguments: Any) -> Machine:
        """What the fact says of it."""
        found = asked({"paths": [], "root": str(self.root), "patience": 1, **arguments})
        assert isinstance(found, Machine)
        return found


def asked(arguments: dict[str, Any], fact: type[FactBase[Any]] = MachineFacts) -> Any:
    """A fact, asked by pyinfra of @local; PyinfraError where it fails the host."""
    state = State(inventory=Inventory((["@local"], {})), config=Config())
    connect_all(state)
    try:
        (host,) = state.inventory
        return host.get_fact(fact, **arguments)
    finally:
        disconnect_all(state)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A host that has nothing."""
    made = Place(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    return made


def test_this_machine_as_it_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = asked({"paths": [str(tmp_path)]})
    assert isinstance(found, Machine)
    known = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert found.memory_mib == int(known["MemTotal"].split()[0]) // 1024
    assert 0 < found.memory_available_mib <= found.memory_mib
    assert found.is_root == (os.getuid() == 0)
    assert found.kernel == os.uname().release
    assert 1 <= found.cores <= len(os.sched_getaffinity(0))
    assert found.listening.count(port) == 1
    assert 0 < found.free_bytes[str(tmp_path)] <= shutil.disk_usage("/").total
    assert found.init == ("systemd" if Path("/run/systemd/system").is_dir() else "other")
    assert found.has_nvidia_smi == (shutil.which("nvidia-smi") is not None)
    assert bool(found.docker.command) == (shutil.which("docker") is not None)
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    assert list(found.cpu_flags) == flags.partition(":")[2].split()
    assert found.distribution in Path("/etc/os-release").read_text()


@pytest.mark.case("PYI-03")
def test_a_host_that_has_nothing(place: Place) -> None:
    found = place.look(paths=["/"])
    unknown = {"is_root", "cores", "memlock_kib", "glibc", "kernel", "free_bytes", "file_systems"}
    assert found.model_dump(exclude=unknown) == Machine(
        memory_mib=64000,
        memory_available_mib=60000,
        memlock_kib=None,
        cpu_flags=("fpu", "avx", "avx2"),
        distribution="ubuntu",
        release="22.04",
    ).model_dump(exclude=unknown)
    assert found.free_bytes.keys() == {"/"}


# --- cards


def test_two_cards_of_different_kinds_one_of_them_in_use(place: Place) -> None:
    apps = f"{RTX_4090['uuid']}, 1717, /opt/beeyard/engines/a/bin/llama-server, 18944\n"
    place.cards(RTX_3090, RTX_4090, apps=apps)
    place.write("sys/module/nvidia/version", "550.54.14\n")
    for device in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
        place.write(f"dev/{device}", "")
    found = place.look()
    assert [(card.name, card.compute_capability, card.memory_free_mib) for card in found.gpus] == [
        ("NVIDIA GeForce RTX 3090", "8.6", 24124),
        ("NVIDIA GeForce RTX 4090", "8.9", 5210),
    ]
    assert [[(holder.pid, holder.name, holder.used_mib) for holder in card.holders] for card in found.gpus] == [
        [],
        [(1717, "llama-server", 18944)],
    ]
    assert (found.has_nvidia_smi, found.gpu_fault) == (True, "")
    assert (found.driver, found.driver_cuda, found.kernel_module) == ("550.54.14", "12.4", "550.54.14")
    assert found.devices == ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")


def test_a_driver_that_does_not_know_some_fields_is_asked_again(place: Place) -> None:
    unknown = ("compute_cap", "mig.mode.current")
    place.cards({name: value for name, value in RTX_3090.items() if name not in unknown})
    (card,) = place.look().gpus
    assert (card.compute_capability, card.mig, card.memory_total_mib, card.temperature_c) == ("", False, 24576, 34)


def test_the_table_of_a_new_driver(place: Place) -> None:
    new = "| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |\n"
    place.cards(RTX_3090, table=new)
    assert place.look().driver_cuda == "13.3"


def test_a_card_cut_into_instances(place: Place) -> None:
    place.cards(
        {**RTX_3090, "name": "NVIDIA A100-PCIE-40GB", "ecc.mode.current": "Enabled", "mig.mode.current": "Enabled"}
    )
    (card,) = place.look().gpus
    assert (card.mig, card.ecc) == (True, True)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("No devices were found", 6),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54", 18),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n",
            9,
        ),
        ("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error", 255),
        (
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA "
            "Display Driver is properly installed and present in your system.\nPlease also try adding directory that "
            "contains libnvidia-ml.so to your system PATH.",
            12,
        ),
    ],
)
def test_an_nvidia_smi_without_cards_is_quoted(place: Place, said: str, status: int) -> None:
    place.command("nvidia-smi", BROKEN.format(said=said, status=status))
    module = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:\n"
    )
    place.write("proc/driver/nvidia/version", module)
    found = place.look()
    assert (found.gpus, found.driver, found.driver_cuda) == ((), "", "")
    assert found.gpu_fault == " ".join(said.split("\n")).strip()
    assert (found.has_nvidia_smi, found.kernel_module) == (True, "535.183.01")


@pytest.mark.parametrize("script", ["sleep 60", "trap '' TERM; while :; do sleep 1; done"])
def test_an_nvidia_smi_that_hangs_holds_up_nobody(place: Place, script: str) -> None:
    place.command("nvidia-smi", f"#!/bin/sh\n{script}\n")
    start = time.monotonic()
    found = place.look()
    assert time.monotonic() - start < 4
    assert found.gpus == ()
    assert found.gpu_fault == "nvidia-smi did not answer"
    assert found.memory_mib == 64000


def test_one_that_cannot_be_killed_does_not_either(place: Place) -> None:
    (place.bin / "timeout").unlink()  # as good as a process that waits for a dead card
    place.command("nvidia-smi", "#!/bin/sh\nsleep 8\n")
    start = time.monotonic()
    found = place.look(paths=["/"])
    assert time.monotonic() - start < 6
    assert found.gpu_fault == "nvidia-smi did not answer"
    assert found.free_bytes.keys() == {"/"}


def test_a_row_that_is_not_understood_fails_its_host_and_is_shown(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.cards({**RTX_3090, "memory.total": "24 GiB"})
    with pytest.raises(PyinfraError, match="No hosts remaining"):
        place.look()
    assert "24 GiB" in caplog.text
    assert "Fix: report it as an issue" in caplog.text


# --- compilers


NVCC = """#!/bin/sh
case $1 in
--version) cat <<'SAID'
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2024 NVIDIA Corporation
Built on Thu_Mar_28_02:18:24_PDT_2024
Cuda compilation tools, release {release}, V{release}.131
Build cuda_{release}.r{release}/compiler.34097967_0
SAID
;;
--list-gpu-arch) {architectures} ;;
esac
"""


@pytest.mark.case("POD-02")
def test_nvcc_is_found_where_no_path_leads(place: Place) -> None:
    new = NVCC.format(release="12.4", architectures="printf 'compute_50\\ncompute_86\\ncompute_90\\n'")
    old = NVCC.format(release="10.1", architectures="echo 'nvcc fatal   : Unknown option -list-gpu-arch' >&2; exit 1")
    place.command(f"{place.root}/usr/local/cuda-12.4/bin/nvcc", new)
    (place.root / "usr/local/cuda").symlink_to("cuda-12.4")
    place.command("nvcc", old)
    cuda = str(place.root / "usr/local/cuda/bin/nvcc")
    assert [(nvcc.path, nvcc.version, nvcc.architectures) for nvcc in place.look().nvccs] == [
        (cuda, "12.4", ("50", "86", "90")),
        (str(place.bin / "nvcc"), "10.1", ()),
    ]


@pytest.mark.parametrize(
    ("script", "version"),
    [
        # gcc answers to the last of the two that it knows, clang refuses the first.
        ("echo 12.2.0", "12.2.0"),
        ('case $* in *full*) echo "clang: error: unknown argument" >&2; exit 1 ;; *) echo 18.1.3 ;; esac', "18.1.3"),
        ("exit 1", ""),
    ],
)
def test_the_host_compiler(place: Place, script: str, version: str) -> None:
    place.command("c++", f"#!/bin/sh\n{script}\n")
    assert place.look().cxx == version


def test_the_compiler_that_apt_would_install(place: Place) -> None:
    assert place.look().cxx_candidate == ""
    place.command(
        "apt-cache", "#!/bin/sh\necho \"$2:\"; echo '  Installed: (none)'; echo '  Candidate: 4:14.2.0-1'\n"
    )
    assert (place.look().cxx, place.look().cxx_candidate) == ("", "14.2.0")


def test_older_compilers_beside_it(place: Place) -> None:
    for name in ("g++-9", "gcc-9", "g++-12"):  # of the last only a half
        place.command(f"{place.root}/usr/bin/{name}", "#!/bin/sh\necho 9.5.0\n")
    (gxx,) = place.look().gxxs
    assert (gxx.path, gxx.version) == (str(place.root / "usr/bin/g++-9"), "9.5.0")


# --- pods, containers, control groups


@pytest.mark.case("POD-02")
def test_a_pod_of_runpod_is_known_in_an_ssh_session(place: Place) -> None:
    environment = "PUBLIC_KEY=ssh-ed25519 AAAA\nRUNPOD_POD_ID=no\0RUNPOD_API_KEY=rpa_CANARY\0RUNPOD_POD_ID=abc123\0"
    place.write("proc/1/environ", environment)
    assert place.look().model_dump(include={"provider", "volume"}) == {"provider": "runpod", "volume": ""}
    mounts = "1 1 0:1 / / rw - overlay overlay rw\n2 1 0:2 / /workspace rw,relatime - fuse mfs#eu rw\n"
    place.write("proc/self/mountinfo", mounts)
    found = place.look()
    assert (found.provider, found.volume) == ("runpod", "/workspace")
    assert "CANARY" not in found.model_dump_json()
    assert "abc123" not in found.model_dump_json()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("proc/1/environ", "CONTAINER_API_KEY=CANARY\0VAST_CONTAINERLABEL=C.123\0WORKSPACE=/data\0"),
        ("proc/self/environ", "VAST_TCP_PORT_22=40012\0WORKSPACE=/data\0"),
        ("etc/environment", 'VAST_CONTAINERLABEL="C.123"\nWORKSPACE="/data"\n'),
    ],
)
def test_an_instance_of_vast(place: Place, path: str, text: str) -> None:
    (place.root / "data").mkdir()
    place.write(path, text)
    found = place.look()
    assert (found.provider, found.volume) == ("vast", "/data")
    assert "CANARY" not in found.model_dump_json()


def test_variables_with_other_names_make_no_pod(place: Place) -> None:
    place.write("proc/1/environ", "MY_RUNPOD_POD_ID=1\0NOTE=x\nVAST_PEOPLE=1\0CONTAINER_ID=7\0")
    assert place.look().provider == ""


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, "none"),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/1/environ": "container=lxc\0"}, "lxc"),
        ({"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}, "wsl"),
        ({"proc/1/cgroup": "4:memory:/docker/0123\n0::/\n"}, "docker"),
        ({"proc/1/cgroup": "0::/kubepods.slice/kubepods-pod1.slice\n"}, "container-other"),
        ({"proc/cpuinfo": "flags\t\t: fpu hypervisor avx2\n"}, "vm-other"),
    ],
)
def test_what_it_runs_in_without_systemd(place: Place, files: dict[str, str], found: str) -> None:
    for path, text in files.items():
        place.write(path, text)
    assert place.look().virtualisation == found


def test_what_systemd_says_it_runs_in(place: Place) -> None:
    place.command("systemd-detect-virt", "#!/bin/sh\necho none\nexit 1\n")
    place.write("proc/cpuinfo", "flags\t\t: fpu hypervisor avx2\n")
    place.write("run/systemd/system/.keep", "")
    found = place.look()
    assert (found.virtualisation, found.init) == ("none", "systemd")


@pytest.mark.parametrize(
    ("files", "mib", "has_two_cores"),
    [
        ({}, None, True),
        ({"sys/fs/cgroup/memory.max": "8589934592\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 8192, False),
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None, True),
        (
            {
                "proc/self/cgroup": "0::/system.slice/ssh.service\n",
                "sys/fs/cgroup/system.slice/ssh.service/memory.max": "max\n",
                "sys/fs/cgroup/system.slice/ssh.service/cpu.max": "max 100000\n",
                "sys/fs/cgroup/system.slice/memory.max": "4294967296\n",
                "sys/fs/cgroup/system.slice/cpu.max": "100000 100000\n",
            },
            4096,
            False,
        ),
        (
            # A pod under version 1: the group's path is that outside of it.
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/0123\n4:memory:/docker/0123\n0::/docker/0123\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2048,
            False,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/a/b\n4:memory:/a/b\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824\n",
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000\n",
            },
            1024,
            True,
        ),
    ],
)
def test_limits_of_control_groups(place: Place, files: dict[str, str], mib: int | None, has_two_cores: bool) -> None:
    (place.bin / "nproc").unlink()
    place.command("nproc", "#!/bin/sh\necho 64\n")
    for path, text in files.items():
        place.write(path, text)
    found = place.look()
    assert (found.memory_limit_mib, found.cores) == (mib, 64 if has_two_cores else 1)


# --- Docker


INFO = r"""#!/bin/sh
case "$1 $2" in
'compose version') echo 2.40.3 ;;
'buildx version') echo 'github.com/docker/buildx 0.29.1 x' ;;
'info --format') {info} ;;
esac
"""
JSON = r'{"ServerVersion":"28.5.2","Runtimes":{"runc":{},"nvidia":{}},"DockerRootDir":"/","Warnings":["a\n\"b\""]}'


def test_a_docker_engine(place: Place) -> None:
    place.command("docker", INFO.format(info=f"echo 'WARNING: No swap limit support' >&2; printf '%s\\n' '{JSON}'"))
    found = place.look().docker
    assert (found.version, found.silent, found.compose, found.runtimes) == (
        "28.5.2",
        "",
        "2.40.3",
        ("nvidia", "runc"),
    )
    assert (found.root, found.has_toolkit) == ("/", False)
    assert (found.command, found.buildx) == (str(place.bin / "docker"), "0.29.1")
    assert asked({}, DockerEngine) == found
    assert place.look().free_bytes["/"] > 0


def test_a_docker_engine_that_goes_through_a_proxy_or_has_its_images_with_containerd(place: Place) -> None:
    said = {
        "ServerVersion": "29.0.1", "DockerRootDir": str(place.root), "HttpsProxy": "http://xxxxx:xxxxx@proxy:3128",
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    }  # fmt: skip
    place.command("docker", INFO.format(info=f"printf '%s\n' '{json.dumps(said, separators=(',', ':'))}'"))
    store = place.root / "containerd" / "daemon"
    store.mkdir(parents=True)
    found = place.look()
    assert found.docker.has_proxy
    assert found.docker.root == str(store)
    assert list(found.free_bytes) == [str(store)]


@pytest.mark.parametrize(
    ("info", "silent"),
    [
        ("echo 'permission denied while trying to connect' >&2; exit 1", "permission denied while trying to connect"),
        ("sleep 60", "docker info did not answer within 1 seconds"),
        (
            """echo '{"ServerVersion":"","ServerErrors":["Cannot connect to the Docker daemon"]}'""",
            "Cannot connect to the Docker daemon",
        ),
    ],
)
def test_a_docker_engine_that_does_not_answer(place: Place, info: str, silent: str) -> None:
    place.command("docker", INFO.format(info=info))
    found = place.look().docker
    assert (found.version, found.silent) == ("", silent)


# --- disk, clock


def test_free_space_of_what_is_not_there_yet(place: Place, tmp_path: Path) -> None:
    paths = [f'{tmp_path}/it\'s "new"/a\\nb/c', str(tmp_path), "/"]
    found = place.look(paths=paths).free_bytes
    assert list(found) == paths
    assert found[paths[0]] == pytest.approx(found[paths[1]], rel=0.01)


def test_paths_on_one_file_system_are_known_and_those_on_another(place: Place, tmp_path: Path) -> None:
    if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has one file system")
    place.link("stat")
    paths = [f"{tmp_path}/models", f"{tmp_path}/a/b", "/dev/shm/models"]
    assert place.look(paths=paths).file_systems == {paths[0]: paths[0], paths[1]: paths[0], paths[2]: paths[2]}


@pytest.mark.parametrize(
    ("tool", "says", "known"),
    [
        ("timedatectl", "yes", True),
        ("timedatectl", "no", False),
        ("chronyc", "Reference ID    : A29FC87B\nLeap status     : Normal", True),
        ("chronyc", "Stratum         : 0\nLeap status     : Not synchronised", False),
        ("chronyc", "506 Cannot talk to daemon", None),
    ],
)
def test_whether_the_clock_is_right(place: Place, tool: str, says: str, known: bool | None) -> None:
    place.command(tool, BROKEN.format(said=says, status=0))
    assert place.look().time_synchronised is known


def test_the_script_says_nothing_beside_its_lines(place: Place) -> None:
    place.command("nvidia-smi", BROKEN.format(said="No devices were found", status=6))
    command = MachineFacts().command(["/x"], 1, str(place.root))
    run = subprocess.run(["/bin/sh", "-c", command.get_raw_value()], check=True, capture_output=True, text=True)
    assert run.stderr == ""
    assert all("=" in line for line in run.stdout.splitlines())
    assert "unfinished" not in run.stdout
