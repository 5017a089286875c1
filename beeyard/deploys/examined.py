"""Look at the current host and at the server that runs there: what status and doctor tell of."""

import os
from collections.abc import Mapping
from typing import Any

from pyinfra import host

from beeyard.contract import parse_help, violations
from beeyard.deploys.surveyed import whole_survey, write_line
from beeyard.examination import LINES, Examined, Running
from beeyard.facts.running import RunningLook
from beeyard.facts.servers import EngineHelp, ServerState
from beeyard.spec import host_settings


def write_examination() -> None:
    """
    Add what the current host and its server say to the file that BEEYARD_SURVEY names.

    What is wrong with its data is told. BEEYARD_LOG_LINES says how many lines of the server's log are wanted.
    """
    survey = whole_survey()
    if survey is None:
        return
    prefix = str(host_settings(host.data.dict()).prefix)
    state = host.get_fact(ServerState, guard=f"{prefix}/bin/guard.py", prefix=prefix)
    lines = int(os.environ.get(LINES, "0"))
    running = host.get_fact(RunningLook, prefix=prefix, pid=int(state.get("pid") or 0), lines=lines)
    write_line(
        Examined(
            survey=survey,
            state=state,
            running=Running.model_validate(running),
            uses_sudo=bool(host.data.get("_sudo")),
            flag_faults=_flag_faults(survey.server) if lines else None,
        ).model_dump_json()
    )


def _flag_faults(server: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What of the arguments that run there their own binary does not know; None where it cannot be asked."""
    if not server or server.get("runtime") == "compose":
        return None
    text = host.get_fact(EngineHelp, binary=server["argv"][0])
    if text is None:
        return None
    try:
        return tuple(violations(server["argv"], parse_help(text), server["engine"]))
    except ValueError as error:
        return (str(error),)
