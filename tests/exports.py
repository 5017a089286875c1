"""Exports for tests: the shipped preset with its models locked to made-up files, and images of made-up digests."""

import hashlib
from pathlib import Path

from beeyard.catalog import PRESETS, Catalog, load_catalog
from beeyard.exporting import Files, Wish, export, written

IMAGE = f"registry.example/beeyard@sha256:{'a' * 64}"
FETCH_IMAGE = f"registry.example/fetch@sha256:{'b' * 64}"
SIZES = {"gemma-4-31b-it-q4_k_s": 17_500_000_000, "gemma-4-31b-it-dflash-q5_k_m": 900_000_000}
TABLE = "{{revision: {revision}, size: {size}, sha256: {sha256}}}"
ENGINES = ("beellama-07ac3ce", "beellama-v0.4.3")


def catalog(folder: Path) -> Catalog:
    """Ours, with a lock for what the preset gemma-4-31b needs."""
    lines = ["models:"]
    for name, size in SIZES.items():
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        lines.append(f"  {name}: " + TABLE.format(revision="abc0" * 10, size=size, sha256=sha256))
    lines.append("engines:")
    for name in ENGINES:
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        lines.append(f"  {name}: {{url: 'https://example.invalid/{name}.tar.gz', size: 1, sha256: {sha256}}}")
    (folder / "lock.yaml").write_text("\n".join(lines) + "\n")
    return load_catalog([PRESETS, folder])


def exported(name: str, known: Catalog, **more: object) -> Files:
    """A format's files, for a 4090."""
    wish = Wish("gemma-4-31b", image=IMAGE, fetch_image=FETCH_IMAGE, card="rtx-4090")._replace(**more)  # type: ignore[arg-type]
    return {file: written(file, text) for file, text in export(name, wish, known).items()}


def put(files: Files, folder: Path) -> Path:
    """Write them below a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
