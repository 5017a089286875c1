"""A pod's TLS port, as the world sees it: HAProxy from the distribution before the tiny pair, on a real pod."""

import json
import ssl
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest

from beeyard.catalog import PROJECT
from beeyard.keys import AUTHORITY, key_copy
from tests.testbed.conftest import PREFIX, Bed

pytestmark = pytest.mark.hosts("pod")
FRONT = f"{PREFIX['pod']}/etc/front"
LONG = {"prompt": "bees", "n_predict": 2000, "ignore_eos": True, "stream": True}


class World:
    """Who comes from elsewhere: with the authority, and with the key or without."""

    def __init__(self, address: str) -> None:
        self.at = f"{address}:8911"
        self.data: dict[str, Any] = {"llama_expose": "tcp", "llama_expose_at": self.at}

    def client(self, key: str | None = None, timeout: float = 60) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(AUTHORITY / "ca.pem"))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=f"https://{self.at}", verify=context, headers=headers, timeout=timeout, trust_env=False
        )


@pytest.fixture(scope="module")
def world(bed: Bed) -> World:
    bed.wipe("pod")
    found = World(bed.sh("pod", "hostname -i").split()[0])
    run = bed.deploy("pod", **found.data)
    assert run.code == 0, run.output
    assert f"https://{found.at}/v1 for all who have the key and trust .beeyard/gateway/ca/ca.pem here" in run.stderr
    return found


@pytest.fixture
def key(world: World) -> str:
    return key_copy("pod").read_text().strip()


def test_who_has_the_key_and_trusts_the_authority_gets_an_answer(world: World, key: str) -> None:
    with world.client(key) as client:
        answer = client.post("/v1/completions", json={"prompt": "bees", "max_tokens": 8})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
    words = [sys.executable, "-m", "beeyard.cli", "ask", "--url", f"https://{world.at}"]
    run = subprocess.run(
        [*words, "--key-file", str(key_copy("pod"))], check=False, capture_output=True, text=True, cwd=PROJECT
    )
    assert "drafted tokens accepted" in run.stdout, run.stderr


def test_nobody_else_does(world: World, key: str) -> None:
    for given in (None, "not-" + key):
        with world.client(given) as client:
            assert client.post("/v1/completions", json={"prompt": "bees"}).status_code == 401
    # Others' prompts, and what changes the server, are not for the world, whoever asks.
    with world.client(key) as client:
        for path in ("/slots", "/metrics", "/"):
            assert client.get(path).status_code == 404, path
        assert client.post("/props", json={}).status_code == 404
        assert client.get("/props").status_code == 200
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"https://{world.at}/health", trust_env=False)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{world.at}/health", trust_env=False)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{world.at.replace('8911', '8910')}/health", trust_env=False)


def test_old_tls_is_refused(bed: Bed, world: World) -> None:
    script = "openssl s_client -connect 127.0.0.1:8911 {} </dev/null 2>&1 | grep -c 'Cipher is (NONE)'"
    assert bed.sh("pod", script.format("-tls1_2"), check=False) == "0"
    assert bed.sh("pod", script.format("-tls1_1 -cipher DEFAULT@SECLEVEL=0"), check=False) == "1"


def test_a_second_deploy_changes_nothing_and_its_keys_are_its_users_alone(bed: Bed, world: World, key: str) -> None:
    run = bed.deploy("pod", **world.data)
    assert run.code == 0, run.output
    assert run.changed == []
    modes = bed.sh("pod", f"stat -c '%a %U %n' {FRONT} {FRONT}/*").splitlines()
    assert modes == [
        f"700 beeyard {FRONT}", f"644 beeyard {FRONT}/ca.pem", f"600 beeyard {FRONT}/haproxy.cfg",
        f"600 beeyard {FRONT}/tls.pem",
    ]  # fmt: skip
    assert bed.sh("pod", "ps -o user= -C haproxy | sort -u") == "beeyard"
    # Neither log, command nor configuration knows the API key.
    look = f"cat {PREFIX['pod']}/log/front.log {FRONT}/haproxy.cfg; ps -eo args"
    assert key not in bed.sh("pod", look)


