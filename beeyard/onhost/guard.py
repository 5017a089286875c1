"""
The guarded switch: puts one llama-server in place of another, and puts the old one back if the new one fails.

It runs on the host, so that a lost connection leaves no host without its server. Standard library only.

    guard.py state  PREFIX        what runs, as JSON
    guard.py switch PREFIX ID     make servers/ID the server, under the gate
    guard.py rollback PREFIX      make the server before this one the server again, under the gate
    guard.py start  PREFIX        start the current server again, where nothing does so at boot
    guard.py gate   PREFIX        ask the current server what a new one would be asked
    guard.py stop   PREFIX        stop the server for good, and what keeps it running

Below PREFIX: servers/ID/{server.json,definition}, engines/NAME, etc/, log/, run/; links `current` and `previous` to
servers, engines/current and engines/previous to engines.
Exit codes: 0 done; 4 refused before anything was touched; 5 the gate failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pwd
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import xmlrpc.client
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

POLL_S = 0.05
ASK_TIMEOUT_S = 300
STOP_TIMEOUT_S = 40
VRAM_TIMEOUT_S = 30
LOG_LINES = 20
SHORT_ANSWER = 32  # tokens
UNIT = "beeyard-llama-server.service"
UNIT_FILE = Path("/etc/systemd/system") / UNIT
PROGRAM = "llama-server"
# In an engine that a deploy brought: the list of its files. What has none is not ours to remove.
STAMP = ".files"


class Refused(Exception):
    """Nothing was touched, for a reason that the text says."""


class GateFailed(Exception):
    """A server did not show what it must show."""


def say(text: str) -> None:
    """Report progress. A reader who went away does not stop the work."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def complain(text: str) -> None:
    """Report a failure, where a deploy shows it even when it shows nothing else."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


# --- one server -------------------------------------------------------------------------------------


class Server:
    """What a deploy wrote under servers/ID: the command, and how it is kept running."""

    def __init__(self, folder: Path) -> None:
        try:
            self.data: dict[str, Any] = json.loads((folder / "server.json").read_text())
        except (OSError, ValueError) as error:
            raise Refused(f"{folder} holds no server ({error}). Fix: deploy again") from error
        self.folder = folder
        self.prefix = folder.parent.parent
        self.id = folder.name
        self.definition = folder / "definition"
        self.argv: list[str] = self.data["argv"]
        self.url: str = self.data["url"]
        self.port: int = self.data["port"]
        self.title: str = self.data["title"]

    @property
    def engine(self) -> Path | None:
        """The folder below PREFIX/engines that its binary is in; None for an engine that lives elsewhere."""
        if self.data["runtime"] == "compose":
            return None
        for folder in Path(self.argv[0]).parents:
            if folder.parent.name == "engines" and folder.parent.parent.resolve() == self.prefix.resolve():
                return self.prefix / "engines" / folder.name
        return None

    @property
    def keeper(self) -> Keeper:
        """The runtime that keeps it running."""
        match self.data["runtime"]:
            case "systemd":
                return SystemdKeeper()
            case "compose":
                return ComposeKeeper(self.prefix)
            case _:
                return SupervisorKeeper(self.prefix)

    def key(self) -> str:
        """The first key of the key file, as llama-server reads it."""
        try:
            lines = Path(self.data["api_key_file"]).read_text().splitlines()
        except OSError as error:
            raise GateFailed(f"its key file cannot be read ({error}). Fix: deploy again") from error
        for line in lines:
            if line and not line.startswith("#"):
                return line
        # llama-server runs open with an empty key file, without a word.
        raise GateFailed("its key file holds no key, so anyone could use it. Fix: deploy again")


def current(prefix: Path) -> Server | None:
    """The server that last passed the gate here, if any."""
    link = prefix / "current"
    return Server(link.resolve()) if link.exists() else _running(prefix)


def _running(prefix: Path) -> Server | None:
    """The server that runs though no link names it, known by its command; its link was removed by somebody."""
    for folder in (prefix / "servers").glob("*"):
        with contextlib.suppress(Refused, GateFailed, OSError):
            server = Server(folder)
            if _is_serving(server):
                return server
    return None


def previous(prefix: Path) -> Server | None:
    """The server before that one, if there was any."""
    link = prefix / "previous"
    return Server(link.resolve()) if link.exists() else None


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)


def _install(source: Path, dest: Path) -> None:
    dest.parent.mkdir(parents=True, exist_ok=True)
    fresh = dest.with_name(f".{dest.name}.{os.getpid()}")
    shutil.copyfile(source, fresh)
    fresh.chmod(0o644)
    fresh.replace(dest)


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


# --- runtimes ---------------------------------------------------------------------------------------


class Keeper(ABC):
    """What keeps a server running: install its definition, start, stop, and say which process it is."""

    @abstractmethod
    def is_installed(self, server: Server) -> bool:
        """Whether the server's definition is in force, also for the next boot."""

    @abstractmethod
    def install(self, server: Server) -> None:
        """Put the definition in force without starting it."""

    @abstractmethod
    def start(self) -> None:
        """Start what is installed. Returns before it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and return once its process is gone."""

    @abstractmethod
    def status(self) -> tuple[int, bool]:
        """Its process, or 0; and whether the last start of it failed."""

    def pid(self) -> int:
        """Its process, or 0."""
        return self.status()[0]

    @abstractmethod
    def log_tail(self, since: float) -> list[str]:
        """The last lines of its log, no older than ``since`` (seconds since the epoch)."""

    @abstractmethod
    def shut_down(self) -> None:
        """Stop for good."""

    def listener_pids(self) -> list[int]:
        """The processes that may hold its port."""
        return [self.pid()]

    def mend(self, server: Server) -> None:  # noqa: B027 -- most have nothing of the kind
        """Put right what of the server's definition can be without a restart."""

    def settle(self) -> None:  # noqa: B027 -- most have nothing to wait for
        """What is left to wait for once it passed the gate."""

    def gpu_fault(self) -> str | None:
        """Why it cannot see a card, where that can be asked."""
        return None


