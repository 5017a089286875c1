"""Operations on the lock that keeps two deploys of one host apart."""

from collections.abc import Generator
from typing import Any

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, QuoteString, StringCommand, operation
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS

from beeyard.operations.refusals import refusal

SOON_S = 3  # how long the lock of a deploy that just ended may take to be free
TAKEN = "taken"

# Takes the lock, hands it to a process that lives as long as the deploy, and returns.
TAKE = r"""
mkdir -p "$1" && exec 9>"$1/deploy.lock" || exit 1
flock --timeout "$2" 9 || { echo taken; exit 0; }
setsid sh -c 'while kill -0 "$1" 2>/dev/null; do sleep 0.2; done' hold "$3" </dev/null >/dev/null 2>&1 &
"""


@operation()
def held(
    directory: str, deploy_pid: int, wait_s: int = 3600
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """
    Hold the host's deploy lock until this deploy ends, however it ends. A second deploy waits.

    + directory: where the lock file is; made if it is missing
    + deploy_pid: a process on the host that lives as long as this deploy
    + wait_s: seconds to wait for another deploy

    Taking the lock changes nothing of the host, so it does not count as a change.
    """
    if not state.is_executing:
        return
    if _take(directory, deploy_pid, SOON_S):
        return
    logger.warning(f"{host.print_prefix}another deploy of this host is under way: waiting for it")
    if not _take(directory, deploy_pid, wait_s):
        yield refusal(
            f"another deploy of this host is still under way after {wait_s} s. Fix: end it, then deploy again"
        )


def _take(directory: str, deploy_pid: int, wait_s: int) -> bool:
    words = (QuoteString(word) for word in (TAKE, "take", directory, str(wait_s), str(deploy_pid)))
    given: dict[str, Any] = dict(host.current_op_global_arguments or {})
    as_whom = {key: value for key, value in given.items() if key in CONNECTOR_ARGUMENT_KEYS}  # sudo and the like
    succeeded, output = host.run_shell_command(StringCommand("sh -c", *words), **as_whom)
    # Where even the directory cannot be made, the next operation says so better.
    return not succeeded or TAKEN not in output.stdout_lines
