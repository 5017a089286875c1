"""
What a deploy costs where nothing is to be done, and where little is; beside the least that it can cost, and Ansible.

    python -m benchmarks.converge [--rounds N] [--hosts 1,10,50] [--far 50,150] [--without-ansible] [--out FILE]

On the test bed, as root: its systemd host, and as many light hosts as wanted, which are made and removed again. It
prints a table and writes a record. docs/converge.md says what is measured and how.

* limit    one SSH connection a host, running one script that checks the same things (benchmarks/converge_limit.py)
* deploy   pyinfra with deploy.py
* ansible  benchmarks/ansible/converge.yaml with pipelining, in an environment of its own
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from beeyard.catalog import PROJECT
from benchmarks.converge_hosts import (
    DOCKER,
    NAME,
    STATE,
    Counts,
    Place,
    counted,
    docker,
    far_away,
    known_hosts,
    last_pid,
    light_hosts,
    output,
    talkative,
)
from benchmarks.converge_limit import limit_script, plan_of, variables

SYSTEMD = Place("systemd", "beeyard-systemd", 2201)
PREFIX = "/opt/beeyard"
# One of our files, whose damage a deploy repairs without touching the server.
DAMAGED = f"{PREFIX}/bin/fetch.sh"
SEED = f"{NAME}:seed"
ANSIBLE = PROJECT / ".beeyard" / "ansible"
OPTIONS = ["--data", "llama_preset=tiny", "--data", "llama_memlock=8388608"]
# As on a machine of a user: this one's may forbid Python to keep what it compiles.
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
    "PYINFRA_PROGRESS": "off",
    "ANSIBLE_CONFIG": str(PROJECT / "benchmarks" / "ansible" / "ansible.cfg"),
}


# In a small process of its own: what a process is made from counts as its peak, too.
MEASURE = """
import json, os, resource, sys, time
began = time.monotonic()
status = os.spawnv(os.P_WAIT, sys.argv[2], sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
took = [time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss]
open(sys.argv[1], "w").write(json.dumps(took))
sys.exit(status)
"""


@dataclass
class Figures:
    """A tool in a case: every round's seconds, and what does not depend on the machine."""

    tool: str
    case: str
    hosts: int
    kind: str
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mib: int = 0
    # A host's, the middle one of all.
    processes: int = 0
    connections: int = 0
    sessions: int = 0

    def summary(self, beside: "Figures") -> str:
        """A row of the table."""
        times = f" {statistics.median(self.wall_s) / statistics.median(beside.wall_s):6.2f} x"
        return (
            f"{self.kind:26} {self.hosts:3} {self.case:9} {self.tool:8} {statistics.median(self.wall_s):7.2f} s"
            f"{times} {statistics.median(self.cpu_s):7.2f} s {self.peak_mib:5} MiB"
            f" {self.processes:5} {self.sessions:4}"
        )


class Ran(NamedTuple):
    """A command that ended: seconds, its and its children's CPU seconds, the largest process in MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: int


def run(words: Sequence[str], wanted: Callable[[str], bool]) -> Ran:
    """
    Run a command and measure it.

    :param wanted: whether what it printed is what a right run prints
    """
    with tempfile.TemporaryDirectory() as folder:
        usage = Path(folder) / "usage"
        process = subprocess.run(
            [sys.executable, "-ISc", MEASURE, str(usage), *words],
            check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=PROJECT, env=ENVIRONMENT,
        )  # fmt: skip
        wall_s, cpu_s, peak_kib = json.loads(usage.read_text())
    if process.returncode != 0 or not wanted(process.stdout):
        said = (process.stderr + process.stdout)[-3000:]
        raise SystemExit(f"{' '.join(words)[:200]} did not end as it must:\n{said}")
    return Ran(wall_s, cpu_s, peak_kib // 1024)


class Group:
    """Hosts that are measured together, and how each tool gets there."""

    def __init__(self, kind: str, places: Sequence[Place], folder: Path, plan_place: Place) -> None:
        self.kind, self.places, self.folder = kind, list(places), folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "known_hosts").write_text(known_hosts([place.port for place in (*places, plan_place)]))
        self.inventory = str(self._pyinfra_inventory("hosts", places))
        self.plan_inventory = str(self._pyinfra_inventory("planned", [plan_place]))
        if SYSTEMD in places:  # the others are copies of one that was deployed to
            self.deploy(changes=None)
        for place in places:
            _give_key(place)
        plan = plan_of(plan_place.name, self.plan_inventory, OPTIONS, folder / "facts.json")
        key = PROJECT / ".beeyard" / "keys" / plan_place.name
        self.script = limit_script(plan, key)
        (folder / "content").mkdir(exist_ok=True)
        self.variables = variables(plan, key, folder / "content")
        self._ansible_inventory()

    def limit(self) -> Ran:
        """All hosts at once, a client each."""
        text = f"""
for port in {" ".join(str(place.port) for place in self.places)}; do
    ssh -F none -p "$port" -i {STATE}/id_ed25519 -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes \\
        -o UserKnownHostsFile={self.folder}/known_hosts root@127.0.0.1 sh -s <{self.folder}/limit.sh &
done
wait
"""
        (self.folder / "limit.sh").write_text(self.script)
        return run(["/bin/sh", "-c", text], lambda said: said.count("OK") == len(self.places))

    def deploy(self, *, is_dry: bool = False, changes: int | None = 0, limit: Sequence[str] = ()) -> Ran:
        """
        deploy.py on all of them.

        :param changes: how many operations must have changed something on each; None if that is not looked at
        :param limit: names, if not all
        """
        words = [sys.executable, "-m", "pyinfra", *OPTIONS, self.inventory, "deploy.py", "--json"]
        words += [word for name in limit for word in ("--limit", name)]
        words += ["--dry"] if is_dry else ["--yes"]
        count = len(limit or self.places)

        def is_right(said: str) -> bool:
            if changes is None or is_dry:
                return True
            totals = json.loads(said)["results"]["totals"]
            return bool(totals["success"] == changes * count and totals["error"] == 0)

        return run(words, is_right)

    def ansible(self, *, is_dry: bool = False, changes: int | None = 0) -> Ran:
        """The playbook on all of them."""
        words = [str(ANSIBLE / "bin" / "ansible-playbook"), "-i", f"{self.folder}/ansible.ini"]
        words += ["-e", f"@{self.folder}/variables.json", "benchmarks/ansible/converge.yaml"]

        def is_right(said: str) -> bool:
            unchanged = changes is None or said.count(f"changed={changes} ") == len(self.places)
            return unchanged and said.count("failed=0 ") == len(self.places)

        return run([*words, *(["--check"] if is_dry else [])], is_right)

    def each(self, script: str) -> None:
        """Run a script on all of them, outside of what is measured."""
        for place in self.places:
            docker("exec", place.container, "sh", "-c", script)

    def _pyinfra_inventory(self, name: str, places: Sequence[Place]) -> Path:
        rows = [
            (
                place.name,
                {
                    "ssh_hostname": "127.0.0.1", "ssh_port": place.port, "ssh_user": "root",
                    "ssh_key": str(STATE / "id_ed25519"), "ssh_known_hosts_file": str(self.folder / "known_hosts"),
                    "ssh_strict_host_key_checking": "yes",
                },
            )
            for place in places
        ]  # fmt: skip
        file = self.folder / f"{name}.py"
        file.write_text(f"{name} = {rows!r}\n")
        return file

    def _ansible_inventory(self) -> None:
        common = f"-o UserKnownHostsFile={self.folder}/known_hosts"
        rows = [
            f"{place.name} ansible_host=127.0.0.1 ansible_port={place.port} ansible_user=root "
            f"ansible_ssh_private_key_file={STATE}/id_ed25519 ansible_ssh_common_args='{common}'"
            for place in self.places
        ]
        (self.folder / "ansible.ini").write_text("\n".join(rows) + "\n")
        (self.folder / "variables.json").write_text(json.dumps(self.variables))


def _give_key(place: Place) -> None:
    """Hosts that were copied have one key; a deploy would fetch its copy."""
    copy = PROJECT / ".beeyard" / "keys" / place.name
    text = subprocess.run(
        [*DOCKER, "exec", place.container, "cat", f"{PREFIX}/etc/api-key"], check=False, capture_output=True
    ).stdout
    if not text:
        raise SystemExit(f"{place.name} has no key. Fix: look at what its deploy says")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(text)
    copy.chmod(0o600)


class Bench:
    """The figures, as they come in."""

    def __init__(self, rounds: int, out: Path, compared: dict[str, str]) -> None:
        self.rounds, self.out, self.compared = rounds, out, compared
        self.all: list[Figures] = []

    def measure(
        self, group: Group, tool: str, case: str, once: Callable[[], Ran], before: Callable[[], None] | None = None,
        rounds: int | None = None,
    ) -> Figures:  # fmt: skip
        """Add a tool's figures in a case, and print their row."""
        figures = Figures(tool, case, len(group.places), group.kind)
        counts: list[Counts] = []
        for _ in range(rounds or self.rounds):
            if before:
                before()
            with counted(group.places[:5], counts):  # they are all alike
                ran = once()
            figures.wall_s.append(round(ran.wall_s, 3))
            figures.cpu_s.append(round(ran.cpu_s, 3))
            figures.peak_mib = max(figures.peak_mib, ran.peak_mib)
        figures.processes, figures.connections, figures.sessions = (
            int(statistics.median(values)) for values in zip(*counts, strict=True)
        )
        self.all.append(figures)
        same = [row for row in self.all if (row.kind, row.hosts, row.tool) == (figures.kind, figures.hosts, "limit")]
        print(figures.summary(same[0]), flush=True)
        self.write()
        return figures

    def write(self) -> None:
        """The record, as far as it is."""
        record = {
            "schema": 1,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "cores": os.cpu_count(),
            "versions": self.compared,
            "round_trips": round_trips(self),
            "figures": [asdict(figures) for figures in self.all],
        }
        self.out.parent.mkdir(exist_ok=True)
        self.out.write_text(json.dumps(record, indent=1) + "\n")


def unwarmed(group: Group) -> None:
    """Every tool's first run compiles or copies something that later ones have."""
    group.deploy(changes=None)
    group.deploy()
    group.limit()


WIPE = (
    f"[ ! -f {PREFIX}/bin/guard.py ] || python3 {PREFIX}/bin/guard.py stop {PREFIX} 2>/dev/null; "
    f"rm -rf {PREFIX} /etc/systemd/system/beeyard-llama-server.service; systemctl daemon-reload 2>/dev/null; "
    "userdel beeyard 2>/dev/null; true"
)
DAMAGE = f"echo '# damaged' >>{DAMAGED}"


def one_host(bench: Bench, folder: Path, with_ansible: bool) -> None:
    """The whole deploy of a systemd host: first, again, one file changed, dry."""
    with talkative(SYSTEMD):
        group = Group("systemd", [SYSTEMD], folder / "one", SYSTEMD)
        unwarmed(group)
        # In turns, so that whatever else the machine does meets all of them.
        bench.measure(group, "limit", "no-op", group.limit)
        bench.measure(group, "deploy", "no-op", group.deploy)
        _others(bench, group, "deploy", group.deploy, bench.rounds)
        if with_ansible:
            group.ansible(changes=None)
            bench.measure(group, "ansible", "no-op", group.ansible, rounds=2)
            _others(bench, group, "ansible", group.ansible, 1)
            group.each(WIPE)
        group.deploy(changes=None)


def _others(bench: Bench, group: Group, tool: str, go: Any, rounds: int) -> None:
    bench.measure(group, tool, "one file", lambda: go(changes=1), lambda: group.each(DAMAGE), rounds)
    bench.measure(group, tool, "dry", lambda: go(is_dry=True), None, rounds)
    bench.measure(group, tool, "first", lambda: go(changes=None), lambda: group.each(WIPE), min(rounds, 2))


def seed(folder: Path) -> None:
    """An image of a light host that was deployed to, so that fifty of them need not be."""
    with light_hosts(1) as places:
        (place,) = places
        inventory = folder / "seed.py"
        group_data = {"ssh_hostname": "127.0.0.1", "ssh_port": place.port, "ssh_user": "root"}
        group_data |= {"ssh_key": str(STATE / "id_ed25519"), "ssh_known_hosts_file": str(folder / "known_hosts")}
        (folder / "known_hosts").write_text(known_hosts([place.port]))
        inventory.write_text(f"seed = [({place.name!r}, {group_data!r})]\n")
        _wait_for([place])
        (PROJECT / ".beeyard" / "keys" / place.name).unlink(missing_ok=True)
        output(sys.executable, "-m", "pyinfra", *OPTIONS, str(inventory), "deploy.py", "--yes")
        docker("exec", place.container, "python3", f"{PREFIX}/bin/guard.py", "stop", PREFIX)
        docker("exec", place.container, "sh", "-c", f"rm -f {PREFIX}/run/*.sock {PREFIX}/run/*.pid")
        docker("commit", place.container, SEED)


def _wait_for(places: Sequence[Place]) -> None:
    for place in places:
        for _ in range(100):
            said = subprocess.run(
                [*DOCKER, "logs", place.container], check=False, capture_output=True, text=True
            ).stderr
            if "Server listening" in said:
                break
            time.sleep(0.1)


def many_hosts(bench: Bench, folder: Path, count: int, far_ms: Sequence[int], with_ansible: bool) -> None:
    """Light hosts, that run their server under supervisor."""
    with light_hosts(count, SEED) as places:
        _wait_for(places)
        group = Group("light", places, folder / str(count), places[0])
        # One after the other: fifty servers that load at once on two cores would take many minutes.
        group.each(f"python3 {PREFIX}/bin/guard.py start {PREFIX}")
        unwarmed(group)
        bench.measure(group, "limit", "no-op", group.limit)
        bench.measure(group, "deploy", "no-op", group.deploy)
        if count <= 10:
            bench.measure(group, "deploy", "one file", lambda: group.deploy(changes=1), lambda: group.each(DAMAGE))
            bench.measure(group, "deploy", "dry", lambda: group.deploy(is_dry=True))
        if with_ansible:
            group.ansible(changes=None)
            bench.measure(group, "ansible", "no-op", group.ansible, rounds=1)
        if count == 1:
            for far in far_ms:
                with far_away(places[0], far / 1000, 2299) as place:
                    slow = Group(f"light, {far} ms away", [place], folder / f"far{far}", places[0])
                    bench.measure(slow, "limit", "no-op", slow.limit)
                    bench.measure(slow, "deploy", "no-op", slow.deploy)
        if count == 10:
            with far_away(places[0], max(far_ms) / 1000, 2299) as place:
                some = [place, *places[1:]]
                mixed = Group(f"light, one {max(far_ms)} ms away", some, folder / "mixed", places[1])
                bench.measure(mixed, "limit", "no-op", mixed.limit)
                bench.measure(mixed, "deploy", "no-op", mixed.deploy)


def round_trips(bench: Bench) -> dict[str, float]:
    """How many round trips a no-op waits for, by tool: how its seconds grow with the length of one."""
    found = {}
    for tool in ("limit", "deploy"):
        points = []
        for row in bench.all:
            if row.tool == tool and row.kind.endswith("ms away") and "one" not in row.kind:
                points.append((float(row.kind.split()[1]) / 1000, statistics.median(row.wall_s)))
        if len(points) > 1:
            (near, short), *_, (far, long) = points
            found[tool] = round((long - short) / (far - near), 1)
    return found


def versions(with_ansible: bool) -> dict[str, str]:
    """Of all that is compared."""
    found = {name: importlib.metadata.version(name) for name in ("pyinfra", "paramiko", "gevent")}
    found["python"] = platform.python_version()
    found["openssh"] = subprocess.run(["ssh", "-V"], check=True, capture_output=True, text=True).stderr.strip()
    if with_ansible:
        found["ansible"] = output(str(ANSIBLE / "bin" / "ansible"), "--version").splitlines()[0]
    return found


def prepare_ansible() -> None:
    """Its own environment, locked."""
    uv, lock = str(PROJECT / ".venv" / "bin" / "uv"), PROJECT / "benchmarks" / "ansible" / "requirements.txt"
    output(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(ANSIBLE))
    subprocess.run(
        [uv, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode", str(lock)],
        check=True, env={**os.environ, "VIRTUAL_ENV": str(ANSIBLE)},
    )  # fmt: skip


def main() -> None:
    """Measure all that is wanted, print, and write the record."""
    parser = argparse.ArgumentParser(description="What a deploy costs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", default="1,10,50")
    parser.add_argument("--far", default="50,150", help="round trips to a host that is far away, in ms")
    parser.add_argument("--without-ansible", action="store_true")
    parser.add_argument("--out", type=Path, default=PROJECT / "results" / "converge.json")
    given = parser.parse_args()
    counts, far_ms = [[int(word) for word in text.split(",") if word] for text in (given.hosts, given.far)]
    with_ansible = not given.without_ansible
    last_pid(SYSTEMD)
    if with_ansible:
        prepare_ansible()
    bench = Bench(given.rounds, given.out, versions(with_ansible))
    print(
        f"{'hosts':>30} {'':9} {'':8} {'wall':>9} {'x limit':>8} {'CPU here':>9} {'peak':>9} processes, sessions",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as ends:
        folder = Path(temporary)
        if 1 in counts:
            one_host(bench, folder, with_ansible)
        seed(folder)
        ends.callback(subprocess.run, [*DOCKER, "image", "rm", SEED], check=False, capture_output=True)
        for count in counts:
            many_hosts(bench, folder, count, far_ms, with_ansible and count == 10)
    print("round trips that a no-op waits for:", round_trips(bench))


if __name__ == "__main__":
    main()
