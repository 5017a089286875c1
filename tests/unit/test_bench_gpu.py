"""The cards beside a run: what nvidia-smi prints becomes samples, [N/A] null, heat and company marks."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from beeyard.bench.gpu import FIELDS, REASONS, Sampler, marks, reasons, samples
from beeyard.bench.record import GpuSample, Request
from beeyard.bench.summary import remarks
from tests.records import record, request

QUERY = f"{FIELDS},{REASONS[0]}"
UUID = "GPU-5a1c2b9e-0000-4000-8000-000000000000"
COOL = f"0, {UUID}, 61, 398.20, 450.00, 2520, 21034, 98, 0x0000000000000004"
HOT = f"0, {UUID}, 88, 210.00, 450.00, 628, 21034, 98, 0x0000000000000060"
SILENT = f"0, {UUID}, [N/A], [N/A], [Not Supported], [N/A], [N/A], [N/A], [N/A]"
OWN = f"{UUID}, 4711, /opt/beeyard/llama-server, 20512"
GAME = f"{UUID}, 99, /usr/games/quake --password hunter2, 2048"

# It says what the files beside it hold, so that a test can heat the card; it knows only one name of the reasons.
SMI = """#!/bin/sh
case $1 in
*{other}*) echo 'Field "{other}" is not a valid field to query.' && exit 2 ;;
--query-gpu=*) cat {folder}/gpu ;;
--query-compute-apps=*) cat {folder}/apps ;;
esac
"""


def one(row: str, *apps: str, own_pids: tuple[int, ...] = ()) -> GpuSample:
    (found,) = samples(QUERY, [row], apps, own_pids, 1.5, "dflash")
    return found


def test_a_card_is_read_in_its_units() -> None:
    found = one(COOL, OWN)
    assert (found.temperature_c, found.power_w, found.power_limit_w, found.sm_clock_mhz) == (61, 398.2, 450.0, 2520)
    assert (found.memory_used_mib, found.utilisation_percent, found.at_s) == (21034, 98, 1.5)
    assert found.throttle == ("sw_power_cap",)
    assert found.foreign == ()


def test_what_is_not_said_is_null_and_not_zero() -> None:
    found = one(SILENT)
    said = found.model_dump(exclude={"at_s", "index", "variant", "foreign"})
    assert set(said.values()) == {None}


def test_reasons_have_their_names() -> None:
    assert reasons(0) == ()
    assert reasons(0x68) == ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown")
    assert reasons(0x80 | 0x4000) == ("hw_power_brake_slowdown", "0x4000")


def test_somebody_elses_process_is_named_without_its_arguments() -> None:
    found = one(COOL, OWN, GAME)
    assert [(other.pid, other.name, other.used_mib) for other in found.foreign] == [(99, "quake", 2048)]
    assert one(COOL, OWN, own_pids=(4711,)).foreign == ()
    assert [other.pid for other in one(COOL, OWN, own_pids=(5,)).foreign] == [4711]


def test_heat_marks_the_request_that_it_met_and_the_summary() -> None:
    cool = request(round=1, began_s=0, ended_s=10, completion_tokens=9, draft_n=1)
    hot = request(round=2, began_s=20, ended_s=30, completion_tokens=9, draft_n=1)
    seen = (
        one(COOL, OWN).model_copy(update={"at_s": 5.0}),
        one(HOT, OWN, GAME).model_copy(update={"at_s": 25.0}),
    )
    assert marks(cool, seen) == []
    assert marks(hot, seen) == ["thermal throttling", "thermal throttling by the hardware", "quake (99) on GPU 0"]
    said = remarks(record(cool, hot, gpu_samples=seen))
    assert "thermal throttling during dflash, round 2" in said
    assert "quake (99) on GPU 0 during dflash, round 2" in said
    assert not any("round 1" in text for text in said)


def smi(folder: Path, known: str) -> list[str]:
    (other,) = [name for name in REASONS if name != known]
    script = folder / "nvidia-smi"
    script.write_text(SMI.format(folder=folder, other=other))
    script.chmod(0o755)
    return [str(script)]


@pytest.mark.parametrize("known", REASONS)
def test_it_watches_while_the_card_heats_up(known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "INTERVAL_S", 0.05)
    (tmp_path / "gpu").write_text(COOL + "\n")
    (tmp_path / "apps").write_text(OWN + "\n")
    began = time.monotonic()
    with Sampler(smi(tmp_path, known), began, variant=lambda: "dflash") as watch:
        _until(lambda: len(watch.seen) >= 2)
        (tmp_path / "fresh").write_text(HOT + "\n")
        (tmp_path / "fresh").replace(tmp_path / "gpu")
        _until(lambda: bool(watch.seen) and watch.seen[-1].temperature_c == 88)
    assert watch.fault == ""
    assert [found.throttle for found in (watch.seen[0], watch.seen[-1])] == [
        ("sw_power_cap",), ("sw_thermal_slowdown", "hw_thermal_slowdown"),
    ]  # fmt: skip
    times = [found.at_s for found in watch.seen]
    assert times == sorted(times)
    assert {found.variant for found in watch.seen} == {"dflash"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("No devices were found", "nvidia-smi says 'No devices were found'"),
        (f"0, {UUID}, 61", "and printed"),
        (f"0, {UUID}, warm, 1, 1, 1, 1, 1, 0x0", "invalid literal"),
    ],
)
def test_cards_that_cannot_be_watched_are_said_once(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "gpu").write_text(text + "\n")
    (tmp_path / "apps").write_text("")
    with Sampler(smi(tmp_path, REASONS[0]), time.monotonic()) as watch:
        _until(lambda: bool(watch.fault))
    assert watch.fault.startswith("the cards were not watched: ")
    assert says in watch.fault
    assert "Fix: " in watch.fault


def test_a_command_that_is_not_there_is_said() -> None:
    with Sampler(["/nowhere/nvidia-smi"], time.monotonic()) as watch:
        _until(lambda: bool(watch.fault))
    assert "No such file" in watch.fault
    assert watch.seen == []


def test_a_request_that_no_sample_met_has_no_marks() -> None:
    met: Request = request(began_s=100, ended_s=110)
    assert marks(met, [one(HOT)]) == []


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that in 10 s"
        time.sleep(0.01)
