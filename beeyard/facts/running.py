"""A fact about the server that runs on a host: how it does."""

import json
from pathlib import Path
from typing import Any

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard import onhost
from beeyard.facts.errors import not_understood

# Sent as it is, not taken from the host: what an older deploy left there may know less.
SCRIPT = (Path(onhost.__file__).parent / "look.py").read_text()


class RunningLook(FactBase[dict[str, Any]]):
    """
    Returns what onhost/look.py sees; an empty table where no server was deployed, or where there is no Python.

    .. code:: python

        {"health": 200, "counters": {"tokens_predicted_total": 88.0}, "slots": 1, "busy": 0, "uptime_s": 84.0}
    """

    default = dict

    def command(self, prefix: str, pid: int, lines: int) -> StringCommand:
        """One command for all of it; ``pid`` is the server's process, ``lines`` of its log are wanted."""
        words = (QuoteString(word) for word in (SCRIPT, prefix, str(pid), str(lines)))
        ask = StringCommand("python3 -c", *words)
        return StringCommand("if command -v python3 >/dev/null; then", ask, "; else echo '{}'; fi")

    def process(self, output: list[str]) -> dict[str, Any]:
        """It is JSON."""
        try:
            found: dict[str, Any] = json.loads("\n".join(output))
        except ValueError:
            raise not_understood("its running server", repr(output)) from None
        return found
