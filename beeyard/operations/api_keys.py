"""Operations on the key that requests must carry."""

import base64
import hashlib
import io
import secrets
from collections.abc import Generator
from pathlib import Path

from pyinfra import host, state
from pyinfra.api import FileDownloadCommand, FunctionCommand, QuoteString, StringCommand, operation

from beeyard.facts.files import FileStates
from beeyard.facts.seen import seen
from beeyard.keys import write_private
from beeyard.operations.file_set import chown

MODE = "600"
Commands = Generator[StringCommand | FileDownloadCommand | FunctionCommand, None, None]


@operation()
def present(path: str, owner: str | None, local: str, given: str | None = None) -> Commands:
    """
    Ensure that the host has an API key and that a copy of it is here.

    + path: the key file on the host, mode 0600
    + owner: its owner there, by name or number; None for the connected user
    + local: the copy here, mode 0600
    + given: the key to use, as a file here holds it; by default the copy's, else the host's own, else a new one

    The key travels on stdin and by SFTP: it is in no argument list, environment or log.
    """
    copy = Path(local)
    there = seen(FileStates, paths=[path]).get(path)
    wanted = given or (copy.read_text().rstrip("\n") if copy.exists() else None)

    if wanted is None and there is not None:
        content = io.BytesIO()
        yield FileDownloadCommand(path, content)
        yield FunctionCommand(lambda: write_private(copy, content.getvalue()), (), {})
        if there["mode"] != MODE or owner not in (None, there["owner"], there["uid"]):
            yield StringCommand("chmod", MODE, QuoteString(path), *chown(owner, QuoteString(path)))
        return

    if wanted is not None and there is not None:
        right = there["mode"] == MODE and owner in (None, there["owner"], there["uid"])
        if right and there["sha256"] == hashlib.sha256(f"{wanted}\n".encode()).hexdigest():
            if copy.exists():
                host.noop("the API key is there")
            else:
                yield FunctionCommand(lambda: write_private(copy, f"{wanted}\n".encode()), (), {})
            return

    if not state.is_executing:
        yield StringCommand("true")  # what a dry run shows of it; the key itself is made when it is needed
        return
    content_bytes = f"{wanted or secrets.token_urlsafe(36)}\n".encode()
    write_private(copy, content_bytes)
    fresh = f"{path}.new"
    write = StringCommand("( umask 077 && base64 -d >", QuoteString(fresh), ")", *chown(owner, QuoteString(fresh)))
    yield StringCommand(
        write,
        "&& mv -f",
        QuoteString(fresh),
        QuoteString(path),
        _stdin=base64.b64encode(content_bytes).decode(),
    )