class SystemdKeeper(Keeper):
    """A systemd unit."""

    def is_installed(self, server: Server) -> bool:
        """The unit file is the server's, and enabled."""
        return _same(server.definition, UNIT_FILE) and self._shown.get("UnitFileState") == "enabled"

    def install(self, server: Server) -> None:
        """Write the unit and enable it."""
        _install(server.definition, UNIT_FILE)
        self._systemctl("daemon-reload")
        self._systemctl("--quiet", "enable", UNIT)

    def mend(self, server: Server) -> None:
        """Enable it again."""
        if _same(server.definition, UNIT_FILE):
            self._systemctl("--quiet", "enable", UNIT)

    def start(self) -> None:
        """Start it, however often it failed before."""
        subprocess.run(["systemctl", "reset-failed", UNIT], check=False, capture_output=True)
        self._systemctl("start", "--no-block", UNIT)

    def stop(self) -> None:
        """Stop it."""
        self._systemctl("stop", UNIT)

    def status(self) -> tuple[int, bool]:
        """The unit's main process; a unit that waits for its next try has failed this one."""
        shown = self._shown
        failed = shown.get("ActiveState") == "failed" or shown.get("SubState") == "auto-restart"
        return int(shown.get("MainPID") or 0), failed

    def log_tail(self, since: float) -> list[str]:
        """From the journal, once it has written down what it took."""
        subprocess.run(["journalctl", "--sync"], check=False, capture_output=True)
        command = ["journalctl", f"--unit={UNIT}", f"--lines={LOG_LINES}", f"--since=@{int(since)}"]
        command += ["--output=cat", "--no-pager", "--quiet"]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()

    def shut_down(self) -> None:
        """Stop, and do not start at boot."""
        if UNIT_FILE.exists():
            self._systemctl("--quiet", "disable", "--now", UNIT)

    @property
    def _shown(self) -> dict[str, str]:
        """What systemd says of the unit now."""
        shown = self._systemctl("show", "--property=MainPID,ActiveState,SubState,UnitFileState", UNIT)
        return dict(row.split("=", 1) for row in shown.splitlines() if "=" in row)

    def _systemctl(self, *words: str) -> str:
        run = subprocess.run(["systemctl", *words], check=False, capture_output=True, text=True)
        if run.returncode != 0:
            raise GateFailed(f"systemctl {' '.join(words)}: {run.stderr.strip()}")
        return run.stdout


