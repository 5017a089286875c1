"""Facts about the server that runs on a host, and about the engine it runs on."""

import base64
import gzip
import json
from typing import Any

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard.facts.errors import not_understood


class ServerState(FactBase[dict[str, Any]]):
    """
    Returns the guard's look at the host's server; ``{"current": None}`` where none passed the gate yet.

    .. code:: python

        {"current": "0a1b2c3d4e5f", "title": "tiny dflash on llama.cpp b10068", "installed": True, "pid": 4711,
         "runs_its_command": True, "health": 200, "resident_mib": 80, "locked_mib": 7, "vram_mib": None,
         "previous": "tiny baseline on llama.cpp b10068"}
    """

    def command(self, guard: str, prefix: str) -> StringCommand:
        """Ask the guard, if it is there."""
        ask = StringCommand("python3", QuoteString(guard), "state", QuoteString(prefix))
        return StringCommand(
            "if test -f",
            QuoteString(guard),
            "&& command -v python3 >/dev/null; then",
            ask,
            "; else echo '{\"current\": null}'; fi",
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        """It is JSON."""
        try:
            state: dict[str, Any] = json.loads("\n".join(output))
        except ValueError:
            raise not_understood("its server", repr(output)) from None
        return state


class EngineHelp(FactBase[str | None]):
    """Returns what ``llama-server --help`` of a binary says; None where the binary is not there."""

    def command(self, binary: str) -> StringCommand:
        """Run the very binary that will serve; its 50 KB would take several round trips as they are."""
        said = StringCommand(QuoteString(binary), "--help 2>/dev/null | gzip -c | base64 -w 0")
        return StringCommand("! test -x", QuoteString(binary), "||", said)

    def process(self, output: list[str]) -> str | None:
        """Unpack it."""
        try:
            text = gzip.decompress(base64.b64decode("".join(output), validate=True)).decode(errors="replace")
        except (OSError, EOFError, ValueError):
            raise not_understood("its engine's options", repr(output)) from None
        return text.rstrip("\n") or None


class EngineFiles(FactBase[str]):
    """
    Returns ``intact``, ``absent``, or ``damaged: …`` with the files of an engine that are not as they were brought.

    ``absent`` also where the tool that looks is not there yet.
    """

    def command(self, tool: str, directory: str) -> StringCommand:
        """Ask engine.sh."""
        look = StringCommand("sh", QuoteString(tool), "look", QuoteString(directory))
        return StringCommand("if test -f", QuoteString(tool), "; then", look, "; else echo absent; fi")

    def process(self, output: list[str]) -> str:
        """As it is."""
        return "\n".join(output)


class Executable(FactBase[bool]):
    """Returns whether there is an executable file at a path."""

    def command(self, path: str) -> StringCommand:
        """Test it."""
        return StringCommand("test -x", QuoteString(path), "&& echo yes || echo no")

    def process(self, output: list[str]) -> bool:
        """It says yes or no."""
        return output == ["yes"]
