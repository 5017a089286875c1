"""
The forge that an engine is developed on: a tag's commit, a release's file.

Source: GitHub's REST API, version 2022-11-28. ``GITHUB_API_URL`` names another one that speaks it, ``GITHUB_TOKEN``
is optional: without it, 60 questions an hour are allowed.
"""

import fnmatch
import hashlib
import os
import re
from http import HTTPStatus
from typing import Any

import httpx

from beeyard.catalog import CatalogError, Engine, EngineLock

API = "https://api.github.com"


def commit_of(engine: Engine, ref: str) -> str:
    """
    The commit that a tag or branch of an engine's repository stands at.

    :raises CatalogError: in one sentence, why the forge does not say.
    """
    found = _ask(engine, f"commits/{ref}", f"{engine.repository} has no {ref}. Fix: correct the engine's tag")
    return str(found["sha"])


def release_file(name: str, engine: Engine) -> EngineLock:
    """
    Where the file of an engine's release is, its length in bytes and its sha256.

    A forge that tells no digest is asked for the file, which is hashed and not kept.

    :param name: the engine's, for messages
    :raises CatalogError: its tag is not at its commit, or has no such file; and why the forge does not say.
    """
    if engine.tag is None:
        raise CatalogError(
            f"engine {name!r} names no tag, so no release. Fix: set its tag in presets/engines.yaml, or add its "
            "tarball to presets/lock.yaml as docs/engines.md says"
        )
    commit = commit_of(engine, engine.tag)
    if engine.commit is not None and commit != engine.commit:
        raise CatalogError(
            f"{engine.repository}: tag {engine.tag} is at {commit}, the engine {name!r} at {engine.commit}. "
            "Fix: correct one of both in presets/engines.yaml"
        )
    missing = f"{engine.repository} has no release {engine.tag}. Fix: correct the engine's tag"
    assets = {asset["name"]: asset for asset in _ask(engine, f"releases/tags/{engine.tag}", missing)["assets"]}
    fitting = [file for file in assets if engine.asset is not None and fnmatch.fnmatchcase(file, engine.asset)]
    if len(fitting) != 1:
        which = "no file" if not fitting else f"{len(fitting)} files ({', '.join(sorted(fitting))})"
        raise CatalogError(
            f"release {engine.tag} of {engine.repository} has {which} called {engine.asset or '…'}. Fix: set asset "
            f"of {name} in presets/engines.yaml to one of: {', '.join(sorted(assets)) or 'none, it is empty'}"
        )
    found = assets[fitting[0]]
    url, size = found["browser_download_url"], found["size"]
    digest = re.fullmatch(r"sha256:([0-9a-f]{64})", found.get("digest") or "")
    return EngineLock(url=url, size=size, sha256=digest[1] if digest else _hashed(url, size))


def _ask(engine: Engine, what: str, missing: str) -> Any:
    place = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", engine.repository)
    if place is None:
        raise CatalogError(
            f"{engine.repository} is on no forge that we can ask. Fix: add the engine's tarball to presets/lock.yaml "
            "as docs/engines.md says"
        )
    api = os.environ.get("GITHUB_API_URL", "").rstrip("/") or API
    headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    token = os.environ.get("GITHUB_TOKEN", "").strip()
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        answer = httpx.get(f"{api}/repos/{place[1]}/{what}", headers=headers, follow_redirects=True, timeout=30)
    except httpx.HTTPError as error:
        raise CatalogError(
            f"{engine.repository}: its forge cannot be reached ({error}). Fix: check the network"
        ) from error
    if answer.status_code == HTTPStatus.OK:
        try:
            return answer.json()
        except ValueError as error:
            raise CatalogError(
                f"{api} does not answer as a forge. Fix: set GITHUB_API_URL, check the proxy"
            ) from error
    raise CatalogError(_refusal(engine, answer, missing, has_token=bool(token)))


def _refusal(engine: Engine, answer: httpx.Response, missing: str, *, has_token: bool) -> str:
    match answer.status_code:
        case 404 | 422:
            return missing
        case 401:
            return f"{engine.repository}: its forge does not accept GITHUB_TOKEN. Fix: make a new one, or unset it"
        case 403 | 429:
            more = "" if has_token else ", or set GITHUB_TOKEN"
            return f"{engine.repository}: its forge has had too many questions. Fix: try again in an hour{more}"
        case status:
            return f"{engine.repository}: its forge fails with {status}. Fix: try again later"


def _hashed(url: str, size: int) -> str:
    whole, seen = hashlib.sha256(), 0
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=60) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                whole.update(piece)
                seen += len(piece)
    except httpx.HTTPError as error:
        raise CatalogError(f"{url} cannot be fetched ({error}). Fix: check the network, try again") from error
    if seen != size:
        raise CatalogError(f"{url} has {seen} bytes, its forge says {size}. Fix: try again")
    return whole.hexdigest()
