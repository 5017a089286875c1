"""Writing presets/lock.yaml: one entry at a time, the rest of the file as it was. Pure but for the file."""

import hashlib
import os
import re
from pathlib import Path

import yaml

from beeyard.catalog import PRESETS, PRESETS_VARIABLE, CatalogError, EngineLock, FileLock, Strict
from beeyard.gguf_header import read_header


def default_file() -> Path:
    """Where new entries go: beside the presets that BEEYARD_PRESETS adds, else into the project's own."""
    folders = [folder for folder in os.environ.get(PRESETS_VARIABLE, "").split(os.pathsep) if folder]
    return Path(folders[-1] if folders else PRESETS) / "lock.yaml"


def local_lock(file: Path) -> FileLock:
    """
    What a file on this machine is.

    :raises CatalogError: it is not there.
    """
    if not file.is_file():
        raise CatalogError(f"{file} is not on this machine. Fix: put it there; `make tiny` writes the tiny models")
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()

        def read(offset: int, length: int) -> bytes:
            content.seek(offset)
            return content.read(length)

        header = read_header(read, str(file))
    return FileLock(size=file.stat().st_size, sha256=digest, gguf=header)


def add_model(lock: Path, name: str, entry: FileLock) -> None:
    """Add or replace one model's entry; comments and all other lines stay."""
    _put_entry(lock, "models", name, entry)


def add_engine(lock: Path, name: str, entry: EngineLock) -> None:
    """Add or replace one engine's entry; comments and all other lines stay."""
    _put_entry(lock, "engines", name, entry)


def add_image(lock: Path, name: str, reference: str) -> None:
    """Add or replace one image's reference by digest; comments and all other lines stay."""
    _put(lock, "images", re.compile(rf"^  {re.escape(name)}: .*\n", re.MULTILINE), f"  {name}: {reference}\n")


def _put_entry(lock: Path, table: str, name: str, entry: Strict) -> None:
    lines = [f"  {name}:\n"]
    for key, value in entry.model_dump(exclude_none=True, exclude_defaults=True).items():
        if isinstance(value, list):
            lines += [f"    {key}:\n", *(f"      - {_flow(item)}\n" for item in value)]
        else:
            lines.append(f"    {key}: {_flow(value)}\n")
    _put(lock, table, re.compile(rf"^  {re.escape(name)}:\n(?:    .*\n)*", re.MULTILINE), "".join(lines))


def _flow(value: object) -> str:
    """On one line, as YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("...\n").strip()


def add_base(lock: Path, name: str, digest: str) -> None:
    """Add or replace the digest of an image's base; comments and all other lines stay."""
    _put(lock, "bases", re.compile(rf'^  "{re.escape(name)}": .*\n', re.MULTILINE), f'  "{name}": {digest}\n')


def _put(lock: Path, table: str, old: re.Pattern[str], block: str) -> None:
    text = lock.read_text() if lock.exists() else ""
    heading = re.search(rf"^{table}:\n", text, re.MULTILINE)
    if heading is None:
        text = f"{text.rstrip()}\n{table}:\n".lstrip("\n")
        heading = re.search(rf"^{table}:\n", text, re.MULTILINE)
    assert heading is not None  # noqa: S101 -- just written
    head, rest = text[: heading.end()], text[heading.end() :]
    body = re.match(r"(?:[ #].*\n|\n)*", rest)
    assert body is not None  # noqa: S101 -- it matches nothing, too
    entries, tail = body[0], rest[body.end() :]
    entries = old.sub(lambda _: block, entries) if old.search(entries) else entries.rstrip("\n") + "\n" + block
    fresh = f"{head}{entries.lstrip(chr(10))}{tail}"
    yaml.safe_load(fresh)
    beside = lock.with_name(f".{lock.name}.new")
    beside.write_text(fresh)
    beside.replace(lock)
