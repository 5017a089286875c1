"""Facts about a host's hardware, and about what it lets a server do."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyinfra.api import FactBase, FactProcessError, QuoteString, StringCommand

from beeyard.machine import DockerState, Gpu, Holder, Machine, Nvcc

SCRIPT = Path(__file__).with_name("machine.sh")
IPC_LOCK = 14  # the capability's bit; source: capabilities(7)
NO_LIMIT_BYTES = 2**60  # a control group of version 1 says the largest multiple of a page instead of none
WORKSPACE = "/workspace"
# GPU_FIELDS of machine.sh, in their order.
FIELDS = ("index", "uuid", "name", "total", "free", "driver", "ecc", "mig", "power", "temperature", "capability")
Lines = Mapping[str, list[str]]


class MachineFacts(FactBase[Machine]):
    """
    Returns what of a host decides what can run there, from one command of about a second.

    ``paths`` are those whose free space is wanted; ``addresses``, each HOST:PORT, what it must reach.
    """

    def command(self, paths: list[str], addresses: list[str] | None = None) -> StringCommand:
        """The whole script as one argument: nothing of ours need be there."""
        words = [SCRIPT.read_text(), "machine", str(len(paths)), *paths, *(addresses or [])]
        return StringCommand("sh -c", *(QuoteString(word) for word in words))

    def process(self, output: list[str]) -> Machine:
        """Read the lines that machine.sh prints."""
        lines: dict[str, list[str]] = defaultdict(list)
        for line in output:
            key, _, value = line.partition("=")
            lines[key].append(value.strip())
        try:
            return machine_of(lines)
        except (KeyError, ValueError, IndexError) as error:
            raise FactProcessError(f"unexpected facts of the machine: {error!r} in {output!r}") from error


def machine_of(lines: Lines) -> Machine:
    """
    The machine that machine.sh's lines describe.

    :raises ValueError: a line is not as it must be; KeyError or IndexError: one is missing.
    """
    rows = [_row(line) for line in lines.get("gpu", [])]
    fault = _fault(lines, rows)
    holders = _holders(lines.get("holder", []))
    limits = [int(value) for value in lines.get("limit", []) if value.isdigit() and int(value) < NO_LIMIT_BYTES]
    memlock = _last(lines, "memlock")
    return Machine(
        gpus=tuple(_gpu(row, holders.get(row["uuid"], [])) for row in rows),
        has_nvidia_smi="nvidia_smi" in lines,
        gpu_fault=fault,
        driver=rows[0]["driver"] if rows else "",
        driver_cuda=_last(lines, "driver_cuda"),
        kernel_module=_last(lines, "kernel_module"),
        devices=tuple(lines.get("device", [])),
        nvccs=tuple(_nvcc(line) for line in lines.get("nvcc", [])),
        cxx=_last(lines, "cxx"),
        init="systemd" if _last(lines, "init") == "systemd" else "other",
        virtualisation=_last(lines, "virtualisation") or "none",
        provider=_provider(lines),
        volume=WORKSPACE if "volume" in lines and _provider(lines) else "",
        is_root=lines["uid"][-1] == "0",
        docker=_docker(lines),
        memory_mib=int(lines["memory_kib"][-1]) // 1024,
        memory_available_mib=int(lines["available_kib"][-1]) // 1024,
        memory_limit_mib=min(limits) // 2**20 if limits else None,
        memlock_kib=None if memlock == "unlimited" else int(memlock),
        has_ipc_lock=bool(int(_last(lines, "ipc_lock") or "0", 16) >> IPC_LOCK & 1),
        cpu_flags=tuple(_last(lines, "cpu_flags").split()),
        cores=int(_last(lines, "cores") or 1),
        free_bytes={
            path: int(kib) * 1024 for kib, _, path in (line.partition(" ") for line in lines.get("free", []))
        },
        kernel=_last(lines, "kernel"),
        glibc=_last(lines, "glibc"),
        distribution=_last(lines, "distribution"),
        release=_last(lines, "release"),
        listening=tuple(sorted({int(port, 16) for port in lines.get("listening", [])})),
        time_synchronised={"yes": True, "no": False}.get(_last(lines, "synchronised")),
        reachable={
            address: word == "yes" for word, _, address in (li.partition(" ") for li in lines.get("reachable", []))
        },
    )


def _last(lines: Lines, key: str) -> str:
    return (lines.get(key) or [""])[-1]


def _pairs(lines: Lines, key: str) -> list[tuple[str, str]]:
    """A word, and what stands behind it."""
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines.get(key, []))]


def _row(line: str) -> dict[str, str]:
    """A card's fields by name. nvidia-smi gives none that it has not: ``[N/A]`` and the like become empty."""
    values = [value.strip() for value in line.split(",")]
    if len(values) < len(FIELDS) - 1:
        return {"said": line}
    return {name: "" if value.startswith("[") else value for name, value in zip(FIELDS, values, strict=False)}


def _fault(lines: Lines, rows: list[dict[str, str]]) -> str:
    """nvidia-smi's sentence, whether it ended with it or wrote it in a card's place."""
    said = [row.pop("said") for row in rows if "said" in row]
    rows[:] = [row for row in rows if row]
    return _last(lines, "gpu_fault") or " ".join(said)


def _gpu(row: dict[str, str], holders: list[Holder]) -> Gpu:
    return Gpu(
        index=int(row["index"]),
        uuid=row["uuid"],
        name=row["name"],
        compute_capability=row.get("capability", ""),
        memory_total_mib=int(row["total"]),
        memory_free_mib=int(row["free"]),
        ecc={"Enabled": True, "Disabled": False}.get(row["ecc"]),
        mig=row["mig"] == "Enabled",
        power_limit_w=float(row["power"]) if row["power"] else None,
        temperature_c=int(row["temperature"]) if row["temperature"] else None,
        holders=tuple(holders),
    )


def _holders(rows: list[str]) -> dict[str, list[Holder]]:
    """By card. Of a process only its name is kept: its path may say more than a file of facts should."""
    found: dict[str, list[Holder]] = defaultdict(list)
    for row in rows:
        card, _, rest = row.partition(",")
        pid, _, rest = rest.partition(",")
        program, _, used = rest.rpartition(",")
        if not pid.strip().isdigit():
            continue  # "No running processes found"
        amount = int(used) if used.strip().isdigit() else None
        name = re.split(r"[/\\]", program.strip())[-1]
        found[card.strip()].append(Holder(pid=int(pid), name=name, used_mib=amount))
    return found


def _nvcc(line: str) -> Nvcc:
    path, version, architectures = line.split("|")
    return Nvcc(path=path, version=version, architectures=tuple(architectures.split()))


def _provider(lines: Lines) -> Any:
    return _last(lines, "provider")


def _docker(lines: Lines) -> DockerState | None:
    if "docker" not in lines:
        return None
    info: dict[str, Any] = json.loads(_last(lines, "docker_info") or "{}")
    # docker info exits with 0 and lists its errors where a client finds no daemon.
    errors = info.get("ServerErrors") or []
    return DockerState(
        version="" if errors else info.get("ServerVersion", ""),
        silent=errors[0] if errors else "",
        compose=_last(lines, "compose"),
        is_snap="/snap/" in _last(lines, "docker"),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        # An engine before 28 looks into no folder unless its configuration has features.cdi.
        has_cdi="cdi" in lines and bool(info.get("CDISpecDirs")),
        has_toolkit="toolkit" in lines,
        root=info.get("DockerRootDir", ""),
    )