class ComposeKeeper(Keeper):
    """A container of a compose file of ours."""

    def __init__(self, prefix: Path) -> None:
        self.file = prefix / "etc" / "compose.yaml"

    def is_installed(self, server: Server) -> bool:
        """The compose file is the server's, and the container was made from it."""
        if not _same(server.definition, self.file):
            return False
        labels = self._inspect().get("Config", {}).get("Labels") or {}
        try:
            wanted = self._compose("config", "--hash", PROGRAM).split()
        except GateFailed:
            return False
        return wanted == [PROGRAM, labels.get("com.docker.compose.config-hash")]

    def install(self, server: Server) -> None:
        """Write the compose file, and have compose look at it."""
        _install(server.definition, self.file)
        self._compose("config", "--quiet")

    def start(self) -> None:
        """Make the container anew if anything of it changed, and start it; images are never fetched here."""
        # A clone's compose.yaml has the same project name, and its services are not ours to remove.
        self._compose("up", "--detach", "--no-build", "--pull", "never")

    def stop(self) -> None:
        """Stop it."""
        if self.file.exists():
            self._compose("stop")

    def status(self) -> tuple[int, bool]:
        """The process below the container's process 1; a container that restarts has failed."""
        state = self._inspect().get("State", {})
        failed = state.get("Status") in ("restarting", "dead")
        if state.get("Status") != "running":
            return 0, failed
        init = int(state["Pid"])
        try:
            children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        except OSError:
            children = []
        return int(children[0]) if children else 0, failed

    def log_tail(self, since: float) -> list[str]:
        """From Docker's log of it."""
        command = ["docker", "logs", f"--tail={LOG_LINES}", f"--since={int(since)}", PROGRAM]
        run = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        return run.stdout.splitlines() if run.returncode == 0 else []

    def shut_down(self) -> None:
        """Stop it and remove the container; the image stays."""
        if self.file.exists():
            self._compose("down")

    def listener_pids(self) -> list[int]:
        """Docker's proxies of its ports, which hold them in its place."""
        networks = self._inspect().get("NetworkSettings", {}).get("Networks") or {}
        addresses = {network.get("IPAddress") for network in networks.values()}
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            words = _command_of(int(pid))
            if words and words[0].endswith("docker-proxy") and addresses & set(words):
                found.append(int(pid))
        return found

    def settle(self) -> None:
        """Until Docker, too, calls it healthy."""
        self._compose("up", "--detach", "--no-build", "--pull", "never", "--wait")

    def gpu_fault(self) -> str | None:
        """The card as seen inside: a container may have lost what its host still has."""
        command = ["docker", "exec", PROGRAM, "nvidia-smi", "--list-gpus"]
        run = subprocess.run(command, check=False, capture_output=True, text=True)
        if run.returncode == 0 and "GPU 0" in run.stdout:
            return None
        said = (run.stderr or run.stdout).strip().splitlines()
        return f"the container sees no GPU ({said[-1] if said else 'nvidia-smi says nothing'})"

    def _compose(self, *words: str) -> str:
        command = ["docker", "compose", "--file", str(self.file), *words]
        try:
            run = subprocess.run(command, check=False, capture_output=True, text=True)
        except OSError as error:
            raise GateFailed(f"docker cannot be run ({error}). Fix: deploy again") from error
        if run.returncode != 0:
            raise GateFailed(f"docker compose {words[0]}: {_docker_says(run.stderr)}")
        return run.stdout

    def _inspect(self) -> dict[str, Any]:
        """The container as Docker describes it; empty where there is none."""
        command = ["docker", "container", "inspect", PROGRAM]
        try:
            run = subprocess.run(command, check=False, capture_output=True, text=True)
        except OSError:
            return {}
        found: dict[str, Any] = json.loads(run.stdout)[0] if run.returncode == 0 else {}
        return found


def _docker_says(stderr: str) -> str:
    """What went wrong, out of a page of progress."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "rror" in line or "failed" in line), lines[-1] if lines else "")
    if 'could not select device driver "nvidia"' in said or "unresolvable CDI devices" in said:
        return (
            f"{said}: Docker has no access to the card. Fix: set llama_nvidia_toolkit to install, or install and "
            "configure the NVIDIA container toolkit"
        )
    return said


class _SocketTransport(xmlrpc.client.Transport):
    """XML-RPC over supervisord's unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        """Connect to the socket, whatever the host."""
        path = self.path

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.settimeout(30)
                self.sock.connect(path)

        return Connection("localhost")


