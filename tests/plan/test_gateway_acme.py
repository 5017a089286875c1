"""A real Caddy before a real HAProxy gets a certificate by ACME, of a second Caddy that is the authority."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from beeyard.gateway import CADDY_ADMIN, caddyfile
from tests.gateways import USER_KEYS, RunningGateway, free_port_pair
from tests.needs import program
from tests.real_server import KEY

NAME, AUTHORITY = "llm.example.org", "acme.example.org"
DIRECTORY = f"https://{AUTHORITY}:9443/acme/local/directory"
# It proves names at ports 80 and 443, and these are free in a namespace of our own.
AUTHORITYS_FILE = f"""
{{
    admin off
    auto_https disable_redirects
    skip_install_trust
}}
https://{AUTHORITY}:9443 {{
    tls internal
    acme_server
}}
"""
# What stands for llama-server says which key it was shown, word by word.
SERVER = """
import http.server, sys, time
class Answer(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Type", "text/event-stream"); self.end_headers()
        for word in ("one", "two", self.headers["Authorization"]):
            self.wfile.write(f"data: {word}\\n\\n".encode()); time.sleep(float(sys.argv[2]))
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


class Front(NamedTuple):
    """Caddy before a gateway, in network and mount namespaces where names of example.org are loopback."""

    folder: Path
    inside: list[str]
    gateway: RunningGateway

    @property
    def log(self) -> str:
        """What Caddy has said."""
        return (self.folder / "front.log").read_text()

    @property
    def kept(self) -> list[Path]:
        """Certificates and keys that Caddy keeps."""
        return sorted(file for file in (self.folder / "front").rglob("*") if file.suffix in (".crt", ".key"))

    def write(self) -> None:
        """Its configuration as a deploy renders it; the socket in the test's own folder."""
        text = caddyfile(self.gateway.gateway, self.gateway.places)
        self.caddyfile.write_text(text.replace(CADDY_ADMIN, self.admin))

    @property
    def caddyfile(self) -> Path:
        """Its configuration."""
        return self.folder / "gateway" / "Caddyfile"

    @property
    def admin(self) -> str:
        """Where it is told to reload."""
        return f"unix/{self.folder}/admin.sock"

    def curl(self, url: str, user: str = "alice") -> "subprocess.Popen[str]":
        """A streaming request that trusts the authority alone; its key is on no command line."""
        words = [
            *self.inside, program("curl", "curl"), "--silent", "--show-error", "--include", "--no-buffer", "--config",
            "-", "--cacert", str(self.folder / "gateway" / "acme-root.pem"), "--max-time", "30", url,
        ]  # fmt: skip
        asked = subprocess.Popen(
            words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert asked.stdin is not None
        asked.stdin.write(f'header = "Authorization: Bearer {USER_KEYS[user]}"\ndata = "{{}}"\n')
        asked.stdin.close()
        asked.stdin = None
        return asked

    def said(self, url: str) -> str:
        """All of an answer."""
        return self.curl(url).communicate(timeout=40)[0]


def started(stack: ExitStack, words: list[str], log: Path, **env: str) -> "subprocess.Popen[bytes]":
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, **env})

    def end() -> None:
        process.terminate()
        process.wait(timeout=20)

    stack.callback(end)
    return process


