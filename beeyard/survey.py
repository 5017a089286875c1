"""What was seen of a host, in one piece: what plans are made from, at once or later from a file. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from beeyard.catalog import Catalog, CatalogError, Strict, sentence
from beeyard.machine import Machine
from beeyard.preflight import build_obstacles, docker_obstacles, machine_obstacles, obstacles
from beeyard.probes import Probe
from beeyard.sizing import what_is_served
from beeyard.solution import Kept, Own, Solution
from beeyard.solve import solve
from beeyard.spec import HeldEngine, ServerSpec

FORMAT = 1
# Where survey.py writes, a line a host.
SURVEY_FILE = "BEEYARD_SURVEY"
# Beside a server's definition on its host: what was decided for it.
DECIDED = "decided.json"


class Survey(Strict):
    """
    A host: its name, our data of it, and what it said.

    ``own_pids`` and ``own_vram_mib`` are our server's there. ``models`` is, for each path that was asked for, what is
    there and how many bytes of it as a partial.
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


def planned(survey: Survey, solution: Solution, not_locked: list[str]) -> Solution:
    """
    The same, with whatever else stands against it.

    :param not_locked: why something could not be locked just now
    """
    spec = solution.spec
    if spec is None:
        return solution
    machine, probe, missing = survey.machine, survey.probe, missing_bytes(survey, spec)
    found = [
        *solution.reasons,
        *obstacles(spec, machine, probe, survey.is_here, list(survey.own_pids), missing, not_locked),
        *docker_obstacles(spec, machine),
        *machine_obstacles(spec, machine),
        *build_obstacles(spec, machine, probe, survey.tools if spec.engine_is_compiled else None),
    ]
    return solution.model_copy(update={"reasons": tuple(dict.fromkeys(found))})


def missing_bytes(survey: Survey, spec: ServerSpec) -> int:
    """What of the spec's model files must still come."""
    pieces = [pair for file in spec.model_files for pair in spec.pieces_of(file)]
    states = [survey.models.get(str(path), ("absent", 0)) for path, _ in pieces]
    return sum(
        piece.size - partial
        for (_, piece), (found, partial) in zip(pieces, states, strict=True)
        if found == "absent"
    )  # fmt: skip


def decided_text(solution: Solution) -> str:
    """What was decided, as it is kept beside the server's definition on its host."""
    assert solution.spec is not None, "only what is served is kept"  # noqa: S101
    return json.dumps({"of": what_is_served(solution.spec), "decided": solution.decided}, sort_keys=True) + "\n"


def our_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """What of a host's data is ours, as a file can hold it."""
    return {key: value for key, value in data.items() if key.startswith("llama_")}


def dump(surveys: list[Survey]) -> str:
    """As a file. It holds no secret: no environment, no key, of processes only their names."""
    for survey in surveys:
        survey.probe["listener"] = survey.probe["listener"].partition(" ")[0]
    return Surveys(beeyard_facts=FORMAT, hosts=surveys).model_dump_json(indent=1) + "\n"


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
