"""What stops a deploy before it changes anything: all reasons at once, each with its Fix. Pure."""

from pathlib import Path, PurePosixPath

from beeyard.catalog import PROJECT, LocalFile
from beeyard.checks import docker_faults, version
from beeyard.contract import load_table, violations
from beeyard.dialects import argv
from beeyard.machine import Machine
from beeyard.probes import Probe
from beeyard.spec import ServerSpec

# Releases whose own Docker comes without compose 2.
OLD_DOCKERS = {("debian", "bookworm"), ("debian", "bullseye"), ("ubuntu", "focal")}


def obstacles(
    spec: ServerSpec,
    machine: Machine,
    probe: Probe,
    is_here: bool,
    own_pids: list[int],
    not_locked: list[str],
) -> list[str]:
    """
    Why this host cannot have this spec's server.

    :param own_pids: the processes that hold the port of the server that we keep running there
    :param not_locked: why something could not be locked just now
    """
    return [
        *(not_locked or spec.unlocked_models),
        *([] if not_locked and spec.engine.asset else spec.unlocked_engine),
        *_files_here(spec),
        *_tools(machine, probe),
        *_cpu(spec, machine),
        *_glibc(spec, machine),
        *_places(spec, probe),
        *_port(spec, machine, probe, own_pids),
        *_flags(spec),
        *_root(spec, machine, is_here),
        *_front(spec, machine, probe),
    ]


def _front(spec: ServerSpec, machine: Machine, probe: Probe) -> list[str]:
    if spec.front is None:
        return []
    if spec.runtime != "supervisor":
        return [
            f"llama_expose tcp is for pods, whose programs a supervisor keeps; runtime {spec.runtime} has a gateway "
            "for that. Fix: leave it out, and put this host into group gateway, too, with gateway_serves and "
            "gateway_tls"
        ]
    if not (machine.is_root and probe["has_apt"]):
        return [
            "llama_expose tcp installs HAProxy by apt, and this host has no apt or this user is not root. "
            "Fix: leave it out, and reach the server by a tunnel"
        ]
    return []


def machine_obstacles(spec: ServerSpec, machine: Machine) -> list[str]:
    """Why what the host's data asks of the machine itself cannot be had there."""
    asked = {
        "llama_gpu_at_boot": spec.gpu_at_boot,
        "llama_hold_driver": spec.hold_driver,
        "llama_sysctl": bool(spec.sysctl),
        "llama_limits": bool(spec.limits.model_dump(exclude_none=True)),
    }
    keys = [key for key, is_asked in asked.items() if is_asked]
    if keys and not machine.is_root:
        return [
            f"{', '.join(keys)} changes the machine, and this user is not root. "
            "Fix: add _sudo: true to the host's data, or leave it out"
        ]
    found = []
    has_no_driver = machine.is_contained or machine.virtualisation == "wsl"
    for key in ("llama_gpu_at_boot", "llama_hold_driver"):
        if asked[key] and has_no_driver:
            found.append(
                f"{key} is set, but this host is a container ({machine.provider or machine.virtualisation}), whose "
                f"driver is that of the machine below it. Fix: leave {key} out here"
            )
    if spec.gpu_at_boot and not has_no_driver and machine.init != "systemd":
        found.append(
            "llama_gpu_at_boot is a systemd unit, and systemd does not run this host. Fix: leave it out here"
        )
    if asked["llama_limits"] and spec.runtime != "supervisor":
        found.append(
            f"llama_limits is for logins, which runtime {spec.runtime} has none of. Fix: set llama_memlock instead"
        )
    elif not _may_have(spec.limits.memlock, machine):
        found.append(
            f"llama_limits asks for a memlock of {spec.limits.memlock}, and this host's root may have "
            f"{machine.memlock_kib} KiB and may not raise it. Fix: start the container with --ulimit memlock=-1, or "
            "leave llama_limits out"
        )
    return found


def machine_notes(spec: ServerSpec, machine: Machine) -> list[str]:
    """What stands against nothing, and yet had better be known of a host before something is put there."""
    found = []
    has_card = spec.wants_gpu and machine.gpus and "/dev/dxg" not in machine.devices
    if has_card and "/dev/nvidia-uvm" not in machine.devices and spec.image is None and not spec.gpu_at_boot:
        if machine.is_contained:
            fix = "give the container that device, as NVIDIA's toolkit does with --gpus all"
        else:
            fix = "set llama_gpu_at_boot to true, or run nvidia-modprobe -u -c=0 before the server starts"
        found.append(
            f"there is no /dev/nvidia-uvm, which CUDA looks for once. Without, all runs on the CPU. Fix: {fix}"
        )
    if machine.provider == "runpod" and machine.volume and not _is_below(spec.prefix, machine.volume):
        found.append(
            f"{spec.prefix} is gone once this pod is stopped; its volume is {machine.volume}. "
            f"Fix: set llama_prefix to {machine.volume}/beeyard"
        )
    if machine.time_synchronised is False:
        found.append(
            "its clock is not synchronised, and a wrong one makes downloads fail over TLS. "
            "Fix: timedatectl set-ntp true, or install chrony"
        )
    return found


def _is_below(path: PurePosixPath, folder: str) -> bool:
    return path.is_relative_to(folder)


def _may_have(memlock: int | str | None, machine: Machine) -> bool:
    """Whether root may have that limit of locked memory, in KiB."""
    if memlock is None or machine.memlock_kib is None or machine.has_sys_resource:
        return True
    return isinstance(memlock, int) and memlock <= machine.memlock_kib


