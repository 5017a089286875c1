"""Facts about what a host reaches."""

from pathlib import Path

from pyinfra.api import FactBase, QuoteString, StringCommand

from beeyard import machine_lines
from beeyard.facts.errors import not_understood

SCRIPT = Path(__file__).with_name("reach.sh").read_text()


class Reached(FactBase[dict[str, bool]]):
    """
    Returns of addresses whether the host knows their names and they take its connections; 11 seconds at most.

    A proxy that the host is told to use is used. What nothing there can try is left out.
    """

    default = dict

    def command(self, addresses: list[tuple[str, str]]) -> StringCommand:
        """
        One command for all of them, which needs nothing of ours on the host.

        :param addresses: HOST, HOST:PORT or a URL, each with the way there: env, git or direct
        """
        words = [word for address, way in addresses for word in (*machine_lines.target(address), way)]
        return StringCommand("sh -c", *(QuoteString(word) for word in (SCRIPT, "reach", *words)))

    def process(self, output: list[str]) -> dict[str, bool]:
        """A line an address."""
        try:
            return machine_lines.reached(output)
        except ValueError as error:
            raise not_understood("the network", error) from None
