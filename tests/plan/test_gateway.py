"""A real HAProxy with the configuration of a gateway, before real llama-servers: the tiny pair with real DFlash."""

import asyncio
import csv
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard import tiny
from beeyard.catalog import PROJECT
from beeyard.certificates import internal_certificate
from beeyard.gateway import BUCKETS, Backend, homes_map
from beeyard.onhost import gateway as tool
from beeyard.operations.gateways import Behind, rolled
from tests.gateways import USER_KEYS, RunningGateway, free_port_pair
from tests.operations import Failed
from tests.plan.conftest import Apply, free_port
from tests.real_server import KEY, Running, await_ready, serving, spec_of, unpack

SERVERS = 3


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    folder = tmp_path_factory.mktemp("servers")
    (folder / "engine").mkdir()
    binary = unpack(folder / "engine")
    files = {path.name: path for path in tiny.write_all(folder)}
    # Three that spin on two cores each get nowhere where there are two.
    os.environ["LLAMA_ARG_THREADS"] = os.environ["LLAMA_ARG_THREADS_BATCH"] = "1"
    try:
        with ExitStack() as stack:
            found = []
            for number in range(SERVERS):
                own = folder / f"server{number}"
                own.mkdir()
                spec = spec_of("tiny", "dflash", llama_context=32768)
                found.append(stack.enter_context(serving(spec, binary, files, own, free_port())))
            yield found
    finally:
        del os.environ["LLAMA_ARG_THREADS"], os.environ["LLAMA_ARG_THREADS_BATCH"]


@pytest.fixture
def running(servers: list[Running]) -> list[Running]:
    """All of them, whatever the test before did to them."""
    for one in servers:
        one.process.send_signal(signal.SIGCONT)
        if one.process.poll() is not None:
            one.start_again()
        await_ready(one)
    return servers


Door = Callable[..., RunningGateway]


@pytest.fixture
def door(running: list[Running], tmp_path: Path) -> Iterator[Door]:
    """Starts gateways before them."""
    with ExitStack() as stack:

        def start(count: int = SERVERS, **settings: Any) -> RunningGateway:
            folder = tmp_path / f"gateway{count}"
            folder.mkdir(exist_ok=True)
            ports = [one.port for one in running[:count]]
            found = RunningGateway(folder, ports, free_port_pair(), KEY, **settings)
            stack.callback(found.stop)
            found.await_up(count)
            return found

        yield start


class Answer(NamedTuple):
    """What came of a request."""

    number: int
    status: int | None
    text: str
    is_whole: bool
    all_s: float
    server: str | None
    retry_after: str | None

    @property
    def is_own(self) -> bool:
        """Whether it is this request's answer, all of it."""
        return self.is_whole and self.text == json.dumps(word_of(self.number))


def word_of(number: int) -> str:
    """What the request of a number is answered with: its grammar leaves nothing else."""
    return f"request-{number}-" + "x" * 40


def long_body() -> dict[str, Any]:
    """A request whose answer takes longer than a test."""
    schema = {"type": "array", "minItems": 2000, "items": {"type": "string", "minLength": 20}}
    return _body("List.", schema, 30000)


def _body(text: str, schema: Any, max_tokens: int) -> dict[str, Any]:
    wanted = {"type": "json_schema", "json_schema": {"name": "wanted", "schema": schema}}
    message = {"role": "user", "content": text}
    return {"messages": [message], "max_tokens": max_tokens, "stream": True, "response_format": wanted}


async def ask(
    client: httpx.AsyncClient,
    gateway: RunningGateway,
    number: int,
    user: str = "alice",
    session: str | None = None,
    body: dict[str, Any] | None = None,
) -> Answer:
    """One streaming request."""
    began, text, is_whole = time.monotonic(), "", False
    status: int | None = None
    server = retry_after = None
    body = body or _body(f"Say {number}", {"enum": [word_of(number)]}, 400)
    url = f"{gateway.url}/v1/chat/completions"
    try:
        async with client.stream("POST", url, json=body, headers=gateway.headers(user, session)) as response:
            status, server = response.status_code, response.headers.get("x-served-by")
            retry_after = response.headers.get("retry-after")
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    is_whole = True
                elif line.startswith("data: "):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        text += choice["delta"].get("content") or ""
    except httpx.TransportError:
        pass
    return Answer(number, status, text, is_whole, time.monotonic() - began, server, retry_after)


