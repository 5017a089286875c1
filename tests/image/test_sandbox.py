"""What a hostile module cannot do in a container: each tries for real."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from beeyard.bench import record as records
from beeyard.bench import sandbox as under_test
from beeyard.bench.answers import Extracted
from beeyard.bench.record import Asked, Variant
from beeyard.bench.sandbox import (
    LABEL,
    Docker,
    Limits,
    Sandbox,
    find_sandbox,
    judge,
    our_tests,
    surroundings,
    try_module,
)
from beeyard.bench.tried import with_tests
from beeyard.bench.verdicts import Counts, Verdict
from beeyard.catalog import PRESETS, PROJECT
from tests import engine_image, hostile
from tests.answers_of_models import ANSWERS
from tests.records import record, request

BASE = "beeyard-testbed/light"
IMAGE = "beeyard-test-sandbox"
LIMITS = Limits(seconds=20)
QUICK = Limits(seconds=3)
MIB = 2**20


@pytest.fixture(scope="module")
def image(client: docker.DockerClient) -> Iterator[str]:
    """An image with Python, and with a volume that anybody may write to: room on this machine's disk."""
    made = client.containers.create(BASE, ["mkdir", "--mode=777", "/data"], entrypoint=[], network_mode="none")
    made.start()
    assert made.wait()["StatusCode"] == 0
    made.commit(repository=IMAGE, changes="VOLUME /data")
    made.remove(v=True)
    yield f"{IMAGE}:latest"
    client.images.remove(IMAGE)


@pytest.fixture(scope="module")
def sandbox(image: str) -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DOCKER_HOST", engine_image.DOCKER["DOCKER_HOST"])
        yield find_sandbox(["beeyard-there-is-no-such-image:1", image])


@pytest.fixture(autouse=True)
def _nothing_is_left(client: docker.DockerClient) -> Iterator[None]:
    before = {volume.id for volume in client.volumes.list()}
    yield
    assert not client.containers.list(all=True, filters={"label": f"{LABEL}=1"})
    assert {volume.id for volume in client.volumes.list()} <= before


def tried(code: str, sandbox: Sandbox, limits: Limits = LIMITS, tests: dict[str, str] | None = None) -> Verdict:
    return try_module(Extracted(source=code, reason="given"), tests or {}, sandbox, limits)


def held(verdict: Verdict) -> bool:
    """Whether all tests of a hostile module passed, which means that it could not do what it tried."""
    return verdict.outcome == "passed"


# --- what it is for --------------------------------------------------------------------------------


def test_the_first_image_that_is_here_is_taken(sandbox: Sandbox, image: str) -> None:
    assert isinstance(sandbox, Docker)
    assert (sandbox.image, sandbox.volumes) == (image, ("/data",))
    told = surroundings(sandbox)
    assert told.image_id.startswith("sha256:")
    assert told.pytest == pytest.__version__


def test_own_tests_and_ours_are_counted_apart(sandbox: Sandbox) -> None:
    code = "import pytest\ndef twice(x):\n    return 2 * x\ndef test_own():\n    assert twice(2) == 4\n"
    ours = {"test_twice.py": "import answer\ndef test_it():\n    assert answer.twice(3) == 6\n"}
    found = tried(code, sandbox, tests=ours)
    assert (found.outcome, found.own, found.ours) == ("passed", Counts(passed=1), Counts(passed=1))
    assert found.python.startswith("3.11.")
    wrong = tried(code.replace("2 * x", "x + 2"), sandbox, tests=ours)
    assert (wrong.outcome, wrong.own, wrong.ours) == ("failed", Counts(passed=1), Counts(failed=1))
    assert "assert 5 == 6" in "\n".join(wrong.lines)


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        ("import nowhere\ndef f(): pass\n", "failed", "No module named 'nowhere'"),
        ("def f(): pass\n", "failed", "it has no tests, and none was given"),
        ("import os\nos._exit(0)\n", "crashed", "with exit code 0 before its tests"),
        ("import sys\nsys.exit(0)\n", "crashed", "exit code 3"),
        ("import ctypes\ndef test_it():\n    ctypes.string_at(0)\n", "crashed", "by signal 11"),
    ],
)
def test_how_it_ended_is_said(sandbox: Sandbox, code: str, outcome: str, reason: str) -> None:
    found = tried(code, sandbox)
    assert (found.outcome, reason in found.reason) == (outcome, True), found


def test_a_module_may_import_itself_by_the_name_that_the_model_gave_it(sandbox: Sandbox) -> None:
    answer = (
        "Here is `twice.py`:\n```python\ndef twice(x):\n    return 2 * x\n```\nand its tests:\n"
        "```python\nfrom twice import twice\n\ndef test_twice():\n    assert twice(2) == 4\n```\n"
    )
    assert judge(answer, {}, sandbox, limits=LIMITS).outcome == "passed"


# --- what it must hold -----------------------------------------------------------------------------


