"""Look at the current host: everything that a plan is made from, in as few questions as it takes."""

import fcntl
import os
from pathlib import Path

from pyinfra import host, logger, state
from pyinfra.connectors.local import LocalConnector

from beeyard.catalog import CatalogError, load_catalog
from beeyard.facts.files import JsonFile
from beeyard.facts.host import BuildTools, HostProbe, SudoWorks
from beeyard.facts.machine import MachineFacts
from beeyard.facts.model_files import ModelFileStates
from beeyard.facts.servers import ServerState
from beeyard.images import HELD
from beeyard.spec import ServerSpec, host_settings
from beeyard.survey import DECIDED, SURVEY_FILE, Survey, our_data, solved


def may_look() -> None:
    """
    Ask for sudo once, before anything else does.

    :raises CatalogError: the connected user has none.
    """
    if (
        host.data.get("_sudo")
        and not host.data.get("_use_sudo_password")
        and not host.get_fact(SudoWorks, _sudo=False)
    ):
        raise CatalogError(
            "sudo is missing, or asks for a password, for the connected user; a deploy needs root here. "
            "Fix: connect as root, allow that user sudo, or set _use_sudo_password"
        )


def look() -> Survey:
    """
    What the current host says.

    :raises CatalogError: its data is wrong, or its user may not look.
    """
    may_look()
    settings = host_settings(host.data.dict())
    prefix, models_dir = str(settings.prefix), str(settings.models_dir or settings.prefix / "models")
    probe = host.get_fact(HostProbe, prefix=prefix, port=settings.port, held_engine=HELD)
    now = host.get_fact(ServerState, guard=f"{prefix}/bin/guard.py", prefix=prefix)
    # A guard of an older version names the server's process alone.
    pids = [int(pid) for pid in now.get("listener_pids") or [now.get("pid")] if pid]
    machine = host.get_fact(MachineFacts, paths=[prefix, models_dir])
    if probe is None or machine is None:  # pyinfra has failed it and said why, and goes on while other hosts remain
        raise CatalogError("this host's facts are not understood. Fix: report the line above as an issue")
    kept = host.get_fact(JsonFile, path=f"{prefix}/current/{DECIDED}")
    return Survey(
        name=host.name,
        data=our_data(host.data.dict()),
        machine=machine,
        probe=probe,
        is_here=isinstance(host.connector, LocalConnector),
        own_pids=tuple(pids),
        own_vram_mib=now.get("vram_mib") or 0,
        own_resident_mib=now.get("resident_mib") or 0,
        kept_of=kept.get("of", ""),
        kept=kept.get("decided", {}),
    )


def look_closer(survey: Survey, spec: ServerSpec) -> Survey:
    """The same, with what only a spec can ask for: what is there of its files, and of what compiles its engine."""
    pieces = [pair for file in spec.model_files for pair in spec.pieces_of(file)]
    files = [(str(path), piece.sha256) for path, piece in pieces]
    fetch = str(spec.prefix / "bin" / "fetch.sh")
    states = host.get_fact(ModelFileStates, fetch=fetch, files=files) if files else []
    found = {path: state for (path, _), state in zip(files, states, strict=True)}
    tools = host.get_fact(BuildTools) if spec.engine_is_compiled else None
    return survey.model_copy(update={"models": found, "tools": tools})


def write_survey() -> None:
    """Add the current host's survey to the file that BEEYARD_SURVEY names; what is wrong with its data is told."""
    try:
        survey = look()
    except CatalogError as error:
        refused([str(error)])
        return
    solution = solved(survey, load_catalog())
    if solution.spec is not None:
        survey = look_closer(survey, solution.spec)
    with Path(os.environ[SURVEY_FILE]).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(survey.model_dump_json() + "\n")


def refused(reasons: list[str]) -> bool:
    """Tell every reason there is and fail the host alone; whether there was any."""
    for reason in reasons:
        logger.error(f"{host.print_prefix}{reason}")
    if reasons:
        state.fail_hosts({host})
    return bool(reasons)
