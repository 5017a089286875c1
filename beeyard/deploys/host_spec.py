"""The one place that reads host.data: from it and from what the host is, the host's plan."""

import os
import sys
from typing import NamedTuple

from pyinfra import host, logger, state
from pyinfra.connectors.local import LocalConnector

from beeyard.catalog import CatalogError, load_catalog
from beeyard.deploys.carried_images import with_carried_image
from beeyard.deploys.keys import given_key
from beeyard.deploys.locks import lock_missing
from beeyard.deploys.sources import named_peer
from beeyard.facts.connections import ConnectionProcess
from beeyard.facts.docker import DockerEngine
from beeyard.facts.host import BuildTools, HostProbe, SudoWorks
from beeyard.facts.model_files import ModelFileStates
from beeyard.facts.servers import ServerState
from beeyard.images import HELD
from beeyard.preflight import build_obstacles, docker_obstacles, obstacles
from beeyard.probes import DockerProbe, Probe
from beeyard.spec import HeldEngine, HostKind, HostSettings, ServerSpec, host_settings, resolve


class Plan(NamedTuple):
    """A spec with what its host is, and where our tools are there."""

    spec: ServerSpec
    probe: Probe
    is_here: bool
    # Its Docker Engine, where that is to run the server.
    docker: DockerProbe | None
    # A process on the host that lives as long as this deploy; 0 where there is none to be seen.
    deploy_pid: int

    # Whether another host of the inventory gives it its models.
    has_peer: bool

    @property
    def guard(self) -> str:
        """guard.py on the host."""
        return str(self.spec.prefix / "bin" / "guard.py")

    @property
    def fetch(self) -> str:
        """fetch.sh on the host."""
        return str(self.spec.prefix / "bin" / "fetch.sh")

    @property
    def engine_tool(self) -> str:
        """engine.sh on the host."""
        return str(self.spec.prefix / "bin" / "engine.sh")

    @property
    def python_with_pip(self) -> str:
        """A Python on the host that has pip: ours if the host is this machine, else one made for it."""
        return sys.executable if self.is_here else str(self.spec.prefix / "venv" / "bin" / "python")


def host_plan() -> Plan | None:
    """
    The current host's plan; None if it cannot have one.

    Then every reason was told and the host is failed before anything was changed on it; the others go on, as
    they would not after a DeployError.
    """
    try:
        plan, not_locked = _plan()
        reasons = obstacles(plan.spec, plan.probe, plan.is_here, _own_pids(plan), _missing_bytes(plan), not_locked)
        reasons += docker_obstacles(plan.spec, plan.docker)
        tools = host.get_fact(BuildTools) if plan.spec.engine_is_compiled else None
        reasons += build_obstacles(plan.spec, plan.probe, tools)
    except CatalogError as error:
        reasons = [str(error)]
    return None if refused(reasons) else plan


def our_settings() -> HostSettings | None:
    """The current host's data, as far as it is ours; None if it cannot be, which was told then."""
    try:
        return host_settings(host.data.dict())
    except CatalogError as error:
        refused([str(error)])
    return None


def refused(reasons: list[str]) -> bool:
    """Tell every reason there is and fail the host alone; whether there was any."""
    for reason in reasons:
        logger.error(f"{host.print_prefix}{reason}")
    if reasons:
        state.fail_hosts({host})
    return bool(reasons)


def _plan() -> tuple[Plan, list[str]]:
    """The plan, and why something of it could not be locked."""
    if (
        host.data.get("_sudo")
        and not host.data.get("_use_sudo_password")
        and not host.get_fact(SudoWorks, _sudo=False)
    ):
        raise CatalogError(
            "sudo is missing, or asks for a password, for the connected user; a deploy needs root here. "
            "Fix: connect as root, allow that user sudo, or set _use_sudo_password"
        )
    settings = host_settings(host.data.dict())
    models_dir = settings.models_dir or settings.prefix / "models"
    probe = host.get_fact(
        HostProbe, prefix=str(settings.prefix), models_dir=str(models_dir), port=settings.port, held_engine=HELD
    )
    docker = host.get_fact(DockerEngine) if settings.runtime == "compose" else None
    kind = HostKind(
        has_systemd=probe["has_systemd"],
        is_root=probe["is_root"],
        compute_capabilities=tuple(probe["compute_capabilities"]),
        has_cdi=docker is not None and docker["has_cdi"],
        has_nvidia_runtime=docker is not None and "nvidia" in docker["runtimes"],
        held_engine=_held_engine(probe),
    )
    spec = resolve(host.data.dict(), load_catalog(), kind)
    not_locked = lock_missing(spec) if spec.unlocked else []
    if spec.unlocked:
        spec = resolve(host.data.dict(), load_catalog(), kind)
    spec = with_carried_image(spec)
    given_key(spec)  # what is wrong with it is told now, not after a download
    is_here = isinstance(host.connector, LocalConnector)
    deploy_pid = os.getpid() if is_here else host.get_fact(ConnectionProcess, _sudo=False)
    has_peer = named_peer(spec.model_source) is not None
    return Plan(spec, probe, is_here, docker, deploy_pid, has_peer), not_locked


def _held_engine(probe: Probe) -> HeldEngine | None:
    held = probe["held_engine"]
    if held is None:
        return None
    architectures = tuple(name for name in held["architectures"].split(";") if name)
    return HeldEngine(name=held["engine"], commit=held["commit"], architectures=architectures)


def _own_pids(plan: Plan) -> list[int]:
    now = host.get_fact(ServerState, guard=plan.guard, prefix=str(plan.spec.prefix))
    # A guard of an older version names the server's process alone.
    return [int(pid) for pid in now.get("listener_pids") or [now.get("pid")] if pid]


def _missing_bytes(plan: Plan) -> int:
    pieces = [pair for file in plan.spec.model_files for pair in plan.spec.pieces_of(file)]
    files = [(str(path), piece.sha256) for path, piece in pieces]
    states = host.get_fact(ModelFileStates, fetch=plan.fetch, files=files) if files else []
    return sum(
        piece.size - partial
        for (_, piece), (found, partial) in zip(pieces, states, strict=True)
        if found == "absent"
    )  # fmt: skip
