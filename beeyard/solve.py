"""
What a host will run, or every reason why it cannot: host facts and data in, a solution out. Pure.

Nothing is asked and nothing is changed here, so that a saved host, or a cloud's offer, can be planned for as well.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from beeyard.catalog import Catalog, CatalogError, Strict, pick
from beeyard.checks import compiler_faults, driver_faults, gpu_faults, pair_faults, usable_cards, version
from beeyard.dialects import argv
from beeyard.machine import Gpu, Machine
from beeyard.spec import HeldEngine, HostKind, HostSettings, ServerSpec, host_settings, resolve

AUTO = "auto"


class Decision(Strict):
    """Something that was decided, and why."""

    what: str
    value: str
    why: str


class Solution(Strict):
    """The spec that a host gets, with what was decided for it; or reasons why it cannot have it, each with a Fix."""

    spec: ServerSpec | None = None
    decisions: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether nothing stands against it."""
        return self.spec is not None and not self.reasons


class Own(NamedTuple):
    """What our own server holds on the host now, and a new one will have: processes, and memory of cards in MiB."""

    pids: tuple[int, ...] = ()
    vram_mib: int = 0


NOTHING = Own()


def host_kind(machine: Machine, cards: tuple[Gpu, ...], held: HeldEngine | None) -> HostKind:
    """What of a host decides how its server is run, if it is to run on these cards."""
    docker = machine.docker
    return HostKind(
        has_systemd=machine.init == "systemd",
        is_root=machine.is_root,
        compute_capabilities=tuple(sorted({card.compute_capability for card in cards if card.compute_capability})),
        has_cdi=docker is not None and docker.has_cdi,
        has_nvidia_runtime=docker is not None and "nvidia" in docker.runtimes,
        held_engine=held,
    )


