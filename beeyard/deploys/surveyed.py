"""Look at the current host: everything that a plan is made from, in as few questions as it takes."""

import fcntl
import os
from pathlib import Path

from pyinfra import host, logger, state
from pyinfra.connectors.local import LocalConnector

from beeyard.catalog import Catalog, CatalogError, load_catalog
from beeyard.deploys.carried_images import looked_for
from beeyard.deploys.connections import quicken
from beeyard.deploys.sources import is_sent
from beeyard.disk import DOCKER_ROOT
from beeyard.facts.connections import ConnectionProcess
from beeyard.facts.docker import ImageStates
from beeyard.facts.driver import NvidiaDriver
from beeyard.facts.files import FileStates, JsonFile
from beeyard.facts.host import BuildTools, HostProbe, SudoWorks
from beeyard.facts.machine import MachineFacts
from beeyard.facts.model_files import ModelFileStates
from beeyard.facts.network import Reached
from beeyard.facts.seen import Question, asked, look_together
from beeyard.facts.servers import EngineFiles, ServerState
from beeyard.images import HELD
from beeyard.machine import Machine
from beeyard.operations.docker_engines import repository_file
from beeyard.probes import DriverProbe
from beeyard.spec import ANY_HOST, ServerSpec, host_settings, resolve
from beeyard.survey import (
    DECIDED,
    SURVEY_FILE,
    Survey,
    absent_models,
    missing_downloads,
    our_data,
    solved,
    with_carried_image,
)
from beeyard.tunnel import Ssh


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
    quicken()
    probe, now, machine, kept, _ = look_together(
        asked(HostProbe, prefix=prefix, port=settings.port, held_engine=HELD),
        asked(ServerState, guard=f"{prefix}/bin/guard.py", prefix=prefix),
        asked(MachineFacts, paths=[prefix, models_dir, DOCKER_ROOT]),
        asked(JsonFile, path=f"{prefix}/current/{DECIDED}"),
        asked(ConnectionProcess),
    )
    # A guard of an older version names the server's process alone.
    pids = [int(pid) for pid in now.get("listener_pids") or [now.get("pid")] if pid]
    if probe is None or machine is None:  # pyinfra has failed it and said why, and goes on while other hosts remain
        raise CatalogError("this host's facts are not understood. Fix: report the line above as an issue")
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


def look_closer(survey: Survey, spec: ServerSpec, catalog: Catalog) -> tuple[Survey, ServerSpec]:
    """
    The same, with what only a spec can ask for: what is there of its files, its engine and what compiles that, and
    whether what is missing can be fetched; and the spec, with the image that this machine carries.

    :raises CatalogError: its image is to be carried from a Docker Engine here that does not answer, or its models
        from a host that is not there
    """
    survey = survey.model_copy(update={"carried": looked_for(spec)})
    spec = with_carried_image(survey, spec)
    pieces = [pair for file in spec.model_files for pair in spec.pieces_of(file)]
    files = [(str(path), piece.sha256) for path, piece in pieces]
    asking: dict[str, Question] = {}
    if files:
        asking["models"] = asked(ModelFileStates, fetch=str(spec.prefix / "bin" / "fetch.sh"), files=files)
    if spec.engine_is_compiled:
        asking["tools"] = asked(BuildTools)
    if spec.image is not None:
        asking["images"] = asked(ImageStates, references=[spec.image.reference])
        if _adds_repositories(spec):
            asking["repositories"] = asked(FileStates, paths=list(_repository_files(catalog)))
    elif not spec.engine_is_held and spec.engine.artefact.kind != "debian":
        tool = str(spec.prefix / "bin" / "engine.sh")
        asking["engines"] = asked(EngineFiles, tool=tool, directory=str(spec.engine_dir))
    found = dict(zip(asking, look_together(*asking.values()), strict=True))
    known = _repository_files(catalog)
    survey = survey.model_copy(
        update={
            "models": {path: state for (path, _), state in zip(files, found.get("models", []), strict=True)},
            "tools": found.get("tools"),
            "images": tuple(found.get("images", ())),
            "repositories": tuple(known[path] for path in found.get("repositories", ())),
            "engines": {str(spec.engine_dir): found["engines"]} if "engines" in found else {},
        }
    )
    sent = tuple(file.name for file in absent_models(survey, spec) if is_sent(spec, file))
    survey = survey.model_copy(update={"sent": sent})
    return survey.model_copy(update={"machine": _asked_for_network(survey, spec, catalog)}), spec


def _adds_repositories(spec: ServerSpec) -> bool:
    return spec.docker == "docker.com" or (spec.wants_gpu and spec.nvidia_toolkit == "install")


def _repository_files(catalog: Catalog) -> dict[str, str]:
    """Those of presets/repositories.yaml, by the file through which apt of a host knows one by us."""
    return {repository_file(name): name for name in catalog.repositories}


def _asked_for_network(survey: Survey, spec: ServerSpec, catalog: Catalog) -> Machine:
    """The host, with which of what it must fetch it reaches; nobody is asked where nothing is to be fetched."""
    wanted = missing_downloads(survey, spec, catalog)
    ways = {address: download.way for download in wanted for address in download.addresses}
    found = host.get_fact(Reached, addresses=list(ways.items())) if ways else {}
    return survey.machine.model_copy(update={"reachable": found or {}})


def missing_driver() -> DriverProbe | None:
    """
    What the current host says of an NVIDIA driver that is to be installed first; None where that is not asked for,
    not needed, or done. What is wrong with its data is told with its plan.
    """
    try:
        data = host.data.dict()
        settings = host_settings(data)
        if settings.nvidia_driver == "present":
            return None
        # Whatever its runtime will be: that may depend on the card.
        if not resolve({**data, "llama_runtime": "supervisor"}, load_catalog(), ANY_HOST).wants_gpu:
            return None
        may_look()
    except CatalogError:
        return None
    found = host.get_fact(NvidiaDriver)
    from_elsewhere = found["has_nvidia_smi"] and not found["installed"]
    return None if found["works"] or from_elsewhere else found


def whole_survey() -> Survey | None:
    """All that a plan for the current host is made from; None where its data is wrong, which is told."""
    catalog = load_catalog()
    try:
        survey = look()
        solution = solved(survey, catalog)
        if solution.spec is not None:
            survey, _ = look_closer(survey, solution.spec, catalog)
    except CatalogError as error:
        refused([str(error)])
        return None
    prefix = host_settings(host.data.dict()).prefix
    server = host.get_fact(JsonFile, path=f"{prefix}/current/server.json")
    ssh = None if survey.is_here else Ssh.of_data(host.name, host.data.dict())
    price = host.data.get("price")
    update = {"server": server, "ssh": ssh, "price_per_hour": None if price is None else float(price)}
    return survey.model_copy(update={**update, "driver": missing_driver()})


def write_survey() -> None:
    """Add the current host's survey to the file that BEEYARD_SURVEY names."""
    survey = whole_survey()
    if survey is not None:
        write_line(survey.model_dump_json())


def write_line(line: str) -> None:
    """Add a line to the file that BEEYARD_SURVEY names; hosts of one run write it at the same time."""
    with Path(os.environ[SURVEY_FILE]).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line + "\n")


def refused(reasons: list[str]) -> bool:
    """Tell every reason there is and fail the host alone; whether there was any."""
    for reason in reasons:
        logger.error(f"{host.print_prefix}{reason}")
    if reasons:
        state.fail_hosts({host})
    return bool(reasons)
