"""Facts about the connection through which a deploy reaches a host."""

from pyinfra.api import FactBase

from beeyard.facts.errors import not_understood

# Up from this shell to the sshd process that serves this connection, and ends with it.
LOOK = r"""
pid=$$
while [ "$pid" -gt 1 ]; do
    case $(cat "/proc/$pid/comm") in sshd*) echo "$pid"; exit ;; esac
    pid=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$pid/status")
done
echo 0
"""


class ConnectionProcess(FactBase[int]):
    """Returns the process on the host that lives as long as this connection; 0 if it did not come over SSH."""

    def command(self) -> str:
        """Look without sudo, so that the way up is short."""
        return LOOK

    def process(self, output: list[str]) -> int:
        """It is a number."""
        try:
            return int(output[-1])
        except (IndexError, ValueError):
            raise not_understood("the connection", repr(output)) from None