class SupervisorKeeper(Keeper):
    """A program of a supervisord of our own, for pods and for machines without root."""

    STOPPED = ("STOPPED", "EXITED", "FATAL", "UNKNOWN")

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.socket = prefix / "run" / "supervisor.sock"
        self.program = prefix / "etc" / "programs" / f"{PROGRAM}.conf"
        self.log = prefix / "log" / f"{PROGRAM}.log"

    def is_installed(self, server: Server) -> bool:
        """The program's file is the server's, and supervisord answers."""
        return _same(server.definition, self.program) and self._answers()

    def install(self, server: Server) -> None:
        """Write the program, and have supervisord know it; its old process must be stopped before."""
        _install(server.definition, self.program)
        if not self._answers():
            self._start_daemon()
            return
        with contextlib.suppress(xmlrpc.client.Fault):  # not known yet
            self._rpc.removeProcessGroup(PROGRAM)
        try:
            self._rpc.reloadConfig()
        except xmlrpc.client.Fault as error:
            raise GateFailed(f"supervisord does not take its program: {error.faultString}") from error

    def start(self) -> None:
        """Start it; a group that is added starts by itself."""
        try:
            with contextlib.suppress(xmlrpc.client.Fault):
                self._rpc.addProcessGroup(PROGRAM)
            if self._info()["statename"] in self.STOPPED:
                with contextlib.suppress(xmlrpc.client.Fault):  # it started in the meantime
                    self._rpc.startProcess(PROGRAM, False)
        except xmlrpc.client.Fault as error:
            raise GateFailed(f"supervisord does not start it: {error.faultString}") from error

    def stop(self) -> None:
        """Stop it; asking for its state also makes supervisord notice at once."""
        if not self._answers():
            return
        with contextlib.suppress(xmlrpc.client.Fault):  # it is not running, or not known
            self._rpc.stopProcess(PROGRAM, False)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(xmlrpc.client.Fault):
                if self._info()["statename"] not in self.STOPPED:
                    time.sleep(POLL_S)
                    continue
            return
        raise GateFailed(f"the old server did not stop within {STOP_TIMEOUT_S} s")

    def status(self) -> tuple[int, bool]:
        """The program's process; one in BACKOFF waits for its next try."""
        try:
            info = self._info()
        except (OSError, xmlrpc.client.Fault):
            return 0, False
        return int(info["pid"]), info["statename"] in ("BACKOFF", "FATAL", "EXITED")

    def log_tail(self, since: float) -> list[str]:
        """From the program's log file, which a start does not cut off."""
        try:
            if self.log.stat().st_mtime < since - 1:
                return []
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 65536))
                return file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            return []

    def shut_down(self) -> None:
        """Stop supervisord and with it the server."""
        if self._answers():
            daemon = int(self._rpc.getPID())
            self._rpc.shutdown()
            _wait_gone(daemon, STOP_TIMEOUT_S)
        if self.program.exists():
            self.program.unlink()

    @property
    def _rpc(self) -> Any:
        proxy = xmlrpc.client.ServerProxy("http://localhost", transport=_SocketTransport(str(self.socket)))
        return proxy.supervisor

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = self._rpc.getProcessInfo(PROGRAM)
        return info

    def _answers(self) -> bool:
        try:
            return bool(self._rpc.getPID())
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return False

    def _start_daemon(self) -> None:
        (self.prefix / "run").mkdir(exist_ok=True)
        (self.prefix / "log").mkdir(exist_ok=True)
        library = os.readlink(self.prefix / "lib" / "supervisor")
        command = [sys.executable, "-m", "supervisor.supervisord"]
        command += ["--configuration", str(self.prefix / "etc" / "supervisord.conf")]
        environment = {**os.environ, "PYTHONPATH": str(self.prefix / "lib" / library)}
        run = subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment, preexec_fn=_raise_memlock
        )
        deadline = time.monotonic() + 15
        while run.returncode == 0 and time.monotonic() < deadline:
            if self._answers():
                return
            time.sleep(POLL_S)
        raise GateFailed(f"supervisord did not start: {(run.stderr or run.stdout).strip() or 'no message'}")


def _raise_memlock() -> None:
    """Let the server lock as much memory as the host allows an unprivileged process."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


# --- processes, ports, GPUs -------------------------------------------------------------------------


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def _wait_gone(pid: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while pid and _runs(pid) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def _listeners(port: int) -> dict[str, int]:
    """The sockets that listen on a port, as /proc/PID/fd names them, each with its owner's uid."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                cells = row.split()
                if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                    found[f"socket:[{cells[9]}]"] = int(cells[7])
    return found


def _holds(pid: int, listeners: dict[str, int]) -> bool:
    """
    Whether a process holds one of these sockets.

    Root in a container may not look into other users' processes: then its owner must do.
    """
    try:
        for handle in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{handle}") in listeners:
                    return True
    except PermissionError:
        return Path(f"/proc/{pid}").stat().st_uid in listeners.values()
    except OSError:  # it ended in the meantime
        return False
    return False


def _refuse_foreign_port(server: Server, own_pids: Sequence[int]) -> None:
    listeners = _listeners(server.port)
    if not listeners or any(_holds(pid, listeners) for pid in own_pids if pid):
        return
    holders = [pid for pid in os.listdir("/proc") if pid.isdigit() and _holds(int(pid), listeners)]
    command = " ".join(_command_of(int(holders[0])))[:80] if holders else ""
    who = f"process {holders[0]} ({command})" if holders else "another program"
    raise Refused(
        f"port {server.port} is in use by {who}, which is not ours; {server.title} wants it. "
        f"Fix: stop that program, or set llama_port to another port"
    )


def _smi(query: str) -> list[list[str]] | None:
    """Rows of an nvidia-smi query, or None where it does not answer."""
    try:
        run = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            check=False, capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if run.returncode != 0:
        return None
    return [[cell.strip() for cell in row.split(",")] for row in run.stdout.splitlines() if row.strip()]


