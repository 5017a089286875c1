"""Where a host's server writes its log, by its runtime, and the command that shows it. Pure."""

import shlex

from beeyard.catalog import CatalogError
from beeyard.examination import Examined
from beeyard.spec import host_settings

# As onhost/guard.py calls them.
UNIT = "beeyard-llama-server.service"
CONTAINER = "llama-server"


def command(examined: Examined, lines: int, *, follow: bool) -> list[str]:
    """
    What shows a host's log, run here: on this machine, or by ssh.

    :param lines: how many of the last
    :param follow: whether it goes on with what comes
    :raises CatalogError: no server was deployed there.
    """
    survey = examined.survey
    words = _there(examined, lines, follow=follow)
    if survey.is_here:
        return ["sudo", *words] if examined.uses_sudo else words
    if survey.ssh is None:
        raise CatalogError(f"how {survey.name} is reached is not known. Fix: give it an ssh_hostname")
    words = ["sudo", "-n", *words] if examined.uses_sudo else words
    # With a terminal of its own what follows ends there when it is ended here.
    return [*survey.ssh.words(*(["-tt"] if follow else [])), shlex.join(words)]


def _there(examined: Examined, lines: int, *, follow: bool) -> list[str]:
    going_on = ["--follow"] if follow else []
    match examined.survey.server.get("runtime"):
        case "systemd":
            return ["journalctl", f"--unit={UNIT}", f"--lines={lines}", "--no-pager", "--output=short-iso", *going_on]
        case "compose":
            return ["docker", "logs", f"--tail={lines}", "--timestamps", *going_on, CONTAINER]
        case "supervisor":
            log = host_settings(examined.survey.data).prefix / "log" / "llama-server.log"
            # By name: supervisor turns the file over.
            return ["tail", f"--lines={lines}", *(["--follow=name", "--retry"] if follow else []), str(log)]
        case _:
            raise CatalogError(f"{examined.survey.name} has no server yet, and no log. Fix: deploy")
