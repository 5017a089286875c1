"""How hosts and their servers do, in one line each: figures with what they are of, never a guess. Pure."""

from typing import Literal

from beeyard.catalog import Catalog, Strict
from beeyard.examination import GOOD, Examined, drift
from beeyard.machine import Gpu
from beeyard.survey import solved

State = Literal["serving", "loading", "silent", "stopped", "not deployed", "not reached"]
LOADING = 503


class HostStatus(Strict):
    """
    One host. None is what nobody there says.

    ``tokens_per_s`` is decoded tokens by seconds of decoding, ``since`` a look before or the server's start;
    ``acceptance`` is the share of drafted tokens that were accepted since its start, 0 to 1, by its metrics or, of
    its last answers, by its log. ``vram_used_mib`` of ``vram_total_mib`` are of the cards that it may use,
    ``vram_own_mib`` its own. ``price_per_hour`` is in US dollars. ``drift`` are sentences.
    """

    name: str
    state: State
    # Why it cannot be asked.
    why: str = ""
    preset: str = ""
    variant: str = ""
    engine: str = ""
    build: str = ""
    runtime: str = ""
    tokens_per_s: float | None = None
    since: Literal["look", "start"] | None = None
    decoded_tokens: int | None = None
    acceptance: float | None = None
    accepted_by_position: tuple[float, ...] = ()
    slots: int | None = None
    busy: int | None = None
    queued: int | None = None
    vram_used_mib: int | None = None
    vram_total_mib: int | None = None
    vram_own_mib: int | None = None
    resident_mib: int | None = None
    temperature_c: int | None = None
    uptime_s: float | None = None
    restarts: int | None = None
    price_per_hour: float | None = None
    drift: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether it serves what it is to serve."""
        return self.state == "serving" and not self.drift


def of_host(examined: Examined, catalog: Catalog, before: Examined | None = None) -> HostStatus:
    """
    A host that was asked.

    :param before: an earlier look at it, since which its rate is told
    """
    survey, state, running = examined.survey, examined.state, examined.running
    server, counters = survey.server, running.counters
    solution = solved(survey, catalog)
    cards = _cards(survey.machine.gpus, solution.spec.card if solution.spec else None)
    rate, since = _rate(examined, before)
    heat = [card.temperature_c for card in cards if card.temperature_c is not None]
    queued = counters.get("requests_deferred")
    decoded = counters.get("tokens_predicted_total")
    return HostStatus(
        name=survey.name,
        state=_state(examined),
        preset=server.get("preset", ""),
        variant=server.get("variant", ""),
        engine=server.get("engine", ""),
        build=running.build,
        runtime=server.get("runtime", ""),
        tokens_per_s=rate,
        since=since,
        decoded_tokens=None if decoded is None else int(decoded),
        acceptance=_acceptance(examined),
        accepted_by_position=running.accepted_by_position,
        slots=running.slots,
        busy=running.busy,
        queued=None if queued is None else int(queued),
        vram_used_mib=sum(card.memory_total_mib - card.memory_free_mib for card in cards) if cards else None,
        vram_total_mib=sum(card.memory_total_mib for card in cards) if cards else None,
        vram_own_mib=state.get("vram_mib"),
        resident_mib=state.get("resident_mib") or None,
        temperature_c=max(heat) if heat else None,
        uptime_s=running.uptime_s,
        restarts=running.restarts,
        price_per_hour=survey.price_per_hour,
        drift=tuple(drift(examined, catalog, solution)) if examined.is_deployed else (),
    )


def unreached(name: str, said: str) -> HostStatus:
    """
    A host that could not be asked.

    :param said: what pyinfra said of all of them
    """
    lines = [line.strip() for line in said.splitlines()]
    own = [line.partition("]")[2].strip() for line in lines if line.startswith(f"[{name}]")]
    if not own:  # what ends pyinfra as a whole, as a key file that is not there, names no host
        own = [line for line in lines if "Error: " in line]
    why = next((line for line in own if "Fix: " in line), own[-1] if own else "")
    return HostStatus(name=name, state="not reached", why=why or "it did not answer. Fix: see that it is up")


def _state(examined: Examined) -> State:
    if not examined.is_deployed:
        return "not deployed"
    if examined.running.health == GOOD:
        return "serving"
    if not examined.state.get("pid"):
        return "stopped"
    return "loading" if examined.running.health == LOADING else "silent"


def _cards(gpus: tuple[Gpu, ...], wanted: str | None) -> list[Gpu]:
    return [card for card in gpus if wanted in (None, card.uuid)]


def _rate(examined: Examined, before: Examined | None) -> tuple[float | None, Literal["look", "start"] | None]:
    """Decoded tokens by seconds: since the look before if it decoded since, else since its start."""
    tokens, seconds = _decoded(examined)
    if before is not None:
        old_tokens, old_seconds = _decoded(before)
        if 0 <= old_tokens < tokens and old_seconds < seconds:
            return (tokens - old_tokens) / (seconds - old_seconds), "look"
    return (tokens / seconds, "start") if tokens and seconds else (None, None)


def _decoded(examined: Examined) -> tuple[float, float]:
    counters = examined.running.counters
    return counters.get("tokens_predicted_total", 0), counters.get("tokens_predicted_seconds_total", 0)


def _acceptance(examined: Examined) -> float | None:
    running = examined.running
    drafted = running.counters.get("spec_decode_num_draft_tokens_total")
    accepted = running.counters.get("spec_decode_num_accepted_tokens_total")
    if drafted and accepted is not None:
        return accepted / drafted
    return running.log_accepted / running.log_drafted if running.log_drafted else None
