"""Hundreds of seeded sequences of faults over a small file: it always ends in the right file, or in a sentence."""

import hashlib
import os
import random
import signal
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
FAST = {"FETCH_PAUSE": "0", "FETCH_STALL": "1", "FETCH_PIECE": "14000", "FETCH_EVERY": "1"}


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
    # The status of an address that ran out: clouds differ.
    expired: int | None = None
    is_slow: bool = False


def answer(chance: random.Random) -> Answer:
    """One of all the faults that a network, a proxy or a CDN has, or none."""
    where = chance.randrange(len(CONTENT))
    kinds: list[Answer] = [
        Answer(), Answer(), Answer(redirects=True), Answer(redirects=True),
        Answer(cut=where), Answer(cut=where, redirects=True), Answer(cut=0), Answer(flip=where),
        Answer(ignores_range=True), Answer(ignores_range=True, cut=where), Answer(claims=where),
        Answer(redirects=True, expired=chance.choice([400, 401, 403, 410])),
        Answer(status=chance.choice([429, 500, 502, 503])),
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
        _, first, *_ = self.path.split("/")
        if first == "cdn":
            self.send(Handler.at_cdn.pop(self.path, Answer()))
            return
        with Handler.lock:
            queue = Handler.queues.get(first, [])
            now = queue.pop(0) if queue else Answer()
        if now.redirects:
            signed = f"/cdn/{first}/{time.monotonic_ns()}"
            Handler.at_cdn[signed] = now if now.expired is None else Answer(status=now.expired)
            self.send_response(302)
            self.send_header("Location", signed)
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
        sent = body[: None if now.cut is None else max(0, now.cut - start)]
        step = 500 if now.is_slow else len(sent) or 1
        for at in range(0, len(sent), step):
            self.wfile.write(sent[at : at + step])
            self.wfile.flush()
            time.sleep(0.05 if now.is_slow else 0)
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


def leave_behind(chance: random.Random, path: Path) -> None:
    """What earlier runs, people and disks may have left at its place: nothing, or a part of it, or another file."""
    path.parent.mkdir(parents=True)
    short = CONTENT[: chance.randrange(len(CONTENT))]
    for place in (path, Path(f"{path}.partial"), Path(f"{path}.partial.14000")):
        left = chance.choice(
            [None, None, None, short, b"x" * len(short), b"x" * len(CONTENT), b"<html>Log in.</html>"]
        )
        if left is not None:
            place.write_bytes(left)
    Path(f"{path}.verified").write_text(f"{SHA256} 60000 1.0 1.0 1 1")


def command(server: str, path: Path, name: str) -> list[str]:
    return ["sh", FETCH, "get", f"{server}/{name}/file", str(path), str(len(CONTENT)), SHA256]


def play(server: str, folder: Path, seed: int, *, faults: bool = True) -> Ended:
    chance = random.Random(seed)  # noqa: S311 -- the same faults every time
    Handler.queues[str(seed)] = [answer(chance) for _ in range(chance.randrange(1, 10))] if faults else []
    path = folder / str(seed) / "m.gguf"
    if faults:
        leave_behind(chance, path)
    connections = str(chance.choice([1, 4]))
    run = subprocess.run(
        command(server, path, str(seed)),
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


def processes_of(folder: Path) -> list[str]:
    shown = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout
    return [line for line in shown.splitlines() if str(folder) in line]


@pytest.mark.parametrize("how", ["kill -9", "kill -9 all", "kill -1"])
def test_a_killed_run_is_gone_on_with_and_leaves_nothing_behind(server: str, tmp_path: Path, how: str) -> None:
    Handler.queues["slow"] = [Answer(is_slow=True) for _ in range(200)]
    (tmp_path / "log").mkdir()
    env = {**os.environ, **FAST, "FETCH_LOG": f"{tmp_path}/log/fetch.log", "no_proxy": "*"}
    path = tmp_path / "m.gguf"
    for after in (0.2, 0.5, 0.9):
        run = subprocess.Popen(
            command(server, path, "slow"), stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )  # fmt: skip
        time.sleep(after)
        number = signal.SIGHUP if how == "kill -1" else signal.SIGKILL
        (os.killpg if how == "kill -9 all" else os.kill)(run.pid, number)
        run.wait()
        assert not path.exists() or path.read_bytes() == CONTENT
    for _ in range(100):
        if not processes_of(tmp_path):
            break
        time.sleep(0.1)
    assert processes_of(tmp_path) == []
    subprocess.run(command(server, path, "well"), check=True, stdin=subprocess.DEVNULL, env=env)
    assert path.read_bytes() == CONTENT
    assert {file.name for file in tmp_path.glob("m.gguf*")} == {"m.gguf", "m.gguf.lock", "m.gguf.verified"}


def test_what_breaks_off_within_every_piece_still_comes_over_several_connections(server: str, tmp_path: Path) -> None:
    Handler.queues["cuts"] = [Answer(cut=start + 9000) for start in range(0, len(CONTENT), 9000) for _ in range(4)]
    env = {**os.environ, **FAST, "no_proxy": "*"}
    subprocess.run(
        command(server, tmp_path / "m.gguf", "cuts"), check=True, stdin=subprocess.DEVNULL, env=env, timeout=60
    )  # fmt: skip
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT


# A disk of 40 KiB, which only the command that follows sees, and what is on it in the end.
SMALL_DISK = 'mount -t tmpfs -o size=40k tmpfs "$0" && { "$@"; code=$?; ls "$0"; exit $code; }'


@pytest.mark.parametrize("piece", ["14000", "90000"])
def test_a_full_disk_is_told_with_what_is_still_to_come(server: str, tmp_path: Path, piece: str) -> None:
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("to mount a small disk takes root, as make test has it, or user namespaces")
    small = tmp_path / "small"
    small.mkdir()
    run = subprocess.run(
        [*alone, "sh", "-c", SMALL_DISK, str(small), *command(server, small / "m.gguf", "well")],
        check=False, stdin=subprocess.DEVNULL, timeout=60, capture_output=True, text=True,
        env={**os.environ, **FAST, "FETCH_PIECE": piece, "no_proxy": "*"},
    )  # fmt: skip
    assert run.returncode == 1
    assert "m.gguf cannot be written on: 0 MB are free" in run.stderr
    assert "Fix: free some" in run.stderr.splitlines()[-1]
    assert "m.gguf" not in run.stdout.split()
