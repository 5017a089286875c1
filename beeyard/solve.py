"""
What a host will run, or every reason why it cannot: host facts and data in, a solution out. Pure.

Nothing is asked and nothing is changed here, so that a saved host, or a cloud's offer, can be planned for as well.
"""

from collections.abc import Mapping
from typing import Any

from beeyard.catalog import Catalog, CatalogError, pick
from beeyard.checks import (
    code_faults,
    code_of,
    compiler_faults,
    cxx_of,
    driver_faults,
    gpu_faults,
    host_compiler,
    pair_faults,
    usable_cards,
    version,
)
from beeyard.dialects import argv
from beeyard.machine import Gpu, Machine
from beeyard.sizing import decide_memory
from beeyard.solution import AUTO, NEVER, NOTHING, Found, Kept, Own, Solution
from beeyard.spec import HeldEngine, HostKind, HostSettings, ServerSpec, host_settings, resolve

# What becomes of DFlash where a model or its drafter lies on several cards. Source: common_dflash_gpu_ring_allowed()
# of BeeLlama's common/speculative.cpp; issues 27833 and 28777 of ggml-org/llama.cpp.
ACROSS_CARDS = {
    "guide": "over several, this engine switches off what of DFlash runs on the card",
    "bee4": "over several, DFlash ends the server under --split-mode tensor",
    "llama.cpp": "over several, DFlash ends the server under --split-mode tensor",
}


def host_kind(machine: Machine, cards: tuple[Gpu, ...], held: HeldEngine | None) -> HostKind:
    """What of a host decides how its server is run, if it is to run on these cards."""
    return HostKind(
        has_systemd=machine.init == "systemd",
        is_root=machine.is_root,
        compute_capabilities=tuple(sorted({card.compute_capability for card in cards if card.compute_capability})),
        card=cards[0].uuid if cards and len(machine.gpus) > 1 else None,
        has_cdi=machine.docker.has_cdi,
        has_nvidia_runtime="nvidia" in machine.docker.runtimes,
        held_engine=held,
    )


def solve(
    host_data: Mapping[str, Any],
    catalog: Catalog,
    machine: Machine,
    own: Own = NOTHING,
    held: HeldEngine | None = None,
    kept: Kept = NEVER,
) -> Solution:
    """
    What a host will run, with every decision's reason; or all the reasons why it cannot.

    :param own: what our server there holds now, which a new one will have
    :param held: the engine that the host's own image holds
    :param kept: what was decided before, which is kept while it holds: a second deploy changes nothing
    """
    found = Found()
    try:
        settings = host_settings(host_data)
        cards = _cards(settings, catalog, machine, own, found)
        kind = host_kind(machine, cards, held)
        _engine(settings, host_data, catalog, kind, found)
        _runtime(host_settings({**host_data, **found.decided}), catalog, machine, kind, found)
        spec = resolve({**host_data, **found.decided}, catalog, kind)
        found.decide("artefact", *_artefact(spec))
        decide_memory(settings, spec, machine, cards, own, kept, found)
        spec = resolve({**host_data, **found.decided}, catalog, kind)
    except CatalogError as error:
        found.reasons.append(str(error))
        return found.solution(None)
    if spec.wants_gpu and cards:
        code = code_of(spec, catalog, machine)
        found.reasons += driver_faults(code, machine, cards, catalog) or code_faults(code, cards)
        if spec.engine_is_compiled:
            found.reasons += compiler_faults(machine, cards, catalog)
            compiler = host_compiler(machine)
            if compiler is not None:
                cuda = machine.nvccs[0].version
                found.decide("compiler", compiler.path, f"c++ is {cxx_of(machine)}, which CUDA {cuda} does not take")
    found.reasons += pair_faults(spec)
    return found.solution(spec)


