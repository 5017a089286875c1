"""What was seen of a host and of the server that runs there, and whether that is what its data asks for. Pure."""

import json
from typing import Any

from beeyard.catalog import Catalog, Strict
from beeyard.contract import options
from beeyard.render import define
from beeyard.solution import Solution
from beeyard.survey import Survey, solved, with_carried_image

# How many lines of the server's log examine.py brings.
LINES = "BEEYARD_LOG_LINES"
GOOD = 200


class KeyFile(Strict):
    """The API key's file on the host, but for what is in it; ``shortest`` is the length of the shortest key."""

    path: str
    mode: str
    owner: str
    bytes: int
    keys: int
    shortest: int


class Running(Strict):
    """
    What onhost/look.py saw; empty where no server was deployed. Times in seconds, space as total and free bytes.

    ``counters`` are llama-server's own metrics by name, ``accepted_by_position`` its drafted tokens that were
    accepted, ``log_accepted`` of ``log_drafted`` what its log tells of them.
    """

    health: int = 0
    build: str = ""
    slots: int | None = None
    busy: int | None = None
    counters: dict[str, float] = {}
    accepted_by_position: tuple[float, ...] = ()
    log_accepted: int = 0
    log_drafted: int = 0
    uptime_s: float | None = None
    restarts: int | None = None
    key_file: KeyFile | None = None
    key_seen_in: tuple[str, ...] = ()
    space: dict[str, tuple[int, int]] = {}
    python: str = ""
    # The host's clock, seconds since the epoch.
    now: float | None = None
    unit: str = ""
    log: tuple[str, ...] = ()
    server: dict[str, Any] = {}


class Examined(Strict):
    """
    A host with its server. ``state`` is the guard's look.

    ``uses_sudo`` is whether commands run as root there though another user connects.
    """

    survey: Survey
    state: dict[str, Any]
    running: Running = Running()
    uses_sudo: bool = False
    # What of the running arguments the engine's own --help does not know; None where it was not asked.
    flag_faults: tuple[str, ...] | None = None

    @property
    def is_deployed(self) -> bool:
        """Whether a server passed the gate there once."""
        return bool(self.state.get("current"))


def drift(examined: Examined, catalog: Catalog, solution: Solution | None = None) -> list[str]:
    """
    What of the host's server is not what presets and inventory ask for now, a sentence each.

    Cheaper than a dry run, and about the server alone: files of models, keys and packages are not looked into.

    :param solution: what ``solved`` says of it, where that is known already
    """
    if not examined.is_deployed:
        return ["no server was deployed here. Fix: deploy"]
    solution = solution or solved(examined.survey, catalog)
    if solution.spec is None:
        return [f"what its data asks for cannot be said: {reason}" for reason in solution.reasons]
    spec, state = with_carried_image(examined.survey, solution.spec), examined.state
    # Named after what this machine's Docker Engine holds, which may not answer, or may not have it any more.
    image_is_known = spec.image is None or spec.image.source != "carry" or spec != solution.spec
    wanted = define(spec)
    facts, now = json.loads(wanted.server_json), dict(examined.survey.server)
    if not image_is_known:
        facts["image"] = now.get("image")
    found = [f"{text}. Fix: deploy" for text in _facts(now, facts)]
    if not found and image_is_known and wanted.id != state["current"]:
        found.append("its unit, program or compose file was written from other templates. Fix: deploy")
    if not state.get("installed", True):
        found.append("its unit, program or compose file was changed, or would not start at boot. Fix: deploy")
    if state.get("pid") and not state.get("runs_its_command", True):
        found.append("its process has other arguments, or its binary is no longer on the disk. Fix: deploy")
    if not state.get("engine_is_current", True):
        found.append("the link engines/current leads to another engine. Fix: deploy")
    return found


def differing_arguments(now: list[str], wanted: list[str]) -> list[str]:
    """What one command has and the other has not, an option each."""
    has, wants = options(now), options(wanted)
    found = []
    for option in dict.fromkeys([*has, *wants]):
        one, other = has.get(option), wants.get(option)
        if one == other:
            continue
        if one is None:
            found.append(f"{' '.join([option, *(other or [])])} is missing")
        elif other is None:
            found.append(f"{' '.join([option, *one])} is there, and not wanted")
        else:
            name = "the binary" if option == "program" else option
            found.append(f"{name} is {' '.join(one)}, wanted is {' '.join(other)}")
    return found


def _facts(now: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    found = []
    for key in ("preset", "variant", "engine", "runtime", "image", "user"):
        if now.get(key) != wanted[key]:
            found.append(f"{key} is {now.get(key)}, wanted is {wanted[key]}")
    arguments = differing_arguments(list(now.get("argv", [])), wanted["argv"])
    if arguments:
        # A switch to another variant changes many: the first say enough.
        more = f", and {len(arguments) - 4} more" if len(arguments) > 4 else ""
        found.append(f"of its arguments {'; '.join(arguments[:4])}{more}")
    told = {"title", "preset", "variant", "engine", "runtime", "image", "user", "argv", "url", "port", "drafts"}
    others = [key for key in wanted if key not in told and now.get(key) != wanted[key]]
    if others and not found:
        found.append(f"what the gate knows of it is another: {', '.join(others)}")
    return found