def together(work: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """Run with one client."""

    async def run() -> Any:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as client:
            return await work(client)

    return asyncio.run(run())


async def many(client: httpx.AsyncClient, gateway: RunningGateway, count: int, found: list[Answer]) -> None:
    """So many requests of two users and twelve sessions, 24 at a time."""
    gate = asyncio.Semaphore(24)

    async def one(number: int) -> None:
        async with gate:
            user = "alice" if number % 2 else "bob"
            found.append(await ask(client, gateway, number, user, f"session-{number % 12}"))

    await asyncio.gather(*(one(number) for number in range(count)))


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline, "not so in time"
        await asyncio.sleep(0.02)


def post(gateway: RunningGateway, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "Bees?"}], "max_tokens": 4}
    return httpx.post(f"{gateway.url}{path}", json=body, headers=headers, timeout=30, trust_env=False)


# --- who may ask what --------------------------------------------------------------------------------


def test_users_keys_open_the_gateway_and_no_others(door: Door) -> None:
    gateway = door()
    for header in ({"Authorization": f"Bearer {USER_KEYS['alice']}"}, {"X-Api-Key": USER_KEYS["bob"]}):
        assert post(gateway, **header).status_code == 200
    refused: tuple[dict[str, str], ...] = (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {USER_KEYS['alice']}x"},
        {"Authorization": f"Bearer {KEY}"},  # the servers' own
        {"X-Api-Key": ""},
    )
    for header in refused:
        answer = post(gateway, **header)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "Fix: " in answer.json()["error"]["message"]
    assert [(line["user"], line["status"]) for line in gateway.lines()] == [("alice", 200), ("bob", 200)] + [
        ("-", 401)
    ] * len(refused)


def test_no_key_is_in_what_others_see(door: Door) -> None:
    gateway = door()
    post(gateway, **gateway.headers("alice"))
    post(gateway, Authorization="Bearer " + "wrong-key" * 5)
    secrets = [*USER_KEYS.values(), KEY, "wrong-key"]
    metrics = httpx.get(f"{gateway.stats}/metrics", trust_env=False).text
    page = httpx.get(f"{gateway.stats}/", trust_env=False).text
    assert "haproxy_backend_http_requests_total" in metrics
    assert "s2" in page
    seen = {"log": gateway.log.read_text(), "metrics": metrics, "statistics": page}
    seen["configuration"] = (gateway.folder / "haproxy.cfg").read_text()
    for process in (gateway.process.pid, *gateway.workers()):
        for name in ("cmdline", "environ"):
            seen[f"{name} of {process}"] = Path(f"/proc/{process}/{name}").read_bytes().decode(errors="replace")
    for where, text in seen.items():
        assert not [secret for secret in secrets if secret in text], where
    users = (gateway.folder / "users.map").read_text()
    assert not [key for key in USER_KEYS.values() if key in users]


def test_a_key_that_asks_too_often_is_told_to_wait_and_others_are_not(door: Door) -> None:
    gateway = door(users={"alice": {"requests_per_minute": 3}, "bob": {}})
    codes = [post(gateway, **gateway.headers("alice")).status_code for _ in range(5)]
    assert codes == [200, 200, 200, 429, 429]
    answer = post(gateway, **gateway.headers("alice"))
    assert int(answer.headers["retry-after"]) > 0
    assert [post(gateway, **gateway.headers("bob")).status_code for _ in range(4)] == [200] * 4


def test_what_shows_others_prompts_is_not_served(door: Door) -> None:
    gateway = door()
    for path in ("/slots", "/metrics", "/slots/0?action=erase", "/lora-adapters", "/", "/stats"):
        found = httpx.get(f"{gateway.url}{path}", headers=gateway.headers(), trust_env=False)
        assert found.status_code == 404, path
    assert post(gateway, "/props", **gateway.headers()).status_code == 404
    assert httpx.get(f"{gateway.url}/props", headers=gateway.headers(), trust_env=False).status_code == 200
    assert httpx.get(f"{gateway.url}/v1/models", headers=gateway.headers(), trust_env=False).status_code == 200