def test_it_cannot_read_the_users_files(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = f"secret-of-the-user-{os.getpid()}"
    (tmp_path / marker).write_text("secret")
    monkeypatch.setenv("SECRET", marker)
    paths = [str(tmp_path), str(PROJECT), str(Path(sys.prefix).resolve()), "/var/run/docker.sock"]
    assert held(tried(hostile.HOME.format(marker=marker, paths=paths), sandbox))


def test_it_can_reach_nothing(sandbox: Sandbox, client: docker.DockerClient) -> None:
    came = []
    abstract = f"beeyard-sandbox-test-{os.getpid()}"
    (config,) = client.networks.get("bridge").attrs["IPAM"]["Config"]
    with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(b"\0" + abstract.encode())
        local.listen()
        server.settimeout(0.2)
        is_over = threading.Event()

        def accept() -> None:
            while not is_over.is_set():
                try:
                    came.append(server.accept())
                except TimeoutError:
                    continue

        listening = threading.Thread(target=accept)
        listening.start()
        port = server.getsockname()[1]
        addresses = [["127.0.0.1", port], [config["Gateway"], port], ["::1", port], ["1.1.1.1", 443]]
        try:
            found = tried(hostile.NETWORK.format(addresses=addresses, abstract=abstract), sandbox)
        finally:
            is_over.set()
            listening.join()
    assert held(found), found
    assert not came


def processes() -> int:
    return len([name for name in os.listdir("/proc") if name.isdigit()])


def test_its_forks_have_an_end(sandbox: Sandbox) -> None:
    seen = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            seen.append(processes())

    before = processes()
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        found = tried(hostile.FORKS, sandbox, QUICK)
    finally:
        is_over.set()
        watching.join()
    assert found.outcome == "timed_out"
    assert max(seen) < before + QUICK.processes + 60
    assert max(seen) > before + QUICK.processes / 2


def test_it_can_fill_no_disk(sandbox: Sandbox) -> None:
    code = hostile.DISK.format(most=(LIMITS.disk_mib + 1) * MIB, files=LIMITS.files)
    assert held(tried(code, sandbox))


@pytest.mark.parametrize("code", [hostile.MEMORY, hostile.HIDDEN_MEMORY])
def test_its_memory_has_an_end(sandbox: Sandbox, code: str) -> None:
    found = tried(code, sandbox, Limits(seconds=20, memory_mib=128))
    assert (found.outcome, "more than 128 MiB of memory" in found.reason) == ("crashed", True), found


@pytest.mark.parametrize("code", [hostile.FOR_EVER, hostile.FOR_EVER_AT_ITS_END])
def test_its_time_has_an_end(sandbox: Sandbox, code: str) -> None:
    began = time.monotonic()
    found = tried(code, sandbox, QUICK)
    assert (found.outcome, found.reason) == ("timed_out", "its tests had not ended after 3 s")
    assert time.monotonic() - began < 3 + 12


def test_its_output_has_an_end(sandbox: Sandbox) -> None:
    # What pytest keeps of a test's output is a file in there, and the folder has an end.
    found = tried(hostile.OUTPUT, sandbox)
    assert found.outcome in ("failed", "crashed"), found
    assert len("".join(found.lines)) <= under_test.TAIL_BYTES


def test_what_it_says_past_pytest_has_an_end(sandbox: Sandbox) -> None:
    # Pytest moved the real output away; it is still one of the process's files.
    code = (
        "import os\ndef test_it():\n    for number in range(3, 64):\n        try:\n"
        "            if 'pipe' in os.readlink(f'/proc/self/fd/{number}'):\n"
        "                while True:\n                    os.write(number, b'x' * 65536)\n"
        "        except OSError:\n            pass\n"
    )
    found = tried(code, sandbox)
    assert (found.outcome, found.reason) == ("crashed", "it wrote more than 1024 KiB")
    assert len("".join(found.lines)) <= under_test.TAIL_BYTES


def test_it_cannot_speak_for_the_sandbox(sandbox: Sandbox) -> None:
    assert held(tried(hostile.OUTPUT_OF_ANOTHER, sandbox))


@pytest.mark.parametrize(
    "how", ["symlink('/dev/zero', '/sandbox/report.json')", "mkfifo('/sandbox/report.json')", "getpid()",
            "symlink('/etc/passwd', '/sandbox/report.json')", "mkdir('/sandbox/report.json')"],
)  # fmt: skip
def test_a_report_that_is_none_is_not_followed(sandbox: Sandbox, how: str) -> None:
    assert tried(hostile.LINKED_REPORT.format(how=how), sandbox).outcome == "crashed"


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"exit": "0"}', '{"exit": 0, "counts": {"answer.py": {"passed": -1}}}', "[" * 60000,
     '{"exit": 0, "counts": {"x": 1}}', json.dumps({"exit": 0, "counts": {}, "why": ["x" * 10**5]}), "\0\xff"],
)  # fmt: skip
def test_a_forged_report_of_the_wrong_form_is_no_report(sandbox: Sandbox, text: str) -> None:
    assert tried(hostile.FORGED_REPORT.format(text=text), sandbox).outcome in ("crashed", "failed")


