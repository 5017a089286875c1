"""The Hugging Face Hub: where a file is, and what it must be."""

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from beeyard.catalog import CatalogError, FileLock, HubFile, PartLock
from beeyard.gguf_header import Read, read_header

ENDPOINT = "https://huggingface.co"


def endpoint() -> str:
    """The Hub that HF_ENDPOINT names, else the public one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT


def file_url(source: HubFile, revision: str) -> str:
    """Where a file of a commit is downloaded from."""
    return f"{endpoint()}/{source.repository}/resolve/{revision}/{source.file}"


def public_url(source: HubFile, revision: str) -> str:
    """The same of the public Hub, whatever HF_ENDPOINT says: a file that is committed must not depend on it."""
    return f"{ENDPOINT}/{source.repository}/resolve/{revision}/{source.file}"


def token() -> str | None:
    """
    The token of HF_TOKEN, if it is set.

    :raises CatalogError: it cannot be one; what it is is not said.
    """
    value = os.environ.get("HF_TOKEN", "").strip()
    if any(character.isspace() for character in value):
        raise CatalogError("HF_TOKEN has white space inside. Fix: set it to the token alone")
    return value or None


def lock_file(source: HubFile) -> FileLock:
    """
    Ask the Hub for a file's commit, size in bytes, sha256 and GGUF header; of a split file, for all its parts.

    Reading the header also shows that the file itself can be had, before a host fetches the first byte of it.

    :raises CatalogError: in one sentence, why the Hub does not say.
    """
    where = f"{source.repository} at {source.revision}"
    revision, files = _files(source.repository, source.revision)
    names = _parts(source.file)
    missing = [name for name in names if name not in files]
    if missing:
        raise CatalogError(f"{where} has no {missing[0]}. Fix: {_one_of(missing[0], files)}")
    pinned = []
    for name in names:
        size, sha256 = files[name]
        if size is None or sha256 is None:
            raise CatalogError(f"{where}: the Hub tells no sha256 of {name}. Fix: use a file that it keeps in LFS")
        pinned.append(PartLock(file=name.rpartition("/")[2], size=size, sha256=sha256))
    first = pinned[0]
    header = read_header(_reader(file_url(source, revision), source.repository), source.file)
    return FileLock(size=first.size, sha256=first.sha256, revision=revision, gguf=header, parts=pinned[1:])


def _parts(file: str) -> list[str]:
    split = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", file)
    if split is None:
        return [file]
    if int(split[2]) != 1:
        raise CatalogError(
            f"{file} is not the first part of a split file. Fix: name {split[1]}-00001-of-{split[3]}.gguf"
        )
    return [f"{split[1]}-{number:05}-of-{split[3]}.gguf" for number in range(1, int(split[3]) + 1)]


def _one_of(name: str, files: Iterable[str]) -> str:
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    if not ggufs:
        return "name another repository; this one has no GGUF file"
    # The closest first, and no more than a line of them.
    closest = difflib.get_close_matches(name, ggufs, n=8, cutoff=0) or ggufs
    more = f" and {len(ggufs) - len(closest)} more" if len(ggufs) > len(closest) else ""
    return f"use one of: {', '.join(closest)}{more}"


def _files(repository: str, revision: str) -> tuple[str, dict[str, tuple[int | None, str | None]]]:
    """A revision's commit, and its files with size in bytes and sha256."""
    # Half a second of importing that a deploy, which only needs the addresses above, does not pay.
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError  # noqa: PLC0415

    api = HfApi(endpoint=endpoint(), token=token() or False)
    where = f"{repository} at {revision}"
    try:
        info = api.model_info(repository, revision=revision, files_metadata=True)
    except RevisionNotFoundError as error:
        known = _quietly(lambda: [ref.name for ref in _refs(api, repository)])
        near = difflib.get_close_matches(revision, known, n=3, cutoff=0.3)
        hint = f" (there is {', '.join(near)})" if near else ""
        raise CatalogError(
            f"{where}: there is no such revision{hint}. Fix: correct it in presets/models.yaml"
        ) from error
    except RepositoryNotFoundError as error:
        raise CatalogError(_no_repository(api, repository)) from error
    except HfHubHTTPError as error:
        raise CatalogError(refusal(error.response.status_code, where, error.response.headers)) from error
    except OSError as error:
        raise CatalogError(f"{where}: the Hub cannot be reached ({error}). Fix: check the network") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CatalogError(
            f"{where}: what answers at {endpoint()} is not the Hub: a page of a proxy or a login, perhaps. "
            "Fix: open that address in a browser, or set HF_ENDPOINT"
        ) from error
    except Exception as error:  # httpx's own errors, whichever of its generations the library uses
        raise CatalogError(f"{where}: the Hub cannot be reached ({error}). Fix: check the network") from error
    if info.sha is None:
        raise CatalogError(f"{where}: the Hub names no commit. Fix: try again")
    found = {file.rfilename: (file.size, file.lfs.sha256 if file.lfs else None) for file in info.siblings or []}
    return info.sha, found


