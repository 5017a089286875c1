"""`--then-down`: a command on a rented pod that ends the pod when it is done, whatever happened."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from beeyard.catalog import load_catalog
from beeyard.clouds import account, inventory, story
from beeyard.clouds.pods import CloudError


@contextmanager
def then_down(target: str, pod: str | None, say: Callable[[str], None], *, is_wanted: bool = True) -> Iterator[None]:
    """
    End the pod of an inventory at the end of the block: well, with an error, or by SIGINT, SIGTERM or SIGHUP.

    :param target: an inventory's name, which is the cloud's: runpod or vast
    :param pod: its name; None for the only one
    :param say: who is told
    :param is_wanted: whether it was asked for; else this does nothing
    :raises CloudError: the target is no cloud or has no such pod, before the block; or the pod could not be ended.
    """
    if not is_wanted:
        yield
        return
    if target not in account.NAMES:
        raise CloudError(
            f"--then-down ends rented pods, and {target} is none of {', '.join(account.NAMES)}. Fix: leave it out"
        )
    cloud = account.cloud(account.named(target), load_catalog())
    try:
        with story.down_whatever_happened(cloud, pod, story.Teller(say, lambda question: True)):
            yield
    finally:
        inventory.forget(cloud.name)
