"""The cards while they are measured: heat, power, clocks, why they throttle, who else has memory of them."""

import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Self

from beeyard import nvidia_smi
from beeyard.bench.record import Foreign, GpuSample, Request

# What is asked for last has two names, by the driver's age: the older one is tried first.
FIELDS = "index,uuid,temperature.gpu,power.draw,power.limit,clocks.sm,memory.used,utilization.gpu"
REASONS = ("clocks_throttle_reasons.active", "clocks_event_reasons.active")
HOLDERS = "gpu_uuid,pid,process_name,used_gpu_memory"
OWN_PROGRAM = "llama-server"
ASK_TIMEOUT_S = 10
# Bits of NVML's nvmlClocksEventReasons, as nvidia-smi names them.
BITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
# Those that spoil a figure: heat, or a brake from outside. A power cap is how the card is set up.
SPOILING = {
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal_slowdown": "thermal throttling",
    "hw_thermal_slowdown": "thermal throttling by the hardware",
    "hw_power_brake_slowdown": "a power brake",
}


def samples(
    fields: str, said: Iterable[str], holders: Iterable[str], own_pids: Collection[int], at_s: float, variant: str
) -> list[GpuSample]:
    """
    One sample a card, from what nvidia-smi printed; ``[N/A]`` becomes None.

    :param own_pids: the server's; where they are not known, every process called llama-server is taken for it
    :raises ValueError: it printed what is not understood.
    """
    held = nvidia_smi.holders(holders)
    found = []
    for row in nvidia_smi.rows(fields, said):
        foreign = tuple(
            Foreign(pid=one.pid, name=one.name, used_mib=one.used_mib)
            for one in held.get(row["uuid"], ())
            if (one.pid not in own_pids if own_pids else one.name != OWN_PROGRAM)
        )
        bits = next((row[name] for name in REASONS if row.get(name)), "")
        found.append(
            GpuSample(
                at_s=at_s, variant=variant, index=int(row["index"]), temperature_c=_whole(row["temperature.gpu"]),
                power_w=_number(row["power.draw"]), power_limit_w=_number(row["power.limit"]),
                sm_clock_mhz=_whole(row["clocks.sm"]), memory_used_mib=_whole(row["memory.used"]),
                utilisation_percent=_whole(row["utilization.gpu"]),
                throttle=reasons(int(bits, 16)) if bits else None, foreign=foreign,
            )
        )  # fmt: skip
    return found


def reasons(bits: int) -> tuple[str, ...]:
    """The names of the reasons in a bitmask, unknown ones as hexadecimal."""
    known = tuple(name for bit, name in BITS.items() if bits & bit)
    rest = bits & ~sum(BITS)
    return (*known, f"{rest:#x}") if rest else known


def marks(request: Request, seen: Iterable[GpuSample]) -> list[str]:
    """What of the cards speaks against a request's figures, as parts of a sentence: heat, a brake, somebody else."""
    during = [one for one in seen if one.variant == request.variant and _overlaps(one, request)]
    found = {SPOILING[name]: None for one in during for name in one.throttle or () if name in SPOILING}
    others = {f"{one.name or 'a process'} ({one.pid}) on GPU {sample.index}": None
              for sample in during for one in sample.foreign}  # fmt: skip
    return [*found, *others]


def _overlaps(sample: GpuSample, request: Request) -> bool:
    return request.began_s - Sampler.INTERVAL_S <= sample.at_s <= request.ended_s + Sampler.INTERVAL_S


class Sampler:
    """
    Asks nvidia-smi every second, beside the run, until it is left.

    ``fault`` says why there are no samples: the command is not there, or says what is not understood.
    """

    INTERVAL_S = 1.0

    def __init__(
        self, command: Sequence[str], began: float, own_pids: Callable[[], Collection[int]] = tuple,
        variant: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        """
        Get ready.

        :param command: nvidia-smi, or what runs it where the server is, as ``ssh attic nvidia-smi``
        :param began: the monotonic time from which samples count
        :param own_pids: the processes of the server that runs just now; none where they are not known
        :param variant: what is measured just now
        """
        self._command, self._began, self._own, self._variant = list(command), began, own_pids, variant
        self._fields = f"{FIELDS},{REASONS[0]}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go, name="nvidia-smi", daemon=True)
        self.seen: list[GpuSample] = []
        self.fault = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(ASK_TIMEOUT_S * 3)

    def _go(self) -> None:
        while not self._stop.is_set() and not self.fault:
            self._look()
            self._stop.wait(self.INTERVAL_S)

    def _look(self) -> None:
        try:
            said = self._ask(f"--query-gpu={self._fields}")
            if any("not a valid field" in line for line in said):
                known = [name for name in REASONS if f"{FIELDS},{name}" != self._fields]
                self._fields = f"{FIELDS},{known[0]}" if self._fields.endswith(REASONS[0]) else FIELDS
                said = self._ask(f"--query-gpu={self._fields}")
            at_s = time.monotonic() - self._began
            held = self._ask(f"--query-compute-apps={HOLDERS}")
            found = samples(self._fields, said, held, self._own(), at_s, self._variant())
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self.fault = f"the cards were not watched: {error}. Fix: see what `{' '.join(self._command)}` says"
            return
        if not found:
            text = " ".join(" ".join(said).split())[:200] or "nothing"
            self.fault = f"the cards were not watched: nvidia-smi says {text!r}. Fix: see that it lists them"
        self.seen += found

    def _ask(self, query: str) -> list[str]:
        words = [*self._command, query, "--format=csv,noheader,nounits"]
        run = subprocess.run(words, check=False, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
        return (run.stdout or run.stderr).splitlines()


def _number(text: str) -> float | None:
    return float(text) if text else None


def _whole(text: str) -> int | None:
    return int(text) if text else None