class _Found:
    """What comes together on the way to a solution."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.notes: list[str] = []
        self.reasons: list[str] = []

    def decide(self, what: str, value: str, why: str) -> None:
        self.decisions.append(Decision(what=what, value=value, why=why))

    def solution(self, spec: ServerSpec | None) -> Solution:
        return Solution(
            spec=spec, decisions=tuple(self.decisions), notes=tuple(self.notes), reasons=tuple(self.reasons)
        )


def solve(
    host_data: Mapping[str, Any],
    catalog: Catalog,
    machine: Machine,
    own: Own = NOTHING,
    held: HeldEngine | None = None,
) -> Solution:
    """
    What a host will run, with every decision's reason; or all the reasons why it cannot.

    :param own: what our server there holds now, which a new one will have
    :param held: the engine that the host's own image holds
    """
    found = _Found()
    try:
        settings = host_settings(host_data)
        cards = _cards(settings, catalog, machine, found)
        kind = host_kind(machine, cards, held)
        data = {**host_data, **_runtime(settings, catalog, machine, kind, found)}
        spec = resolve({**data, **_engine(settings, data, catalog, kind, found)}, catalog, kind)
    except CatalogError as error:
        found.reasons.append(str(error))
        return found.solution(None)
    if spec.wants_gpu and cards:
        variant = catalog.images[spec.image.variant] if spec.image is not None else None
        found.reasons += driver_faults(variant.cuda if variant else None, machine, cards, catalog)
        if spec.engine_is_compiled:
            found.reasons += compiler_faults(machine, cards, catalog)
    found.reasons += pair_faults(spec)
    return found.solution(spec)


def _cards(settings: HostSettings, catalog: Catalog, machine: Machine, found: _Found) -> tuple[Gpu, ...]:
    """The cards that the server will run on; none where it wants none."""
    server = pick(catalog.servers, settings.preset, "preset")
    variant = pick(server.variants, settings.variant or server.default_variant, f"variant of {settings.preset}")
    name = settings.engine or variant.engine or server.engine
    engine = pick(catalog.engines, server.engine if name == AUTO else name, "engine")
    layers = {**server.settings, **variant.settings, **settings.settings}.get("gpu_layers")
    if engine.accelerator != "cuda" or layers == 0:
        return ()
    faults = gpu_faults(machine)
    if faults:
        found.reasons += faults
        return ()
    usable, left_out = usable_cards(machine)
    if not usable:
        found.reasons += left_out
        return ()
    found.notes += left_out
    return usable


def _runtime(
    settings: HostSettings, catalog: Catalog, machine: Machine, kind: HostKind, found: _Found
) -> dict[str, Any]:
    """What keeps the server running: what the data says, else the best that the host has."""
    if settings.runtime != AUTO:
        found.decide("runtime", settings.runtime, "llama_runtime says so")
        return {}
    if not kind.has_systemd or not kind.is_root:
        why = "systemd does not run this host" if not kind.has_systemd else "this user is not root"
        found.decide("runtime", "supervisor", why)
        return {"llama_runtime": "supervisor"}
    against = _against_compose(settings, catalog, machine, kind)
    if against:
        found.decide("runtime", "systemd", against)
        return {"llama_runtime": "systemd"}
    found.decide("runtime", "compose", "Docker is here, has the card, and presets/lock.yaml names an image to pull")
    return {"llama_runtime": "compose"}


def _against_compose(settings: HostSettings, catalog: Catalog, machine: Machine, kind: HostKind) -> str:
    """Why a host under systemd does not run containers, unless it is told to; empty if it does."""
    docker = machine.docker
    if docker is None:
        return "there is no Docker Engine here"
    if not docker.version:
        return "its Docker Engine does not answer"
    if docker.is_snap:
        return "its Docker is a snap, which NVIDIA's container toolkit does not support"
    if not docker.compose or version(docker.compose.removeprefix("v"))[:1] < (2,):
        return f"its docker compose is {docker.compose or 'missing'}, 2 is wanted"
    if kind.compute_capabilities and not (kind.has_nvidia_runtime or kind.has_cdi):
        return "its Docker cannot give containers the card"
    return "" if _can_pull(settings, catalog, kind) else "presets/lock.yaml names no image of the engine to pull"


def _can_pull(settings: HostSettings, catalog: Catalog, kind: HostKind) -> bool:
    try:
        spec = resolve({**_named(settings), "llama_runtime": "compose"}, catalog, kind)
    except CatalogError:
        return False
    return spec.image is not None and spec.image.source == "pull"


def _named(settings: HostSettings) -> dict[str, Any]:
    """Settings as a host's data has them."""
    given = settings.model_dump(exclude_defaults=True)
    return {f"llama_{key}": value for key, value in given.items()}


def _engine(
    settings: HostSettings, data: Mapping[str, Any], catalog: Catalog, kind: HostKind, found: _Found
) -> dict[str, Any]:
    """
    The engine: what the data says, or for ``auto`` the newest of the preset's accelerator that can serve this.

    presets/engines.yaml lists each kind of engine from the oldest to the newest.
    """
    if settings.engine != AUTO:
        return {}
    preset = pick(catalog.servers, settings.preset, "preset")
    usual = pick(catalog.engines, preset.engine, "engine")
    against = []
    for name, engine in reversed(catalog.engines.items()):
        if engine.accelerator != usual.accelerator:
            continue
        try:
            spec = resolve({**data, "llama_engine": name}, catalog, kind)
            argv(spec)
        except CatalogError as error:
            against.append(f"{name}: {error}")
            continue
        faults = [*pair_faults(spec), *spec.unlocked_engine]
        if not faults:
            found.decide("engine", name, "the newest that can serve this preset" + _passed_over(against))
            return {"llama_engine": name}
        against.append(f"{name}: {faults[0]}")
    raise CatalogError(f"no engine can serve {settings.preset} here: {' | '.join(against)}")


def _passed_over(against: list[str]) -> str:
    return f"; not {'; not '.join(text.partition('. Fix:')[0] for text in against)}" if against else ""
