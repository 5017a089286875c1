"""Hundreds of seeded sequences of faults over a small file: it always ends in the right file, or in a sentence."""

import hashlib
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from beeyard import onhost

FETCH = str(Path(onhost.__file__).parent / "fetch.sh")
CONTENT = random.Random(8910).randbytes(60_000)  # noqa: S311
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SEQUENCES = 300
AT_ONCE = 8
# As slow as a real network's, without the waiting.
FAST = {"FETCH_PAUSE": "0", "FETCH_STALL": "1", "FETCH_PIECE": "9000", "FETCH_EVERY": "1"}


class Answer(NamedTuple):
    """What the server does with one request for the file."""

    status: int | None = None
    cut: int | None = None
    stalls: bool = False
    flip: int | None = None
    is_page: bool = False
    ignores_range: bool = False
    claims: int | None = None
    redirects: bool = False
    is_expired: bool = False


def answer(chance: random.Random) -> Answer:
    """One of all the faults that a network, a proxy or a CDN has, or none."""
    where = chance.randrange(len(CONTENT))
    kinds: list[Answer] = [
        Answer(), Answer(), Answer(redirects=True), Answer(redirects=True),
        Answer(cut=where), Answer(cut=where, redirects=True), Answer(cut=0), Answer(flip=where),
        Answer(ignores_range=True), Answer(ignores_range=True, cut=where), Answer(claims=where),
        Answer(redirects=True, is_expired=True), Answer(status=chance.choice([429, 500, 502, 503])),
    ]  # fmt: skip
    if chance.random() < 0.02:  # slow, or the end of it: seldom
        kinds = [Answer(status=code) for code in (401, 403, 404)] + [
            Answer(is_page=True),
            Answer(cut=where, stalls=True),
        ]
    return chance.choice(kinds)


class Handler(BaseHTTPRequestHandler):
    """/N/file: the file, with the faults of sequence N; /cdn/N/…: where an address leads on to."""

    queues: ClassVar[dict[str, list[Answer]]] = {}
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_GET(self) -> None:
        _, first, *rest = self.path.split("/")
        if first == "cdn":
            self.send(Answer(status=403) if "expired" in rest else Handler.at_cdn.pop(self.path, Answer()))
            return
        with Handler.lock:
            queue = Handler.queues[first]
            now = queue.pop(0) if queue else Answer()
        if now.redirects:
            ending = "expired" if now.is_expired else str(time.monotonic_ns())
            Handler.at_cdn[f"/cdn/{first}/{ending}"] = now
            self.send_response(302)
            self.send_header("Location", f"/cdn/{first}/{ending}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send(now)

    at_cdn: ClassVar[dict[str, Answer]] = {}

    def send(self, now: Answer) -> None:
        if now.status is not None:
            self.send_error(now.status)
            return
        if now.is_page:
            self.head(200, 20, **{"Content-Type": "text/html"})
            self.wfile.write(b"<html>Log in.</html>")
            return
        wanted = self.headers.get("Range") if not now.ignores_range else None
        start, end = 0, now.claims if now.claims is not None else len(CONTENT)
        more = {}
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(end, int(last) + 1 if last else end)
            if start >= end:
                self.send_error(416)
                return
            more["Content-Range"] = f"bytes {start}-{end - 1}/{len(CONTENT)}"
        body = bytearray(CONTENT[start:end])
        if now.flip is not None and start <= now.flip < end:
            body[now.flip - start] ^= 1
        self.head(206 if wanted else 200, len(body), **more)
        self.wfile.write(body[: None if now.cut is None else max(0, now.cut - start)])
        self.wfile.flush()
        if now.stalls:
            time.sleep(2.5)

    def head(self, status: int, length: int, **more: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: Any) -> None: ...


class Server(ThreadingHTTPServer):
    """Clients that hang up are what it is for."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


class Ended(NamedTuple):
    """How a sequence ended."""

    seed: int
    code: int
    said: str
    content: bytes | None


def play(server: str, folder: Path, seed: int, *, faults: bool = True) -> Ended:
    chance = random.Random(seed)  # noqa: S311 -- the same faults every time
    Handler.queues[str(seed)] = [answer(chance) for _ in range(chance.randrange(1, 14))] if faults else []
    path = folder / str(seed) / "m.gguf"
    connections = str(chance.choice([1, 4]))
    run = subprocess.run(
        ["sh", FETCH, "get", f"{server}/{seed}/file", str(path), str(len(CONTENT)), SHA256],
        check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
        env={**os.environ, **FAST, "FETCH_CONNECTIONS": connections, "no_proxy": "*"},
    )  # fmt: skip
    return Ended(seed, run.returncode, run.stderr, path.read_bytes() if path.exists() else None)


def test_a_sequence_of_faults_ends_in_the_right_file_or_in_a_sentence(server: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(lambda seed: play(server, tmp_path, seed), range(SEQUENCES)))
    for one in ended:
        if one.code == 0:
            assert one.content == CONTENT, one
            assert not (tmp_path / str(one.seed) / "m.gguf.partial").exists(), one
        else:
            assert one.content is None, one
            assert "Fix: " in one.said.splitlines()[-1], one
    whole = sum(one.code == 0 for one in ended)
    assert whole > SEQUENCES * 0.6, "most faults are got over"
    assert whole < SEQUENCES, "some cannot be, or the faults were none"
    # What the others left is gone on with, once the network is well.
    for one in ended:
        if one.code != 0:
            again = play(server, tmp_path, one.seed, faults=False)
            assert (again.code, again.content) == (0, CONTENT), again
