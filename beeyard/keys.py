"""Keys on the machine that deploys: the one that is given, where those of hosts and gateways are, how one is kept."""

import os
import re
import secrets
from pathlib import Path

from beeyard.catalog import PROJECT, CatalogError
from beeyard.spec import ServerSpec

KEYS = PROJECT / ".beeyard" / "keys"
# Keys of gateways: users', servers', of tunnels; an authority.
GATEWAY = PROJECT / ".beeyard" / "gateway"
# The authority of its own that clients are told to trust.
AUTHORITY = GATEWAY / "ca"
VARIABLE = "BEEYARD_API_KEY"
LEAST = 32  # characters, for a server that others can reach


def key_copy(host_name: str) -> Path:
    """Where a host's key is kept on this machine."""
    return KEYS / re.sub(r"[^\w.-]", "_", host_name)


def known_key(host_name: str) -> str | None:
    """The key that a host had at its last deploy from here; None where there was none."""
    copy = key_copy(host_name)
    return copy.read_text().rstrip("\n") if copy.exists() else None


def made_key(file: Path) -> str:
    """The key that a file here holds; made at the first call."""
    if not file.exists():
        write_private(file, f"{secrets.token_urlsafe(36)}\n".encode())
    return file.read_text().strip()


def write_private(file: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
    fresh.replace(file)


def every_secret() -> list[str]:
    """What all key files here hold, a line each: what no bundle may show."""
    files = [file for folder in (KEYS, GATEWAY) for file in sorted(folder.rglob("*")) if file.is_file()]
    return [line for file in files for line in file.read_text(errors="replace").splitlines()]


def inner_key(preset: str) -> str:
    """The key between gateways and the servers of a preset: the one that the environment gives, else one of ours."""
    return os.environ.get(VARIABLE) or made_key(GATEWAY / f"inner-{preset}")


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
    if spec.is_reached and len(key) < LEAST:
        where = spec.bind if spec.front is None else spec.front.at
        raise CatalogError(
            f"{VARIABLE} has {len(key)} characters; a server on {where} wants at least {LEAST}. "
            "Fix: leave it out, and one is made"
        )
    return key
