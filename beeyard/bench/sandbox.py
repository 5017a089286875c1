"""
Runs a module that a model wrote, with its tests, where it can do no harm: no network, no file of this machine, limits
on time, memory, processors, processes, files and output.

In a container where a Docker Engine answers and has an image with Python; else under bubblewrap in a scope of
systemd, which limits what bubblewrap cannot; else it is refused. No file of anybody's is mounted: files go in on
stdin, one JSON table comes out, and is not trusted. The tests are run by this environment's pytest, sent along.

It keeps this machine safe from the code. It does not keep the mark safe: code that means to look as if its tests
passed can do so, as they run in its own process.
"""

import base64
import contextlib
import importlib.metadata
import io
import json
import os
import re
import secrets
import selectors
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from beeyard.bench.answers import Extracted, extract
from beeyard.bench.verdicts import Counts, Outcome, Verdict
from beeyard.catalog import CatalogError, Strict

INSIDE = Path(__file__).with_name("inside.py")
LABEL = "beeyard.sandbox"
# Nobody, by number: no image need know it.
NOBODY = "65534"
HOME = "/sandbox"
MODULE = "answer"
# Distributions that pytest is made of, from Python 3.11 on.
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
MIB, KIB = 2**20, 2**10
# Of what is said in there, so much is kept.
TAIL_BYTES, TAIL_LINES, LINE_CHARACTERS = 4 * KIB, 20, 200
# Of what comes out, so much is read; more is no answer of ours.
RESULT_BYTES = 256 * KIB
# What a sandbox may take to start and end, in seconds, on a machine that is busy.
AROUND_S, ASK_S = 30.0, 30.0
OLDEST_BWRAP = (0, 8)
SYSTEM_PYTHON = Path("/usr/bin/python3")


# Run in a scope: the limits of memory and of processes that it is under, by cgroup v2 or v1.
LIMITS_HERE = """
lines = [line.strip().split(":", 2) for line in open("/proc/self/cgroup")]
paths = {name: path for _, names, path in lines for name in names.split(",")}
for name, new, old in (("memory", "memory.max", "memory.limit_in_bytes"), ("pids", "pids.max", "pids.max")):
    file = f"/sys/fs/cgroup/{name}{paths[name]}/{old}" if name in paths else f"/sys/fs/cgroup{paths['']}/{new}"
    print(open(file).read())
"""


class SandboxError(CatalogError):
    """Why no code can be tried here. Its text is one sentence that ends in ``Fix: …``."""


class Limits(Strict):
    """
    What the code may take; ``seconds`` for all of its tests, ``disk_mib`` and ``files`` in its only folder.

    Under bubblewrap ``files`` is not held: there they are memory, and that is.
    """

    seconds: int = Field(default=60, gt=0)
    memory_mib: int = Field(default=512, ge=64)
    cpus: float = Field(default=1, gt=0)
    processes: int = Field(default=64, ge=8)
    disk_mib: int = Field(default=32, ge=8)
    files: int = Field(default=512, ge=64)
    output_kib: int = Field(default=1024, ge=16)


DEFAULT = Limits()


class Surroundings(Strict):
    """What a record says of where code was tried; ``image_id`` is a container's."""

    kind: Literal["docker", "bubblewrap"]
    version: str
    image: str = ""
    image_id: str = ""
    pytest: str
    limits: Limits


@dataclass(frozen=True)
class Docker:
    """Containers of one image; ``volumes`` are paths that the image would have a writable volume at."""

    version: str
    image: str
    image_id: str
    volumes: tuple[str, ...] = ()
    command: str = "docker"
    kind: Literal["docker"] = "docker"

    def argv(self, name: str, limits: Limits) -> list[str]:
        """The command that starts a container which reads its work on stdin."""
        inside = f"rw,nosuid,nodev,noexec,size={limits.disk_mib}m,nr_inodes={limits.files},mode=0700"
        # A volume would be room on this machine's disk without a limit.
        covers = [word for path in self.volumes for word in ("--tmpfs", f"{path}:ro,size=4k,nr_inodes=2")]
        return [
            self.command, "run", "--rm", "--interactive", "--name", name, "--label", f"{LABEL}=1", "--pull", "never",
            "--network", "none", "--hostname", "sandbox", "--read-only",
            "--tmpfs", f"{HOME}:{inside},uid={NOBODY},gid={NOBODY}", *covers,
            "--workdir", HOME, "--user", f"{NOBODY}:{NOBODY}", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges", "--ipc", "private", "--shm-size", "1m",
            "--memory", f"{limits.memory_mib}m", "--memory-swap", f"{limits.memory_mib}m",
            "--pids-limit", str(limits.processes), "--cpus", f"{limits.cpus:g}",
            # Docker would keep all that is said on this machine's disk.
            "--log-driver", "none", "--no-healthcheck",
            # Where NVIDIA's is the usual runtime, an image may ask for the card.
            "--env", "NVIDIA_VISIBLE_DEVICES=void",
            "--entrypoint", "python3", self.image_id, "-I", "-c", INSIDE.read_text(encoding="utf-8"),
        ]  # fmt: skip

    def clear(self, name: str) -> None:
        """
        Remove a container if it is still there.

        :raises SandboxError: it cannot be removed.
        """
        try:
            run = _run([self.command, "rm", "--force", "--volumes", name])
        except subprocess.TimeoutExpired as error:
            raise _left(self.command, name, "Docker does not answer") from error
        gone = ("no such container", "already in progress")
        if run.returncode != 0 and not any(word in run.stderr.lower() for word in gone):
            raise _left(self.command, name, run.stderr.strip())