def _cards(settings: HostSettings, catalog: Catalog, machine: Machine, own: Own, found: Found) -> tuple[Gpu, ...]:
    """The card that the server will run on; none where it wants none."""
    server = pick(catalog.servers, settings.preset, "preset")
    variant = pick(server.variants, settings.variant or server.default_variant, f"variant of {settings.preset}")
    name = settings.engine or variant.engine or server.engine
    engine = pick(catalog.engines, server.engine if name == AUTO else name, "engine")
    layers = {**server.settings, **variant.settings, **settings.settings}.get("gpu_layers")
    if engine.accelerator != "cuda" or layers == 0:
        return ()
    faults = gpu_faults(machine, installs_driver=settings.nvidia_driver == "install")
    if faults:
        found.reasons += faults
        return ()
    usable, left_out = usable_cards(machine)
    if not usable:
        found.reasons += left_out
        return ()
    found.notes += left_out
    if settings.card is not None:
        named = [card for card in usable if settings.card in (str(card.index), card.uuid)]
        if not named:
            found.reasons.append(
                f"llama_card is {settings.card!r}, and the cards here are {_listed(usable)}. Fix: name one of those"
            )
        for card in named[:1]:
            found.decide("card", f"GPU {card.index} ({card.name})", f"llama_card says so; of {_listed(usable)}")
        return tuple(named)
    if len(machine.gpus) == 1:
        return usable
    best = max(usable, key=lambda card: (_is_ours(card, own), card.memory_total_mib, -card.index))
    why = "our server runs there" if _is_ours(best, own) else "the most memory"
    why += f"; of {_listed(usable)}"
    if variant.decoding.kind == "dflash":
        why += f". One alone: {ACROSS_CARDS[engine.dialect]}"
    found.decide("card", f"GPU {best.index} ({best.name})", why, card=best.uuid)
    return (best,)


def _is_ours(card: Gpu, own: Own) -> bool:
    return any(holder.pid in own.pids for holder in card.holders)


def _listed(cards: tuple[Gpu, ...]) -> str:
    return ", ".join(f"GPU {card.index} ({card.name}, {card.memory_total_mib} MiB)" for card in cards)


def _runtime(settings: HostSettings, catalog: Catalog, machine: Machine, kind: HostKind, found: Found) -> None:
    """What keeps the server running: what the data says, else the best that the host has."""
    if settings.runtime != AUTO:
        found.decide("runtime", settings.runtime, "llama_runtime says so")
    elif not kind.has_systemd or not kind.is_root:
        why = "systemd does not run this host" if not kind.has_systemd else "this user is not root"
        found.decide("runtime", "supervisor", why, runtime="supervisor")
    elif against := _against_compose(settings, catalog, machine, kind):
        found.decide("runtime", "systemd", against, runtime="systemd")
    else:
        why = "Docker is here, has the card, and presets/lock.yaml names an image to pull"
        found.decide("runtime", "compose", why, runtime="compose")


def _against_compose(settings: HostSettings, catalog: Catalog, machine: Machine, kind: HostKind) -> str:
    """Why a host under systemd does not run containers, unless it is told to; empty if it does."""
    docker = machine.docker
    if not docker.command:
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


def _engine(settings: HostSettings, data: Mapping[str, Any], catalog: Catalog, kind: HostKind, found: Found) -> None:
    """
    The engine: what the data says, or for ``auto`` the newest of the preset's accelerator that can serve this.

    presets/engines.yaml lists each kind of engine from the oldest to the newest.
    """
    if settings.engine != AUTO:
        server = pick(catalog.servers, settings.preset, "preset")
        of_variant = server.variants[settings.variant or server.default_variant].engine
        why = "llama_engine says so" if settings.engine else "the variant's" if of_variant else "the preset's"
        found.decide("engine", settings.engine or of_variant or server.engine, why)
        return
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
            found.decide("engine", name, "the newest that can serve this preset" + _passed_over(against), engine=name)
            return
        against.append(f"{name}: {faults[0]}")
    raise CatalogError(f"no engine can serve {settings.preset} here: {' | '.join(against)}")


def _artefact(spec: ServerSpec) -> tuple[str, str]:
    """How the engine reaches the host, and why so."""
    artefact, image = spec.engine.artefact, spec.image
    if image is not None:
        whys = {
            "pull": "its digest is locked, or llama_image names it",
            "carry": "no image to pull is locked, or llama_image_from says so",
            "build": "llama_image_from says so",
        }
        return f"image {image.variant}, {image.source}", whys[image.source]
    if spec.engine_is_held:
        return "the engine that the host started with", "its own image holds it"
    how = {
        "release": "a release's tarball",
        "source": "compiled on the host",
        "wheel": "out of a wheel",
        "debian": "the distribution's package",
    }
    return how[artefact.kind], "presets/engines.yaml says so"


def _passed_over(against: list[str]) -> str:
    return f"; not {'; not '.join(text.partition('. Fix:')[0] for text in against)}" if against else ""
