"""What was seen of a host, in one piece: what plans are made from, at once or later from a file. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from beeyard.catalog import Catalog, CatalogError, PartLock, Strict, sentence
from beeyard.disk import Piece, disk_faults, disk_room, engine_pieces, image_pieces, model_pieces
from beeyard.downloads import Download, downloads, unreached
from beeyard.drivers import driver_notes, driver_obstacles
from beeyard.images import tag
from beeyard.machine import Machine
from beeyard.preflight import build_obstacles, docker_obstacles, machine_notes, machine_obstacles, obstacles
from beeyard.probes import DriverProbe, Probe
from beeyard.sizing import what_is_served
from beeyard.solution import Decision, Kept, Own, Solution
from beeyard.solve import solve
from beeyard.spec import HeldEngine, ModelFile, ServerSpec
from beeyard.tunnel import Ssh

FORMAT = 1
# Where survey.py writes, a line a host.
SURVEY_FILE = "BEEYARD_SURVEY"
# Beside a server's definition on its host: what was decided for it.
DECIDED = "decided.json"


class Carried(Strict):
    """An image that the machine that deploys has: its ID, bytes unpacked, and the cards that it holds code for."""

    id: str
    bytes: int
    architectures: tuple[str, ...] = ()


class Survey(Strict):
    """
    A host: its name, our data of it, and what it said.

    ``own_pids`` and ``own_vram_mib`` are our server's there. ``models`` is, for each path that was asked for, what is
    there and how many bytes of it as a partial; ``sent`` are models that are not there, and that nobody else than we
    or another host gives. ``engines`` is what an engine's folder is, ``images`` are those that Docker there has, and
    ``repositories`` those of ours that apt knows. ``carried`` is what this machine has of images, or why it has none.
    """

    name: str
    data: dict[str, Any]
    machine: Machine
    probe: Probe
    tools: dict[str, str] | None = None
    is_here: bool = False
    own_pids: tuple[int, ...] = ()
    own_vram_mib: int = 0
    own_resident_mib: int = 0
    # What was decided for the server that is there.
    kept_of: str = ""
    kept: dict[str, Any] = {}
    models: dict[str, tuple[str, int]] = {}
    sent: tuple[str, ...] = ()
    engines: dict[str, str] = {}
    images: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    carried: dict[str, Carried | str] = {}
    # What it says of an NVIDIA driver, where that is to be installed first.
    driver: DriverProbe | None = None
    # What the host keeps of the server that is there (server.json), and how it is reached; both for measuring.
    server: dict[str, Any] = {}
    # US dollars an hour, where its inventory knows what it costs.
    price_per_hour: float | None = None
    ssh: Ssh | None = None


class Surveys(Strict):
    """A file of them, as ``--save-facts`` writes it."""

    beeyard_facts: int
    hosts: list[Survey]


def held_engine(probe: Probe) -> HeldEngine | None:
    """The engine that a pod was born with."""
    held = probe["held_engine"]
    if held is None:
        return None
    architectures = tuple(name for name in held["architectures"].split(";") if name)
    return HeldEngine(name=held["engine"], commit=held["commit"], architectures=architectures)


def solved(survey: Survey, catalog: Catalog) -> Solution:
    """What the host will run, as far as presets and its hardware decide it."""
    own = Own(survey.own_pids, survey.own_vram_mib, survey.own_resident_mib)
    kept = Kept(survey.kept_of, survey.kept.get("llama_context"))
    return solve(survey.data, catalog, survey.machine, own, held_engine(survey.probe), kept)


def planned(survey: Survey, solution: Solution, catalog: Catalog, not_locked: list[str]) -> Solution:
    """
    The same, with whatever else stands against it.

    :param not_locked: why something could not be locked just now
    """
    if survey.driver is not None:  # it comes first, and alone
        reasons = (*solution.reasons, *driver_obstacles(survey.driver))
        notes = (*solution.notes, *driver_notes(survey.driver))
        solution = solution.model_copy(update={"reasons": reasons, "notes": notes})
    if solution.spec is None:
        return solution
    spec, machine, probe = with_carried_image(survey, solution.spec), survey.machine, survey.probe
    pieces = missing_on_disk(survey, spec)
    found = [
        *solution.reasons,
        *obstacles(spec, machine, probe, survey.is_here, list(survey.own_pids), not_locked),
        *disk_faults(pieces, machine),
        *unreached(missing_downloads(survey, spec, catalog), machine.reachable),
        *docker_obstacles(spec, machine),
        *_not_carried(survey, spec),
        *machine_obstacles(spec, machine),
        *build_obstacles(spec, machine, probe, survey.tools if spec.engine_is_compiled else None),
    ]
    rooms = [Decision(what="disk", value=value, why=why) for value, why in disk_room(pieces, machine)]
    notes = (*solution.notes, *machine_notes(spec, machine))
    told = {"notes": notes, "reasons": tuple(dict.fromkeys(found))}
    return solution.model_copy(update={"spec": spec, "decisions": (*solution.decisions, *rooms), **told})


def with_carried_image(survey: Survey, spec: ServerSpec) -> ServerSpec:
    """The spec with the image named after its content, if this machine is where it comes from and has it."""
    found = survey.carried.get(carried_tag(spec) or "")
    return spec.carrying(found.id) if isinstance(found, Carried) else spec


def carried_tag(spec: ServerSpec) -> str | None:
    """What this machine calls the image that it carries to the host; None where it carries none."""
    if spec.image is None or spec.image.source != "carry":
        return None
    return tag(spec.engine_name, spec.image.variant)


def _not_carried(survey: Survey, spec: ServerSpec) -> list[str]:
    """Why this machine cannot carry the image over that it is to."""
    found = survey.carried.get(carried_tag(spec) or "")
    if found is None or isinstance(found, str):
        return [found] if found else []
    other = [name for name in spec.architectures if name not in found.architectures]
    if not other:
        return []
    return [
        f"image {carried_tag(spec)} of this machine holds code for architectures "
        f"{', '.join(found.architectures) or 'none'}; the card there is {other[0]}. "
        f"Fix: run `make image CUDA_ARCHITECTURES={other[0]}` here, or set llama_image_variant"
    ]


def missing_pieces(survey: Survey, spec: ServerSpec) -> list[tuple[PartLock, int]]:
    """The pieces of the spec's model files that are not there, each with what of it must still come."""
    found = []
    for file in spec.model_files:
        for path, piece in spec.pieces_of(file):
            state, partial = survey.models.get(str(path), ("absent", 0))
            if state == "absent":
                found.append((piece, piece.size - partial))
    return found


