"""
A look at the server that runs on a host, as JSON on standard output. Standard library only; changes nothing.

    look.py PREFIX PID LINES

PID is the server's process as the guard names it, 0 for none; LINES of its log are shown. It reads the host's own key
to ask the server, and shows it nowhere: where a log line holds it, `<key>` stands in its place. What cannot be read
is left out. A server that hangs costs some seconds, never more.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ASK_S = 4
COMMAND_S = 10
UNIT = "beeyard-llama-server.service"
UNIT_FILE = Path("/etc/systemd/system") / UNIT
CONTAINER = "llama-server"
HIDDEN = "<key>"
TAIL_BYTES = 2**20
# Answers whose drafts are counted, where only the log tells of them.
LOG_LINES = 400
METRIC = re.compile(r'^llamacpp:(\w+)(?:\{position="(\d+)"\})? (\S+)$', re.MULTILINE)
# What engines say after each answer: "draft acceptance = 0.25 (    4 accepted /    16 generated)".
DRAFTS = re.compile(r"draft acceptance(?: rate)? = [\d.]+ \(\s*(\d+) accepted /\s*(\d+) generated\)")
# Straight to the server on this very host, whatever proxy the environment names.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, path: str, key: str | None) -> tuple[int, str]:
    """The status and text of an answer; 0 where nobody answers in time."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}{path}", headers=headers)  # noqa: S310
    try:
        with OPENER.open(request, timeout=ASK_S) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, http.client.HTTPException, ValueError):
        return 0, ""


def said(*command: str) -> list[str]:
    """The lines that a command prints; none where it fails."""
    try:
        run = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=COMMAND_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return run.stdout.splitlines() if run.returncode == 0 else []


def keys_of(file: Path) -> list[str]:
    """Every key of a key file, as llama-server reads it."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line and not line.startswith("#")]


def log_of(prefix: Path, runtime: str, count: int) -> list[str]:
    """The last lines of the server's log."""
    if runtime == "systemd":
        return said("journalctl", f"--unit={UNIT}", f"--lines={count}", "--output=cat", "--no-pager", "--quiet")
    if runtime == "compose":
        return said("docker", "logs", f"--tail={count}", CONTAINER)
    file = prefix / "log" / "llama-server.log"
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def restarts_of(runtime: str) -> int | None:
    """How often its keeper started it again; None where that is not counted."""
    if runtime == "systemd":
        lines = said("systemctl", "show", "--property=NRestarts", "--value", UNIT)
    elif runtime == "compose":
        lines = said("docker", "container", "inspect", "--format={{.RestartCount}}", CONTAINER)
    else:
        return None
    return int(lines[0]) if lines and lines[0].isdigit() else None


def uptime_of(pid: int) -> float | None:
    """Seconds since a process began."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
    return round(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 1)


def number(text: str) -> float | None:
    """As JSON can hold it."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 -- not a NaN


def metrics_of(text: str) -> tuple[dict[str, float], list[float]]:
    """The server's counters by name, and how many drafted tokens were accepted by position."""
    counters, positions = {}, {}
    for name, position, value in METRIC.findall(text):
        found = number(value)
        if found is None:
            continue
        if position:
            positions[int(position)] = found
        else:
            counters[name] = found
    return counters, [positions[place] for place in sorted(positions)]


def file_of(path: Path) -> dict[str, Any]:
    """A file's mode, owner and size, not what is in it."""
    about = path.stat()
    try:
        owner = pwd.getpwuid(about.st_uid).pw_name
    except KeyError:
        owner = str(about.st_uid)
    return {"path": str(path), "mode": f"{about.st_mode & 0o7777:04o}", "owner": owner, "bytes": about.st_size}


def seen_in(keys: list[str], pid: int, server: Path, unit: Path, log: list[str]) -> list[str]:
    """The places that a key can be read in, where none should be."""
    places = {
        "the process's arguments": Path(f"/proc/{pid}/cmdline"),
        "the process's environment": Path(f"/proc/{pid}/environ"),
        "server.json": server / "server.json",
        "its definition": server / "definition",
        "its unit": unit,
    }
    found = []
    for name, path in places.items():
        try:
            content = path.read_bytes()
        except OSError:
            continue
        if any(key.encode() in content for key in keys):
            found.append(name)
    return [*found, "its log"] if any(key in line for key in keys for line in log) else found


def space_of(paths: list[Path]) -> dict[str, list[int]]:
    """Total and free bytes where each path lies."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(path)
            found[str(path)] = [usage.total, usage.free]
    return found


def look(prefix: Path, pid: int, count: int) -> dict[str, Any]:
    """All of it; empty where no server was deployed."""
    folder = prefix / "current"
    try:
        server = json.loads((folder / "server.json").read_text())
    except (OSError, ValueError):
        return {}
    runtime, key_file = server["runtime"], Path(server["api_key_file"])
    keys = keys_of(key_file)
    key = keys[0] if keys else None
    unit = {
        "systemd": UNIT_FILE,
        "compose": prefix / "etc" / "compose.yaml",
    }.get(runtime, prefix / "etc" / "programs" / "llama-server.conf")
    log = log_of(prefix, runtime, max(count, LOG_LINES))
    health = ask(server["url"], "/health", None)[0]
    found: dict[str, Any] = {"health": health}
    if health == 200:
        # Its gauges of tokens/s begin anew with every reader; its counters do not.
        found["counters"], found["accepted_by_position"] = metrics_of(ask(server["url"], "/metrics", key)[1])
        for name, path in (("props", "/props"), ("slots", "/slots")):
            with contextlib.suppress(ValueError):
                found[name] = json.loads(ask(server["url"], path, key)[1])
    props, slots = found.pop("props", None), found.pop("slots", None)
    if isinstance(props, dict):
        found["build"] = str(props.get("build_info", ""))
        found["slots"] = props.get("total_slots")
    if isinstance(slots, list):
        found["slots"] = len(slots)
        found["busy"] = sum(bool(slot.get("is_processing")) for slot in slots if isinstance(slot, dict))
    drafts = [(int(taken), int(offered)) for line in log for taken, offered in DRAFTS.findall(line)]
    models = [Path(word).parent for word in server["argv"][1:] if word.startswith("/") and word.endswith(".gguf")]
    with contextlib.suppress(OSError):
        found["unit"] = unit.read_text(errors="replace")
    with contextlib.suppress(OSError):
        found["key_file"] = {**file_of(key_file), "keys": len(keys), "shortest": min(map(len, keys), default=0)}
    found.update(
        server=server,
        uptime_s=uptime_of(pid) if pid else None,
        restarts=restarts_of(runtime),
        log_accepted=sum(taken for taken, _ in drafts),
        log_drafted=sum(offered for _, offered in drafts),
        key_seen_in=seen_in(keys, pid, folder, unit, log),
        space=space_of(list(dict.fromkeys([prefix, *models]))),
        python=sys.version.split()[0],
        now=time.time(),
    )
    found["log"] = log[-count:] if count else []
    for one in keys:
        found["log"] = [line.replace(one, HIDDEN) for line in found["log"]]
        found["unit"] = found.get("unit", "").replace(one, HIDDEN)
    return found


if __name__ == "__main__":
    print(json.dumps(look(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
