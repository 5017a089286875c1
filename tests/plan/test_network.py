"""What a host reaches, by the real script on this machine: servers, a proxy, and places where nobody answers."""

import os
import shutil
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from beeyard.facts.network import Reached
from tests.plan.conftest import free_port
from tests.plan.test_machine import asked

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
PATH = os.environ["PATH"]
Reach = Callable[..., dict[str, bool]]


@pytest.fixture
def reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reach:
    """The fact, without this machine's own proxies."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def ask(*addresses: str, way: str = "env") -> dict[str, bool]:
        found: dict[str, bool] = asked({"addresses": [(address, way) for address in addresses]}, Reached)
        return found

    return ask


@contextmanager
def tools(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """A PATH of these commands alone."""
    folder.mkdir()
    for name in ("sh", "timeout", "sleep", *names):
        found = sys.executable if name == "python3" else shutil.which(name, path=PATH)
        assert found is not None, name
        (folder / name).symlink_to(Path(found) if name == "python3" else Path(found).resolve())
    monkeypatch.setenv("PATH", str(folder))
    yield


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address that takes no connection and refuses none: as behind a firewall that drops."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        waiting = []
        for _ in range(4):  # until its queue is full
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(("127.0.0.1", port))
        yield f"127.0.0.1:{port}"
        for one in waiting:
            one.close()


class _Proxy(socketserver.StreamRequestHandler):
    """Takes a connection to what is in ``names``, and ends it: nothing is there to be reached but by it."""

    names: tuple[str, ...]
    asked: list[str]

    def handle(self) -> None:
        line = self.rfile.readline().decode()
        while self.rfile.readline().strip():
            pass
        name = line.split(" ")[1]
        self.asked.append(name)
        known = name in self.names
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" if known else b"HTTP/1.1 403 Forbidden\r\n\r\n")


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy that lets through to hub.invalid, which has no address here; and what it was asked for."""

    class Proxy(_Proxy):
        names, asked = ("hub.invalid:443",), []

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", Proxy.asked
        server.shutdown()


@pytest.mark.parametrize("tool", ["curl", "python3"])
def test_what_can_be_reached_is_what_takes_a_connection_whatever_it_speaks(
    reach: Reach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, deaf: str
) -> None:
    with tools(tmp_path / "bin", monkeypatch, tool), socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        closed, nowhere = f"127.0.0.1:{free_port()}", "https://nowhere.invalid"
        start = time.monotonic()
        found = reach(here, f"https://{here}", closed, nowhere, deaf, f"http://{deaf}/x", f"https://{deaf}")
    assert time.monotonic() - start < 14
    assert {address for address, is_reached in found.items() if is_reached} == {here, f"https://{here}"}
    assert len(found) == 7


def test_a_host_that_has_a_proxy_is_not_judged_by_the_direct_way(
    reach: Reach, monkeypatch: pytest.MonkeyPatch, proxy: tuple[str, list[str]]
) -> None:
    hub, other = "https://hub.invalid", "https://other.invalid"
    assert reach(hub, other) == {hub: False, other: False}
    address, was_asked = proxy
    monkeypatch.setenv("https_proxy", address)
    assert reach(hub, other) == {hub: True, other: False}
    assert set(was_asked) == {"hub.invalid:443", "other.invalid:443"}
    # Docker, told of none, goes without.
    assert reach(hub, way="direct") == {hub: False}


def test_gits_own_proxy_is_taken_for_what_git_fetches(
    reach: Reach, tmp_path: Path, proxy: tuple[str, list[str]]
) -> None:
    (tmp_path / ".gitconfig").write_text(f"[http]\n\tproxy = {proxy[0].replace('//', '//me:secret@')}\n")
    assert reach("https://hub.invalid", way="git") == {"https://hub.invalid": True}
    assert reach("https://hub.invalid") == {"https://hub.invalid": False}


def test_a_proxy_of_curls_own_configuration_is_taken(
    reach: Reach, tmp_path: Path, proxy: tuple[str, list[str]]
) -> None:
    (tmp_path / ".curlrc").write_text(f'proxy = "{proxy[0]}"\n')
    assert reach("https://hub.invalid") == {"https://hub.invalid": True}


@pytest.mark.parametrize(("names", "has_proxy"), [(("python3",), True), ((), False)])
def test_what_nothing_there_can_try_is_left_out(
    reach: Reach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], has_proxy: bool
) -> None:
    if has_proxy:
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with tools(tmp_path / "bin", monkeypatch, *names):
        assert reach("https://hub.invalid") == {}
