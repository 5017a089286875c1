"""Comparisons on a real host behind ssh: its variants in turns, through a tunnel, and the way back."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beeyard.bench import record
from beeyard.catalog import PROJECT
from tests.testbed.conftest import Bed

pytestmark = pytest.mark.hosts("systemd")
ASKED = ("--workload", "guide/task-store", "--workload", "json")


@pytest.fixture(scope="module")
def host(bed: Bed) -> str:
    assert bed.deploy("systemd").code == 0
    return "systemd"


def command(host: str, variants: str, file: Path, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "beeyard.cli", "compare", "testbed", "--limit", host, "--variants", variants,
        *ASKED, "--out", str(file), *options,
    ]  # fmt: skip


def test_variants_of_a_host_take_turns_and_the_one_of_before_serves_again(
    bed: Bed, host: str, tmp_path: Path
) -> None:
    file, page = tmp_path / "record.json", tmp_path / "page.html"
    assert bed.deploy(host, llama_variant="baseline").code == 0
    before = bed.serving(host)
    words = command(host, "dflash,baseline", file, "--rounds", "2", "--html", str(page))
    run = subprocess.run(words, check=False, capture_output=True, text=True, cwd=PROJECT, env=bed.environment)
    assert run.returncode == 0, run.stdout + run.stderr
    found = record.load(file)
    assert found.protocol.order == ("baseline", "dflash") * 2
    assert [one.fault for one in found.requests if one.fault] == []
    assert all(bool(one.draft_n) is (one.variant == "dflash") for one in found.requests)
    assert found.host.name == host
    assert [one.argv[0].endswith("/llama-server") for one in found.variants] == [True, True]
    assert found.agreement is not None
    sides = [(one.baseline, one.variant, one.identical_share, one.drafted > 0) for one in found.agreement]
    assert sides == [("baseline", "baseline", 1.0, False), ("baseline", "dflash", 1.0, True)]
    assert "DFlash" in run.stdout
    assert "the same words as baseline" in page.read_text()
    assert bed.serving(host) == before
    assert not [one for one in bed.state(host) if one == "fault"]


def test_a_variant_that_does_not_pass_the_gate_ends_it_and_the_old_one_serves(
    bed: Bed, host: str, tmp_path: Path
) -> None:
    assert bed.deploy(host).code == 0
    before = bed.serving(host)
    words = command(host, "baseline,dflash", tmp_path / "record.json", "--data", "llama_gate_min_acceptance=0.99")
    run = subprocess.run(words, check=False, capture_output=True, text=True, cwd=PROJECT, env=bed.environment)
    assert run.returncode == 2
    assert "are wanted (llama_gate_min_acceptance)" in run.stderr
    assert "Fix: " in run.stderr
    assert not (tmp_path / "record.json").exists()
    assert bed.serving(host) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_comparison_that_is_stopped_keeps_whole_rounds_and_brings_the_old_one_back(
    bed: Bed, host: str, tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / "record.json"
    assert bed.deploy(host, llama_variant="baseline").code == 0
    before = bed.serving(host)
    words = command(host, "baseline,dflash", file, "--rounds", "50", "--no-agreement", "--no-tests")
    env = {**os.environ, **bed.environment, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=PROJECT, env=env) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "dflash json/recipes, round 2" in line:
                break
        time.sleep(0.5)
        run.send_signal(number)
        said = run.stdout.read()
        run.wait(timeout=120)
    assert run.returncode == 0, said
    assert "of 50 rounds were whole" in said
    assert record.load(file).protocol.rounds >= 2
    assert bed.serving(host) == before


def test_a_search_ends_in_a_preset_that_serves_and_the_old_one_serves_meanwhile(
    bed: Bed, host: str, tmp_path: Path
) -> None:
    assert bed.deploy(host).code == 0
    before = bed.serving(host)
    folder = PROJECT / ".beeyard" / "tune" / f"{host}-tiny-dflash"
    shutil.rmtree(folder, ignore_errors=True)
    words = [
        sys.executable, "-m", "beeyard.cli", "tune", "testbed", "--limit", host, "--workload", "json",
        "--tokens", "64", "--trials", "5", "--rounds", "3",
    ]  # fmt: skip
    run = subprocess.run(words, check=False, capture_output=True, text=True, cwd=PROJECT, env=bed.environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "trial 1: " in run.stdout
    assert "trial 5: " in run.stdout
    assert bed.serving(host) == before
    if "Nothing is to be kept" in run.stdout:
        return
    assert "dflash-tuned" in (folder / "servers.yaml").read_text()
    presets = os.pathsep.join([str(bed.presets), str(folder)])
    tuned = bed.deploy(host, env={"BEEYARD_PRESETS": presets}, llama_variant="dflash-tuned")
    assert tuned.code == 0, tuned.output
    assert bed.serving(host) != before
    assert bed.deploy(host).code == 0


def test_proof_of_the_speed_up_is_part_of_the_verification(bed: Bed, host: str) -> None:
    assert bed.deploy(host).code == 0
    said = bed.verify(host, "-k", "as_much_faster", llama_gate_min_speedup=99)
    assert "and 99 is wanted (llama_gate_min_speedup). Fix: " in said
    assert "1 failed" in said