def test_what_the_alerts_count_is_what_haproxy_says(door: Door) -> None:
    gateway = door()
    post(gateway, Authorization="Bearer wrong")
    metrics = httpx.get(f"{gateway.stats}/metrics", trust_env=False).text
    rules = (PROJECT / "observability" / "rules.yaml").read_text()
    wanted = set(re.findall(r'(haproxy_\w+)\{proxy="(\w+)"', rules))
    assert len(wanted) == 5
    for name, proxy in wanted:
        assert re.search(rf'^{name}\{{proxy="{proxy}"', metrics, re.MULTILINE), (name, proxy)
    assert 'haproxy_server_status{proxy="servers",server="s0",state="UP"} 1' in metrics
    assert 'haproxy_backend_http_requests_total{proxy="wrong_key"} 1' in metrics


# --- streams -----------------------------------------------------------------------------------------


def test_words_come_as_they_are_said(door: Door) -> None:
    gateway = door()
    (answer,) = together(lambda client: asyncio.gather(ask(client, gateway, 1)))
    assert answer.is_own
    first_words: list[float] = []

    async def look(client: httpx.AsyncClient) -> None:
        url = f"{gateway.url}/v1/chat/completions"
        async with client.stream("POST", url, json=long_body(), headers=gateway.headers()) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    first_words.append(time.monotonic())
                if len(first_words) == 400:
                    return

    together(look)
    # Buffered, they would come together.
    gaps = [later - earlier for earlier, later in pairwise(first_words)]
    assert sum(gap > 0.0005 for gap in gaps) > 20
    assert max(gaps) < (first_words[-1] - first_words[0]) / 2
    # And who goes away frees the server at once.
    gateway.wait(lambda: answering(gateway) == 0)


