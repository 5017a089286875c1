"""Whether a server fits into a host's memory, with which context, and whether it can be locked there. Pure."""

from typing import NamedTuple

from beeyard import budget as budgets
from beeyard.catalog import CatalogError, KvTypes
from beeyard.machine import Gpu, Machine
from beeyard.solution import AUTO, Found, Kept, Own
from beeyard.spec import UNLOCKED, HostSettings, ServerSpec

KIB, MIB = 2**10, 2**20


class _Memory(NamedTuple):
    """What a server may take, in bytes; None for a card where it uses none."""

    gpu: int | None
    host: int


def decide_memory(
    settings: HostSettings,
    spec: ServerSpec,
    machine: Machine,
    cards: tuple[Gpu, ...],
    own: Own,
    kept: Kept,
    found: Found,
) -> None:
    """Whether it fits into memory, with which context, and whether it can be locked there."""
    wanted = _wanted(spec)
    if wanted is None:
        unread = [file.name for file in spec.model_files if file.lock is None or file.lock.gguf is None]
        _unknown(
            settings, f"presets/lock.yaml has no header of {' and '.join(unread)}, which `beeyard lock` writes", found
        )
        return
    try:
        budgets.budget(wanted)
    except CatalogError as error:
        _unknown(settings, str(error).partition(". Fix:")[0], found)
        return
    free = _free(spec, machine, cards, own)
    if settings.context == AUTO:
        wanted = _with_context(wanted, spec, free, kept, found)
    needed = budgets.budget(wanted)
    found.memory = budgets.render(needed, free.gpu, free.host)
    value = f"{_mib_up(needed.host_bytes)} of {_mib(free.host)} MiB free in the host"
    if free.gpu is not None:
        value = f"{_mib_up(needed.gpu_bytes)} of {_mib(free.gpu)} MiB free on the card, {value}"
    found.decide("memory", value, "estimated")
    if not needed.fits(free.gpu, free.host):
        found.reasons.append(_too_much(wanted, needed, free, cards, _has_all_kernels(spec) is not False))
    else:
        _growth(needed, free, found)
    _kernels(spec, found)
    _mlock(settings, spec, machine, needed.lockable_bytes // KIB, found)


def _unknown(settings: HostSettings, why: str, found: Found) -> None:
    """What cannot be computed is told, and stands against nothing but a context that is to be computed from it."""
    if settings.context == AUTO:
        found.reasons.append(f"llama_context: auto cannot be decided: {why}. Fix: set llama_context to a number")
    else:
        found.notes.append(f"what it takes of memory is not known: {why}")


def _wanted(spec: ServerSpec) -> budgets.Plan | None:
    """The spec as the budget takes it; None while a header is not known."""
    weights = [
        budgets.Weights(file.lock.gguf, sum(piece.size for piece in file.pieces))
        for file in spec.model_files
        if file.lock is not None and file.lock.gguf is not None
    ]
    if len(weights) < len(spec.model_files):
        return None
    return budgets.Plan(
        model=weights[0],
        settings=spec.settings,
        dialect=spec.engine.dialect,
        decoding=spec.decoding,
        draft=weights[1] if len(weights) > 1 else None,
        accelerator="cuda" if spec.wants_gpu else "cpu",
    )


def _free(spec: ServerSpec, machine: Machine, cards: tuple[Gpu, ...], own: Own) -> _Memory:
    """What is free, and what our own server holds, which ends before the new one starts."""
    host = machine.memory_available_mib + own.resident_mib
    if machine.memory_limit_mib is not None:
        host = min(host, machine.memory_limit_mib)
    gpu = None
    if spec.wants_gpu and cards:
        held = sum(holder.used_mib or 0 for holder in cards[0].holders if holder.pid in own.pids)
        gpu = min(cards[0].memory_free_mib + (held or own.vram_mib), cards[0].memory_total_mib) * MIB
    return _Memory(gpu, host * MIB)


def _with_context(wanted: budgets.Plan, spec: ServerSpec, free: _Memory, kept: Kept, found: Found) -> budgets.Plan:
    """The context that was decided before, while that fits; else the largest usual one."""
    most = wanted.model.header.context
    context, why = budgets.standard_context(wanted, free.gpu, free.host, most), "the largest usual size that fits"
    before = kept.context if kept.of == what_is_served(spec) else None
    if before and budgets.budget(_at(wanted, before)).fits(free.gpu, free.host):
        context, why = before, "as it was decided here before, and it fits"
    if context is None:
        needed = budgets.budget(_at(wanted, budgets.CONTEXTS[0]))
        raise CatalogError(_too_much(_at(wanted, budgets.CONTEXTS[0]), needed, free, (), has_all_kernels=True))
    found.decide("context", f"{context} tokens", why, context=context)
    return _at(wanted, context)


def _at(wanted: budgets.Plan, context: int) -> budgets.Plan:
    return wanted._replace(settings=wanted.settings.model_copy(update={"context": context}))


def what_is_served(spec: ServerSpec) -> str:
    """What a context is decided for: with another of these, it is decided anew."""
    return f"{spec.preset} {spec.variant} {spec.engine_name} {spec.card or ''}".strip()


def _too_much(
    wanted: budgets.Plan, needed: budgets.Budget, free: _Memory, cards: tuple[Gpu, ...], has_all_kernels: bool
) -> str:
    """What it takes, what is free, and what would fit."""
    ways = []
    context = budgets.largest_context(wanted, free.gpu, free.host, wanted.settings.context)
    if context:
        ways.append(f"set llama_context to {context} or less")
    finer = budgets.kv_types_that_fit(wanted, free.gpu, free.host, has_all_kernels=has_all_kernels)
    if finer:
        ways.append(f"set the KV cache to {finer[0].k}/{finer[0].v} (llama_settings: kv)")
    if free.gpu is not None and needed.gpu_bytes > free.gpu:
        what = f"it takes {_mib_up(needed.gpu_bytes)} MiB of GPU memory, and {_mib(free.gpu)} are free"
        what += f" on GPU {cards[0].index} ({cards[0].name}){_held_by(cards[0])}" if cards else ""
        ways.append("free some, or take a smaller model or another card")
    else:
        what = f"it takes {_mib_up(needed.host_bytes)} MiB of the host's memory, and {_mib(free.host)} are free"
        ways.append("free some, or take a smaller model or another host")
    return f"{what}. Fix: {', or '.join(ways)}"


def _held_by(card: Gpu) -> str:
    others = [f"{holder.name} ({holder.pid})" for holder in card.holders]
    return f", which {', '.join(others)} uses too" if others else ""


def _growth(needed: budgets.Budget, free: _Memory, found: Found) -> None:
    """Whether the host's memory would be short later; what the kernel gives back does not count."""
    later = [row for row in needed.growth if row.name != budgets.PAGE_CACHE]
    most = needed.host_bytes + sum(row.bytes for row in later)
    if most > free.host:
        parts = " and ".join(f"{row.name} {_mib_up(row.bytes)} MiB" for row in later)
        found.notes.append(
            f"the host's memory may be short later: up to {_mib_up(most)} MiB, of which {parts}, and "
            f"{_mib(free.host)} are free. Fix: fewer slots, a smaller cache_ram_mib (llama_settings), or more memory"
        )


def _mib(size: int) -> int:
    return size // MIB


def _mib_up(size: int) -> int:
    """What is needed is never said to be less than it is."""
    return -(-size // MIB)


def _kernels(spec: ServerSpec, found: Found) -> None:
    """Whether the engine computes attention with these cache types on the card."""
    if not spec.wants_gpu:
        return
    knows = _has_all_kernels(spec)
    lacking = budgets.lacking_kernel(spec.settings.kv, spec.engine.dialect, has_all_kernels=knows is not False)
    if lacking:
        found.reasons.append(lacking)
    elif knows is None and budgets.lacking_kernel(spec.settings.kv, spec.engine.dialect, has_all_kernels=False):
        kv = spec.settings.kv or KvTypes(k="f16", v="f16")
        found.notes.append(
            f"whether {spec.engine.title} was built with a CUDA kernel for KV {kv.k}/{kv.v} is not known; without, "
            "attention runs on the CPU and prompts take ten times as long. Its fa_all_quants in presets/engines.yaml "
            "says it"
        )


def _has_all_kernels(spec: ServerSpec) -> bool | None:
    """Whether the engine has every kernel of flash attention, as what we build has; None: who knows."""
    return True if spec.engine_is_in_image or spec.engine_is_compiled else spec.engine.fa_all_quants


def _mlock(settings: HostSettings, spec: ServerSpec, machine: Machine, wanted_kib: int, found: Found) -> None:
    """Whether the model is locked in memory: as the preset has it, unless the host's limit is too low for it."""
    limit = _memlock_kib(spec, machine)
    if spec.settings.load_mode not in UNLOCKED or settings.mlock == "off" or limit is None or wanted_kib <= limit:
        return
    what = f"this host lets a process lock {limit} KiB of memory, and the model wants {wanted_kib}"
    fix = "raise the limit (ulimit -l; in a container, --ulimit memlock=-1)"
    if settings.mlock == "require":
        raise CatalogError(f"{what}. Fix: {fix}, or set llama_mlock to auto")
    found.decide("mlock", "off", f"{what}; to have it locked, {fix}", mlock="off")


def _memlock_kib(spec: ServerSpec, machine: Machine) -> int | None:
    """The limit that the server will have, in KiB; None for none. A container cannot lift its own."""
    if spec.runtime == "supervisor":
        if spec.user is None and machine.has_ipc_lock:
            return None
        asked = spec.limits.memlock
        return machine.memlock_kib if asked is None else None if asked == "unlimited" else asked
    wanted = None if spec.memlock == "infinity" else spec.memlock // KIB
    limits = [limit for limit in (wanted, machine.memlock_kib if machine.is_contained else None) if limit is not None]
    return min(limits, default=None)
