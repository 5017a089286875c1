"""API keys on the machine that deploys: the one that is given, and where the hosts' copies are."""

import os
import re
from pathlib import Path

from beeyard.catalog import PROJECT, CatalogError
from beeyard.spec import ServerSpec

KEYS = PROJECT / ".beeyard" / "keys"
VARIABLE = "BEEYARD_API_KEY"
LEAST = 32  # characters, for a server that others can reach


def key_copy(host_name: str) -> Path:
    """Where a host's key is kept on this machine."""
    return KEYS / re.sub(r"[^\w.-]", "_", host_name)


def given_key(spec: ServerSpec) -> str | None:
    """
    The key that the environment gives; None if it gives none.

    :raises CatalogError: it cannot be a key, or is too short for where the server listens. It is not shown.
    """
    key = os.environ.get(VARIABLE)
    if key is None:
        return None
    if not key.isascii() or not key.isprintable() or key != key.strip() or not key or key.startswith("#"):
        raise CatalogError(
            f"{VARIABLE} cannot be a key: it must be one line of printable ASCII without spaces around it or a # "
            "before it. Fix: leave it out, and one is made"
        )
    if not spec.is_loopback and len(key) < LEAST:
        raise CatalogError(
            f"{VARIABLE} has {len(key)} characters; a server on {spec.bind} wants at least {LEAST}. "
            "Fix: leave it out, and one is made"
        )
    return key
