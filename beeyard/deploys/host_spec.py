"""The one place that reads host.data: from it and from what the host is, the host's plan."""

import os
import sys
from typing import NamedTuple

from pyinfra import host, logger

from beeyard.catalog import CatalogError, load_catalog
from beeyard.deploys.gateway import gateways_before
from beeyard.deploys.locks import lock_missing
from beeyard.deploys.sources import named_peer
from beeyard.deploys.surveyed import look, look_closer, refused
from beeyard.facts.connections import ConnectionProcess
from beeyard.facts.seen import seen
from beeyard.keys import given_key
from beeyard.machine import Machine
from beeyard.plan import report
from beeyard.probes import Probe
from beeyard.solution import Solution
from beeyard.spec import HostSettings, ServerSpec, host_settings
from beeyard.survey import decided_text, planned, solved


class Plan(NamedTuple):
    """A spec with what its host is, and where our tools are there."""

    spec: ServerSpec
    machine: Machine
    probe: Probe
    is_here: bool
    # A process on the host that lives as long as this deploy; 0 where there is none to be seen.
    deploy_pid: int

    # Whether another host of the inventory gives it its models.
    has_peer: bool
    # What was decided for it, as a file.
    decided: str

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
    The current host's plan, which is told; None if it cannot have one.

    Then every reason was told and the host is failed before anything was changed on it; the others go on, as
    they would not after a DeployError.
    """
    try:
        plan, solution = _plan()
    except CatalogError as error:
        solution, plan = Solution(reasons=(str(error),)), None
    for line in report(solution, is_full=not solution.fits):
        logger.info(f"{host.print_prefix}{line}")
    return None if refused(list(solution.reasons)) else plan


def our_settings() -> HostSettings | None:
    """The current host's data, as far as it is ours; None if it cannot be, which was told then."""
    try:
        return host_settings(host.data.dict())
    except CatalogError as error:
        refused([str(error)])
    return None


def _plan() -> tuple[Plan | None, Solution]:
    survey, catalog, not_locked = look(), load_catalog(), list[str]()
    solution = solved(survey, catalog)
    if solution.spec is not None and solution.spec.unlocked:
        not_locked, catalog = lock_missing(solution.spec), load_catalog()
        solution = solved(survey, catalog)
    if solution.spec is None:
        return None, solution
    # What is wrong with these is told now, not after a download.
    given_key(solution.spec)
    gateways_before(host.name)
    # Asked with the first look, of which nothing is known any more after the next.
    deploy_pid = os.getpid() if survey.is_here else seen(ConnectionProcess)
    survey, spec = look_closer(survey, solution.spec, catalog)
    has_peer = named_peer(spec.model_source) is not None
    plan = Plan(spec, survey.machine, survey.probe, survey.is_here, deploy_pid, has_peer, decided_text(solution))
    return plan, planned(survey, solution, catalog, not_locked)