@dataclass(frozen=True)
class Bubblewrap:
    """Namespaces of bubblewrap's over this machine's own /usr, in a scope of systemd's; root starts it as nobody."""

    version: str
    is_root: bool
    python: str = str(SYSTEM_PYTHON)
    command: str = "bwrap"
    kind: Literal["bubblewrap"] = "bubblewrap"
    image: str = ""
    image_id: str = ""

    def argv(self, name: str, limits: Limits) -> list[str]:
        """The command that starts a process which reads its work on stdin."""
        # What dynamic linking and alternatives want beside /usr; nothing of anybody's.
        links = [word for path in ("/bin", "/lib", "/lib64", "/sbin") for word in _like_here(path)]
        return [
            # bwrap itself has nobody's variables, and no process of its own in there that could be read or traced.
            *self.scope(name, limits), "env", "--ignore-environment", self.command, "--as-pid-1",
            "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
            "--cap-drop", "ALL", "--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox", "--clearenv",
            "--ro-bind", "/usr", "/usr", *links,
            "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache",
            "--ro-bind-try", "/etc/alternatives", "/etc/alternatives",
            "--proc", "/proc", "--dev", "/dev", "--size", str(limits.disk_mib * MIB), "--tmpfs", HOME,
            "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME,
            self.python, "-I", "-c", INSIDE.read_text(encoding="utf-8"),
        ]  # fmt: skip

    def scope(self, name: str, limits: Limits) -> list[str]:
        """The start of a command that runs what follows in a scope with limits."""
        properties = [
            f"MemoryMax={limits.memory_mib}M", "MemorySwapMax=0", f"TasksMax={limits.processes}",
            f"CPUQuota={limits.cpus:.0%}", f"RuntimeMaxSec={limits.seconds + AROUND_S:g}",
        ]  # fmt: skip
        return [
            "systemd-run", *(["--uid", "nobody"] if self.is_root else ["--user"]), "--scope", "--quiet", "--collect",
            "--unit", f"{name}.scope", *(f"--property={one}" for one in properties), "--",
        ]  # fmt: skip

    def lacking_limits(self) -> str:
        """
        Why a scope here does not limit what is in it; empty if it does.

        A user's manager holds limits only where cgroup v2 has been delegated to it, and says nothing if not.
        """
        limits = Limits(memory_mib=64, processes=16)
        ask = [*self.scope(f"beeyard-sandbox-{secrets.token_hex(8)}", limits), self.python, "-I", "-c", LIMITS_HERE]
        try:
            run = _run(ask)
        except (subprocess.TimeoutExpired, OSError) as error:
            return f"systemd-run does not answer ({error})"
        if run.returncode != 0:
            return f"systemd-run starts no scope ({_last(run.stderr)})"
        if run.stdout.split() != [str(64 * MIB), "16"]:
            return "a scope of systemd's limits no memory and processes here, as it does under cgroup v2 or for root"
        return ""

    def clear(self, name: str) -> None:
        """End the scope if it is still there; its processes have ended with the one that was started."""
        scope = ["systemctl", *([] if self.is_root else ["--user"])]
        with contextlib.suppress(subprocess.TimeoutExpired):
            _run([*scope, "kill", "--signal=KILL", f"{name}.scope"])


Sandbox = Docker | Bubblewrap


