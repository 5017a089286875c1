"""
`make pod-demo`: rent, deploy, ask, stop, start and end, with no account and no card.

A stand-in of RunPod's API on the engine's bridge "rents" containers of the test bed's pod image: each start is a new
container around the old volume, on another port, with the variables and the start command that were ordered.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from beeyard.catalog import PROJECT
from beeyard.trust import trusted
from tests import cloud_shapes
from tests.cloud_stand_in import HOST_KEY, Clouds, Rented, environment, standing

STATE = Path(os.environ.get("BEEYARD_TESTBED_STATE") or PROJECT / ".testbed").absolute()
IMAGE = "beeyard-testbed/pod"
START = PROJECT / "tests" / "testbed" / "files" / "runpod-start.sh"
NAME = "demo"
LIMIT_S = 600


class Ran(NamedTuple):
    """How a command ended, and after how many seconds."""

    code: int
    output: str
    seconds: float


def docker(*words: str, check: bool = True) -> str:
    """This machine's own engine; a docker in /usr/local/bin may be an older client than Debian's."""
    program = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
    environment_of = {**os.environ, "DOCKER_HOST": "unix:///var/run/docker.sock"}
    run = subprocess.run(
        [program, *words], check=False, capture_output=True, text=True, env=environment_of, timeout=120
    )
    if check and run.returncode:
        raise RuntimeError(f"docker {words[0]}: {run.stderr.strip()}. Fix: `make testbed` first, as root")
    return run.stdout.strip()


class Machines:
    """What the stand-in rents: containers, one a start, and a volume as long as the pod."""

    def __init__(self, clouds: Clouds) -> None:
        self.clouds = clouds
        clouds.on_start, clouds.on_stop, clouds.on_end = self.start, self.stop, self.end

    @staticmethod
    def name(rented: Rented) -> str:
        return f"beeyard-rented-{os.getpid()}-{rented.id}"

    def start(self, rented: Rented) -> None:
        name = self.name(rented)
        said = {
            **rented.env, "RUNPOD_POD_ID": rented.id, "RUNPOD_API_KEY": HOST_KEY,
            "RUNPOD_API_URL": f"{self.clouds.url}/v1", "BEEYARD_WATCH_EVERY": "1",
        }  # fmt: skip
        docker(
            "run", "--detach", "--name", name, "--publish", "127.0.0.1::22", "--publish", "127.0.0.1::8911",
            "--volume", f"{name}:/workspace",
            "--volume", f"{START}:/start.sh:ro", "--volume", f"{STATE}/wheels:/wheels:ro", "--init",
            *(word for key, value in said.items() for word in ("--env", f"{key}={value}")),
            "--entrypoint", "", IMAGE, *shlex.split(rented.asked["dockerArgs"]),
        )  # fmt: skip
        rented.port, rented.tls_port = (
            int(docker("port", name, port).splitlines()[0].rpartition(":")[2]) for port in ("22/tcp", "8911/tcp")
        )

    def stop(self, rented: Rented) -> None:
        docker("rm", "--force", self.name(rented))

    def end(self, rented: Rented) -> None:
        docker("rm", "--force", self.name(rented), check=False)
        docker("volume", "rm", "--force", self.name(rented), check=False)


class Demo:
    """The commands that a user would give, against the stand-in."""

    def __init__(self, clouds: Clouds, folder: Path) -> None:
        self.clouds, self.folder = clouds, folder
        self.key_file = PROJECT / ".beeyard" / "keys" / NAME
        key = folder / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        self.environment = {
            **os.environ, **environment(clouds), "BEEYARD_SSH_KEY": str(key), "PYINFRA_PROGRESS": "off",
            "BEEYARD_CLOUDS_STATE": str(folder / "state"), "COLUMNS": "150",
        }  # fmt: skip

    def run(self, *words: str) -> Ran:
        began = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-m", *words], check=False, cwd=PROJECT, env=self.environment, timeout=LIMIT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return Ran(run.returncode, run.stdout, time.monotonic() - began)

    def pods(self, *words: str) -> Ran:
        """`beeyard pods …`."""
        return self.run("beeyard.cli", "pods", *words)

    def deploy(self, *words: str) -> Ran:
        """`make deploy TARGET=runpod`."""
        return self.run("pyinfra", "inventories/runpod.py", "deploy.py", "--yes", *words)

    def changed(self) -> tuple[int, float]:
        """How many operations of another deploy changed something, and its seconds."""
        ran = self.deploy("--json")
        start = ran.output.index("{\n") if "{\n" in ran.output else ran.output.index("{")
        found = json.JSONDecoder().raw_decode(ran.output[start:])[0]
        return int(found["results"]["totals"]["success"]), ran.seconds

    def ask_by_tls(self) -> Ran:
        """The same as others do who have the key and trust the authority, at the port that the provider gave."""
        (rented,) = self.clouds.rented.values()
        url = f"https://127.0.0.1:{rented.tls_port}"
        self._await(url, self.pods("ssh", "runpod", NAME, "--print").output.split())
        return self.run("beeyard.cli", "ask", "--url", url, "--key-file", str(self.key_file))

    @contextmanager
    def tunnel(self) -> Iterator[str]:
        """The server of the pod, on a free port of this machine."""
        line = self.pods("ssh", "runpod", NAME, "--print").output.split()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options = ["-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-N", "-L", f"{port}:127.0.0.1:8910"]
        with subprocess.Popen([line[0], *options, *line[1:]], env=self.environment, stderr=subprocess.DEVNULL) as ssh:
            try:
                url = f"http://127.0.0.1:{port}"
                self._await(url, line)
                yield url
            finally:
                ssh.terminate()

    def _await(self, url: str, ssh: list[str]) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                asked = httpx.get(f"{url}/health", timeout=5, trust_env=False, verify=trusted(url))
                if asked.status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        look = "tail -n 20 /workspace/beeyard/log/* /workspace/beeyard/run/*log* 2>&1; ps -ef"
        said = subprocess.run([*ssh, look], check=False, capture_output=True, text=True, timeout=30)
        raise RuntimeError(f"{said.stdout}\n{url} did not serve within 60 s. Fix: read what the pod's logs say above")

    def ask(self) -> Ran:
        """An answer of the server in the pod, by the tunnel."""
        with self.tunnel() as url:
            return self.run("beeyard.cli", "ask", "--url", url, "--key-file", str(self.key_file))


@contextmanager
def stage() -> Iterator[Demo]:
    """Everything that the demo needs; at its end nothing of it is left."""
    gateway = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
    clouds = Clouds()
    clouds.stock = {
        "NVIDIA GeForce RTX 3090": ((0.43, "High"), (0.22, "Low")),
        "NVIDIA GeForce RTX 4090": ((0.69, "High"), (0.34, "Medium")),
    }
    machines = Machines(clouds)
    with standing(clouds, gateway), tempfile.TemporaryDirectory() as folder:
        try:
            yield Demo(clouds, Path(folder))
        finally:
            for rented in list(clouds.rented.values()):
                machines.end(rented)


def main() -> int:
    """Tell the story, each command with what it says and how long it took."""
    began = time.monotonic()
    with stage() as demo:
        steps: list[tuple[str, Callable[[], Ran]]] = [
            ("beeyard pods offers runpod tiny", lambda: demo.pods("offers", "runpod", "tiny")),
            ("beeyard pods up runpod tiny --yes", lambda: demo.pods("up", "runpod", "tiny", "--name", NAME, "--yes")),
            ("make deploy TARGET=runpod", demo.deploy),
            ("beeyard ask, by the tunnel", demo.ask),
            ("beeyard pods list", lambda: demo.pods("list", "runpod")),
            ("beeyard pods stop runpod", lambda: demo.pods("stop", "runpod", "--yes")),
            ("beeyard pods start runpod", lambda: demo.pods("start", "runpod")),
            ("beeyard ask: it serves again, without a deploy", demo.ask),
            ("make deploy TARGET=runpod: nothing is to be done", demo.deploy),
            ("beeyard pods down runpod", lambda: demo.pods("down", "runpod", "--yes")),
        ]
        for title, step in steps:
            print(f"\n$ {title}", flush=True)
            ran = step()
            print(ran.output.rstrip(), f"\n  ({ran.seconds:.1f} s)", flush=True)
            if ran.code:
                print(f"{title} failed with {ran.code}. Fix: read what it says above", file=sys.stderr)
                return ran.code
        for exchange in demo.clouds.exchanges:
            cloud_shapes.check(exchange)
        print(f"\nFrom nothing to an answer and back: {time.monotonic() - began:.0f} s, at no price.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
