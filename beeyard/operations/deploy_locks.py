"""Operations on the lock that keeps two deploys of one host apart."""

from collections.abc import Generator, Sequence
from typing import Any

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, StringCommand, operation

from beeyard.facts.connections import DeployLock
from beeyard.facts.seen import Question, asked, forget, learn, seen
from beeyard.operations.refusals import refusal

SOON_S = 3  # how long the lock of a deploy that just ended may take to be free


@operation()
def held(
    directory: str, deploy_pid: int, questions: Sequence[Question] = (), wait_s: int = 3600
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """
    Hold the host's deploy lock until this deploy ends, however it ends. A second deploy waits.

    + directory: where the lock file is; made if it is missing
    + deploy_pid: a process on the host that lives as long as this deploy
    + questions: what the operations after this one will ask the host, which is asked with it, in one command
    + wait_s: seconds to wait for another deploy

    Taking the lock changes nothing of the host, so it does not count as a change.
    """
    if not state.is_executing:  # a dry run, which holds up nobody
        learn(questions)
        return
    if _take(directory, deploy_pid, SOON_S, questions):
        return
    logger.warning(f"{host.print_prefix}another deploy of this host is under way: waiting for it")
    if not _take(directory, deploy_pid, wait_s, questions):
        yield refusal(
            f"another deploy of this host is still under way after {wait_s} s. Fix: end it, then deploy again"
        )


def _take(directory: str, deploy_pid: int, wait_s: int, questions: Sequence[Question]) -> bool:
    lock: dict[str, Any] = {"directory": directory, "deploy_pid": deploy_pid, "wait_s": wait_s}
    learn([asked(DeployLock, **lock), *questions])
    if seen(DeployLock, **lock):
        return True
    forget()  # the other deploy changes it
    return False
