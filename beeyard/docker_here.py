"""The Docker Engine of the machine that deploys: what images it has, and an image as a stream of bytes."""

import json
import subprocess
import tarfile
from collections.abc import Iterator
from typing import IO, Any

from beeyard.catalog import CatalogError

CHUNK = 2**20


def image(reference: str) -> dict[str, Any] | None:
    """
    What ``docker image inspect`` says of an image; None if the engine here does not have it.

    :raises CatalogError: there is no Docker here, or its engine does not answer.
    """
    run = _docker("image", "inspect", reference)
    if run.returncode == 0:
        found: dict[str, Any] = json.loads(run.stdout)[0]
        return found
    if "No such image" in run.stderr or "no such image" in run.stderr:
        return None
    raise CatalogError(
        f"the Docker Engine of this machine does not answer: {run.stderr.strip()}. Fix: start it, or let the host "
        "have its image another way with llama_image_from"
    )


def name_image(image_id: str, name: str) -> None:
    """Give an image one more name."""
    run = _docker("image", "tag", image_id, name)
    if run.returncode != 0:
        raise CatalogError(f"image {image_id} cannot be named {name}: {run.stderr.strip()}. Fix: build it again")


class ImageStream:
    """
    ``docker save`` as something to read from, without the layers that the other side has.

    Nothing is written here, and nothing is read before the first ``read``.
    """

    def __init__(self, reference: str, layers_there: set[str]) -> None:
        self.reference = reference
        self.names_there = {digest.removeprefix("sha256:") for digest in layers_there}
        self._chunks: Iterator[bytes] | None = None
        self._rest = b""

    def seek(self, offset: int, whence: int = 0) -> int:
        """To where it is already: it is read once."""
        return offset

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most ``size``."""
        if self._chunks is None:
            self._chunks = self._read_all()
        while size < 0 or len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        size = len(self._rest) if size < 0 else size
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def _read_all(self) -> Iterator[bytes]:
        with subprocess.Popen(["docker", "image", "save", self.reference], stdout=subprocess.PIPE) as saving:
            assert saving.stdout is not None  # noqa: S101 -- PIPE says so
            yield from without(saving.stdout, self.names_there)
        if saving.returncode != 0:
            raise CatalogError(f"docker image save {self.reference} failed. Fix: read its message above")


def without(stream: IO[bytes], names: set[str]) -> Iterator[bytes]:
    """A tar stream without the files of these names, whatever folder they are in."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.name.rpartition("/")[2] in names:
                continue
            yield member.tobuf(tarfile.PAX_FORMAT)
            content = archive.extractfile(member) if member.isreg() else None
            while content is not None and (chunk := content.read(CHUNK)):
                yield chunk
            yield bytes(-member.size % tarfile.BLOCKSIZE if member.isreg() else 0)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["docker", *words], check=False, capture_output=True, text=True)
    except OSError as error:
        raise CatalogError(
            f"docker cannot be run on this machine ({error.strerror}). Fix: install Docker, or let the host have its "
            "image another way with llama_image_from"
        ) from error
