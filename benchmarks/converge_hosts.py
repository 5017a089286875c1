"""Many light hosts for benchmarks/converge.py, a slower way to them, and counts of what is done there."""

import asyncio
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from beeyard.catalog import PROJECT

STATE = PROJECT / ".testbed"
DOCKER = ["docker", "--host", "unix:///var/run/docker.sock"]
IMAGE, NAME, NETWORK = "beeyard-testbed/light", "beeyard-converge", "beeyard-testbed"
FIRST_PORT = 2300
# Their sshd says on stderr, which Docker keeps, what it is asked for.
ENTRY = "trap 'exit 0' TERM; mkdir -p /run/sshd; /usr/sbin/sshd -D -e -o LogLevel=VERBOSE & wait $!"
# Where the numbers of processes begin anew, and at which.
PID_MAX, PID_MIN = int(Path("/proc/sys/kernel/pid_max").read_text()), 300


class Place(NamedTuple):
    """A host: its name for us, its container, and the port of its sshd on this machine's loopback."""

    name: str
    container: str
    port: int


def output(*words: str) -> str:
    """What a command of this machine prints; it must succeed."""
    run = subprocess.run(words, check=False, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(words)[:200]}: {run.stderr.strip()}. Fix: make testbed, then again")
    return run.stdout


def docker(*words: str) -> str:
    """The same for the test bed's Docker Engine."""
    return output(*DOCKER, *words)


@contextmanager
def light_hosts(count: int, image: str = IMAGE) -> Iterator[list[Place]]:
    """So many of them, reached by SSH as root with the test bed's key; they go when the block ends."""
    places = [Place(f"light{number}", f"{NAME}-{number}", FIRST_PORT + number) for number in range(count)]
    try:
        for place in places:
            remove(place)
            docker(
                "run", "--detach", "--name", place.container, "--hostname", place.name, "--network", NETWORK,
                "--volume", f"{STATE}/ssh:/etc/testbed:ro", "--volume", f"{STATE}/wheels:/wheels:ro",
                "--publish", f"127.0.0.1:{place.port}:22", "--entrypoint", "sh", image, "-c", ENTRY,
            )  # fmt: skip
        yield places
    finally:
        for place in places:
            remove(place)


def remove(place: Place) -> None:
    """Its container, if there is one."""
    subprocess.run([*DOCKER, "rm", "--force", "--volumes", place.container], check=False, capture_output=True)


def known_hosts(ports: Sequence[int]) -> str:
    """The test bed has one host key for all of its hosts."""
    key = " ".join((STATE / "ssh" / "host_key.pub").read_text().split()[:2])
    return "".join(f"[127.0.0.1]:{port} {key}\n" for port in ports)


# ------------------------------------------------------------------------------------------------ what is done there


def last_pid(place: Place) -> int:
    """The number of the last process that was made in a host's container, which has numbers of its own."""
    return int(docker("exec", place.container, "cat", "/proc/loadavg").split()[4])


def processes_between(before: int, after: int) -> int:
    """How many processes and threads were made between two looks."""
    return after - before if after >= before else after - before + PID_MAX - PID_MIN


class Counts(NamedTuple):
    """What a run did on one host: processes and threads made, SSH connections, and sessions in them."""

    processes: int
    connections: int
    sessions: int


@contextmanager
def counted(places: Sequence[Place], into: list[Counts]) -> Iterator[None]:
    """Add to ``into`` what is done on each host until the block ends; looking makes processes, too, which are not."""
    looks = [(last_pid(place), last_pid(place)) for place in places]
    said = [_sshd_said(place) for place in places]
    yield
    for place, (first, second), before in zip(places, looks, said, strict=True):
        made = processes_between(second, last_pid(place)) - processes_between(first, second)
        now = _sshd_said(place)
        into.append(Counts(made, now[0] - before[0], now[1] - before[1]))


def _sshd_said(place: Place) -> tuple[int, int]:
    if place.container.startswith(NAME):
        log = subprocess.run([*DOCKER, "logs", place.container], check=False, capture_output=True, text=True).stderr
    else:
        log = docker("exec", place.container, "journalctl", "--unit=ssh", "--boot", "--no-pager", "--output=cat")
    return len(re.findall("^Accepted publickey", log, re.M)), len(re.findall("^Starting session", log, re.M))


@contextmanager
def talkative(place: Place) -> Iterator[None]:
    """A systemd host's sshd says in the journal what it is asked for."""
    file = "/etc/ssh/sshd_config.d/beeyard-converge.conf"
    docker("exec", place.container, "sh", "-c", f"echo LogLevel VERBOSE >{file} && systemctl restart ssh")
    try:
        yield
    finally:
        docker("exec", place.container, "sh", "-c", f"rm -f {file} && systemctl restart ssh")


# ---------------------------------------------------------------------------------------------------- far away


@contextmanager
def far_away(place: Place, round_trip_s: float, port: int) -> Iterator[Place]:
    """
    The same host behind a port whose bytes take half of ``round_trip_s`` each way, however many there are.

    It delays what is said, not the kernel's own acknowledgements: a real line is slower at the start of long answers.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    delay = round_trip_s / 2

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        task = loop.create_task(deliver())
        with suppress(OSError):
            while data := await reader.read(65536):
                queue.put_nowait((loop.time() + delay, data))
        queue.put_nowait((loop.time() + delay, b""))
        with suppress(OSError):
            await task

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * delay)  # a connection is one round trip, too
        there, back = await asyncio.open_connection("127.0.0.1", place.port)
        await asyncio.gather(carry(reader, back), carry(there, writer))

    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(serve, "127.0.0.1", port), loop).result()
    try:
        yield place._replace(port=port)
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
