"""What facts/machine.sh and facts/docker.sh say of a host, read. Pure."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, get_args
from urllib.parse import urlsplit

from beeyard import nvidia_smi
from beeyard.machine import DockerState, Gxx, Machine, Nvcc, Provider

KIB, MIB = 2**10, 2**20
IPC_LOCK, SYS_RESOURCE = 14, 24  # the capabilities' bits; source: <linux/capability.h>
# A control group of version 1 that has no limit says the largest multiple of a page.
NO_LIMIT = 2**60
# What timedatectl and chronyc say.
SYNCHRONISED = {"yes": True, "Normal": True, "Insert second": True, "Delete second": True}
SYNCHRONISED |= {"no": False, "Not synchronised": False}
# Two paths are asked at two moments: what may be written between them.
SAME_FREE_KIB = 64 * 2**10
SILENT_DOCKER = "docker info did not answer"

T = TypeVar("T")


class Disk(NamedTuple):
    """A path's file system: its device, what is free of it in all, and what df calls it."""

    device: str
    free_kib: int
    total_kib: int
    source: str
    path: str


class Lines:
    """Lines KEY=VALUE by key."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.values: dict[str, list[str]] = defaultdict(list)
        for line in lines:
            key, is_one, value = line.partition("=")
            if is_one:
                self.values[key].append(value.strip())

    def all(self, key: str) -> list[str]:
        """Every value, in order."""
        return self.values.get(key, [])

    def one(self, key: str) -> str:
        """The first value; empty if there is none."""
        return (self.all(key) or [""])[0]

    def read(self, key: str, reader: Callable[[str], T]) -> list[T]:
        """Every value, as something else; a ValueError names the line that is not."""
        found = []
        for value in self.all(key):
            try:
                found.append(reader(value))
            except (ValueError, IndexError) as error:
                raise ValueError(f"{key}={value}") from error
        return found

    def read_one(self, key: str, reader: Callable[[str], T]) -> T:
        """The first value, which must be there, as something else."""
        found = self.read(key, reader)
        if not found:
            raise ValueError(f"no line {key}=")
        return found[0]


def machine(output: Iterable[str]) -> Machine:
    """
    The host that machine.sh's lines describe.

    :raises ValueError: a line is not as it must be, and named.
    """
    lines = Lines(output)
    fields = lines.one("gpu_fields")
    holders = nvidia_smi.holders(lines.all("holder"))
    status = "124" if "cards" in lines.all("unfinished") else lines.one("gpu_status") or "0"
    gpus, fault = nvidia_smi.cards(fields, lines.all("gpu"), holders, status)
    limits = [limit for limit in lines.read("memory_limit", _limit) if limit is not None]
    provider = lines.one("provider")
    disks = lines.read("disk", _disk)
    capabilities = lines.read_one("capabilities", lambda text: int(text, 16))
    return Machine(
        gpus=gpus,
        has_nvidia_smi=bool(lines.one("nvidia_smi")),
        gpu_fault=fault,
        driver=nvidia_smi.driver(fields, lines.all("gpu")),
        driver_cuda=nvidia_smi.driver_cuda(lines.one("header")),
        kernel_module=nvidia_smi.kernel_module(lines.one("kernel_module")),
        devices=tuple(sorted(lines.all("device"))),
        nvccs=tuple(lines.read("nvcc", _nvcc)),
        cxx=lines.one("cxx"),
        cxx_candidate=_upstream_version(lines.one("cxx_candidate")),
        gxxs=tuple(Gxx(path=path, version=version) for version, path in lines.read("gxx", _gxx)),
        init="systemd" if lines.one("init") == "systemd" else "other",
        virtualisation=lines.one("virtualisation") or "none",
        provider=_provider(provider),
        volume=lines.one("volume"),
        is_root=lines.read_one("uid", int) == 0,
        docker=docker({key: values[0] for key, values in lines.values.items()}),
        memory_mib=lines.read_one("memory", _kib) // KIB,
        memory_available_mib=lines.read_one("available", _kib) // KIB,
        memory_limit_mib=min(limits) // MIB if limits else None,
        memlock_kib=lines.read_one("memlock", lambda text: None if text == "unlimited" else int(text)),
        has_ipc_lock=bool(capabilities >> IPC_LOCK & 1),
        has_sys_resource=bool(capabilities >> SYS_RESOURCE & 1),
        cpu_flags=tuple(lines.one("cpu_flags").split()),
        cores=max(1, min([lines.read_one("cores", int), *lines.read("quota", _cores)])),
        free_bytes={disk.path: disk.free_kib * KIB for disk in disks},
        file_systems=file_systems(disks),
        kernel=lines.one("kernel"),
        glibc=lines.one("glibc").removeprefix("glibc "),
        distribution=lines.one("distribution"),
        release=lines.one("release"),
        codename=lines.one("codename"),
        listening=tuple(sorted(set(lines.read("listening", lambda text: int(text.rpartition(":")[2], 16))))),
        time_synchronised=SYNCHRONISED.get(lines.one("synchronised")),
    )


def reached(output: Iterable[str]) -> dict[str, bool]:
    """
    What reach.sh's lines say of each address.

    :raises ValueError: a line is not as it must be, and named.
    """
    return dict(Lines(output).read("reach", _reached))


def file_systems(disks: Iterable[Disk]) -> dict[str, str]:
    """
    By path, a name of the file system that it shares with others: the first path there.

    One that is mounted twice has one device. Subvolumes have several, but one source; a container's root has a
    source of its own, and yet what is free there is what is free below it, as for datasets of one ZFS pool.
    """
    found: list[Disk] = []
    named = {}
    for disk in disks:
        same = next((other for other in found if _is_one(disk, other)), None)
        if same is None:
            found.append(disk)
        named[disk.path] = (same or disk).path
    return named


def _is_one(one: Disk, other: Disk) -> bool:
    if one.device == other.device != "":
        return True
    if one.source.startswith("/") and other.source.startswith("/"):
        return one.source == other.source
    if "tmpfs" in (one.source, other.source) or abs(one.free_kib - other.free_kib) > SAME_FREE_KIB:
        return False
    pools = [disk.source.partition("/")[0] for disk in (one, other)]
    return one.total_kib == other.total_kib or pools[0] == pools[1]


def docker(found: Mapping[str, str]) -> DockerState:
    """
    The Docker Engine that docker.sh's lines describe.

    :raises ValueError: ``docker info`` is not as it must be.
    """
    apart = DockerState(
        candidate=found.get("candidate", "").replace("(none)", ""), has_toolkit=bool(found.get("toolkit"))
    )
    if not found.get("command"):
        return apart
    info = docker_info(found)
    # docker info exits with 0 and lists its errors where a client finds no daemon.
    errors = info.get("ServerErrors") or []
    version = "" if errors else info.get("ServerVersion") or ""
    return DockerState(
        candidate=apart.candidate,
        has_toolkit=apart.has_toolkit,
        command=found["command"],
        version=version,
        silent="" if version else errors[0] if errors else found.get("silent") or SILENT_DOCKER,
        compose=found.get("compose", ""),
        buildx=found.get("buildx", ""),
        # snap's commands are links to snap itself.
        is_snap=any("/snap/" in f"{found.get(key, '')}/" for key in ("command", "path")),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        # An engine before 28 looks into no folder unless its configuration has features.cdi.
        has_cdi="cdi" in found and bool(info.get("CDISpecDirs")),
        keeps_layers_apart="io.containerd.snapshotter" not in json.dumps(info.get("DriverStatus") or []),
        root=found.get("store") or info.get("DockerRootDir") or "",
        has_proxy=bool(info.get("HttpsProxy") or info.get("HttpProxy")),
    )


def docker_info(found: Mapping[str, str]) -> dict[str, Any]:
    """What ``docker info`` said, in docker.sh's lines."""
    info = json.loads(found.get("info") or "{}")
    if not isinstance(info, dict):
        raise ValueError(f"docker info is {info!r}")
    return info