def until(is_so: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 40
    while not is_so():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    caddy = program("caddy", "caddy")
    for command, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        program(command, package)
    if os.geteuid() != 0:
        pytest.skip("network namespaces are root's to make, as make test has it")
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost {NAME} {AUTHORITY}\n")
    (tmp_path / "gateway").mkdir()
    with ExitStack() as stack:
        script = f"mount --bind {tmp_path}/hosts /etc/hosts && ip link set lo up && echo up && exec sleep 300"
        room = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", script], stdout=subprocess.PIPE)
        stack.callback(room.wait)
        stack.callback(room.kill)
        assert room.stdout is not None
        if room.stdout.readline() != b"up\n":
            pytest.skip("no namespaces here")
        inside = ["nsenter", f"--target={room.pid}", "--net", "--mount"]
        file = tmp_path / "Authority"
        file.write_text(AUTHORITYS_FILE)
        words = [*inside, caddy, "run", "--adapter", "caddyfile", "--config"]
        started(stack, [*words, str(file)], tmp_path / "authority.log", XDG_DATA_HOME=str(tmp_path / "authority"))
        root = tmp_path / "authority" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        until(root.exists, tmp_path / "authority.log")
        shutil.copy(root, tmp_path / "gateway" / "acme-root.pem")
        server, port = free_port_pair(), free_port_pair()
        started(stack, [*inside, sys.executable, "-c", SERVER, str(server), "1"], tmp_path / "server.log")
        gateway = RunningGateway(
            tmp_path / "gateway", [server], port, KEY, before=inside, tls="acme", names=(NAME,),
            acme_directory=DIRECTORY, acme_root="ours",
        )  # fmt: skip
        stack.callback(gateway.stop)
        gateway.await_up(1)
        state = {"XDG_DATA_HOME": str(tmp_path / "front"), "XDG_CONFIG_HOME": str(tmp_path / "front")}
        found = Front(tmp_path, inside, gateway)
        found.write()
        started(stack, [*words, str(found.caddyfile)], tmp_path / "front.log", **state)
        until(lambda: "certificate obtained successfully" in found.log, tmp_path / "front.log")
        yield found


def test_a_certificate_is_got_and_served(front: Front) -> None:
    said = front.said(f"https://{NAME}/v1/chat/completions")
    assert said.startswith("HTTP/2 200"), said
    assert f"data: Bearer {KEY}\n" in said  # the inner key: the user's went no further than HAProxy
    # Plain HTTP leads there and answers nothing.
    plain = front.said(f"http://{NAME}/v1/chat/completions")
    assert plain.startswith("HTTP/1.1 308 "), plain
    assert f"Location: https://{NAME}/v1/chat/completions" in plain
    # The certificate's key is its user's alone, and nothing secret is in a log.
    keys = [file for file in front.kept if file.suffix == ".key"]
    assert {file.stat().st_mode & 0o077 for file in keys} == {0}
    logs = front.log + front.gateway.log.read_text()
    for secret in (USER_KEYS["alice"], KEY, *(file.read_text().splitlines()[1] for file in keys)):
        assert secret not in logs
    # Who asked is told by HAProxy's log, by Caddy's what was answered.
    assert [(line["user"], line["status"]) for line in front.gateway.lines()] == [("alice", 200)]
    lines = [json.loads(line) for line in front.log.splitlines() if '"handled request"' in line]
    assert [one["status"] for one in lines if one["request"]["uri"].startswith("/v1/")] == [200, 308]


def test_a_reload_keeps_the_certificate_and_ends_no_answer(front: Front) -> None:
    asked = front.curl(f"https://{NAME}/v1/chat/completions")
    until(lambda: front.gateway.servers()["s0"]["answers"] == 1, front.folder / "front.log")
    before = {file: file.stat().st_mtime_ns for file in front.kept}
    front.caddyfile.write_text(front.caddyfile.read_text().replace("flush_interval", "# anew\n\t\tflush_interval"))
    words = ["caddy", "reload", "--adapter", "caddyfile", "--config", str(front.caddyfile), "--address", front.admin]
    told = subprocess.run([*front.inside, *words], check=False, capture_output=True, text=True, timeout=30)
    assert told.returncode == 0, told.stderr
    assert f"data: Bearer {KEY}\n" in asked.communicate(timeout=40)[0]
    assert front.said(f"https://{NAME}/v1/chat/completions").startswith("HTTP/2 200")
    assert {file: file.stat().st_mtime_ns for file in front.kept} == before