def test_nothing_that_had_not_begun_is_lost_when_a_server_dies_and_the_gateway_reloads(
    door: Door, running: list[Running]
) -> None:
    gateway, found = door(), list[Answer]()
    count = 360

    async def work(client: httpx.AsyncClient) -> None:
        asked = asyncio.create_task(many(client, gateway, count, found))
        await until(lambda: len(found) > count // 6)
        running[0].kill()
        await until(lambda: len(found) > 2 * count // 6)
        await asyncio.to_thread(gateway.reload)
        await until(lambda: len(found) > 3 * count // 6)
        running[0].start_again()
        await asyncio.to_thread(gateway.reload)
        await asked

    together(work)
    assert len(found) == count
    # None is another's, not a part of it.
    for answer in found:
        assert json.dumps(word_of(answer.number)).startswith(answer.text) or answer.status != 200
    lost = [answer for answer in found if not answer.is_own]
    assert [answer for answer in lost if answer.status != 200] == []
    assert len(lost) <= 1  # the one that the killed server had begun to answer
    assert {answer.server for answer in found} == {"s0", "s1", "s2"}


def test_a_server_that_hangs_is_left_out_and_what_it_held_ends(door: Door, running: list[Running]) -> None:
    gateway, found = door(), list[Answer]()
    count = 150

    async def work(client: httpx.AsyncClient) -> None:
        asked = asyncio.create_task(many(client, gateway, count, found))
        await until(lambda: len(found) > count // 5)
        running[1].process.send_signal(signal.SIGSTOP)
        try:
            await until(lambda: gateway.servers()["s1"]["state"] == "dead")
            await asked
        finally:
            running[1].process.send_signal(signal.SIGCONT)

    together(work)
    lost = [answer for answer in found if not answer.is_own]
    assert len(lost) <= 2  # one that it worked on, one that waited for it
    assert max(answer.all_s for answer in lost or found) < 20
    gateway.await_up(SERVERS)


def test_a_server_that_loads_is_not_dead_and_gets_nothing(door: Door, tmp_path: Path) -> None:
    gateway = door()
    with socket.create_server(("127.0.0.1", 0)) as loading:
        loading.settimeout(0.2)
        gateway.gateway = gateway.gateway.model_copy(
            update={
                "backends": (
                    *gateway.gateway.backends,
                    Backend(name="s3", address="127.0.0.1", port=loading.getsockname()[1], slots=1),
                )
            }
        )
        gateway.write()
        gateway.reload()
        asked = []
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            try:
                line, _ = loading.accept()
            except TimeoutError:
                continue
            with line:
                asked.append(line.recv(4096).split(b"\r\n")[0])
                line.sendall(b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert gateway.servers()["s3"]["state"] == "loading"
    assert set(asked) == {b"GET /health HTTP/1.1"}
    gateway.wait(lambda: gateway.servers()["s3"]["state"] == "dead")


# --- queue -------------------------------------------------------------------------------------------


async def held(client: httpx.AsyncClient, gateway: RunningGateway, count: int) -> list["asyncio.Task[Answer]"]:
    """Occupy so many slots, each by a session ``long-N``."""
    # An answer that its client has all of may still be counted for a moment.
    await until(lambda: answering(gateway) == 0)

    def one(number: int) -> "asyncio.Task[Answer]":
        return asyncio.create_task(ask(client, gateway, number, body=long_body(), session=f"long-{number}"))

    tasks = [one(number) for number in range(count)]

    def all_work() -> bool:
        # On a busy machine a server may be out for a moment: who asked then was refused, and asks again.
        for number, task in enumerate(tasks):
            if task.done():
                tasks[number] = one(number)
        return answering(gateway) == count

    await until(all_work)
    return tasks


def answering(gateway: RunningGateway) -> int:
    """Requests that its servers work on."""
    return sum(one["answers"] for one in gateway.servers().values())


def test_a_full_queue_answers_429_and_a_long_wait_503_both_with_retry_after(door: Door) -> None:
    gateway = door(1, queue_length=3, queue_wait=2)

    async def work(client: httpx.AsyncClient) -> tuple[list[Answer], list[Answer]]:
        holding = await held(client, gateway, 1)
        waiting = [asyncio.create_task(ask(client, gateway, number)) for number in range(3)]
        await until(lambda: queued(gateway) == 3)
        at_once = [await ask(client, gateway, number) for number in range(3)]
        late = await asyncio.gather(*waiting)
        for task in holding:
            task.cancel()
        return at_once, late

    at_once, late = together(work)
    assert [answer.status for answer in at_once] == [429] * 3
    assert max(answer.all_s for answer in at_once) < 1
    assert [answer.status for answer in late] == [503] * 3
    assert all(1.9 < answer.all_s < 4 for answer in late)
    assert all(int(answer.retry_after or 0) > 0 for answer in (*at_once, *late))
    # They are counted apart.
    metrics = httpx.get(f"{gateway.stats}/metrics", trust_env=False).text
    (full,) = re.findall(r'haproxy_backend_http_requests_total\{proxy="queue_full"\} (\d+)', metrics)
    assert int(full) == 3


async def raw(gateway: RunningGateway) -> asyncio.StreamWriter:
    """A request whose client may hang up."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.gateway.settings.port)
    head = "".join(f"{name}: {value}\r\n" for name, value in gateway.headers().items())
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{head}Content-Length: 2\r\n\r\n{{}}".encode())
    return writer


def queued(gateway: RunningGateway) -> int:
    """Requests that wait: at one of the servers, or for any."""
    rows = csv.DictReader(tool.ask(gateway.places.socket, "show stat").lstrip("# ").splitlines())
    return sum(int(row["qcur"] or 0) for row in rows if row["pxname"] == "servers")


def test_a_server_works_on_as_many_as_it_has_slots_and_who_gives_up_leaves_the_queue(door: Door) -> None:
    gateway = door()

    async def work(client: httpx.AsyncClient) -> None:
        holding = await held(client, gateway, SERVERS)
        leaving = [await raw(gateway) for _ in range(7)]
        staying = [asyncio.create_task(ask(client, gateway, number)) for number in range(3)]
        await until(lambda: queued(gateway) == 10)
        assert [one["answers"] for one in gateway.servers().values()] == [1] * SERVERS
        for writer in leaving:
            writer.close()
        await until(lambda: queued(gateway) == 3)
        for task in holding:
            task.cancel()
        assert all(answer.is_own for answer in await asyncio.gather(*staying))

    together(work)


# --- sessions ----------------------------------------------------------------------------------------


def test_a_session_goes_to_its_server_while_that_is_free_and_to_a_free_one_else(door: Door) -> None:
    gateway = door()

    async def work(client: httpx.AsyncClient) -> None:
        homes = {}
        for number in range(12):
            found = {(await ask(client, gateway, number, session=f"chat-{number}")).server for _ in range(3)}
            assert len(found) == 1
            homes[number] = found.pop()
        assert len(set(homes.values())) == SERVERS
        # Whatever the user: it is the session that counts; without one, the key; and it stays through a reload.
        await asyncio.to_thread(gateway.reload)
        assert [(await ask(client, gateway, 1, "bob", f"chat-{number}")).server for number in range(12)] == list(
            homes.values()
        )
        assert len({(await ask(client, gateway, number, "bob")).server for number in range(4)}) == 1
        # Its own is busy: no waiting beside free ones.
        home = (await ask(client, gateway, 1, session="long-0")).server
        (holding,) = await held(client, gateway, 1)
        assert gateway.servers()[home or ""]["answers"] == 1
        elsewhere = await ask(client, gateway, 1, session="long-0")
        assert elsewhere.is_own
        assert elsewhere.server != home
        holding.cancel()

    together(work)


def test_a_server_more_takes_its_share_of_sessions_and_moves_no_others() -> None:
    backends = [Backend(name=f"s{number}", address="127.0.0.1", port=1, slots=1) for number in range(4)]
    few, more = (dict(line.split() for line in homes_map(some).splitlines()) for some in (backends[:3], backends))
    moved = {bucket for bucket in few if few[bucket] != more[bucket]}
    assert all(more[bucket] == "s3" for bucket in moved)
    assert len(few) == BUCKETS
    assert min(Counter(more.values()).values()) > 0.8 * BUCKETS / 4


# --- out and back ------------------------------------------------------------------------------------


def test_a_server_is_drained_and_put_back_and_no_stream_notices(door: Door) -> None:
    gateway, found = door(2), list[Answer]()

    async def work(client: httpx.AsyncClient) -> None:
        holding = await held(client, gateway, 2)
        running = asyncio.create_task(asyncio.to_thread(gateway.tell, "drain", "s0", "60"))
        await until(lambda: gateway.servers()["s0"]["state"] == "drained")
        assert gateway.servers()["s0"]["answers"] == 1
        # It keeps what it has; a reload keeps it drained.
        await asyncio.to_thread(gateway.reload)
        await until(lambda: gateway.servers()["s0"]["state"] == "drained")
        for task in holding:
            task.cancel()
        assert (await running).returncode == 0
        await many(client, gateway, 24, found)
        assert {answer.server for answer in found} == {"s1"}
        last = await asyncio.to_thread(gateway.tell, "drain", "s1", "5")
        assert last.returncode == 4
        assert "the last server that is up" in last.stderr
        assert (await asyncio.to_thread(gateway.tell, "ready", "s0", "10")).returncode == 0
        await many(client, gateway, 24, found)

    together(work)
    assert all(answer.is_own for answer in found)
    assert {answer.server for answer in found} == {"s0", "s1"}


def test_a_drain_that_takes_too_long_is_undone_and_says_so(door: Door) -> None:
    gateway = door(2)

    async def work(client: httpx.AsyncClient) -> "subprocess.CompletedProcess[str]":
        holding = await held(client, gateway, 2)
        told = await asyncio.to_thread(gateway.tell, "drain", "s0", "1")
        for task in holding:
            task.cancel()
        return told

    told = together(work)
    assert told.returncode == 4
    assert "s0 still answers 1 after 1 s, so it was put back" in told.stderr
    assert "Fix: " in told.stderr
    assert gateway.servers()["s0"]["state"] == "up"


def test_a_gateway_that_does_not_run_or_does_not_have_the_server_is_no_obstacle(door: Door) -> None:
    gateway = door(2)
    assert gateway.tell("drain", "attic", "5").returncode == 0
    gateway.stop()
    assert gateway.tell("drain", "s0", "5").returncode == 0
    assert gateway.tell("state").stdout.strip() == "{}"


@operation()
def taken_out(script: str, behind: Behind) -> Generator[Any, None, None]:
    """What a deploy does around its switch."""
    yield rolled(StringCommand("sh -c", QuoteString(script)), behind)


def test_a_rolling_deploy_over_all_servers_loses_no_request(
    door: Door, running: list[Running], apply: Apply, tmp_path: Path
) -> None:
    gateway, found = door(), list[Answer]()
    count = 250
    went, came = tmp_path / "went", tmp_path / "came"
    least = []

    def switch(one: Running) -> None:
        """The guard's part: the old server is stopped, another started."""
        while not went.exists():
            time.sleep(0.02)
        states = gateway.servers()
        least.append(sum(other["state"] == "up" for other in states.values()))
        one.stop()
        await_ready(one.start_again())
        came.touch()

    def deploy() -> None:
        for number, one in enumerate(running):
            went.unlink(missing_ok=True)
            came.unlink(missing_ok=True)
            guard = threading.Thread(target=switch, args=(one,))
            guard.start()
            behind = Behind("@local", tool.__file__, gateway.places.socket, f"s{number}", 60)
            script = f"touch {went}; until test -e {came}; do sleep 0.05; done"
            assert apply(taken_out, script=script, behind=behind) == 1
            guard.join()

    asking = threading.Thread(target=lambda: together(lambda client: many(client, gateway, count, found)))
    asking.start()
    deploy()
    asking.join()
    assert least == [SERVERS - 1] * SERVERS
    assert [answer for answer in found if not answer.is_own] == []
    assert len(found) == count
    assert {one["state"] for one in gateway.servers().values()} == {"up"}


def test_a_host_that_may_not_be_taken_out_is_not_switched(
    door: Door, apply: Apply, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    gateway = door(2)
    assert gateway.tell("drain", "s0", "5").returncode == 0
    behind = Behind("@local", tool.__file__, gateway.places.socket, "s1", 5)
    with pytest.raises(Failed):
        apply(taken_out, script=f"touch {tmp_path}/switched", behind=behind)
    assert not (tmp_path / "switched").exists()
    assert "s1 is the last server that is up" in capfd.readouterr().err + caplog.text


def test_without_any_server_it_says_when_to_ask_again(door: Door, running: list[Running]) -> None:
    gateway = door(1)
    running[0].kill()
    gateway.wait(lambda: gateway.servers()["s0"]["state"] == "dead")
    assert httpx.get(f"{gateway.url}/health", trust_env=False).status_code == 503
    answer = post(gateway, **gateway.headers())
    assert (answer.status_code, int(answer.headers["retry-after"])) == (503, 10)
    running[0].start_again()
    gateway.await_up(1)
    assert httpx.get(f"{gateway.url}/health", trust_env=False).json() == {"status": "ok"}


# --- TLS -------------------------------------------------------------------------------------


def test_the_internal_authority_vouches_for_the_gateway(door: Door, tmp_path: Path) -> None:
    pem = internal_certificate(tmp_path / "ca", ["localhost", "127.0.0.1"])
    (tmp_path / "gateway3").mkdir()
    (tmp_path / "gateway3" / "tls.pem").write_bytes(pem)
    gateway = door(tls="internal-ca", names=("localhost",))
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.pem"))
    port = gateway.gateway.settings.port
    url = f"https://127.0.0.1:{port}/v1/models"
    assert httpx.get(url, headers=gateway.headers(), verify=trusting, trust_env=False).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    old = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.pem"))
    with warnings.catch_warnings(action="ignore"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, verify=old, trust_env=False)
