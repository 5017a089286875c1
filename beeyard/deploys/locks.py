"""A deploy of what is not locked yet locks it first: once, whichever of its hosts asks."""

import fcntl

from pyinfra import logger

from beeyard.catalog import PROJECT, CatalogError, load_catalog
from beeyard.lockfile import default_file
from beeyard.spec import ServerSpec


def lock_missing(spec: ServerSpec) -> list[str]:
    """
    Lock what a spec downloads from the Hub or a forge and the lock does not name, and say what it is.

    :return: why some cannot be, a sentence each; then the lock is as it was.
    """
    missing = spec.lockable
    if not missing:
        return []
    # It brings the Hub's client, half a second of importing that other deploys do not pay.
    from beeyard import locking  # noqa: PLC0415

    (PROJECT / ".beeyard").mkdir(exist_ok=True)
    with (PROJECT / ".beeyard" / "locking").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        catalog = load_catalog()
        missing = [name for name in missing if name not in {*catalog.lock.models, *catalog.lock.engines}]
        file = default_file()
        try:
            for text in locking.lock(catalog, missing, file) if missing else ():
                logger.warning(f"{text}. It is in {file.name} now: look at it and commit it")
        except CatalogError as error:
            return str(error).splitlines()
    return []
