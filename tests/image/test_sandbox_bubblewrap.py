"""The same hostile modules under bubblewrap, in a scope of a real systemd: on a host of this test's own."""

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from beeyard.catalog import PROJECT
from tests import hostile
from tests.image.conftest import wait_for

HOST = "beeyard-testbed/systemd"
MARKER = "secret-of-the-user"
FILE = f"/root/{MARKER}"
USER = "deploy"
PATHS = ["/root", "/project", "/etc/passwd", "/etc/shadow", "/run/systemd", "/run/dbus", "/site", "/home"]
pytestmark = pytest.mark.skipif(
    sysconfig.get_python_version() != "3.11",
    reason="the host has Python 3.11, and compiled packages are for one version",
)
# Tries what stands on stdin, and tells how many of its processes are left.
DRIVER = """
import json, os, sys, time
from beeyard.bench.sandbox import *
sandbox = find_sandbox(["beeyard-there-is-no-such-image:1"])
assert sandbox.kind == "bubblewrap"
for line in sys.stdin:
    case = json.loads(line)
    began = time.monotonic()
    found = try_module(Extracted(source=case["code"], reason=""), {}, sandbox, Limits(**case["limits"]))
    time.sleep(0.5)
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and "sandbox" in open(f"/proc/{pid}/cgroup").read()]
    print(json.dumps([case["name"], found.model_dump(), len(left), time.monotonic() - began]))
"""
FORKS_WITH_AN_END = """
import os

def test_forks_have_an_end():
    for number in range(500):
        try:
            if os.fork() == 0:
                os.pause() if hasattr(os, "pause") else __import__("time").sleep(60)
        except OSError:
            break
    assert number < 64
"""
ADDRESSES = [["127.0.0.1", 22], ["::1", 22], ["172.17.0.1", 22], ["1.1.1.1", 443]]
# By name: the code, its limits, how it must end.
CASES: dict[str, tuple[str, dict[str, int], str]] = {
    "good": ("def test_it(): pass\n", {}, "passed"),
    "home": (hostile.HOME.format(marker=MARKER, paths=PATHS), {}, "passed"),
    "network": (hostile.NETWORK.format(addresses=ADDRESSES, abstract="x"), {}, "passed"),
    "forks": (FORKS_WITH_AN_END, {}, "passed"),
    "fork bomb": (hostile.FORKS, {"seconds": 3}, "timed_out"),
    "disk": (hostile.DISK.format(most=33 * 2**20, files=10**5 + 1), {}, "passed"),
    "memory": (hostile.MEMORY, {"memory_mib": 128}, "crashed"),
    "hidden memory": (hostile.HIDDEN_MEMORY, {"memory_mib": 128}, "crashed"),
    "for ever": (hostile.FOR_EVER, {"seconds": 3}, "timed_out"),
    "reporter": (hostile.OUTPUT_OF_ANOTHER, {}, "passed"),
    "left behind": (hostile.LEFT_BEHIND.format(marker="4242"), {}, "passed"),
    "report": (hostile.LINKED_REPORT.format(how="symlink('/etc/passwd', '/sandbox/report.json')"), {}, "crashed"),
    "powers": (hostile.POWERS, {}, "passed"),
}


@pytest.fixture(scope="module")
def host(client: docker.DockerClient) -> Iterator[Container]:
    """A host under systemd with bubblewrap, where Python finds this project and what it needs."""
    packages = Path(sysconfig.get_paths()["purelib"]).resolve()
    made = client.containers.run(
        HOST, detach=True, privileged=True, cgroupns="private", tmpfs={"/run": "", "/run/lock": ""},
        labels={"beeyard.test": "1"}, environment={"PYTHONPATH": "/project:/site", "SECRET": MARKER},
        volumes={str(PROJECT): {"bind": "/project", "mode": "ro"}, str(packages): {"bind": "/site", "mode": "ro"}},
    )  # fmt: skip
    try:
        assert wait_for(30, lambda: made.exec_run(["systemctl", "is-active", "--quiet", "basic.target"])[0] == 0)
        install = (
            "apt-get update -qq && apt-get install -y -qq bubblewrap libpam-systemd && loginctl enable-linger " + USER
        )
        said(made, ["sh", "-c", f"{install} && touch {FILE}"])
        manager = f"/run/user/{said(made, ['id', '-u', USER]).strip()}/systemd/private"
        assert wait_for(20, lambda: made.exec_run(["test", "-S", manager])[0] == 0)
        yield made
    finally:
        made.remove(force=True, v=True)


def said(host: Container, command: list[str], **options: Any) -> str:
    code, output = host.exec_run(command, **options)
    assert isinstance(output, bytes)
    assert code == 0, output.decode()[-3000:]
    return output.decode()


def tried(host: Container) -> dict[str, Any]:
    lines = "\n".join(json.dumps({"name": name, "code": code, "limits": {"seconds": 15, **limits}})
                      for name, (code, limits, _) in CASES.items())  # fmt: skip
    environment = {"DRIVER": DRIVER, "CASES": lines}
    command = ["sh", "-c", 'printf "%s\\n" "$CASES" | python3 -c "$DRIVER"']
    output = said(host, command, environment=environment, workdir="/tmp")
    return {name: told for name, *told in map(json.loads, output.splitlines())}


def test_hostile_modules_are_held(host: Container) -> None:
    found = tried(host)
    assert set(found) == set(CASES)
    wrong = {name: told for name, (told, _, _) in found.items() if told["outcome"] != CASES[name][2]}
    assert not wrong, json.dumps(wrong, indent=1)
    assert {name: left for name, (_, left, _) in found.items() if left} == {}
    assert max(seconds for _, _, seconds in found.values()) < 30
    assert all(told["python"] == "3.11.2" for told, _, _ in found.values() if told["outcome"] == "passed")


def test_where_a_users_scope_limits_nothing_it_is_refused(host: Container) -> None:
    # Under cgroup v1, as on test machines, a user's systemd takes limits and does not hold them.
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("this machine has cgroup v2, which holds a user's limits")
    script = (
        "from beeyard.bench.sandbox import *\n"
        "try:\n    find_sandbox(['python:1'])\nexcept SandboxError as error:\n    print(error)\n"
    )
    uid = said(host, ["id", "-u", USER]).strip()
    environment = {"XDG_RUNTIME_DIR": f"/run/user/{uid}"}
    found = said(host, ["python3", "-c", script], environment=environment, user=USER, workdir="/tmp")
    assert "a scope of systemd's limits no memory and processes here" in found, found
    assert "Fix: `docker pull python:1`" in found
