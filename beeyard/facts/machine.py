"""Facts about a host's hardware, and about what it lets a server do."""

from pathlib import Path

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard import machine_lines
from beeyard.facts.docker import ENGINE
from beeyard.facts.errors import not_understood
from beeyard.machine import Machine

SCRIPT = ENGINE + Path(__file__).with_suffix(".sh").read_text()


class MachineFacts(FactBase[Machine]):
    """
    Returns what of a host decides what can run there.

    It takes a second; where nvidia-smi or Docker hangs, ``patience`` seconds more for each answer, twice at most.
    """

    def command(self, paths: list[str], patience: int = 10, root: str = "") -> StringCommand:
        """
        One command for all of it, which needs nothing of ours on the host.

        :param paths: whose free space is wanted, whether they are there or not
        :param patience: how many seconds nvidia-smi and Docker may take for an answer
        :param root: where the host's /proc, /sys, /dev and /etc are, if not there
        """
        words = [SCRIPT, "machine", root, str(patience), *paths]
        return StringCommand("sh -c", *(QuoteString(word) for word in words))

    def process(self, output: list[str]) -> Machine:
        """Read the lines that machine.sh prints."""
        try:
            return machine_lines.machine(output)
        except ValueError as error:
            # pyinfra would print the cause in place of the sentence.
            raise not_understood("itself", error) from None
