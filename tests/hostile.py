"""Modules as a hostile model might write them. Each holds tests that pass only where the sandbox held."""

HOME = """
import os, pathlib

def test_no_file_of_the_users_is_there():
    found = [
        os.path.join(folder, name)
        for folder, folders, files in os.walk("/")
        for name in [*folders, *files]
        if {marker!r} in name
    ]
    assert not found
    for path in {paths!r}:
        assert not os.path.exists(path), path
        assert not os.path.exists("/proc/1/root" + path), path

def test_no_variable_is_the_users():
    assert {marker!r} not in repr(dict(os.environ))
    try:
        assert {marker!r} not in pathlib.Path("/proc/1/environ").read_bytes().decode()
    except PermissionError:
        pass
"""

NETWORK = """
import pathlib, socket
import pytest

@pytest.mark.parametrize("address", {addresses!r})
def test_nothing_can_be_reached(address):
    with pytest.raises(OSError):
        socket.create_connection(tuple(address), timeout=2)

def test_no_socket_of_this_machine_can_be_reached():
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(OSError):
        client.connect(b"\\0" + {abstract!r}.encode())

def test_no_name_is_known():
    with pytest.raises(OSError):
        socket.getaddrinfo("example.org", 443)

def test_only_loopback_is_there():
    assert [name for _, name in socket.if_nameindex()] == ["lo"]

def test_no_engine_can_be_asked():
    assert not list(pathlib.Path("/run").rglob("*.sock")) + list(pathlib.Path("/var/run").rglob("*.sock"))
"""

FORKS = """
import os

def test_as_many_as_there_can_be():
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""

# Two folders up from the sandbox's only one are all others.
DISK = """
import os, pathlib
MIB = 2**20

def fill(folder):
    total = 0
    for number in range(4096):
        try:
            with open(os.path.join(folder, f"full{{number}}"), "wb") as file:
                for _ in range(16):
                    total += file.write(bytes(MIB))
                    file.flush()
        except OSError:
            break
    return total

def test_the_disk_has_an_end():
    seen = []
    for folder, folders, files in os.walk("/"):
        if folder.startswith(("/proc", "/sys")):
            folders.clear()
        elif os.access(folder, os.W_OK):
            seen.append((folder, fill(folder)))
    assert "/sandbox" in [folder for folder, _ in seen]
    # Pytest wants to write, too.
    for folder, _ in seen:
        for file in pathlib.Path(folder).glob("full*"):
            file.unlink()
    assert sum(size for _, size in seen) <= {most}, seen

def test_files_have_an_end():
    made = 0
    for number in range(100_000):
        try:
            os.symlink("x", f"/sandbox/tmp/link{{number}}")
        except OSError:
            break
        made += 1
    for file in pathlib.Path("/sandbox/tmp").glob("link*"):
        file.unlink()
    assert made < {files}
"""

MEMORY = """
def test_all_that_there_is():
    kept = []
    while True:
        kept.append(b"x" * 2**22)
"""

HIDDEN_MEMORY = """
import os

def test_files_in_memory_count():
    for number in range(200):
        file = os.memfd_create(str(number))
        for _ in range(16):
            os.write(file, b"x" * 2**20)
"""

FOR_EVER = """
import signal, threading

def test_for_ever():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    threading.Event().wait()
"""

FOR_EVER_AT_ITS_END = """
import atexit, time
atexit.register(time.sleep, 10_000)

def test_it():
    pass
"""

OUTPUT = """
import os

def test_it():
    while True:
        os.write(2, b"x" * 65536)
        os.write(1, b"y" * 65536)
"""

# Around pytest's own capture, at what reports the result.
OUTPUT_OF_ANOTHER = """
import os
import pytest

@pytest.mark.parametrize("path", ["/proc/1/fd/1", "/proc/1/fd/2", "/proc/{parent}/fd/1", "/proc/{parent}/mem"])
def test_the_reporter_is_out_of_reach(path):
    with pytest.raises(OSError):
        os.open(path.replace("{parent}", str(os.getppid())), os.O_WRONLY)

def test_it_cannot_be_traced():
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    for process in (1, os.getppid()):
        assert libc.ptrace(16, process, None, None) == -1
"""

LINKED_REPORT = """
import os

def test_it():
    pass

import atexit
@atexit.register
def _():
    os.unlink("/sandbox/report.json")
    os.{how}
"""

FORGED_REPORT = """
import os
open("/sandbox/report.json", "w").write({text!r})
os._exit(0)
"""

LEFT_BEHIND = """
import os, time

def test_it():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", {marker!r}])
        os._exit(0)
    time.sleep(0.2)
"""

MURDER = """
import os, signal

def test_it():
    for process in (1, os.getppid(), -1):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            assert process == -1
"""

POWERS = """
import ctypes, os, pathlib
import pytest

STATUS = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())

@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_it_has_no_capability(name):
    assert int(STATUS[name], 16) == 0

def test_it_can_gain_none():
    assert STATUS["NoNewPrivs"].strip() == "1"
    assert os.getuid() == os.geteuid() == 65534

def test_it_cannot_have_a_namespace_of_its_own():
    assert ctypes.CDLL(None).unshare(0x10000000) == -1

@pytest.mark.parametrize("path", ["/etc/passwd", "/usr/bin/python3", "/proc/sys/kernel/core_pattern",
                                  "/sys/fs/cgroup/memory.max", "/proc/sysrq-trigger"])
def test_nothing_of_the_system_can_be_written(path):
    with pytest.raises(OSError):
        os.open(path, os.O_WRONLY | os.O_CREAT)
"""

COLOURS = 'def test_it():\n    assert 0, "\\x1b]0;title\\x07\\x1b[2J" + "long" * 2000\n'
