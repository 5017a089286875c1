"""Operations on Python libraries that a deploy carries to the host, where no package index need answer."""

import base64
from collections.abc import Generator

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard.facts.files import FileStates
from beeyard.facts.seen import seen


@operation()
def carried(directory: str, tarball: bytes) -> Generator[StringCommand, None, None]:
    """
    Ensure that a library is unpacked on the host.

    + directory: where to; its name tells one version from another, so what is there is right
    + tarball: the library as a .tar.gz
    """
    if directory in seen(FileStates, paths=[directory]):
        host.noop(f"library {directory} is there")
        return
    fresh = f"{directory}.new"
    yield StringCommand("rm -rf", QuoteString(fresh), "&& mkdir -p", QuoteString(fresh))
    yield StringCommand(
        "base64 -d | tar -xz --no-same-owner -C", QuoteString(fresh),
        "&& mv", QuoteString(fresh), QuoteString(directory),
        _stdin=base64.b64encode(tarball).decode(),
    )  # fmt: skip