def _vram_of(pid: int) -> int | None:
    """MiB of GPU memory that a process holds; None where nvidia-smi does not list it, as inside a pod."""
    rows = _smi("--query-compute-apps=pid,used_gpu_memory") or []
    held = [int(row[1]) for row in rows if row[0] == str(pid) and row[1].isdigit()]
    return sum(held) if held else None


def _vram_in_use() -> int | None:
    rows = _smi("--query-gpu=memory.used")
    return None if rows is None else sum(int(row[0]) for row in rows if row[0].isdigit())


def _wait_vram_free(pid: int) -> None:
    deadline = time.monotonic() + VRAM_TIMEOUT_S
    while _vram_of(pid) and time.monotonic() < deadline:
        time.sleep(0.2)


# --- HTTP -------------------------------------------------------------------------------------------

# Straight to the server on this very host, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _request(url: str, body: Any = None, key: str | None = None, timeout: float = 5) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _health(server: Server) -> int:
    """The status of GET /health; 0 while nobody listens."""
    try:
        return _request(f"{server.url}/health")[0]
    except (OSError, http.client.HTTPException):
        return 0


# --- the gate ---------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """What a server showed at the gate: when it was ready (``time.monotonic()`` seconds), and a sentence."""

    ready_at: float
    sentence: str


def gate(server: Server, vram_before_mib: int | None = None) -> Shown:
    """
    Ask a started server for all that it must show, and return what it showed.

    :param vram_before_mib: GPU memory in use before it started, where that was read.
    :raises GateFailed: what it did not show.
    """
    began = time.monotonic()
    pid = _wait_ready(server, began)
    ready_at = time.monotonic()
    _require_key(server)
    # Once as clients will ask, with the sampling of the preset; once so that the same server always says the same.
    _require_answer(server, {"max_tokens": SHORT_ANSWER})
    timings = _require_answer(server, {"max_tokens": server.data["gate"]["max_tokens"], "temperature": 0})
    _require_gpu(server, pid, vram_before_mib)
    drafted = ""
    if server.data["drafts"]:
        offered, taken = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        if not offered:
            raise GateFailed(
                "it never drafted (no draft_n in the answer's timings), so speculation did not engage. "
                "Fix: check that the draft model belongs to the model and engine, or take the variant baseline"
            )
        drafted = f", {taken} of {offered} drafted tokens accepted{_require_acceptance(server)}"
    speed = timings.get("predicted_per_second", 0.0)
    waited = f"was ready after {ready_at - began:.1f} s"
    return Shown(ready_at, f"{server.title} {waited}, answers with {speed:.1f} tokens/s{drafted}")


def _wait_ready(server: Server, began: float) -> int:
    limit = server.data["load_timeout_s"]
    keeper, seen_pid, health = server.keeper, 0, 0
    while time.monotonic() - began < limit:
        health = _health(server)
        pid, failed = keeper.status()
        if failed or (seen_pid and pid != seen_pid):
            raise GateFailed("its process died while it loaded")
        seen_pid = pid
        if health == 200 and pid:
            return pid
        # A definition that cannot be started at all never has a process.
        if not pid and time.monotonic() - began > 10:
            raise GateFailed("no process of it appeared within 10 s")
        time.sleep(POLL_S)
    last = f"/health answers {health}" if health else "nothing listens"
    raise GateFailed(
        f"it was not ready after {limit} s ({last}). Fix: if the model just loads that slowly, "
        "raise llama_load_timeout"
    )


