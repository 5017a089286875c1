"""A real HAProxy on loopback, as the gateway's unit runs it but for its user, before servers of a test's own."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from beeyard.gateway import Backend, Gateway, GatewaySettings, Places, files
from beeyard.onhost import gateway as tool
from tests.needs import program

USER_KEYS = {"alice": "alice-" + "a" * 40, "bob": "bob-" + "b" * 40}
PATIENCE_S = 20


def haproxy() -> str:
    """The distribution's, where it is installed."""
    return program("haproxy", "haproxy")


def free_port_pair() -> int:
    """A free port whose next one is free, too."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first, suppress(OSError):
            port = int(first.getsockname()[1])
            with socket.create_server(("127.0.0.1", port + 1)):
                return port


class RunningGateway:
    """A gateway process of ours, before servers on ports of loopback."""

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        port: int,
        inner_key: str,
        slots: int = 1,
        keys: Mapping[str, str] = USER_KEYS,
        before: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.folder, self.keys, self.inner_key = folder, keys, inner_key
        given = {"users": {name: {} for name in keys}, "port": port, "stats_port": port + 1, **settings}
        self.gateway = Gateway(
            name="door",
            preset="tiny",
            settings=GatewaySettings.model_validate(given),
            backends=tuple(
                Backend(name=f"s{place}", address="127.0.0.1", port=one, slots=slots)
                for place, one in enumerate(ports)
            ),
        )
        self.places = Places(folder=str(folder), run=str(folder))
        self.url = f"http://127.0.0.1:{port}"
        self.stats = f"http://127.0.0.1:{port + 1}"
        self.log = folder / "log"
        self.write()
        (folder / "servers").write_text("1\n")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*before, haproxy(), "-W", "-f", str(folder / "haproxy.cfg"), "-p", str(folder / "pid")],
                stdout=log,
                stderr=log,
            )

        self.watch = subprocess.Popen(
            [sys.executable, tool.__file__, "watch", self.places.socket], stdout=subprocess.DEVNULL
        )

    def write(self) -> None:
        """Its files anew."""
        for name, content in files(self.gateway, self.places, self.keys, self.inner_key).items():
            (self.folder / name).write_text(content)
            (self.folder / name).chmod(0o600)

    def await_up(self, count: int) -> None:
        """Until so many servers are up, by their checks."""
        self.wait(lambda: [one["check"] for one in self.servers().values()].count("L7OK 200") == count)

    def wait(self, is_so: Any) -> None:
        """Until it is so; fails with the log if it never is."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            try:
                if is_so():
                    return
            except (tool.NotRunning, httpx.TransportError):
                pass
            time.sleep(0.05)
        raise AssertionError(f"not so in time: {self.servers()}\n{self.log.read_text()[-2000:]}")

    def servers(self) -> dict[str, dict[str, Any]]:
        """As gateway.py on its host sees them."""
        return tool.servers(self.places.socket)

    def tell(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """gateway.py, as a deploy calls it."""
        command, *rest = words
        script = [sys.executable, tool.__file__, command, self.places.socket, *rest]
        return subprocess.run(script, check=False, capture_output=True, text=True)

    def reload(self) -> None:
        """As the unit does it."""
        before = self.workers()
        assert self.tell("keep", self.places.states).returncode == 0
        self.process.send_signal(signal.SIGUSR2)
        self.wait(lambda: self.workers()[:1] != before[:1])

    def workers(self) -> list[int]:
        """Processes that take requests or end theirs; the newest first."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sorted((int(pid) for pid in children), reverse=True)

    def lines(self) -> list[dict[str, Any]]:
        """What the log says of requests."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith('{"at"')]

    def headers(self, user: str = "alice", session: str | None = None) -> dict[str, str]:
        """What a client sends."""
        found = {"Authorization": f"Bearer {self.keys[user]}"}
        return found if session is None else {**found, "X-Session-Id": session}

    def stop(self) -> None:
        """At once."""
        for process in (self.watch, self.process):
            process.terminate()
        self.watch.wait(timeout=20)
        self.process.wait(timeout=20)
