"""
What NVIDIA's tools print: cards, who holds their memory, the driver's CUDA, the kernel module, nvcc. Pure.

Every function raises ValueError, which names the line, where something is printed that it does not know.
"""

import csv
import re
from collections.abc import Iterable, Mapping

from beeyard.machine import Gpu, Holder, Nvcc

# It does not answer, and timeout(1) ended or killed it.
TIMED_OUT = ("124", "137")
SWITCHES = {"Enabled": True, "Disabled": False}


def cards(
    fields: str, said: Iterable[str], holders: Mapping[str, tuple[Holder, ...]], status: str = "0"
) -> tuple[tuple[Gpu, ...], str]:
    """
    The cards that ``nvidia-smi --query-gpu`` lists, and in one sentence what it says instead of a card.

    :param fields: what it was asked for, as it was asked
    :param holders: as ``holders`` reads them
    :param status: what it ended with
    """
    found, sentences = [], []
    for line in filter(str.strip, said):
        if not re.match(r"\d+\s*,", line):
            sentences.append(line.strip())
            continue
        names, values = fields.split(","), _split(line)
        if len(values) != len(names):
            raise ValueError(f"nvidia-smi was asked for {fields} and printed {line!r}")
        row = dict(zip(names, values, strict=True))
        # A GB10 has no memory of its own, a card cut into MIG instances may hide it, a lost one answers nothing.
        silent = [name for name in ("memory.total", "memory.free") if _text(row[name]) == ""]
        if silent:
            sentences.append(f"GPU {row['index']} ({row['name']}) has for {silent[0]}: {row[silent[0]]}")
            continue
        try:
            found.append(_card(row, holders))
        except ValueError as error:
            raise ValueError(f"nvidia-smi was asked for {fields} and printed {line!r}: {error}") from error
    if found:
        # Not about what can run: "WARNING: infoROM is corrupted at gpu 0000:01:00.0".
        sentences = [text for text in sentences if not text.startswith("WARNING")]
    elif status in TIMED_OUT:
        sentences = ["nvidia-smi did not answer"]
    elif not sentences and status != "0":
        sentences = [f"nvidia-smi ended with status {status} and said nothing"]
    return tuple(found), " ".join(sentences)


def driver(fields: str, said: Iterable[str]) -> str:
    """The driver's version, which every card's row repeats; empty where there is none."""
    for line in said:
        if re.match(r"\d+\s*,", line):
            return _text(dict(zip(fields.split(","), _split(line), strict=False)).get("driver_version", ""))
    return ""


def holders(said: Iterable[str]) -> dict[str, tuple[Holder, ...]]:
    """
    Who holds memory, by the card's UUID: rows of UUID, process, its name, MiB.

    Of the name the program's file is kept. The rest of it may be a command line, as Chrome's is, and hold a secret.
    """
    found: dict[str, tuple[Holder, ...]] = {}
    for line in said:
        start = re.match(r"([^,]*),\s*(\d+)\s*,\s*(.*)", line)
        if start is None:
            continue  # a sentence, which the question for the cards brings too
        uuid, pid, rest = start.groups()
        path, _, used = rest.rpartition(",")
        holder = Holder(pid=int(pid), name=_program(path), used_mib=_number(used))
        found[uuid.strip()] = (*found.get(uuid.strip(), ()), holder)
    return found


def driver_cuda(header: str) -> str:
    """The newest CUDA that the driver speaks, by the table's head; empty where it says N/A. UMD since driver 610."""
    found = re.search(r"CUDA (?:UMD )?Version *: *(\d+\.\d+)", header)
    return found[1] if found else ""


def kernel_module(text: str) -> str:
    """The loaded module's version, by /sys/module/nvidia/version or /proc/driver/nvidia/version."""
    if not text:
        return ""
    found = re.search(r"(?:^|\s)(\d+\.\d+(?:\.\d+)?)(?:\s|$)", text)
    if found is None:
        raise ValueError(f"the NVIDIA kernel module's version is {text!r}")
    return found[1]


def nvcc(path: str, version: str, architectures: str) -> Nvcc:
    """A compiler, by its release and the list of ``--list-gpu-arch``: compute_86 compute_90."""
    numbers = sorted({int(number) for number in re.findall(r"compute_(\d+)", architectures)})
    return Nvcc(path=path, version=version, architectures=tuple(str(number) for number in numbers))


def rows(fields: str, said: Iterable[str]) -> list[dict[str, str]]:
    """What ``nvidia-smi --query-gpu`` says of each card, by field; empty text is what it has no value for."""
    names, found = fields.split(","), []
    for line in said:
        if not re.match(r"\d+\s*,", line):
            continue  # a sentence
        values = _split(line)
        if len(values) != len(names):
            raise ValueError(f"nvidia-smi was asked for {fields} and printed {line!r}")
        found.append(dict(zip(names, map(_text, values), strict=True)))
    return found


def _split(line: str) -> list[str]:
    return [value.strip() for value in next(csv.reader([line], skipinitialspace=True))]


def _text(value: str) -> str:
    """As it is; empty for [N/A], [Not Supported], [Unknown Error], [GPU is lost], [Insufficient Permissions]."""
    return "" if value.startswith("[") or value == "N/A" else value


def _number(value: str) -> int | None:
    text = _text(value.strip())
    return int(text) if text else None


def _program(path: str) -> str:
    return re.split(r"[/\\]", _text(path.strip()).partition(" ")[0])[-1]


def _card(row: dict[str, str], holders: Mapping[str, tuple[Holder, ...]]) -> Gpu:
    power = _text(row.get("power.limit", ""))
    return Gpu(
        index=int(row["index"]),
        uuid=_text(row["uuid"]),
        name=row["name"],
        compute_capability=_text(row.get("compute_cap", "")),
        memory_total_mib=int(row["memory.total"]),
        memory_free_mib=int(row["memory.free"]),
        ecc=SWITCHES.get(row.get("ecc.mode.current", "")),
        mig=SWITCHES.get(row.get("mig.mode.current", ""), False),
        power_limit_w=float(power) if power else None,
        temperature_c=_number(row.get("temperature.gpu", "")),
        holders=holders.get(row["uuid"], ()),
    )