def _require_key(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    status = _post(server, body, key=None)[0]
    if status != 401:
        raise GateFailed(f"it answers a request without a key with {status}; 401 is wanted")


def _post(server: Server, body: Any, key: str | None) -> tuple[int, bytes]:
    try:
        return _request(f"{server.url}/v1/chat/completions", body, key, timeout=ASK_TIMEOUT_S)
    except (OSError, http.client.HTTPException) as error:
        alive = "" if server.keeper.pid() else "; its process died"
        raise GateFailed(f"the connection broke in the middle of an answer ({error}){alive}") from error


def _require_acceptance(server: Server) -> str:
    """Where it is wanted, see how many drafted tokens are accepted in answers like those of every day."""
    asked = server.data["gate"]
    wanted = asked.get("min_acceptance")  # a definition of an older version does not have it
    if wanted is None:
        return ""
    found = [_require_answer(server, {"max_tokens": asked["proof_tokens"]}, prompt) for prompt in asked["proof"]]
    offered, taken = (sum(timings.get(name, 0) for timings in found) for name in ("draft_n", "draft_n_accepted"))
    share = taken / offered if offered else 0.0
    if share < wanted:
        raise GateFailed(
            f"{share:.1%} of its {offered} drafted tokens were accepted, and {wanted:.1%} are wanted "
            "(llama_gate_min_acceptance). Fix: take another drafter, draft fewer tokens, take the variant baseline, "
            "or ask for less"
        )
    return f", {share:.1%} of {offered} in everyday answers"


def _require_answer(server: Server, options: dict[str, Any], prompt: str | None = None) -> dict[str, Any]:
    """Ask for a sensible answer, to the gate's own prompt if there is no other; return its timings."""
    prompt = server.data["gate"]["prompt"] if prompt is None else prompt
    body = {"messages": [{"role": "user", "content": prompt}], "cache_prompt": False, **options}
    status, answer = _post(server, body, server.key())
    if status != 200:
        raise GateFailed(f"a completion answers {status}: {answer[:200].decode(errors='replace')}")
    try:
        parsed = json.loads(answer)
        text = parsed["choices"][0]["message"]["content"] or ""
    except (ValueError, LookupError, TypeError) as error:
        raise GateFailed(f"a completion is not what llama-server sends: {answer[:200]!r}") from error
    fault = nonsense(text)
    if fault:
        raise GateFailed(
            f"its answer is {fault}: {text[:60]!r}. Fix: another engine or another file of the model; this card, "
            "engine and model do not work together"
        )
    timings: dict[str, Any] = parsed.get("timings", {})
    return timings


def nonsense(text: str) -> str | None:
    """What is wrong with an answer that no working model gives; None if nothing is."""
    stripped = text.strip()
    if not stripped:
        return "empty"
    if re.fullmatch(r"(.{1,24}?)\1{7,}.{0,24}", stripped, re.DOTALL):
        return "one token over and over"
    return None


def _require_gpu(server: Server, pid: int, before_mib: int | None) -> None:
    wanted = server.data["min_vram_mib"]
    if not wanted:
        return
    held = _vram_of(pid)
    if held is None:  # processes of a container are not listed by their numbers inside it
        in_use = _vram_in_use()
        if in_use is None:
            raise GateFailed("it is running on CPU: nvidia-smi does not answer here. Fix: mend the NVIDIA driver")
        held = in_use - (before_mib or 0)
    fault = server.keeper.gpu_fault()
    if fault:
        raise GateFailed(f"it is running on CPU: {fault}. Fix: deploy again, which makes the container anew")
    if held < wanted:
        raise GateFailed(
            f"it is running on CPU: it holds {held} MiB of GPU memory, at least {wanted} MiB are wanted. "
            "Fix: see its log for why CUDA found no device"
        )


# --- the switch -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(prefix: Path) -> Iterator[None]:
    """One switch at a time on a host; a second one waits."""
    (prefix / "run").mkdir(exist_ok=True)
    with (prefix / "run" / "guard.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another deploy is switching this host's server: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _drain(server: Server) -> None:
    """Wait until no answer is under way, or the limit passed."""
    limit = server.data["drain_timeout_s"]
    deadline = time.monotonic() + limit
    told = False
    while time.monotonic() < deadline:
        try:
            status, body = _request(f"{server.url}/slots", key=server.key())
            busy = status == 200 and any(slot.get("is_processing") for slot in json.loads(body))
        except (OSError, ValueError, http.client.HTTPException, GateFailed):
            return
        if not busy:
            return
        if not told:
            say(f"waiting up to {limit} s for the answer under way")
            told = True
        time.sleep(0.2)
    say(f"an answer is still under way after {limit} s: it is cut off")


def _is_serving(server: Server, *, after_mending: bool = False) -> bool:
    keeper = server.keeper
    pid = keeper.pid()
    if not pid or not _runs_its_command(server, pid):
        return False
    if after_mending and not keeper.is_installed(server):
        keeper.mend(server)
    return keeper.is_installed(server)


def _runs_its_command(server: Server, pid: int) -> bool:
    """Whether a process is the server's command, and its binary still the one that is on the disk."""
    if _command_of(pid) != server.argv:
        return False
    with contextlib.suppress(OSError):  # root in a container may not look
        return server.engine is None or not os.readlink(f"/proc/{pid}/exe").endswith(" (deleted)")
    return True


def switch(prefix: Path, wanted_id: str) -> None:
    """
    Make servers/ID the server of this host.

    :raises Refused: before anything was touched.
    :raises GateFailed: after the previous server, if there is one, was put back.
    """
    new = Server(prefix / "servers" / wanted_id)
    old = current(prefix)
    if old and old.id == new.id and _is_serving(new, after_mending=True):
        with contextlib.suppress(GateFailed):
            say(gate(new).sentence)
            _link(new)
            return
        say(f"{new.title} runs but does not pass the gate: starting it anew")
    old_pid = old.keeper.pid() if old else 0
    own = [pid for server in (old, new) if server for pid in server.keeper.listener_pids()]
    _refuse_foreign_port(new, own)
    new.key()

    if old and old_pid:
        _drain(old)
    stopped, started = time.monotonic(), time.time()
    try:
        _stop_all([server for server in (old, new) if server], old_pid)
        if old and old.data["runtime"] != new.data["runtime"]:
            # Before the new one starts: systemd reloads when a unit is disabled, and a container that runs then
            # may lose its card.
            old.keeper.shut_down()
        showed = _start(new)
        new.keeper.settle()
    except (GateFailed, KeyboardInterrupt) as error:
        _go_back(new, old, error, started)
    report = {"showed": showed.sentence, "away_s": round(showed.ready_at - stopped, 2)}
    say(f"{showed.sentence}; {report['away_s']} s without a server")
    (prefix / "run" / "last-switch.json").write_text(json.dumps(report))
    if old and old.id != new.id:
        _point(prefix / "previous", f"servers/{old.id}")
    _link(new)
    _prune(prefix)


def rollback(prefix: Path) -> None:
    """
    Make the server before the current one the server again; a second time, forward again.

    :raises Refused: there is none, or what it needs is gone.
    :raises GateFailed: after the server that ran was put back.
    """
    back = previous(prefix)
    if back is None:
        raise Refused(
            "there is no server before this one here. Fix: deploy what you want, as with make switch VARIANT=…"
        )
    models = [word for word in back.argv[1:] if word.startswith("/") and word.endswith(".gguf")]
    needed = models if back.data["runtime"] == "compose" else [back.argv[0], *models]
    gone = [path for path in needed if not Path(path).exists()]
    if gone:
        raise Refused(
            f"{back.title} cannot come back: {', '.join(gone)} is gone. Fix: deploy {back.data['preset']}, variant "
            f"{back.data['variant']}, engine {back.data['engine']}, which brings it again"
        )
    switch(prefix, back.id)


def start(prefix: Path) -> None:
    """
    Start the current server again, as in a pod whose container is new and only whose volume is the old one.

    :raises GateFailed: it does not pass the gate; it is left to its keeper, which goes on trying.
    """
    server = current(prefix)
    if server is None:
        raise Refused("no server was deployed here. Fix: deploy first")
    if _is_serving(server):
        say(f"{server.title} runs already")
        return
    _refuse_foreign_port(server, server.keeper.listener_pids())
    server.keeper.stop()
    say(f"{_start(server).sentence}; it serves again")


def _make_user(server: Server) -> None:
    """The user that it runs as, whom a new container does not know; the key file is his alone."""
    name = server.data["user"]
    if name is None or os.geteuid() != 0 or server.data["runtime"] == "compose":
        return
    try:
        pwd.getpwnam(name)
    except KeyError:
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
        run = subprocess.run(
            [*command, "--shell", "/usr/sbin/nologin", name], check=False, capture_output=True, text=True
        )
        if run.returncode != 0:
            raise GateFailed(f"user {name} cannot be made: {run.stderr.strip()}. Fix: deploy again") from None
    with contextlib.suppress(FileNotFoundError):  # the gate says so
        shutil.chown(server.data["api_key_file"], name)


def _stop_all(servers: Sequence[Server], old_pid: int) -> None:
    for keeper in {type(server.keeper): server.keeper for server in servers}.values():
        if keeper.status() != (0, False):
            keeper.stop()
    _wait_gone(old_pid, STOP_TIMEOUT_S)
    if old_pid:
        _wait_vram_free(old_pid)


def _start(server: Server) -> Shown:
    before = _vram_in_use() if server.data["min_vram_mib"] else None
    _make_user(server)
    server.keeper.install(server)
    server.keeper.start()
    return gate(server, before)


def _go_back(new: Server, old: Server | None, error: BaseException, started: float) -> NoReturn:
    reason = str(error) or "the switch was interrupted"
    lines = new.keeper.log_tail(started)
    complain(f"{new.title} failed the gate: {reason}")
    complain(f"Its last {len(lines)} log lines:" if lines else "It left no log lines.")
    for line in lines:
        complain(f"    {line}")
    with contextlib.suppress(GateFailed):
        new.keeper.stop()
        if old and old.data["runtime"] != new.data["runtime"]:
            new.keeper.shut_down()  # else both would start at the next boot
    if old is None or old.id == new.id:
        with contextlib.suppress(GateFailed):
            new.keeper.shut_down()
        raise GateFailed(
            f"{new.title} did not pass the gate, and there is no previous server: it is stopped, and nothing "
            "serves here. Fix: what the lines above name, then deploy again"
        )
    try:
        showed = _start(old)
    except GateFailed as second:
        raise GateFailed(
            f"{new.title} did not pass the gate, and the previous server, {old.title}, does not either ({second}). "
            "Fix: what the lines above name, then deploy again"
        ) from error
    raise GateFailed(
        f"{new.title} did not pass the gate; the previous server serves again: {showed.sentence}. "
        "Fix: what the lines above name, then deploy again"
    )


def _link(server: Server) -> None:
    """Point ``current`` to a server that passed the gate, and engines/current to its engine."""
    _point(server.prefix / "current", f"servers/{server.id}")
    _link_engine(server)


def _link_engine(server: Server) -> None:
    """Point engines/current to the engine of a server that passed the gate, engines/previous to the one before."""
    engines, new = server.prefix / "engines", server.engine
    old = _target(engines / "current")
    if (new.name if new else None) == old:
        return
    if old is not None and (engines / old).exists():
        _point(engines / "previous", old)
    if new is not None:
        _point(engines / "current", new.name)
    else:  # it came with the system or an image
        (engines / "current").unlink()


def _target(link: Path) -> str | None:
    """The name that a link leads to, whether that is there or not."""
    try:
        return Path(os.readlink(link)).name
    except OSError:
        return None


def _prune(prefix: Path) -> None:
    """Keep two servers and two engines; an engine also while one of the two servers wants it."""
    servers = [server for server in (current(prefix), previous(prefix)) if server]
    for folder in (prefix / "servers").iterdir():
        if folder.name not in [server.id for server in servers]:
            shutil.rmtree(folder, ignore_errors=True)
    engines = prefix / "engines"
    kept = {_target(engines / "current"), _target(engines / "previous")}
    kept |= {server.engine.name for server in servers if server.engine}
    for stamp in engines.glob(f"*/{STAMP}"):
        if stamp.parent.name not in kept and not stamp.parent.is_symlink():
            say(f"removing engine {stamp.parent.name}, which no server here wants any more")
            shutil.rmtree(stamp.parent, ignore_errors=True)


# --- state ------------------------------------------------------------------------------------------


def state(prefix: Path) -> dict[str, Any]:
    """What runs, in one look: cheap enough to be asked at each deploy. Memory in MiB."""
    server = current(prefix)
    if server is None:
        return {"current": None}
    pid = server.keeper.pid()
    status = Path(f"/proc/{pid}/status").read_text() if pid and _runs(pid) else ""
    return {
        "current": server.id,
        "title": server.title,
        "port": server.port,
        "installed": server.keeper.is_installed(server),
        "pid": pid,
        "listener_pids": server.keeper.listener_pids(),
        "runs_its_command": _runs_its_command(server, pid) if pid else False,
        "is_linked": (prefix / "current").exists(),
        "engine_is_current": _engine_is_current(server),
        "health": _health(server),
        "resident_mib": _kib(status, "VmRSS") // 1024,
        "locked_mib": _kib(status, "VmLck") // 1024,
        "vram_mib": _vram_of(pid) if server.data["min_vram_mib"] else None,
        "last_switch": _last_switch(prefix),
        "previous": _title_of_previous(prefix),
    }


def _engine_is_current(server: Server) -> bool:
    return _target(server.prefix / "engines" / "current") == (server.engine.name if server.engine else None)


def _title_of_previous(prefix: Path) -> str | None:
    with contextlib.suppress(Refused):
        before = previous(prefix)
        return before.title if before else None
    return None


def _last_switch(prefix: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((prefix / "run" / "last-switch.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def _kib(status: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def _interrupt(signum: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"the switch was interrupted by {signal.Signals(signum).name}")


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands above."""
    command, prefix = arguments[0], Path(arguments[1])
    try:
        if command == "state":
            say(json.dumps(state(prefix)))
            return 0
        # A connection that breaks must not stop a switch half way.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _interrupt)
        with _alone(prefix):
            server = current(prefix)
            if command == "switch":
                switch(prefix, arguments[2])
            elif server is None:
                raise Refused("no server was deployed here. Fix: deploy first")
            elif command == "rollback":
                rollback(prefix)
            elif command == "start":
                start(prefix)
            elif command == "gate":
                say(gate(server).sentence)
            elif command == "stop":
                server.keeper.shut_down()
                say(f"{server.title} is stopped")
            else:
                raise Refused(f"no command {command!r}. Fix: use state, switch, rollback, start, gate or stop")
    except Refused as error:
        complain(str(error))
        return 4
    except (GateFailed, KeyboardInterrupt) as error:
        complain(str(error) or "interrupted")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
