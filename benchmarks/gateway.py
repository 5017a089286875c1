"""
What a gateway costs and gains, with real llama-servers of the tiny pair and a real HAProxy, on this machine.

    python -m benchmarks.gateway [ROUNDS] [STREAMS]

Time to the first token and tokens/s through the gateway beside direct, in turns; the share of prompt tokens that
servers had cached, with sessions beside without (round robin); memory with idle streams.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx

from beeyard import tiny
from tests.gateways import RunningGateway, free_port_pair
from tests.plan.conftest import free_port
from tests.real_server import KEY, Running, serving, spec_of, unpack

SERVERS = 3
SESSIONS, TURNS = 12, 6
WORDS = 60


def body(messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
    """A greedy streaming request."""
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True, "ignore_eos": True}


async def timed(client: httpx.AsyncClient, url: str, headers: dict[str, str], tokens: int) -> tuple[float, float]:
    """Seconds to the first word, and words a second after it, as the client sees them."""
    began, stamps = time.perf_counter(), []
    wanted = body([{"role": "user", "content": f"{time.time_ns()}"}], tokens)
    async with client.stream("POST", f"{url}/v1/chat/completions", json=wanted, headers=headers) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                stamps.append(time.perf_counter())
    return stamps[0] - began, (len(stamps) - 1) / (stamps[-1] - stamps[0])


async def cost(gateway: RunningGateway, server: Running, rounds: int) -> None:
    """The gateway beside the one server behind it, in turns."""
    ways = {
        # A connection for each: llama-server may close one that is kept just when it is used again.
        "direct": (server.url, {"Authorization": f"Bearer {KEY}", "Connection": "close"}),
        "gateway": (gateway.url, {**gateway.headers(), "Connection": "close"}),
    }
    firsts: dict[str, list[float]] = {name: [] for name in ways}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        for number in range(rounds + 2):
            for name in sorted(ways, reverse=bool(number % 2)):
                first, speed = await timed(client, *ways[name], 256)
                if number >= 2:
                    firsts[name].append(first)
                    speeds[name].append(speed)
    first_ms = {name: 1000 * statistics.median(found) for name, found in firsts.items()}
    # Pairs of one round: what else the machine does then hits both.
    more = 1000 * statistics.median(b - a for a, b in zip(firsts["direct"], firsts["gateway"], strict=True))
    ratio = statistics.median(b / a for a, b in zip(speeds["direct"], speeds["gateway"], strict=True))
    told = ", ".join(f"{name} {found:.2f} ms" for name, found in first_ms.items())
    print(f"first token: {told}; {more:+.2f} ms in pairs")
    print(f"tokens/s through the gateway: {100 * ratio:.1f} % of direct ({rounds} rounds, medians of pairs)")


async def cached(gateway: RunningGateway, *, has_sessions: bool) -> tuple[float, float]:
    """The share of prompt tokens found cached in conversations that grow, and seconds that all took."""
    counts = {"prompt": 0, "cached": 0}

    async def conversation(client: httpx.AsyncClient, number: int) -> None:
        messages: list[dict[str, str]] = []
        for turn in range(TURNS):
            text = " ".join(f"w{number}.{turn}.{word}" for word in range(WORDS))
            messages.append({"role": "user", "content": text})
            wanted = {**body(messages, 8), "stream": False}
            # Without a session of its own each request is a stranger.
            session = f"chat-{number}" if has_sessions else f"{number}-{turn}-{time.time_ns()}"
            answer = await client.post(
                f"{gateway.url}/v1/chat/completions", json=wanted, headers=gateway.headers("alice", session)
            )
            answer.raise_for_status()
            found = answer.json()
            counts["prompt"] += found["usage"]["prompt_tokens"]
            counts["cached"] += found["timings"].get("cache_n", 0)
            messages.append({"role": "assistant", "content": found["choices"][0]["message"]["content"]})
            await asyncio.sleep(0.3)  # somebody reads it

    began = time.perf_counter()
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        # As many as there are slots at a time: a slot keeps one conversation.
        for start in range(0, SESSIONS, SERVERS):
            await asyncio.gather(*(conversation(client, number) for number in range(start, start + SERVERS)))
    return counts["cached"] / counts["prompt"], time.perf_counter() - began


def memory_mib(gateway: RunningGateway) -> float:
    """Resident memory of HAProxy's processes."""
    pids = [gateway.process.pid, *gateway.workers()]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def silent(port: int) -> asyncio.Server:
    """A server of streams that have begun and say nothing more."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/health" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"9\r\ndata: {}\n\r\n")
        await writer.drain()
        with suppress(asyncio.CancelledError, ConnectionError):
            await reader.read()

    return await asyncio.start_server(answer, "127.0.0.1", port, backlog=1024)


async def idle(folder: Path, streams: int) -> None:
    """Memory before and with so many streams that have begun and are silent."""
    port = free_port()
    async with await silent(port):
        gateway = RunningGateway(folder, [port], free_port_pair(), KEY, slots=streams, max_streams=streams + 10)
        try:
            await asyncio.to_thread(gateway.await_up, 1)
            before = memory_mib(gateway)
            lines = []
            head = "".join(f"{name}: {value}\r\n" for name, value in gateway.headers().items())
            for _ in range(streams):
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.gateway.settings.port)
                writer.write(f"GET /v1/x HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode())
                lines.append((reader, writer))
            for reader, _ in lines:
                await reader.readuntil(b"data: {}")
            after = memory_mib(gateway)
            print(
                f"memory: {before:.1f} MiB, {after:.1f} MiB with {streams} idle streams "
                f"({1024 * (after - before) / streams:.1f} KiB a stream)"
            )
            for _, writer in lines:
                writer.close()
        finally:
            gateway.stop()


def main(rounds: int, streams: int) -> None:
    """Measure and print."""
    os.environ["LLAMA_ARG_THREADS"] = os.environ["LLAMA_ARG_THREADS_BATCH"] = "1"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = ("engine", "one", "all", "idle", *(f"server{number}" for number in range(SERVERS)))
        for name in names:
            (folder / name).mkdir()
        binary = unpack(folder / "engine")
        files = {path.name: path for path in tiny.write_all(folder)}
        spec = spec_of("tiny", "baseline", llama_context=16384)
        servers = [
            stack.enter_context(serving(spec, binary, files, folder / f"server{number}", free_port()))
            for number in range(SERVERS)
        ]
        gateway = RunningGateway(folder / "one", [servers[0].port], free_port_pair(), KEY)
        stack.callback(gateway.stop)
        gateway.await_up(1)
        asyncio.run(cost(gateway, servers[0], rounds))
        gateway = RunningGateway(folder / "all", [one.port for one in servers], free_port_pair(), KEY)
        stack.callback(gateway.stop)
        gateway.await_up(SERVERS)
        shares = {}
        for name, has_sessions in (("no sessions", False), ("sessions", True)):
            shares[name], took = asyncio.run(cached(gateway, has_sessions=has_sessions))
            print(f"{name}: {100 * shares[name]:.0f} % of prompt tokens were cached, {took:.1f} s")
        asyncio.run(idle(folder / "idle", streams))
    print(json.dumps(shares))


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["30"])[0]), int((sys.argv[2:] or ["1000"])[0]))