def missing_on_disk(survey: Survey, spec: ServerSpec) -> list[Piece]:
    """All that is still to come to the host's disks."""
    found = model_pieces(spec, missing_pieces(survey, spec))
    if lacks_engine(survey, spec):
        name = carried_tag(spec)
        carried = survey.carried.get(name) if name else None
        found += [
            *engine_pieces(spec),
            *image_pieces(spec, survey.machine, carried.bytes if isinstance(carried, Carried) else None),
        ]
    return found


def missing_downloads(survey: Survey, spec: ServerSpec, catalog: Catalog) -> list[Download]:
    """All of it that must come over the network from elsewhere than from us and the other hosts."""
    absent = [file for file in absent_models(survey, spec) if file.name not in survey.sent]
    lacks = lacks_engine(survey, spec)
    return downloads(spec, catalog, survey.machine, absent, survey.repositories, lacks_engine=lacks)


def absent_models(survey: Survey, spec: ServerSpec) -> list[ModelFile]:
    """The model files of which something is not there; what is not locked yet cannot be."""

    def is_absent(file: ModelFile) -> bool:
        states = [survey.models.get(str(path), ("absent", 0))[0] for path, _ in spec.pieces_of(file)]
        return "absent" in states or file.lock is None

    return [file for file in spec.model_files if is_absent(file)]


def lacks_engine(survey: Survey, spec: ServerSpec) -> bool:
    """Whether the engine, or its image, is not there whole."""
    if spec.image is not None:
        return spec.image.reference not in survey.images
    return not spec.engine_is_held and survey.engines.get(str(spec.engine_dir)) != "intact"


def decided_text(solution: Solution) -> str:
    """What was decided, as it is kept beside the server's definition on its host."""
    assert solution.spec is not None, "only what is served is kept"  # noqa: S101
    return json.dumps({"of": what_is_served(solution.spec), "decided": solution.decided}, sort_keys=True) + "\n"


def our_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """What of a host's data is ours, as a file can hold it."""
    return {key: value for key, value in data.items() if key.startswith("llama_")}


def dump(surveys: list[Survey]) -> str:
    """As a file. It holds no secret: no environment, no key, no address, of processes only their names."""
    for survey in surveys:
        survey.probe["listener"] = survey.probe["listener"].partition(" ")[0]
    kept = [survey.model_copy(update={"server": {}, "ssh": None}) for survey in surveys]
    return Surveys(beeyard_facts=FORMAT, hosts=kept).model_dump_json(indent=1) + "\n"


def load(text: str, name: str) -> list[Survey]:
    """
    Read such a file.

    :param name: the file's, for messages
    :raises CatalogError: it is none, or one of another version.
    """
    try:
        return Surveys.model_validate_json(text).hosts
    except ValidationError as error:
        raise CatalogError(
            f"{name} is no file of facts that this version reads ({sentence(error).partition('. Fix:')[0]}). "
            "Fix: write it anew with --save-facts"
        ) from error
