"""Which provider's account is ours: by its key in the environment, and nowhere else."""

import os
from typing import get_args

from beeyard.catalog import Catalog
from beeyard.clouds import runpod, vast
from beeyard.clouds.pods import Cloud, CloudError, CloudName, KeyRefused

KEYS: dict[CloudName, tuple[str, str]] = {
    "runpod": (runpod.KEY_VARIABLE, runpod.WHERE_KEYS),
    "vast": (vast.KEY_VARIABLE, vast.WHERE_KEYS),
}
BASE_IMAGES: dict[CloudName, str] = {"runpod": runpod.BASE_IMAGE, "vast": vast.BASE_IMAGE}
# What the provider's own image wants of the driver; Vast.ai chooses one that fits.
BASE_CUDA: dict[CloudName, str] = {"runpod": runpod.BASE_CUDA, "vast": ""}
NAMES: tuple[CloudName, ...] = get_args(CloudName)


def named(name: str) -> CloudName:
    """
    A provider by its name.

    :raises CloudError: there is none of that name.
    """
    for known in NAMES:
        if known == name:
            return known
    raise CloudError(f"no cloud {name!r}. Fix: use one of {', '.join(NAMES)}")


def has_key(name: CloudName) -> bool:
    """Whether the environment holds its key."""
    return bool(os.environ.get(KEYS[name][0], "").strip())


def cloud(name: CloudName, catalog: Catalog) -> Cloud:
    """
    The provider with the key of the environment.

    :raises KeyRefused: there is no key.
    """
    variable, where = KEYS[name]
    key = os.environ.get(variable, "").strip()
    if not key:
        raise KeyRefused(
            f"there is no {variable} in the environment. Fix: make a key at {where} and `export {variable}=…`; to "
            "use one pod without a key, set BEEYARD_SSH=root@ADDRESS:PORT, as the provider's console shows it"
        )
    return runpod.RunPod(key, catalog.gpus) if name == "runpod" else vast.Vast(key)