def _refs(api: Any, repository: str) -> list[Any]:
    refs = api.list_repo_refs(repository)
    return [*refs.branches, *refs.tags]


def _no_repository(api: Any, repository: str) -> str:
    owner = repository.partition("/")[0]
    known = _quietly(lambda: [model.id for model in api.list_models(author=owner, limit=200)])
    near = difflib.get_close_matches(repository, known, n=3, cutoff=0.4)
    hint = f" (there is {', '.join(near)})" if near else ""
    if token() is None:
        return f"{repository} does not exist, or is private{hint}. Fix: correct its name, or set HF_TOKEN"
    return f"{repository} does not exist, or HF_TOKEN may not see it{hint}. Fix: correct the one or the other"


def _quietly(ask: Callable[[], list[str]]) -> list[str]:
    """What is asked only to make a message better must not replace it."""
    with contextlib.suppress(Exception):
        return ask()
    return []


def refusal(status: int, where: str, headers: Mapping[str, str]) -> str:
    """What a Hub's answer that is none means, as a sentence with its Fix."""
    page = f"{endpoint()}/{where.partition(' ')[0]}"
    wait = headers.get("Retry-After") or headers.get("retry-after")
    match status:
        case 401 if token() is None:
            said = "the Hub wants a token. Fix: set HF_TOKEN"
        case 401:
            said = "the Hub does not accept HF_TOKEN. Fix: make a new one in the Hub's settings"
        case 403:
            said = f"it is gated. Fix: accept its licence at {page} with the token's account"
        case 404:
            said = "there is no such file. Fix: correct it in presets/models.yaml"
        case 429:
            more = "" if token() else ", or set HF_TOKEN, which is allowed more"
            when = f"in {wait} s" if wait else "later"
            said = f"the Hub has had too many requests from here. Fix: try again {when}{more}"
        case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            said = f"the Hub fails with {status}. Fix: try again later"
        case _:
            said = f"the Hub answers {status}. Fix: open {page} in a browser"
    return f"{where}: {said}"


def _reader(url: str, repository: str) -> Read:
    """Reads pieces of a file by its address. The token goes to the Hub alone, not to where it sends us on."""
    # As above.
    import httpx  # noqa: PLC0415

    def read(offset: int, length: int) -> bytes:
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        if value := token():
            headers["Authorization"] = f"Bearer {value}"
        try:
            with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=60) as answer:
                if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return b""
                if answer.status_code == HTTPStatus.OK and offset:
                    raise CatalogError(f"{url}: its server gives no parts of a file. Fix: try again")
                if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                    gated = answer.headers.get("X-Error-Code") == "GatedRepo"
                    status = HTTPStatus.FORBIDDEN if gated else answer.status_code
                    raise CatalogError(refusal(status, repository, answer.headers))
                found = b""
                for piece in answer.iter_bytes():
                    found += piece
                    if len(found) >= length:
                        break
                return found[:length]
        except httpx.HTTPError as error:
            raise CatalogError(f"{url} cannot be read ({error}). Fix: check the network, try again") from error

    return read