def our_tests(workload: str, prompt: str, folders: Sequence[Path]) -> dict[str, str]:
    """
    Our tests of a prompt's answers, by file name: none where nobody has written any.

    :param folders: of presets, the later ones first heard: ``answers/WORKLOAD/test_PROMPT.py``, with _ for -
    """
    name = f"test_{prompt.replace('-', '_')}.py"
    for folder in reversed(folders):
        file = folder / "answers" / workload / name
        if file.is_file():
            return {name: file.read_text(encoding="utf-8")}
    return {}


def find_sandbox(images: Sequence[str]) -> Sandbox:
    """
    The sandbox of this machine: a container's if Docker has one of the images, else bubblewrap's.

    :param images: names to look for on the Docker Engine, the best first, as beeyard.images.sandbox_images has them;
        any will do that has ``python3``, 3.11 or newer. None is pulled.
    :raises SandboxError: neither is here; the sentence says what would do.
    """
    docker, no_docker = _docker(images)
    if docker is not None:
        return docker
    bubblewrap, no_bubblewrap = _bubblewrap()
    if bubblewrap is not None:
        return bubblewrap
    raise SandboxError(
        f"there is nothing here that code of a model may run in: {no_docker}, and {no_bubblewrap}. "
        f"Fix: `docker pull {images[0] if images else 'python:3.13-slim'}`, or install bubblewrap 0.8 on a machine "
        "under systemd, or leave the answers untried"
    )


def surroundings(sandbox: Sandbox, limits: Limits = DEFAULT) -> Surroundings:
    """What a record says of it."""
    return Surroundings(
        kind=sandbox.kind,
        version=sandbox.version,
        image=sandbox.image,
        image_id=sandbox.image_id,
        pytest=importlib.metadata.version("pytest"),
        limits=limits,
    )


def judge(
    answer: str, tests: Mapping[str, str], sandbox: Sandbox | None, *, is_cut: bool = False, limits: Limits = DEFAULT
) -> Verdict:
    """
    What came of an answer's module: found in the text, run with its own tests and with ours.

    :param tests: our tests' sources by file name, which import the module as ``answer``
    :param sandbox: None where there is none: the verdict then says refused
    :param is_cut: whether the answer's tokens ran out
    """
    found = extract(answer, is_cut=is_cut)
    if found.source is None:
        return Verdict(outcome="no_module", reason=found.reason, is_cut=found.is_cut)
    if sandbox is None:
        reason = "there is no sandbox here. Fix: see docs/answers.md for what makes one"
        return Verdict(outcome="refused", reason=reason, is_cut=found.is_cut)
    return try_module(found, tests, sandbox, limits)


