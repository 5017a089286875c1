"""A small Hugging Face Hub, and a shelf of releases, for tests: ROOT's files, with faults on demand.

ROOT/models/ORG/REPO/FILE  a repository. Steered by files in it that are not served: `.revision` (the commit),
                           `.token` (what a bearer must show), `.gated` (files for bearers of `.token` only).
ROOT/releases/...          plain files under /releases/.
ROOT/faults.json           {"part of a path": [fault, ...]}: each answer takes the first fault that suits it.
    {"status": 503}            any request: this status, no file
    {"html": true}             any request: 200 and a web page, as a captive portal answers
    {"cut": N}                 a file: the connection ends after N bytes
    {"stall": S, "after": N}   a file: a pause of S seconds after N bytes
    {"truncate": N}            a file: N bytes that claim to be all of it
    {"corrupt": N}             a file: byte N of the answer is wrong
    {..., "client": ADDRESS}   only for a client with this address
ROOT/access.log            one JSON object for each answer.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import threading
import time
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit

STEERING = {".revision", ".token", ".gated"}
LFS_SUFFIXES = {".gguf", ".safetensors", ".bin"}
CHUNK = 1 << 16
WRITING = threading.Lock()
PAGE = b"<!DOCTYPE html><html><body><h1>Please log in to the network</h1></body></html>\n"

Fault = dict[str, Any]


class Refusal(Exception):
    """An answer that is an error, worded as the Hub words it."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@functools.lru_cache(maxsize=4096)
def _digests(path: Path, size: int, mtime_ns: int) -> tuple[str, str]:
    """Returns a file's git blob id and its sha256; size and mtime_ns are there to notice a new content."""
    blob, sha256 = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            blob.update(chunk)
            sha256.update(chunk)
    return blob.hexdigest(), sha256.hexdigest()


class RepoFile:
    """One file of a repository, as the Hub describes it."""

    def __init__(self, root: Path, path: Path) -> None:
        stat = path.stat()
        self.path, self.name, self.size, self.mtime_ns = (
            path,
            path.relative_to(root).as_posix(),
            stat.st_size,
            stat.st_mtime_ns,
        )
        self.is_lfs = path.suffix in LFS_SUFFIXES

    @property
    def sha256(self) -> str:
        return _digests(self.path, self.size, self.mtime_ns)[1]

    @property
    def pointer(self) -> bytes:
        """What git holds instead of an LFS file."""
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n"
        return text.encode()

    @property
    def blob_id(self) -> str:
        if self.is_lfs:
            content = b"blob %d\0" % len(self.pointer) + self.pointer
            return hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return _digests(self.path, self.size, self.mtime_ns)[0]

    @property
    def etag(self) -> str:
        return f'"{self.sha256 if self.is_lfs else self.blob_id}"'

    def sibling(self, *, blobs: bool) -> dict[str, Any]:
        """The file's entry in a model's `siblings`."""
        entry: dict[str, Any] = {"rfilename": self.name}
        if blobs:
            entry |= {"size": self.size, "blobId": self.blob_id}
            if self.is_lfs:
                entry["lfs"] = {"sha256": self.sha256, "size": self.size, "pointerSize": len(self.pointer)}
        return entry


class Repo:
    """A directory of files at one revision."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name

    def files(self) -> list[RepoFile]:
        paths = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        return [RepoFile(self.root, path) for path in paths if path.name not in STEERING]

    def file(self, name: str) -> RepoFile:
        for file in self.files():
            if file.name == name:
                return file
        raise Refusal(404, "Entry not found", "EntryNotFound")

    def steering(self, name: str) -> str | None:
        path = self.root / name
        return path.read_text().strip() if path.is_file() else None

    @property
    def revision(self) -> str:
        listing = json.dumps([(file.name, file.size, file.mtime_ns) for file in self.files()])
        computed = hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()
        return self.steering(".revision") or computed

    def require(self, revision: str) -> None:
        if revision not in {"main", self.revision}:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def info(self, *, blobs: bool) -> dict[str, Any]:
        """What /api/models/ says about it."""
        return {
            "_id": hashlib.sha1(self.name.encode(), usedforsecurity=False).hexdigest()[:24],
            "id": self.name,
            "modelId": self.name,
            "author": self.name.split("/")[0],
            "sha": self.revision,
            "private": self.steering(".token") is not None,
            "gated": "manual" if self.steering(".gated") is not None else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [file.sibling(blobs=blobs) for file in self.files()],
        }


class Faults:
    """faults.json, read at every request and rewritten without the faults that were used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, request_path: str, client: str, kinds: set[str]) -> Fault:
        """Returns the next fault for this path and client if it is one of these kinds, else an empty one."""
        with WRITING:
            try:
                faults: dict[str, list[Fault]] = json.loads(self._path.read_text())
            except FileNotFoundError:
                return {}
            for part, queue in faults.items():
                if (
                    part in request_path
                    and queue
                    and kinds & queue[0].keys()
                    and queue[0].get("client", client) == client
                ):
                    fault = queue.pop(0)
                    beside = self._path.with_suffix(".new")
                    beside.write_text(json.dumps(faults, indent=2))
                    beside.replace(self._path)
                    return fault
        return {}


