"""
What a container costs: a server in one beside the same binary and model without, in turns, in the same run.

    python benchmarks/container.py IMAGE MODEL.gguf [ROUNDS]     as root, which a chroot wants

Seconds from start to /health 200; tokens/s of decoding by the server's own clock, greedy, over 256 tokens. It
prints each median, the difference of the starts and the ratio of the speeds.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

TOKENS = 256
CONFINED = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"]  # noqa: S108


def free_port() -> int:
    """One that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def arguments(model: str, host: str, port: int) -> list[str]:
    """Of both servers, but for where they are."""
    threads = str(os.cpu_count() or 1)
    return ["-m", model, "--host", host, "--port", str(port), "--ctx-size", "2048", "-np", "1", "--threads", threads]


@contextmanager
def bare(root: Path, model: Path) -> Iterator[int]:
    """The image's own binary with its own C library, which this machine's may be too old for: in a chroot."""
    port = free_port()
    words = ["/opt/llama/llama-server", *arguments(f"/{model.name}", "127.0.0.1", port)]
    inside = 'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'
    command = ["unshare", "--mount", "sh", "-c", inside, str(root), *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield port
        finally:
            server.terminate()


@contextmanager
def contained(image: str, model: Path) -> Iterator[int]:
    """As locked up as compose has it."""
    port = free_port()
    options = [*CONFINED, "--volume", f"{model.parent}:/models:ro", "--publish", f"127.0.0.1:{port}:8910"]
    inside = arguments(f"/models/{model.name}", "0.0.0.0", 8910)  # noqa: S104 -- published on loopback alone
    command = ["docker", "run", "--detach", *options, image, *inside]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield port
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)


def wait_healthy(port: int) -> None:
    """Until it serves."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            asked = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            asked.request("GET", "/health")
            if asked.getresponse().status == 200:
                return
        time.sleep(0.01)
    sys.exit(f"nothing serves on port {port} after 120 s. Fix: start the same server by hand, and read its log")


def speed(port: int) -> float:
    """Tokens/s of one answer."""
    body = {"prompt": "Bees", "n_predict": TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answer = httpx.post(f"http://127.0.0.1:{port}/completion", json=body, timeout=300, trust_env=False)
    return float(answer.raise_for_status().json()["timings"]["predicted_per_second"])


def main(image: str, model: Path, rounds: int) -> None:
    """Measure, in turns, and print."""
    starts: dict[str, list[float]] = {"bare": [], "container": []}
    speeds: dict[str, list[float]] = {"bare": [], "container": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = subprocess.run(["docker", "create", image], check=True, capture_output=True, text=True).stdout.strip()
        with subprocess.Popen(["docker", "export", made], stdout=subprocess.PIPE) as files:
            subprocess.run(["tar", "-x", "-C", str(folder)], check=True, stdin=files.stdout)
        subprocess.run(["docker", "rm", made], check=True, capture_output=True)
        # Another user's folder would be closed to the container's.
        shutil.copy(model, folder / model.name)
        folder.chmod(0o755)
        (folder / model.name).chmod(0o644)
        for number in range(rounds + 1):
            for kind in ("bare", "container") if number % 2 else ("container", "bare"):
                began = time.monotonic()
                here = folder / model.name
                with bare(folder, here) if kind == "bare" else contained(image, here) as port:
                    wait_healthy(port)
                    took = time.monotonic() - began
                    speed(port)
                    tokens = speed(port)
                if number:  # the first warms the page cache
                    starts[kind].append(took)
                    speeds[kind].append(tokens)
    middle = {kind: (statistics.median(starts[kind]), statistics.median(speeds[kind])) for kind in starts}
    for kind, (took, tokens) in middle.items():
        print(f"{kind:9}  start to healthy {took:.2f} s, {tokens:.1f} tokens/s")
    more = middle["container"][0] - middle["bare"][0]
    ratio = middle["container"][1] / middle["bare"][1]
    print(
        f"the container starts {more:.2f} s later, and decodes at {ratio:.3f} of the speed ({rounds} rounds, medians)"
    )
    print(json.dumps({"starts_s": starts, "tokens_per_s": speeds}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 7)