def try_module(module: Extracted, tests: Mapping[str, str], sandbox: Sandbox, limits: Limits = DEFAULT) -> Verdict:
    """
    Run a module and its tests. Whatever the code does is in the verdict.

    :param module: with a source; ``judge`` finds it in an answer
    :param tests: our tests' sources by file name, as ``test_task_store.py``; they import the module as ``answer``
    :raises ValueError: a test's name is no file name, or there is no source.
    :raises SandboxError: the sandbox cannot be cleared away.
    """
    if module.source is None:
        raise ValueError("there is no module to try")
    wrong = [name for name in tests if not re.fullmatch(r"test_\w+\.py", name)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no name of a test file, as test_task_store.py is")
    # Where the module's own tests import it by the name that the model gave it, they mean it.
    itself = f'import sys\nsys.modules[__name__] = sys.modules["{MODULE}"]\n'
    files = {f"{MODULE}.py": module.source, **{f"{name}.py": itself for name in module.other_names}, **tests}
    work = {
        "files": files, "tests": [f"{MODULE}.py", *tests], "pytest": _pytest(), "seconds": limits.seconds,
        "output_bytes": limits.output_kib * KIB, "tail_bytes": TAIL_BYTES, "file_bytes": limits.disk_mib * MIB,
    }  # fmt: skip
    name = f"beeyard-sandbox-{secrets.token_hex(8)}"
    began = time.monotonic()
    try:
        came = _talk(sandbox.argv(name, limits), json.dumps(work).encode(), limits.seconds + AROUND_S)
    except OSError as error:
        reason = f"{sandbox.command} cannot be run ({error}). Fix: see that it is still installed"
        return Verdict(outcome="refused", reason=reason, is_cut=module.is_cut)
    finally:
        sandbox.clear(name)
    outcome, reason, told = _read(came, limits)
    counts = told.report.counts if told.report is not None else {}
    own = counts.get(f"{MODULE}.py", Counts())
    others = [one for file, one in counts.items() if file in tests]
    return Verdict(
        outcome=outcome,
        reason=reason,
        own=own,
        ours=Counts(passed=sum(one.passed for one in others), failed=sum(one.failed for one in others)),
        is_cut=module.is_cut,
        seconds=told.seconds or time.monotonic() - began,
        python=told.python,
        lines=last_lines(told.tail or came.errors),
    )


# --- what comes out --------------------------------------------------------------------------------


class _Untrusted(BaseModel):
    """What may be the code's own doing: other keys are left out, and nothing is turned into another type."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Report(_Untrusted):
    exit: int
    counts: dict[str, Counts] = Field(default_factory=dict, max_length=64)
    why: list[str] = Field(default_factory=list, max_length=8)


class _Told(_Untrusted):
    end: str = ""
    code: int = 0
    seconds: float = Field(default=0, ge=0, le=10**6)
    tail: str = ""
    python: str = Field(default="", pattern=r"^[\w.+]{0,32}$")
    memory_kills: int = -1
    report: _Report | None = None


@dataclass(frozen=True)
class _Came:
    """What a sandbox wrote, and how it ended; ``end`` is ours: exit, time or output."""

    output: bytes
    errors: str
    code: int
    end: str


def _read(came: _Came, limits: Limits) -> tuple[Outcome, str, _Told]:
    """The outcome, its reason, and what was told."""
    nothing = _Told()
    if came.end == "time":
        return "timed_out", f"the sandbox was ended after {limits.seconds + AROUND_S:.0f} s", nothing
    if came.end == "output":
        return "crashed", f"the sandbox was ended after {RESULT_BYTES // KIB} KiB of output", nothing
    try:
        table = json.loads(came.output)
        # A forged report must not hide what else is told.
        with contextlib.suppress(ValidationError, AttributeError):
            table["report"] = _Report.model_validate(table.get("report"))
        if not isinstance(table.get("report"), _Report):
            table["report"] = None
        told = _Told.model_validate(table)
    except (ValueError, TypeError, AttributeError, RecursionError):
        if came.code in (137, -9):
            return "crashed", f"the sandbox was killed, as when {limits.memory_mib} MiB of memory run out", nothing
        said = [line for line in last_lines(came.errors) if not line.startswith("Run 'docker ")]
        why = said[-1] if said else "it said nothing"
        fix = "name an image that has python3, 3.11 or newer" if came.code in (126, 127) else "see what it says"
        return "refused", f"the sandbox does not work here (exit {came.code}: {why}). Fix: {fix}", nothing
    outcome, reason = _outcome(told, limits)
    return outcome, reason, told


def _outcome(told: _Told, limits: Limits) -> tuple[Outcome, str]:  # noqa: PLR0911 -- a table of ends
    if told.end == "setup":
        return "refused", f"the sandbox could not lay out its files ({_last(told.tail)}). Fix: allow more disk_mib"
    if told.end == "time":
        return "timed_out", f"its tests had not ended after {limits.seconds:g} s"
    if told.end == "output":
        return "crashed", f"it wrote more than {limits.output_kib} KiB"
    report = told.report
    if report is None or report.exit != told.code:
        if told.memory_kills > 0:
            return "crashed", f"it wanted more than {limits.memory_mib} MiB of memory"
        if told.memory_kills < 0 and told.code == -9:
            return "crashed", f"it was killed, as when {limits.memory_mib} MiB of memory run out"
        how = f"by signal {-told.code}" if told.code < 0 else f"with exit code {told.code}"
        return "crashed", f"it ended {how} before its tests did"
    passed = sum(one.passed for one in report.counts.values())
    failed = sum(one.failed for one in report.counts.values())
    if report.exit == 0 and passed and not failed:
        return "passed", f"all {passed} tests passed"
    if report.exit == 5 or (report.exit == 0 and not passed and not failed):
        return "failed", "it has no tests, and none was given"
    if report.exit in (1, 2) or failed:
        if report.why:
            return "failed", f"it cannot be imported: {_last(report.why[0])}"
        return "failed", f"{failed} of {passed + failed} tests failed"
    return "crashed", f"pytest ended with exit code {report.exit}"


def last_lines(text: str) -> tuple[str, ...]:
    """The last lines of what was said, without what a terminal would act on, each cut to 200 characters."""
    lines = ("".join(c if c.isprintable() else " " for c in line).rstrip() for line in text.splitlines())
    return tuple(line[:LINE_CHARACTERS] for line in lines if line)[-TAIL_LINES:]


def _last(text: str) -> str:
    return (last_lines(text) or ("no reason was given",))[-1]


# --- talking ---------------------------------------------------------------------------------------


def _talk(command: Sequence[str], work: bytes, seconds: float) -> _Came:
    """Give a command its work on stdin and read what it says, within limits; past them it is killed."""
    with tempfile.TemporaryFile() as given:
        given.write(work)
        given.seek(0)
        process = subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            return _listen(process, seconds)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def _listen(process: "subprocess.Popen[bytes]", seconds: float) -> _Came:
    deadline = time.monotonic() + seconds
    assert process.stdout is not None  # noqa: S101 -- PIPE says so
    assert process.stderr is not None  # noqa: S101
    said = {process.stdout: b"", process.stderr: b""}
    end = "exit"
    with selectors.DefaultSelector() as ready:
        for pipe in said:
            ready.register(pipe, selectors.EVENT_READ)
        while ready.get_map() and end == "exit":
            for key, _ in ready.select(timeout=1):
                pipe = next(one for one in said if one is key.fileobj)
                chunk = os.read(pipe.fileno(), 65536)
                if not chunk:
                    ready.unregister(pipe)
                said[pipe] += chunk
            if sum(map(len, said.values())) > RESULT_BYTES:
                end = "output"
            elif time.monotonic() > deadline:
                end = "time"
    if end == "exit":
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=AROUND_S)
    code = process.poll()
    output, errors = said[process.stdout], said[process.stderr]
    return _Came(output, errors[-TAIL_BYTES:].decode(errors="replace"), -1 if code is None else code, end)


# --- what is here ----------------------------------------------------------------------------------


def _docker(images: Sequence[str]) -> tuple[Docker | None, str]:
    """Docker with the first of the images that it has, or None and why."""
    command = shutil.which("docker")
    if command is None:
        return None, "there is no Docker"
    try:
        version = _run([command, "version", "--format", "{{.Server.Version}}"])
        if version.returncode != 0:
            return None, "no Docker Engine answers"
        for image in images:
            found = _run([command, "image", "inspect", image])
            if found.returncode == 0:
                told: dict[str, Any] = json.loads(found.stdout)[0]
                volumes = tuple(sorted((told["Config"] or {}).get("Volumes") or {}))
                return Docker(version.stdout.strip(), image, told["Id"], volumes, command), ""
    except (subprocess.TimeoutExpired, OSError):
        return None, "its Docker Engine does not answer"
    others = f", nor any of {len(images) - 1} others that would do" if len(images) > 1 else ""
    return None, f"its Docker Engine has no {images[0] if images else 'image'}{others}"


def _bubblewrap() -> tuple[Bubblewrap | None, str]:
    """Bubblewrap, or None and why."""
    command = shutil.which("bwrap")
    if command is None:
        return None, "there is no bubblewrap"
    if shutil.which("systemd-run") is None or not Path("/run/systemd/system").is_dir():
        return None, "bubblewrap alone limits no memory, and systemd does not run this machine"
    if not SYSTEM_PYTHON.exists():
        return None, f"bubblewrap shows /usr alone, and {SYSTEM_PYTHON} is missing"
    try:
        said = _run([command, "--version"]).stdout.split()
    except (subprocess.TimeoutExpired, OSError):
        said = []
    version = said[-1] if said else ""
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_BWRAP:
        return None, f"its bubblewrap is {version or 'of no version'}, 0.8 is wanted"
    found = Bubblewrap(version, is_root=os.geteuid() == 0, command=command)
    lacking = found.lacking_limits()
    return (None, lacking) if lacking else (found, "")


def _like_here(path: str) -> list[str]:
    """The same link in the sandbox as here, or the folder itself."""
    here = Path(path)
    if here.is_symlink():
        return ["--symlink", os.readlink(here), path]
    return ["--ro-bind-try", path, path]


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=ASK_S,
    )


def _left(command: str, name: str, why: str) -> SandboxError:
    return SandboxError(f"container {name} is still there ({why}). Fix: {command} rm --force --volumes {name}")


@cache
def _pytest() -> str:
    """
    This environment's pytest as a zip that Python imports from, in base64.

    :raises SandboxError: it is not here.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PYTEST:
            try:
                files = importlib.metadata.distribution(name).files or []
            except importlib.metadata.PackageNotFoundError as error:
                raise SandboxError(
                    f"{name} is not in this environment. Fix: install it, as with `uv sync`"
                ) from error
            for file in files:
                if file.suffix == ".py" and ".." not in file.parts:
                    archive.write(str(file.locate()), str(file))
    return base64.b64encode(packed.getvalue()).decode()
