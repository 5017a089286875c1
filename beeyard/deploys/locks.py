"""A deploy of what is not locked yet locks it first: once, whichever of its hosts asks."""

import fcntl
import os
from pathlib import Path

from pyinfra import logger

from beeyard.catalog import PRESETS, PRESETS_VARIABLE, PROJECT, CatalogError, HubFile, load_catalog
from beeyard.spec import ServerSpec


def lock_missing(spec: ServerSpec) -> list[str]:
    """
    Lock what a spec downloads from the Hub or a forge and the lock does not name, and say what it is.

    :return: why some cannot be, a sentence each; then the lock is as it was.
    """
    missing = [file.name for file in spec.model_files if file.lock is None and isinstance(file.source, HubFile)]
    if spec.unlocked_engine and spec.engine.tag and spec.engine.asset:
        missing.append(spec.engine_name)
    if not missing:
        return []
    # It brings the Hub's client, half a second of importing that other deploys do not pay.
    from beeyard import locking  # noqa: PLC0415

    (PROJECT / ".beeyard").mkdir(exist_ok=True)
    with (PROJECT / ".beeyard" / "locking").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        catalog = load_catalog()
        missing = [name for name in missing if name not in {*catalog.lock.models, *catalog.lock.engines}]
        file = lock_file()
        try:
            for text in locking.lock(catalog, missing, file) if missing else ():
                logger.warning(f"{text}. It is in {file.name} now: look at it and commit it")
        except CatalogError as error:
            return str(error).splitlines()
    return []


def lock_file() -> Path:
    """Where new entries go: beside the presets that BEEYARD_PRESETS adds, else into the project's own."""
    folders = [folder for folder in os.environ.get(PRESETS_VARIABLE, "").split(os.pathsep) if folder]
    return Path(folders[-1] if folders else PRESETS) / "lock.yaml"
