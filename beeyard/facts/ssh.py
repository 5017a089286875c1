"""Facts about a host's SSH server."""

from pyinfra.api import FactBase

# The port of the very connection first: where a router forwards another one, the inventory does not know it.
LOOK = r"""
echo "$SSH_CONNECTION" | cut -d' ' -f4
{ sshd -T || /usr/sbin/sshd -T; } 2>/dev/null | sed -n 's/^port //p'
"""


class SshPorts(FactBase[list[int]]):
    """Returns the ports on the host at which its SSH server listens, as far as they are known; ask without sudo."""

    default = list

    def command(self) -> str:
        """Ask the connection, and sshd."""
        return LOOK

    def process(self, output: list[str]) -> list[int]:
        """Numbers, each once."""
        return sorted({int(line) for line in output if line.strip().isdigit()})
