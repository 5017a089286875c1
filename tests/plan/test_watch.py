"""The watcher of a rented pod beside a real llama-server: idle is what asks nothing, and nothing else."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from beeyard import onhost, tiny
from tests.cloud_stand_in import HOST_KEY, Clouds, standing
from tests.plan.conftest import free_port
from tests.real_server import KEY, Running, serving, spec_of, unpack

WATCH = Path(onhost.__file__).with_name("watch.py")
IDLE_S = 3.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    files = {path.name: path for path in tiny.write_all(tmp_path_factory.mktemp("tiny"))}
    binary = unpack(tmp_path_factory.mktemp("engine"))
    with serving(spec_of("tiny", "dflash"), binary, files, tmp_path_factory.mktemp("serve"), free_port()) as running:
        yield running


class Watched:
    """A pod that is rented, and its watcher."""

    def __init__(self, clouds: Clouds, folder: Path, metrics: str, key: str) -> None:
        (folder / "etc").mkdir()
        (folder / "etc" / "api-key").write_text(key + "\n")
        self.pod, self.folder = clouds.rent("beeyard-llm", {}, {}, "101"), folder
        self.environment = {
            "PATH": os.environ["PATH"], "BEEYARD_PREFIX": str(folder), "BEEYARD_RUN": str(folder),
            "BEEYARD_DEADLINE": f"{datetime.now(UTC) + timedelta(hours=8):%Y-%m-%dT%H:%M:%SZ}",
            "BEEYARD_IDLE_MINUTES": str(IDLE_S / 60), "BEEYARD_METRICS": metrics, "BEEYARD_WATCH_EVERY": "0.2",
            "RUNPOD_POD_ID": "101", "RUNPOD_API_KEY": HOST_KEY, "RUNPOD_API_URL": f"{clouds.url}/v1",
        }  # fmt: skip
        self.process = self.run()

    def run(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(WATCH)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stops_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.pod.is_running:
            time.sleep(0.05)
        return not self.pod.is_running

    def said(self) -> str:
        """All that the watcher wrote, once it is ended."""
        self.process.terminate()
        return "".join(self.process.communicate(timeout=10))


Watch = Callable[..., Watched]


@pytest.fixture
def watch(tmp_path: Path, server: Running) -> Iterator[Watch]:
    made: list[Watched] = []
    with standing() as clouds:

        def start(metrics: str = f"{server.url}/metrics", key: str = KEY) -> Watched:
            made.append(Watched(clouds, tmp_path, metrics, key))
            return made[0]

        yield start
        for one in made:
            if one.process.poll() is None:
                one.process.kill()
            one.process.communicate(timeout=10)


def ask(server: Running, tokens: int = 8) -> None:
    body = {"messages": [{"role": "user", "content": "bees"}], "max_tokens": tokens}
    headers = {"Authorization": f"Bearer {KEY}"}
    httpx.post(
        f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False
    ).raise_for_status()


def test_a_pod_that_nobody_asks_is_stopped_and_one_that_is_asked_is_not(watch: Watch, server: Running) -> None:
    pod = watch()
    until = time.monotonic() + 2 * IDLE_S
    while time.monotonic() < until:
        ask(server)
        assert pod.pod.is_running
        time.sleep(IDLE_S / 3)
    assert pod.stops_within(2 * IDLE_S)
    said = pod.said()
    assert "nobody asked for 0.05 minutes: stop" in said
    assert HOST_KEY not in said
    assert KEY not in said


@pytest.mark.parametrize(
    ("metrics", "key"), [("http://127.0.0.1:9/metrics", KEY), (None, "the key of somebody else, long enough")]
)
def test_a_server_that_does_not_say_what_it_did_is_not_idle(
    watch: Watch, server: Running, metrics: str | None, key: str
) -> None:
    pod = watch(metrics or f"{server.url}/metrics", key)
    assert not pod.stops_within(2 * IDLE_S)


def test_one_watcher_is_enough(watch: Watch) -> None:
    pod = watch()
    assert pod.process.stdout is not None
    assert "watching" in pod.process.stdout.readline()
    other = pod.run()
    _, errors = other.communicate(timeout=10)
    assert other.returncode == 1
    assert "it is watched already" in errors
    assert json.loads((pod.folder / "beeyard-watch.json").read_text())["pid"] == pod.process.pid


def test_without_a_deadline_it_leaves_at_once(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(WATCH)], check=False, capture_output=True, text=True, timeout=20,
        env={"PATH": os.environ["PATH"], "BEEYARD_RUN": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 1
    assert "made without a deadline" in run.stderr
