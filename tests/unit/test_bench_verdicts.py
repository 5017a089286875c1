"""Verdicts, pass rates, and the parts of the sandbox that run nothing."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from beeyard.bench import sandbox
from beeyard.bench.answers import Extracted
from beeyard.bench.sandbox import INSIDE, Bubblewrap, Docker, Limits, SandboxError, find_sandbox, judge, our_tests
from beeyard.bench.verdicts import Outcome, Verdict, pass_rate, pass_rates
from beeyard.catalog import PRESETS, PROJECT, load_catalog
from beeyard.images import SANDBOX_IMAGE, sandbox_images

DOCKER = Docker("26.1", "python:1", "sha256:0", ("/data",))
MODULE = Extracted(source="x = 1\n", reason="given")


def verdict(outcome: Outcome, *, is_cut: bool = False) -> Verdict:
    return Verdict(outcome=outcome, reason="", is_cut=is_cut)


def test_a_pass_rate_is_of_what_was_tried() -> None:
    found = pass_rate([verdict("passed"), verdict("failed", is_cut=True), verdict("refused"), verdict("no_module")])
    assert (found.tried, found.passed, found.cut) == (3, 1, 1)
    assert found.share == pytest.approx(1 / 3)
    assert found.outcomes == {"passed": 1, "failed": 1, "no_module": 1, "refused": 1}


@pytest.mark.parametrize("given", [[], [verdict("refused")]])
def test_nothing_tried_is_no_rate(given: list[Verdict]) -> None:
    assert pass_rate(given).share is None


def test_each_variant_has_its_rate() -> None:
    found = pass_rates({"baseline": [verdict("passed")], "dflash": [verdict("passed"), verdict("timed_out")]})
    assert {name: rate.share for name, rate in found.items()} == {"baseline": 1.0, "dflash": 0.5}


def test_an_answer_without_a_module_is_no_case_for_the_sandbox() -> None:
    found = judge("Bees fly.", {}, None)
    assert (found.outcome, "no code block" in found.reason) == ("no_module", True)


def test_without_a_sandbox_nothing_is_tried() -> None:
    found = judge("```python\ndef f(): pass\n```", {}, None)
    assert (found.outcome, "Fix: " in found.reason) == ("refused", True)


@pytest.mark.parametrize("name", ["../test_x.py", "answer.py", "test_x.py\n", "-test_x.py", "test_.sh"])
def test_a_tests_name_is_a_file_name(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a test file"):
        sandbox.try_module(MODULE, {name: ""}, DOCKER)


# --- commands --------------------------------------------------------------------------------------


def pairs(command: list[str]) -> list[tuple[str, str]]:
    return list(pairwise(command))


def test_a_container_has_nothing_that_it_could_do_harm_with() -> None:
    limits = Limits(seconds=9, memory_mib=100, cpus=0.5, processes=20, disk_mib=10, files=70)
    command = DOCKER.argv("name", limits)
    assert {
        ("--network", "none"), ("--user", "65534:65534"), ("--cap-drop", "ALL"), ("--memory", "100m"),
        ("--memory-swap", "100m"), ("--pids-limit", "20"), ("--cpus", "0.5"), ("--pull", "never"),
        ("--security-opt", "no-new-privileges"), ("--log-driver", "none"), ("--env", "NVIDIA_VISIBLE_DEVICES=void"),
        ("--tmpfs", "/data:ro,size=4k,nr_inodes=2"), ("--name", "name"),
    } <= set(pairs(command))  # fmt: skip
    assert "--read-only" in command
    assert not {"--volume", "-v", "--mount", "--privileged", "--device", "--gpus"} & set(command)
    assert "size=10m,nr_inodes=70" in " ".join(command)


def test_bubblewrap_is_in_a_scope_with_limits_and_sees_usr_alone() -> None:
    limits = Limits(seconds=9, memory_mib=100, cpus=0.5, processes=20, disk_mib=10)
    command = Bubblewrap("0.8.0", is_root=False).argv("name", limits)
    scope, bwrap = command[: command.index("--")], command[command.index("--") + 1 :]
    assert scope[:3] == ["systemd-run", "--user", "--scope"]
    assert {
        "--property=MemoryMax=100M", "--property=MemorySwapMax=0", "--property=TasksMax=20",
        "--property=CPUQuota=50%",
    } <= set(scope)  # fmt: skip
    assert {"--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--as-pid-1"} <= set(bwrap)
    assert not {"--share-net", "--bind", "--dev-bind"} & set(bwrap)
    seen = {bwrap[place + 1] for place, word in enumerate(bwrap) if word.startswith("--ro-bind")}
    assert seen <= {"/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc/ld.so.cache", "/etc/alternatives"}
    assert ("--size", str(10 * 2**20)) in pairs(bwrap)
    assert Bubblewrap("0.8.0", is_root=True).argv("name", limits)[1:4] == ["--uid", "nobody", "--scope"]


def test_where_there_is_neither_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"no Docker, and there is no bubblewrap\. Fix: `docker pull python:3"):
        find_sandbox([SANDBOX_IMAGE])


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_bubblewrap_without_systemd_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "docker", "exit 1")
    program(tmp_path, "bwrap", "echo bubblewrap 0.11.0")
    with pytest.raises(SandboxError, match=r"no Docker Engine answers, and bubblewrap alone limits no memory"):
        find_sandbox([SANDBOX_IMAGE])


def test_what_runs_inside_refuses_to_run_on_a_machine_itself() -> None:
    # It ends by killing every process that it can see.
    run = subprocess.run([sys.executable, INSIDE], check=False, capture_output=True, text=True, input="{}")
    assert run.returncode == 1
    assert f"of Python {sys.version.split()[0]}, wanted are a sandbox's first" in run.stderr


# --- what comes out --------------------------------------------------------------------------------


def read(table: object, code: int = 0, end: str = "exit", errors: str = "") -> tuple[str, str]:
    output = table if isinstance(table, bytes) else json.dumps(table).encode()
    outcome, reason, _ = sandbox._read(sandbox._Came(output, errors, code, end), Limits())
    return outcome, reason


GOOD = {"answer.py": {"passed": 2, "failed": 0}}


@pytest.mark.parametrize(
    ("table", "outcome"),
    [
        ({"end": "exit", "code": 0, "report": {"exit": 0, "counts": GOOD}}, "passed"),
        ({"end": "exit", "code": 0, "report": {"exit": 0, "counts": {"a": {"passed": 1, "failed": 1}}}}, "failed"),
        ({"end": "exit", "code": 1, "report": {"exit": 0, "counts": GOOD}}, "crashed"),
        ({"end": "exit", "code": 0, "report": {"exit": 0, "counts": {}}}, "failed"),
        ({"end": "exit", "code": 0, "report": {"exit": "0", "counts": GOOD}}, "crashed"),
        ({"end": "exit", "code": 5, "report": {"exit": 5}}, "failed"),
        ({"end": "exit", "code": 4, "report": {"exit": 4}}, "crashed"),
        ({"end": "exit", "code": -9, "memory_kills": 1}, "crashed"),
        ({"end": "time", "code": -9}, "timed_out"),
        ({"end": "output", "code": -9}, "crashed"),
        ({"end": "setup", "tail": "no space"}, "refused"),
        ({"end": 1}, "refused"),
        ([], "refused"),
        (b"", "refused"),
        (b"\xff", "refused"),
        (b"[" * 100_000, "refused"),
    ],
)
def test_what_a_sandbox_says_is_read_with_care(table: object, outcome: str) -> None:
    found, reason = read(table)
    assert found == outcome
    assert ("Fix: " in reason) == (outcome == "refused")


def test_a_sandbox_that_said_nothing_is_told_from_one_that_was_ended() -> None:
    assert read(b"", 137) == ("crashed", "the sandbox was killed, as when 512 MiB of memory run out")
    assert read(b"", -9, "time")[0] == "timed_out"
    assert read(b"x", -9, "output")[0] == "crashed"
    refused = read(b"", 125, errors="docker: Error: no such runtime.\nRun 'docker run --help' for more information\n")
    assert refused == (
        "refused",
        "the sandbox does not work here (exit 125: docker: Error: no such runtime.). Fix: see what it says",
    )


def test_last_lines_are_text_that_a_terminal_does_not_act_on() -> None:
    found = sandbox.last_lines("\x1b[2Jred\r\n\n" + "x" * 500 + "\nlast\u202e\n")
    assert found == (" [2Jred", "x" * 200, "last")
    assert len(sandbox.last_lines("line\n" * 100)) == sandbox.TAIL_LINES


# --- data ------------------------------------------------------------------------------------------


def test_each_coding_prompt_of_the_guide_has_our_tests_ours() -> None:
    names = ("task-store", "kv-report", "linked-list")
    found = {name: our_tests("guide", name, [PRESETS]) for name in names}
    assert all(len(files) == 1 for files in found.values())
    for files in found.values():
        for name, text in files.items():
            assert "import answer" in text
            compile(text, name, "exec")
    assert our_tests("essay", "experts", [PRESETS]) == {}


def test_another_folder_of_presets_may_have_its_own(tmp_path: Path) -> None:
    (tmp_path / "answers" / "guide").mkdir(parents=True)
    (tmp_path / "answers" / "guide" / "test_kv_report.py").write_text("# ours")
    assert our_tests("guide", "kv-report", [PRESETS, tmp_path]) == {"test_kv_report.py": "# ours"}


def test_pythons_image_is_by_digest_once_it_is_locked() -> None:
    catalog = load_catalog()
    assert sandbox_images(catalog)[0].partition("@")[0] == SANDBOX_IMAGE
    locked = catalog.lock.model_copy(update={"bases": {SANDBOX_IMAGE: "sha256:" + "0" * 64}})
    found = sandbox_images(catalog.model_copy(update={"lock": locked}))
    assert found[0] == f"{SANDBOX_IMAGE}@sha256:{'0' * 64}"
    assert all(name.endswith("-pod") for name in found[1:])
    assert len(found) > 1


def test_pytest_is_sent_whole() -> None:
    packed = sandbox._pytest()
    script = (
        "import base64, io, sys, tempfile\n"
        "with tempfile.NamedTemporaryFile(suffix='.zip') as file:\n"
        "    file.write(base64.b64decode(sys.stdin.read())); file.flush()\n"
        "    sys.path[:] = [file.name, *(p for p in sys.path if 'site-packages' not in p)]\n"
        "    import pytest\n"
        "    sys.exit(pytest.main(['--version', '-p', 'no:cacheprovider', '-c', '/dev/null']))\n"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(
        [sys.executable, "-S", "-c", script], check=False, capture_output=True, text=True, input=packed,
        env=environment, cwd=PROJECT / "docs",
    )  # fmt: skip
    assert run.stdout.startswith(f"pytest {pytest.__version__}"), run.stderr
