"""
Asks and tells the HAProxy of a gateway, by its runtime socket. It runs on the gateway's host; standard library only.

    gateway.py state  SOCKET                 its servers, as JSON
    gateway.py drain  SOCKET SERVER WAIT_S   gives the server no more work, and waits until it has none
    gateway.py ready  SOCKET SERVER WAIT_S   gives it work again, and waits until it is healthy
    gateway.py watch  SOCKET                 for ever: ends what servers hold that no longer answer their checks
    gateway.py keep   SOCKET FILE            writes servers' states, which the next process reads

Exit codes: 0 done; 4 refused or not done, for a reason that the text says. A server that the gateway does not have,
and a gateway that does not run, need neither draining nor waiting for: 0.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import socket
import sys
import time
from typing import Any

POLL_S = 0.1
WATCH_S = 1.0
CHECK_S = 2.2  # a little more than the configuration's `inter`
ANSWER_S = 10.0
BACKEND = "servers"


class NotRunning(Exception):
    """There is no HAProxy behind the socket."""


def ask(path: str, command: str) -> str:
    """
    Send one command to HAProxy, and return what it says.

    :raises NotRunning: nobody listens there.
    """
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(ANSWER_S)
        try:
            line.connect(path)
        except OSError as error:
            raise NotRunning(str(error)) from error
        line.sendall(f"{command}\n".encode())
        said = bytearray()
        while part := line.recv(65536):
            said += part
    return said.decode(errors="replace").strip()


def servers(path: str) -> dict[str, dict[str, Any]]:
    """The gateway's servers by name: what they are (up, loading, dead, drained), what they do, what waits."""
    rows = csv.DictReader(ask(path, "show stat").lstrip("# ").splitlines())
    found = {}
    for row in rows:
        if row["pxname"] == BACKEND and row["svname"] not in ("BACKEND", "FRONTEND"):
            found[row["svname"]] = {
                "state": _state(row["status"], row["check_status"], row["check_code"]),
                "answers": int(row["scur"] or 0),
                "waiting": int(row["qcur"] or 0),
                "served": int(row["stot"] or 0),
                "check": f"{row['check_status']} {row['check_code']}".strip(),
            }
    return found


def _state(status: str, check: str, code: str) -> str:
    if status.startswith(("DRAIN", "MAINT")):
        return "drained"
    if status.startswith("UP") or status == "no check":
        return "up"
    # A server that loads its model says so, and comes back by itself.
    return "loading" if check.startswith("L7STS") and code == "503" else "dead"


def drain(path: str, name: str, wait_s: float) -> int:
    """Take a server out, when another one is there, and wait until its answers have ended."""
    found = servers(path)
    if name not in found:
        print(f"the gateway has no server {name}: nothing to drain")
        return 0
    if len(found) == 1:
        print(f"{name} is the gateway's only server: clients are told to ask again while it is away")
        return 0
    others = {other: one["state"] for other, one in found.items() if other != name}
    away = sorted(other for other, state in others.items() if state != "up")
    if found[name]["state"] == "up" and len(away) == len(others):
        print(
            f"{name} is the last server that is up behind the gateway ({', '.join(away)} "
            f"{'is' if len(away) == 1 else 'are'} not), so it was not drained. Fix: bring another one up first, or "
            "set llama_drain to false for this run",
            file=sys.stderr,
        )
        return 4
    # Not HAProxy's own "drain", in which sessions still go to their server. Here, too, answers go on to their end.
    said = ask(path, f"set server {BACKEND}/{name} state maint")
    if said:
        print(f"HAProxy does not drain {name}: {said}. Fix: see the log of beeyard-gateway", file=sys.stderr)
        return 4
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        now = servers(path)[name]
        if now["answers"] == 0 and now["waiting"] == 0:
            print(f"{name} is drained")
            return 0
        time.sleep(POLL_S)
    ask(path, f"set server {BACKEND}/{name} state ready")
    print(
        f"{name} still answers {now['answers']} after {wait_s:.0f} s, so it was put back and nothing was changed. "
        "Fix: deploy when there is less to do, or set gateway_drain_wait higher",
        file=sys.stderr,
    )
    return 4


def ready(path: str, name: str, wait_s: float) -> int:
    """Put a server back, and wait until it is healthy."""
    if name not in servers(path):
        return 0
    ask(path, f"set server {BACKEND}/{name} state ready")
    time.sleep(CHECK_S)  # what its check said before it went is not what is asked for
    deadline = time.monotonic() + wait_s
    while True:
        now = servers(path)[name]
        if now["state"] == "up" and now["check"].startswith("L7OK"):
            print(f"{name} takes requests again")
            return 0
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    print(
        f"{name} is back behind the gateway, but {now['state']} after {wait_s:.0f} s (its check says {now['check']})"
        ". Fix: see that the gateway's host reaches it, and its own log",
        file=sys.stderr,
    )
    return 4


def watch(path: str) -> int:
    """
    End the requests of servers that hang, so that clients can ask again.

    A server that refuses connections holds none. One that loads or is drained is left alone.
    """
    while True:
        # It may be started, or stopped, right now.
        with contextlib.suppress(NotRunning, OSError):
            release_hung(path)
        time.sleep(WATCH_S)


def release_hung(path: str) -> None:
    """Once: look at each server, and end what those hold whose checks time out."""
    for name, one in servers(path).items():
        if one["state"] == "dead" and one["answers"] and one["check"].startswith(("L4TOUT", "L6TOUT", "L7TOUT")):
            print(f"{name} hangs ({one['check']}): {one['answers']} requests are ended", flush=True)
            ask(path, f"shutdown sessions server {BACKEND}/{name}")


def keep(path: str, file: str) -> int:
    """Write servers' states beside the file, then in its place."""
    fresh = f"{file}.new"
    with open(fresh, "w") as out:  # noqa: PTH123
        out.write(ask(path, "show servers state") + "\n")
    os.replace(fresh, file)  # noqa: PTH105
    return 0


def main(words: list[str]) -> int:  # noqa: PLR0911 -- one for each word
    """Do one of the above."""
    try:
        match words:
            case ["state", path]:
                print(json.dumps(servers(path)))
                return 0
            case ["drain", path, name, wait_s]:
                return drain(path, name, float(wait_s))
            case ["ready", path, name, wait_s]:
                return ready(path, name, float(wait_s))
            case ["watch", path]:
                return watch(path)
            case ["keep", path, file]:
                return keep(path, file)
    except NotRunning:
        if words[0] == "state":
            print("{}")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