def docker_obstacles(spec: ServerSpec, machine: Machine) -> list[str]:
    """Why this host's Docker cannot have this spec's server; what the deploy will install is no reason."""
    if spec.image is None:
        return []
    docker = machine.docker
    found = docker_faults(docker, wants_gpu=spec.wants_gpu)
    if not docker.command and spec.docker == "distribution":
        found = _distribution(machine)
    elif not docker.command and spec.docker == "docker.com":
        found = []
    elif spec.wants_gpu and spec.nvidia_toolkit == "install":
        found = docker_faults(docker, wants_gpu=False)
    return found


def build_obstacles(spec: ServerSpec, machine: Machine, probe: Probe, tools: dict[str, str] | None) -> list[str]:
    """Why this host cannot compile its engine, if it is to; ``tools`` is None where it is not."""
    if tools is None:
        return []
    missing = [tool for tool in ("git", "cmake", "ninja", "c++") if not tools.get(tool)]
    found = []
    if missing and not (probe["has_apt"] and machine.is_root):
        found.append(
            f"{spec.engine.title} is compiled here, and {', '.join(missing)} is missing, which this user cannot "
            "install. Fix: install build-essential cmake ninja-build git, or choose another engine with llama_engine"
        )
    if spec.engine.accelerator == "cuda" and not machine.nvccs:
        found.append(
            f"{spec.engine.title} is compiled here for CUDA, and there is no nvcc: not below /usr/local/cuda* or "
            "/opt/cuda, not in PATH. Fix: install NVIDIA's CUDA toolkit, or choose another engine with llama_engine"
        )
    return found


def _distribution(machine: Machine) -> list[str]:
    if (machine.distribution, machine.codename) in OLD_DOCKERS:
        return [
            f"the Docker of {machine.distribution} {machine.codename} ({machine.docker.candidate or 'none'}) has no "
            "compose 2. Fix: set llama_docker to docker.com"
        ]
    return []


def _files_here(spec: ServerSpec) -> list[str]:
    paths = [file.source.path for file in spec.model_files if isinstance(file.source, LocalFile)]
    return [
        f"{path} is not on this machine. Fix: put it there; `make tiny` writes the tiny models"
        for path in paths
        if not Path(PROJECT, path).is_file()
    ]


def _tools(machine: Machine, probe: Probe) -> list[str]:
    if probe["has_apt"] and machine.is_root:
        return []  # what is missing will be installed
    found = []
    for tool in ("python", "curl"):
        if not probe[tool]:
            command = {"python": "python3", "curl": "curl"}[tool]
            found.append(f"{command} is missing, and this user cannot install it. Fix: install {command}")
    return found


def _cpu(spec: ServerSpec, machine: Machine) -> list[str]:
    if spec.engine_is_in_image:  # with backends for every CPU
        return []
    missing = [flag for flag in spec.engine.cpu_flags if flag not in machine.cpu_flags]
    if not missing:
        return []
    return [
        f"its CPU lacks {', '.join(missing)}, which {spec.engine.title} ({spec.engine_name}) wants. "
        "Fix: set llama_engine to one that does not, as llama.cpp-debian"
    ]


def _places(spec: ServerSpec, probe: Probe) -> list[str]:
    if probe["prefix_writable"]:
        return []
    return [
        f"{spec.prefix} cannot be written: {probe['prefix_parent']} does not let this user. "
        "Fix: set llama_prefix to a directory of this user's, or connect as root"
    ]


def _port(spec: ServerSpec, machine: Machine, probe: Probe, own_pids: list[int]) -> list[str]:
    # In a container every port is free to take.
    runs_as_root = (machine.is_root and spec.user is None) or spec.image is not None
    if spec.port < probe["first_free_port"] and not runs_as_root:
        return [
            f"port {spec.port} is root's alone, and the server runs as {spec.user or 'this user'}. "
            f"Fix: set llama_port to {probe['first_free_port']} or higher"
        ]
    holder = probe["listener_pid"]
    # 0: root in a container may not look into other users' processes; then the guard looks closer.
    if holder is None or (own_pids and holder in (0, *own_pids)):
        return []
    who = f"process {holder} ({probe['listener']})" if holder else "another user's program"
    return [
        f"port {spec.port} is in use by {who}, which is not ours. "
        "Fix: stop that program, or set llama_port to another port"
    ]


def _flags(spec: ServerSpec) -> list[str]:
    found = violations(argv(spec), load_table(spec.engine.flags), spec.engine.title)
    return [f"{text}. Fix: change the settings, or choose another engine with llama_engine" for text in found]


def _glibc(spec: ServerSpec, machine: Machine) -> list[str]:
    least = spec.engine.min_glibc
    if spec.engine_is_in_image or not least or not machine.glibc or version(machine.glibc) >= version(least):
        return []
    return [
        f"its glibc is {machine.glibc}, and {spec.engine.title} ({spec.engine_name}) wants {least} or newer. "
        "Fix: a newer release of the distribution, or an engine that was built for this one (llama_engine)"
    ]


def _root(spec: ServerSpec, machine: Machine, is_here: bool) -> list[str]:
    if machine.is_root or is_here or spec.engine_is_in_image or spec.engine.artefact.kind != "debian":
        return []
    return [
        f"{spec.engine_name} is a Debian package, and this user is not root. "
        "Fix: add _sudo: true to the host's data, or choose another engine with llama_engine"
    ]
