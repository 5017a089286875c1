"""
How fast a large file comes over, by transport, from one server on loopback, in the same run.

    python benchmarks/download.py [MIB] [ROUNDS]        2048 MiB, 3 rounds

Cases: as fast as loopback goes; 40 MB/s a connection, as a CDN gives; and every answer cut after a fifth of the file.
Then seconds a GB for hashing, and what a later run's check of a 20 GB file costs. It prints medians
and ratios to curl.
"""

import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from beeyard import onhost

FETCH = str(Path(onhost.__file__).parent / "fetch.sh")
COMMIT = "0" * 40
CASES = {"loopback": (0, 0.0), "40 MB/s a connection": (40_000_000, 0.0), "cut after a fifth": (0, 0.2)}


class Handler(BaseHTTPRequestHandler):
    """One file, under any path; as a Hub's file, too."""

    protocol_version = "HTTP/1.1"
    file: ClassVar[Path]
    digest: ClassVar[str]
    rate: ClassVar[int] = 0
    cut: ClassVar[float] = 0.0

    def do_HEAD(self) -> None:
        """Its length, and what a Hub says beside."""
        self._head(200, Handler.file.stat().st_size)

    def do_GET(self) -> None:
        """All of it, or a range."""
        size = Handler.file.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        end = min(int(wanted[2]) + 1, size) if wanted and wanted[2] else size
        more = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if wanted else {}
        self._head(206 if wanted else 200, end - start, **more)
        last = min(end, start + int(size * Handler.cut)) if Handler.cut else end
        with Handler.file.open("rb") as content:
            at, began = start, time.monotonic()
            while at < last:
                at += os.sendfile(self.connection.fileno(), content.fileno(), at, min(2**20, last - at))
                if Handler.rate:
                    time.sleep(max(0.0, (at - start) / Handler.rate - (time.monotonic() - began)))
        self.close_connection = last < end

    def _head(self, status: int, length: int, **more: str) -> None:
        self.send_response(status)
        names = {"ETag": f'"{Handler.digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        for name, value in {**names, "X-Linked-Size": str(Handler.file.stat().st_size), **more}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """No line."""


class Server(ThreadingHTTPServer):
    """Clients that hang up are no news."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """No line."""


Transport = Callable[[str, Path], list[str]]


def ours(connections: int) -> Transport:
    """fetch.sh, which also hashes."""

    def command(url: str, folder: Path) -> list[str]:
        size, digest = str(Handler.file.stat().st_size), Handler.digest
        return ["env", f"FETCH_CONNECTIONS={connections}", "sh", FETCH, "get", url, f"{folder}/f.gguf", size, digest]

    return command


def transports() -> dict[str, Transport]:
    """Those that are installed."""
    found: dict[str, Transport] = {
        "curl": lambda url, folder: ["curl", "-sSf", "--retry", "9", "-C", "-", "-o", f"{folder}/f.gguf", url],
        "fetch.sh, 1 connection, verified": ours(1),
        "fetch.sh, 4 connections, verified": ours(4),
    }
    if shutil.which("aria2c"):
        quiet = ["aria2c", "-q", "--file-allocation=none", "-m", "9", "--retry-wait=0"]
        for count in ("1", "4"):
            found[f"aria2c, {count} connections"] = lambda url, folder, count=count: [  # type: ignore[misc]
                *quiet, f"-x{count}", f"-s{count}", "-d", str(folder), "-o", "f.gguf", url
            ]  # fmt: skip
    script = (
        "import sys; from huggingface_hub import hf_hub_download as get; "
        "get('bees/honey', 'f.gguf', revision=sys.argv[1], cache_dir=sys.argv[2])"
    )
    found["huggingface_hub, without xet"] = lambda _, folder: [sys.executable, "-c", script, COMMIT, str(folder)]
    return found


def timed(command: list[str], port: int) -> float | None:
    """Seconds; None if it gave up."""
    env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HUB_DISABLE_XET": "1", "no_proxy": "*"}
    began = time.monotonic()
    run = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, env=env)
    return time.monotonic() - began if run.returncode == 0 else None


def digest_of(file: Path) -> str:
    """As the lock has it."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def main(mib: int, rounds: int) -> None:
    """Measure all transports in turns, and print."""
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        Handler.file = folder / "served"
        with Handler.file.open("wb") as file:
            for number in range(mib):
                file.write(hashlib.sha256(str(number).encode()).digest() * 32768)
        Handler.digest = digest_of(Handler.file)
        with Server(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}/bees/honey/resolve/{COMMIT}/f.gguf"
            for case, (rate, cut) in CASES.items():
                Handler.rate, Handler.cut = rate, cut
                figures[case] = {name: [] for name in transports()}
                for _ in range(rounds):
                    for name, command in transports().items():
                        into = folder / "into"
                        into.mkdir()
                        took = timed(command(url, into), server.server_port)
                        if took is not None:
                            figures[case][name].append(took)
                        shutil.rmtree(into)
            server.shutdown()
        for case, table in figures.items():
            middle = {name: statistics.median(times) for name, times in table.items() if times}
            print(f"\n{case}, {mib} MiB:")
            for name in table:
                if name not in middle:
                    print(f"  {name:36} gave up")
                    continue
                beside = f"{middle[name] / middle['curl']:.2f} x curl" if "curl" in middle else ""
                print(f"  {name:36} {middle[name]:7.2f} s  {mib * 2**20 / 1e9 / middle[name]:5.2f} GB/s  {beside}")
        print("\nhashing, seconds a GB:")
        for words in (["sha256sum"], ["openssl", "dgst", "-sha256", "-r"], ["b2sum"]):
            took = timed([*words, str(Handler.file)], 0)
            print(f"  {words[0]:12} {(took or 0) / (mib * 2**20 / 1e9):.2f}")
        check_20_gb(folder)
    print(json.dumps(figures))


def check_20_gb(folder: Path) -> None:
    """A later run's look at a file that is verified, beside the hash that it saves."""
    large = folder / "large.gguf"
    with large.open("wb") as file:
        file.truncate(20 * 10**9)
    stat = subprocess.run(
        ["stat", "-c", "%s %.9Y %.9Z", str(large)], check=True, capture_output=True, text=True
    ).stdout.strip()
    Path(f"{large}.verified").write_text(f"{'0' * 64} {stat}")
    look = ["sh", FETCH, "look", str(large), "0" * 64]
    said = subprocess.run(look, check=True, capture_output=True, text=True).stdout
    if said != "verified\n":
        raise SystemExit(f"the file of 20 GB is {said.strip()}. Fix: make fingerprint in fetch.sh and here the same")
    took = [timed(look, 0) or 0 for _ in range(11)]
    print(f"\na later run's check of 20 GB: {statistics.median(took):.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2048, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
