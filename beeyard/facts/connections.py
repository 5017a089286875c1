"""Facts about the connection through which a deploy reaches a host, and about the lock that it holds there."""

from pyinfra.api import FactBase, QuoteString, StringCommand

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

# Takes the lock, hands it to a process that lives as long as the deploy, and returns. Where even the directory cannot
# be made, the operation that makes it says so better.
TAKE = r"""
mkdir -p "$1" 2>/dev/null && (: >>"$1/deploy.lock") 2>/dev/null || { echo none; exit 0; }
exec 9>"$1/deploy.lock"
flock --timeout "$2" 9 || { echo taken; exit 0; }
setsid sh -c 'while kill -0 "$1" 2>/dev/null; do sleep 0.2; done' hold "$3" </dev/null >/dev/null 2>&1 &
echo held
"""


class ConnectionProcess(FactBase[int]):
    """Returns the process on the host that lives as long as this connection; 0 if it did not come over SSH."""

    def command(self) -> str:
        """Look; below sudo, too, the way up leads there."""
        return LOOK

    def process(self, output: list[str]) -> int:
        """It is a number."""
        try:
            return int(output[-1])
        except (IndexError, ValueError):
            raise not_understood("the connection", repr(output)) from None


class DeployLock(FactBase[bool]):
    """
    Returns whether no other deploy of the host is under way, after ``wait_s`` seconds at most; then this one is.

    It takes the lock, so that what else is asked in the same command is seen under it, and no other deploy comes
    between. ``deploy_pid`` is a process on the host that lives as long as this deploy.
    """

    def command(self, directory: str, deploy_pid: int, wait_s: int) -> StringCommand:
        """Try once, and wait."""
        words = (QuoteString(word) for word in (TAKE, "take", directory, str(wait_s), str(deploy_pid)))
        return StringCommand("sh -c", *words)

    def process(self, output: list[str]) -> bool:
        """It says held, taken, or none where there can be no lock."""
        return output != ["taken"]