def test_a_new_certificate_is_taken_up_and_no_answer_ends_by_that(bed: Bed, world: World, key: str) -> None:
    begun, parts, ended = threading.Event(), list[str](), list[str]()

    def listen() -> None:
        with world.client(key, timeout=120) as client, client.stream("POST", "/completion", json=LONG) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    parts.append(line)
                    begun.set()
                    if json.loads(line.removeprefix("data: ")).get("stop"):
                        ended.append(line)

    before = certificate(world)
    listener = threading.Thread(target=listen)
    listener.start()
    assert begun.wait(30)
    # As if it ran out: the deploy makes another one.
    (AUTHORITY / f"{world.at.partition(':')[0]}.pem").unlink()
    run = bed.deploy("pod", **world.data)
    assert run.code == 0, run.output
    assert run.changed == ["Serve | TLS port | TLS port"]
    assert certificate(world) != before
    listener.join(120)
    assert ended, f"it ended after {len(parts)} parts"
    assert bed.deploy("pod", **world.data).changed == []


def certificate(world: World) -> bytes:
    host, _, port = world.at.partition(":")
    return ssl.get_server_certificate((host, int(port))).encode()


@pytest.mark.parametrize(
    "damage",
    [
        f"rm {FRONT}/tls.pem",
        f"chmod 644 {FRONT}/tls.pem",
        f"echo '# more' >>{FRONT}/haproxy.cfg",
        "pkill -STOP haproxy",
        f"rm {PREFIX['pod']}/run/front",
    ],
)
def test_what_is_damaged_is_repaired_and_the_server_is_left_alone(bed: Bed, world: World, damage: str) -> None:
    before = bed.state("pod")["pid"]
    bed.sh("pod", damage)
    run = bed.deploy("pod", **world.data)
    assert run.code == 0, run.output
    assert run.changed == ["Serve | TLS port | TLS port"]
    assert bed.state("pod")["pid"] == before
    with world.client() as client:
        assert client.get("/health").status_code == 200
    assert bed.deploy("pod", **world.data).changed == []


def test_a_port_that_another_program_has_is_said(bed: Bed, world: World) -> None:
    serve = "nohup python3 -m http.server 8922 --bind 0.0.0.0"
    bed.sh("pod", f"{serve} >/dev/null 2>&1 </dev/null & echo $! >/tmp/holder")
    try:
        run = bed.deploy("pod", **{**world.data, "llama_expose_port": 8922})
        assert run.code != 0
        assert "the TLS port 8922 of" in run.output
        assert "Fix: see above whether another program has the port" in run.output
        # Its server goes on.
        assert bed.serving("pod")
    finally:
        bed.sh("pod", "kill $(cat /tmp/holder)")
    assert bed.deploy("pod", **world.data).code == 0
    with world.client() as client:
        assert client.get("/health").status_code == 200


def test_a_weak_key_is_not_shown_to_the_world(bed: Bed, world: World) -> None:
    run = bed.deploy("pod", env={"BEEYARD_API_KEY": "short"}, **world.data)
    assert run.code != 0
    assert f"BEEYARD_API_KEY has 5 characters; a server on {world.at} wants at least 32. Fix: " in run.output


def test_without_the_wish_nothing_of_it_is_left(bed: Bed, world: World) -> None:
    run = bed.deploy("pod")
    assert run.code == 0, run.output
    # What the next container installs is less, too.
    assert set(run.changed) == {"Serve | TLS port | TLS port", "Prepare the host | Write directories and tools"}
    assert bed.sh("pod", f"ls {FRONT} {PREFIX['pod']}/etc/programs/front.conf; pgrep haproxy", check=False) == ""
    with pytest.raises(httpx.HTTPError), world.client() as client:
        client.get("/health")
    assert bed.deploy("pod").changed == []