class Hub(ThreadingHTTPServer):
    """One listening port of the hub; bytes of LFS files are fetched from the port `cdn_port`."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], root: Path, cdn_port: int) -> None:
        super().__init__(address, Handler)
        self.root, self.faults, self.cdn_port = root.resolve(), Faults(root / "faults.json"), cdn_port

    def inside(self, *parts: str) -> Path:
        """Returns the path under the root, or refuses one that leaves it."""
        path = self.root.joinpath(*parts).resolve()
        if not path.is_relative_to(self.root / parts[0]):
            raise Refusal(400, "Bad path")
        return path


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        try:
            if not self._fault_instead_of_an_answer(path):
                self._route(path, blobs="blobs=" in url.query)
        except Refusal as refusal:
            self._refuse(refusal)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET

    def _route(self, path: str, *, blobs: bool) -> None:
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            repo = self._repo(match[1], for_files=False)
            repo.require(match[2] or "main")
            self._send_bytes(200, "application/json", json.dumps(repo.info(blobs=blobs)).encode())
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/refs", path):
            commit = self._repo(match[1], for_files=False).revision
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit}
            self._send_json({"branches": [main], "converts": [], "tags": []})
        elif path == "/api/models":
            root = self.server.root / "models"
            names = sorted(folder.relative_to(root).as_posix() for folder in root.glob("*/*"))
            self._send_json([{"_id": "0" * 24, "id": name, "modelId": name} for name in names])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(self._repo(match[1], for_files=True), match[2], match[3])
        elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/[0-9a-f]{64}/(.+)", path):
            # The real CDN's addresses are signed: knowing one is the permission.
            file = Repo(self.server.inside("models", match[1]), match[1]).file(match[2])
            self._send_file(path, file.path, {"ETag": file.etag})
        elif match := re.fullmatch(r"/releases/(.+)", path):
            self._send_file(path, self.server.inside("releases", match[1]), {})
        elif path == "/":
            self._send_bytes(200, "text/plain", b"The test bed's hub.\n")
        else:
            raise Refusal(404, "Not found")

    def _repo(self, name: str, *, for_files: bool) -> Repo:
        repo = Repo(self.server.inside("models", name), name)
        authorization = self.headers.get("Authorization")
        if not repo.root.is_dir():
            if authorization is None:
                raise Refusal(401, "Invalid username or password.", "RepoNotFound")
            raise Refusal(404, "Repository not found", "RepoNotFound")
        token, gated = repo.steering(".token"), repo.steering(".gated") is not None
        if token is not None and authorization == f"Bearer {token}":
            return repo
        if gated and for_files:
            message = f"Access to model {name} is restricted and you are not in the authorized list."
            raise Refusal(401 if authorization is None else 403, message, "GatedRepo")
        if token is not None and not gated:
            if authorization is None:
                raise Refusal(401, "Invalid username or password.", "RepoNotFound")
            raise Refusal(401, "Invalid credentials in Authorization header")
        return repo

    def _resolve(self, repo: Repo, revision: str, name: str) -> None:
        repo.require(revision)
        file = repo.file(name)
        headers = {"X-Repo-Commit": repo.revision, "ETag": file.etag}
        if not file.is_lfs:
            self._send_file(self.path, file.path, headers)
            return
        # Another origin, as with the real one: clients follow there, and take no token along.
        host = urlsplit(f"//{self.headers.get('Host')}").hostname
        location = f"http://{host}:{self.server.cdn_port}/cdn/{quote(repo.name)}/{file.sha256}/{quote(file.name)}"
        headers |= {"X-Linked-Size": str(file.size), "X-Linked-ETag": file.etag, "Location": location}
        self._send_bytes(302, "text/plain", f"Found. Redirecting to {location}".encode(), headers)

    def _fault_instead_of_an_answer(self, path: str) -> bool:
        fault = self.server.faults.take(path, self.client_address[0], {"status", "html"})
        if "status" in fault:
            self._send_bytes(fault["status"], "text/plain", b"A fault of the test bed.\n")
        elif fault:
            self._send_bytes(200, "text/html; charset=utf-8", PAGE)
        return bool(fault)

    def _refuse(self, refusal: Refusal) -> None:
        headers = {"X-Error-Message": refusal.message}
        if refusal.code:
            headers["X-Error-Code"] = refusal.code
        body = json.dumps({"error": refusal.message}).encode()
        self._send_bytes(refusal.status, "application/json", body, headers)

    def _send_json(self, body: object) -> None:
        self._send_bytes(200, "application/json", json.dumps(body).encode())

    def _send_bytes(self, status: int, content_type: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._send_head(status, len(body), {"Content-Type": content_type} | (headers or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(length)}).items():
            self.send_header(key, value)
        self.end_headers()

    def _send_file(self, request_path: str, path: Path, headers: dict[str, str]) -> None:
        if not path.is_file():
            raise Refusal(404, "Entry not found", "EntryNotFound")
        fault: Fault = {}
        if self.command != "HEAD":
            fault = self.server.faults.take(
                request_path, self.client_address[0], {"cut", "stall", "truncate", "corrupt"}
            )
        stat = path.stat()
        size = min(stat.st_size, fault.get("truncate", stat.st_size))
        headers = headers | {
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
        }
        span = self._range(size)
        if span is None:
            self._send_head(416, 0, headers | {"Content-Range": f"bytes */{size}"})
            return
        start, end, status = span
        if status == HTTPStatus.PARTIAL_CONTENT:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._send_head(status, end - start, headers)
        if self.command != "HEAD":
            with path.open("rb") as stream:
                stream.seek(start)
                self._send_body(stream, end - start, fault)

    def _range(self, size: int) -> tuple[int, int, int] | None:
        """Returns start, end and status for the Range header, or None if it cannot be satisfied."""
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not match or match.groups() == ("", ""):
            return 0, size, HTTPStatus.OK
        first, last = match.groups()
        start = int(first) if first else max(size - int(last), 0)
        end = min(int(last) + 1, size) if first and last else size
        return (start, end, HTTPStatus.PARTIAL_CONTENT) if start < end else None

    def _send_body(self, stream: BinaryIO, length: int, fault: Fault) -> None:
        where = next((fault[key] for key in ("cut", "after", "corrupt") if key in fault), length)
        before = min(int(where), length)
        self._copy(stream, before)
        self.wfile.flush()
        if "cut" in fault:
            self.close_connection = True
            return
        if "stall" in fault:
            time.sleep(fault["stall"])
        if "corrupt" in fault and (byte := stream.read(1)):
            self.wfile.write(bytes([byte[0] ^ 0xFF]))
            before += 1
        self._copy(stream, length - before)

    def _copy(self, stream: BinaryIO, length: int) -> None:
        while length > 0 and (chunk := stream.read(min(CHUNK, length))):
            self.wfile.write(chunk)
            length -= len(chunk)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Notes the answer; of a token only that there was one."""
        if self.path == "/":
            return
        entry = {
            "method": self.command,
            "path": self.path,
            "range": self.headers.get("Range"),
            "authorization": "Authorization" in self.headers,
            "status": int(code),
        }
        with WRITING, (self.server.root / "access.log").open("a") as log:
            log.write(json.dumps(entry) + "\n")


def main() -> None:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(description="A small Hugging Face Hub for tests.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=2210)
    parser.add_argument("--cdn-port", type=int, default=2211)
    arguments = parser.parse_args()
    hub, cdn = (
        Hub((arguments.host, port), arguments.root, arguments.cdn_port)
        for port in (arguments.port, arguments.cdn_port)
    )
    threading.Thread(target=cdn.serve_forever, daemon=True).start()
    hub.serve_forever()


if __name__ == "__main__":
    main()
