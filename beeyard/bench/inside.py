"""
What runs inside of the sandbox: it lays out the files, runs pytest on them, and says what came of it in one line.

Standard library only, and any Python from 3.11 on: beeyard.bench.sandbox sends this text to ``python3 -c``. On stdin
comes one JSON table: ``files`` (texts by path), ``pytest`` (a zip in base64), ``tests`` (what to run), ``seconds``,
``output_bytes``, ``tail_bytes``,
``file_bytes``. On stdout goes one JSON table. The code that is tested runs in a process below; neither
memory nor files of this one are open to it.
"""

import base64
import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

PR_SET_DUMPABLE = 4
# Here the first process, or the one below it. On a machine itself the first ones are the kernel's, and killing all
# processes at the end would be a disaster.
LAST_OWN_PID = 3
OPEN_FILES = 256
# Bytes in message queues of the kernel; Python does not name it.
RLIMIT_MSGQUEUE = 12
REPORT = "report.json"
# A part of pytest's own process: it counts what each file's tests came to.
PLUGIN = """
import json, os
counts, why = {}, []
def count(nodeid, what):
    own = counts.setdefault(nodeid.partition("::")[0], {"passed": 0, "failed": 0})
    own[what] += 1
def pytest_runtest_logreport(report):
    if report.failed:
        count(report.nodeid, "failed")
    elif report.when == "call" and report.passed:
        count(report.nodeid, "passed")
def pytest_collectreport(report):
    if report.failed:
        why.append(str(report.longrepr)[-2000:])
        count(report.nodeid, "failed")
def pytest_sessionfinish(session, exitstatus):
    with open(os.environ["BEEYARD_REPORT"], "w") as file:
        json.dump({"exit": int(exitstatus), "counts": counts, "why": why[:3]}, file)
"""


def close_myself() -> None:
    """Let no process of the same user read this one's memory or open its files, as /proc/1/fd/1."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit_child(file_bytes: int) -> None:
    """In the child: limits of a process, and what is killed when memory runs out is this, not what reports it."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")
    limits = {
        resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: file_bytes, resource.RLIMIT_NOFILE: OPEN_FILES,
        RLIMIT_MSGQUEUE: 0,
    }  # fmt: skip
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))


def memory_kills() -> int:
    """How many processes in here the kernel has killed for want of memory; -1 where it does not say."""
    for name in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in Path(name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return -1


def run(wanted: dict[str, object], root: Path) -> dict[str, object]:
    """Lay out what came, run pytest, and return what it came to."""
    files, tests = wanted["files"], wanted["tests"]
    assert isinstance(files, dict)  # noqa: S101 -- the sender's own form
    assert isinstance(tests, list)  # noqa: S101
    code, library = root / "code", root / "pytest.zip"
    code.mkdir()
    (root / "tmp").mkdir()
    library.write_bytes(base64.b64decode(str(wanted["pytest"])))
    (root / "beeyard_report.py").write_text(PLUGIN)
    for name, text in files.items():
        (code / name).write_text(text)
    options = ["-p", "no:cacheprovider", "-p", "beeyard_report", "-c", os.devnull, "--rootdir", str(code)]
    options += ["--color=no", "--tb=short", "-q"]
    environment = {
        "PATH": os.defpath, "HOME": str(root / "tmp"), "TMPDIR": str(root / "tmp"), "LANG": "C.UTF-8",
        "PYTHONPATH": f"{library}:{root}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "BEEYARD_REPORT": str(root / REPORT),
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-B", "-P", "-m", "pytest", *options, *tests],
        cwd=code, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=partial(limit_child, _number(wanted, "file_bytes")),  # noqa: PLW1509 -- no threads are here
        start_new_session=True,
    )  # fmt: skip
    seconds, most, tail = (_number(wanted, name) for name in ("seconds", "output_bytes", "tail_bytes"))
    result = watch(child, seconds, most, tail)
    result["memory_kills"] = memory_kills()
    return {**result, **report_of(root / REPORT)}


def _number(wanted: dict[str, object], name: str) -> int:
    return int(str(wanted[name]))


def watch(child: "subprocess.Popen[bytes]", seconds: int, most: int, tail_bytes: int) -> dict[str, object]:
    """Wait for a child, keep the last of what it says, and end it with all that it started when it goes too far."""
    assert child.stdout is not None  # noqa: S101 -- PIPE says so
    began, size, tail, end = time.monotonic(), 0, b"", "exit"
    out = child.stdout.fileno()
    os.set_blocking(out, False)
    with selectors.DefaultSelector() as ready:
        ready.register(out, selectors.EVENT_READ)
        while True:
            # Before reading: what it said last is then still read.
            is_over = child.poll() is not None
            if time.monotonic() - began > seconds:
                end = "time"
                break
            if size > most:
                end = "output"
                break
            chunk = b""
            if ready.select(0.05):
                with contextlib.suppress(BlockingIOError):
                    chunk = os.read(out, 65536)
            size += len(chunk)
            tail = (tail + chunk)[-tail_bytes:]
            if is_over and not chunk:
                break
            if not chunk:
                time.sleep(0.01)
    # All of this namespace but this process and its first one.
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    code = child.wait()
    return {"end": end, "code": code, "seconds": time.monotonic() - began, "tail": tail.decode(errors="replace")}


def report_of(file: Path) -> dict[str, object]:
    """What the plugin wrote, or what the tested code wrote in its place: the reader must not trust its form."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            return {"report": json.loads(opened.read(65536))}
    except (OSError, ValueError, RecursionError):
        return {"report": None}


def main() -> None:
    """Read, run, tell."""
    if os.getpid() > LAST_OWN_PID or sys.version_info < (3, 11):
        sys.exit(f"process {os.getpid()} of Python {sys.version.split()[0]}, wanted are a sandbox's first and 3.11")
    close_myself()
    told: dict[str, object] = {"python": ".".join(map(str, sys.version_info[:3]))}
    wanted = json.loads(sys.stdin.buffer.read())
    try:
        told |= run(wanted, Path.cwd())
    except OSError as error:
        told |= {"end": "setup", "tail": str(error)}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