def target(address: str) -> tuple[str, str, str, str]:
    """
    What reach.sh wants to know of an address: itself, a URL, the host's name, the port.

    A user and a password in it are left out. What has no port has HTTPS's.

    :param address: HOST, HOST:PORT or a URL
    """
    bare = re.sub(r"^(\w+://)?[^/@]*@", r"\1", address)
    parts = urlsplit(bare if "://" in bare else f"//{bare}")
    port = parts.port or (80 if parts.scheme == "http" else 443)
    scheme = parts.scheme or ("https" if port == 443 else "http")
    name = parts.hostname or ""
    return bare, f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}/", name, str(port)


def _provider(text: str) -> Provider:
    return next((known for known in get_args(Provider) if known == text), "")


def _kib(text: str) -> int:
    return int(text.removesuffix(" kB"))


def _limit(text: str) -> int | None:
    """Bytes; None for none."""
    return None if text == "max" or int(text) >= NO_LIMIT else int(text)


def _cores(text: str) -> int:
    """Of a quota and its period, both in microseconds; where there is none, more than any host has."""
    quota, period = text.split()
    return NO_LIMIT if quota in ("max", "-1") else int(quota) // int(period)


def _disk(text: str) -> Disk:
    device, free, total, source, path = text.split("|", 4)
    return Disk(device, int(free), int(total), source, path)


def _upstream_version(package: str) -> str:
    """Of a Debian package's version: 14.2.0 of 4:14.2.0-1; empty for none."""
    found = re.fullmatch(r"(?:\d+:)?([\d.]+)(?:[-~+].*)?", package)
    return found[1] if found else ""


def _gxx(line: str) -> tuple[str, str]:
    version, path = line.split("|")
    return version, path


def _nvcc(text: str) -> Nvcc:
    version, architectures, path = text.split("|", 2)
    return nvidia_smi.nvcc(path, version, architectures)


def _reached(text: str) -> tuple[str, bool]:
    """
    Whether it was, by curl's status, the connections that it made, and a proxy's answer; or by python3's status.

    Whoever takes the connection has been reached, though he speaks no HTTP or has a certificate that is not known.
    """
    status, connections, proxy, address = text.split(" ", 3)
    if connections == "-":
        return address, status == "0"
    return address, status == "0" or (int(connections) > 0 and proxy in ("000", "0", "200"))