def test_no_process_of_its_is_left(sandbox: Sandbox) -> None:
    marker = f"98{os.getpid()}"
    assert tried(hostile.LEFT_BEHIND.format(marker=marker), sandbox).outcome == "passed"
    running = [file.read_bytes().split(b"\0") for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert [b"sleep", marker.encode()] not in [words[:2] for words in running]


def test_it_can_kill_nothing_else(sandbox: Sandbox) -> None:
    assert held(tried(hostile.MURDER, sandbox))
    itself = tried("import os, signal\ndef test_it():\n    os.kill(os.getpid(), signal.SIGKILL)\n", sandbox)
    assert (itself.outcome, itself.reason) == ("crashed", "it ended by signal 9 before its tests did")


def test_it_has_no_powers(sandbox: Sandbox) -> None:
    assert held(tried(hostile.POWERS, sandbox))


def test_what_it_said_is_shown_as_text(sandbox: Sandbox) -> None:
    lines = tried(hostile.COLOURS, sandbox).lines
    assert lines
    assert all(line.isprintable() and len(line) <= under_test.LINE_CHARACTERS for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_no_container_outlives_the_benchmark(sandbox: Sandbox, client: docker.DockerClient, number: int) -> None:
    script = (
        "from beeyard.bench.sandbox import *\nfrom tests.hostile import FOR_EVER\n"
        f"here = find_sandbox(['{sandbox.image}'])\n"
        "try_module(Extracted(source=FOR_EVER, reason=''), {}, here, Limits(seconds=6))"
    )
    environment = {**os.environ, **engine_image.DOCKER, "PYTHONPATH": str(PROJECT)}
    wanted: dict[str, str | list[str] | bool] = {"label": f"{LABEL}=1", "status": "running"}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 20
        while not client.containers.list(filters=wanted):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        run.send_signal(number)
        run.wait(20)
    deadline = time.monotonic() + (3 if number == signal.SIGINT else 15)
    while client.containers.list(all=True, filters={"label": f"{LABEL}=1"}):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.2)


def test_an_image_without_python_is_refused(client: docker.DockerClient, sandbox: Sandbox) -> None:
    assert isinstance(sandbox, Docker)
    bare = client.images.get(engine_image.BASE)
    found = tried("def test_it(): pass\n", Docker(sandbox.version, engine_image.BASE, str(bare.id)))
    assert found.outcome == "refused"
    assert "python3" in found.reason.partition("Fix: ")[0]


# --- our tests of the guide's prompts --------------------------------------------------------------


@pytest.mark.parametrize("prompt", ANSWERS)
def test_a_good_answer_passes_our_tests(sandbox: Sandbox, prompt: str) -> None:
    good, _ = ANSWERS[prompt]
    found = judge(good, our_tests("guide", prompt, [PRESETS]), sandbox, limits=LIMITS)
    assert (found.outcome, found.ours.failed) == ("passed", 0), found
    assert found.ours.passed >= 12
    assert found.own.passed == (2 if prompt == "linked-list" else 0)


WRONG = [(prompt, old, new) for prompt, (_, changes) in ANSWERS.items() for old, new in changes]


@pytest.mark.parametrize(("prompt", "old", "new"), WRONG)
def test_a_wrong_answer_fails_them(sandbox: Sandbox, prompt: str, old: str, new: str) -> None:
    good, _ = ANSWERS[prompt]
    wrong = good.replace(old, new)
    assert wrong != good
    found = judge(wrong, our_tests("guide", prompt, [PRESETS]), sandbox, limits=LIMITS)
    assert (found.outcome, found.own.failed + found.ours.failed > 0) == ("failed", True), found


def test_the_answers_of_a_record_are_tried_and_it_says_how_many_passed(sandbox: Sandbox, image: str) -> None:
    prompts = {
        "task-store": f"```python\n{ANSWERS['task-store'][0]}```",
        "linked-list": "There is no code here, only kind words.",
    }
    requests = [
        request(prompt=name, variant=variant, text=text, finish_reason="stop")
        for name, text in prompts.items()
        for variant in ("baseline", "dflash")
    ]
    asked = [
        Asked(workload="guide", prompt=name, sha256="0" * 64, max_tokens=64, temperature=0.7) for name in prompts
    ]
    given = record(*requests, prompts=tuple(asked), variants=(Variant(name="baseline"), Variant(name="dflash")))
    found = with_tests(given, [PRESETS], [image], lambda _: None)
    assert found.sandbox == surroundings(sandbox)
    outcomes = {(one.variant, one.prompt): one.verdict.outcome for one in found.tests_passed or ()}
    for variant in ("baseline", "dflash"):
        assert outcomes[variant, "task-store"] == "passed"
        assert outcomes[variant, "linked-list"] == "no_module"
    assert records.parse(records.dump(found), "it") == found
