"""What a deploy carries to hosts: supervisor, out of this very environment. Pure."""

import gzip
import hashlib
import io
import tarfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple


class Library(NamedTuple):
    """A Python library as a .tar.gz, and a directory name that changes when it does."""

    name: str
    tarball: bytes


@cache
def supervisor() -> Library:
    """
    The supervisor package as it is installed here, without its tests.

    :raises importlib.metadata.PackageNotFoundError: this environment lacks it.
    """
    distribution = metadata.distribution("supervisor")
    files = sorted(
        file
        for file in distribution.files or []
        if file.parts[0] == "supervisor" and "tests" not in file.parts and file.suffix != ".pyc"
    )
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for file in files:
            content = Path(str(file.locate())).read_bytes()
            entry = tarfile.TarInfo(str(file))
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    tarball = buffer.getvalue()
    digest = hashlib.sha256(tarball).hexdigest()[:8]
    return Library(f"supervisor-{distribution.version}-{digest}", tarball)
