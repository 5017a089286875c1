"""Operations on files that are written from here: one look for all of them, only differences are sent."""

import base64
import hashlib
from collections.abc import Generator, Sequence
from typing import NamedTuple

from pyinfra import host
from pyinfra.api import OperationValueError, QuoteString, StringCommand, operation

from beeyard.facts.files import FileState, FileStates
from beeyard.facts.seen import seen


class Directory(NamedTuple):
    """A directory that shall be there."""

    path: str
    mode: str = "755"
    owner: str | None = None


class File(NamedTuple):
    """A file that shall be there with this content."""

    path: str
    content: bytes
    mode: str = "644"
    owner: str | None = None


class Link(NamedTuple):
    """A symbolic link that shall be there."""

    path: str
    target: str


Item = Directory | File | Link


@operation()
def present(items: Sequence[Item]) -> Generator[StringCommand, None, None]:
    """
    Ensure that directories, files and links are as given, in this order.

    + items: what shall be there; an owner of None is left as it is

    A file is written beside its place and moved there, so that it is never seen half. Content travels on stdin:
    no process list shows it.
    """
    states = seen(FileStates, paths=[item.path for item in items])
    wrong = [item for item in items if not as_wanted(item, states.get(item.path))]
    if not wrong:
        host.noop(f"{len(items)} files and directories are as wanted")
    for item in wrong:
        if not item.path.startswith("/"):
            raise OperationValueError(f"path must be absolute, got {item.path!r}")
        yield from put(item)


def as_wanted(item: Item, state: FileState | None) -> bool:
    """Whether an item is there as it shall be."""
    if state is None:
        return False
    if isinstance(item, Link):
        return state["kind"] == "symbolic link" and state["target"] == item.target
    kind = "directory" if isinstance(item, Directory) else "regular file"
    same = state["kind"] == kind and state["mode"] == item.mode and item.owner in (None, state["owner"], state["uid"])
    if isinstance(item, File):
        return same and state["sha256"] == hashlib.sha256(item.content).hexdigest()
    return same


def put(item: Item) -> Generator[StringCommand, None, None]:
    """The commands that make an item as wanted."""
    path, fresh = QuoteString(item.path), QuoteString(f"{item.path}.new")
    match item:
        case Directory(mode=mode, owner=owner):
            yield StringCommand("mkdir -p", path, "&& chmod", mode, path, *chown(owner, path))
        case File(content=content, mode=mode, owner=owner):
            # umask first: a secret is never readable, not for a moment.
            write = StringCommand(
                "( umask 077 && base64 -d >", fresh, ") && chmod", mode, fresh, *chown(owner, fresh)
            )
            yield StringCommand(write, "&& mv -f", fresh, path, _stdin=base64.b64encode(content).decode())
        case Link(target=target):
            yield StringCommand("ln -sfn", QuoteString(target), path)


def chown(owner: str | None, path: QuoteString) -> list[object]:
    """The end of a command that also gives a path to its owner and that one's group; nothing for None."""
    if owner is None:
        return []
    # A number has no login group that chown could look up.
    both = f"{owner}:{owner}" if owner.isdigit() else f"{owner}:"
    return ["&& chown", QuoteString(both), path]
