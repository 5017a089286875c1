"""Writing presets/lock.yaml: one entry at a time, the rest of the file as it was. Pure but for the file."""

import hashlib
import re
from pathlib import Path

import yaml

from beeyard.catalog import CatalogError, FileLock


def local_lock(file: Path) -> FileLock:
    """
    What a file on this machine is.

    :raises CatalogError: it is not there.
    """
    if not file.is_file():
        raise CatalogError(f"{file} is not on this machine. Fix: put it there; `make tiny` writes the tiny models")
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return FileLock(size=file.stat().st_size, sha256=digest)


def add_model(lock: Path, name: str, entry: FileLock) -> None:
    """Add or replace one model's entry; comments and all other lines stay."""
    text = lock.read_text() if lock.exists() else "models:\n"
    fields = entry.model_dump(exclude_none=True)
    block = "".join([f"  {name}:\n", *(f"    {key}: {value}\n" for key, value in fields.items())])
    old = re.compile(rf"^  {re.escape(name)}:\n(?:    .*\n)*", re.MULTILINE)
    head, found, models = text.partition("models:\n")
    if not found:
        head, models = f"{text.rstrip()}\n", ""
    models = old.sub(lambda _: block, models) if old.search(models) else models.rstrip("\n") + "\n" + block
    fresh = f"{head}models:\n{models.lstrip(chr(10))}"
    yaml.safe_load(fresh)
    beside = lock.with_name(f".{lock.name}.new")
    beside.write_text(fresh)
    beside.replace(lock)
