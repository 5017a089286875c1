"""The search: it begins with what is there, goes on where it stopped, keeps its limits, proves what it says."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from beeyard import tuning
from beeyard.bench.client import Patience, Server
from beeyard.bench.workloads import Question
from beeyard.catalog import PRESETS, CatalogError, load_catalog
from beeyard.comparing import Switching
from beeyard.hosts import DeployFailed, Target
from beeyard.measured import Measured
from beeyard.space import as_it_is
from beeyard.survey import Survey, solved
from beeyard.tuning import Limits, Tuning
from tests.stand_in import Stand, stand_in
from tests.unit.test_comparing import host

CATALOG = load_catalog([PRESETS])
QUICK = Patience(connect_s=2, silence_s=2, answer_s=10, load_s=2, return_s=0.2)
ASKED = [Question("w", "a", ({"role": "user", "content": "a"},), max_tokens=24, temperature=0.7)]


class Deploys(Target):
    """Deploys that change how fast the stand-in is: ubatch 128 is the best, draft_max 1 does not pass the gate."""

    def __init__(self, stand: Stand) -> None:
        super().__init__("local", {})
        object.__setattr__(self, "stand", stand)
        object.__setattr__(self, "done", [])

    stand: Stand
    done: list[Mapping[str, Any]]

    def deploy(self, data: Mapping[str, Any]) -> None:
        self.done.append(data)
        if data.get("llama_decoding", {}).get("draft_max") == 1:
            raise DeployFailed("the gate said no. Fix: less")
        self.stand.restart()

    def surveyed(self, data: Mapping[str, Any] | None = None) -> tuple[list[Survey], int, str]:
        return [host("dflash")], 0, ""


@pytest.fixture
def stand() -> Iterator[Stand]:
    with stand_in() as made:
        yield made


def search(stand: Stand, journal: Path, told: list[str], **limits: Any) -> Tuning:
    seen = host("dflash")
    solution = solved(seen, CATALOG)
    assert solution.spec is not None
    server = Server(stand.url, None, QUICK)
    return Tuning(
        Switching(Deploys(stand), CATALOG), seen, solution.spec, ASKED, server, Measured(stand.url, None),
        journal / "trials.log", Limits(**limits), rounds=2, tell=told.append,
    )  # fmt: skip


def deploys(found: Tuning) -> list[Mapping[str, Any]]:
    target = found.switching.target
    assert isinstance(target, Deploys)
    return target.done


def test_it_begins_with_what_is_there_and_a_failed_gate_is_one_trial_less(stand: Stand, tmp_path: Path) -> None:
    told: list[str] = []
    found = search(stand, tmp_path, told, trials=12)
    best = found.search()
    assert told[0].startswith("trial 1: ")
    assert "with everything as it is; best " in told[0]
    first = deploys(found)[0]
    assert first["llama_decoding"] == {"draft_max": None}
    assert set(best) == {knob.name for knob in found.knobs}
    assert len([text for text in told if text.startswith("trial ")]) == 12
    assert best["decoding.draft_max"] != 1
    # Nothing is tried twice.
    tried = [repr(data) for data in deploys(found)]
    assert len(set(tried)) == len(tried)


def test_a_search_that_was_stopped_goes_on(stand: Stand, tmp_path: Path) -> None:
    search(stand, tmp_path, [], trials=3).search()
    told: list[str] = []
    again = search(stand, tmp_path, told, trials=5)
    again.search()
    assert told[0] == f"going on with 3 trials of before, in {tmp_path / 'trials.log'}"
    assert [text.partition(":")[0] for text in told if text.startswith("trial ")] == ["trial 4", "trial 5"]


def test_other_questions_are_another_search(stand: Stand, tmp_path: Path) -> None:
    search(stand, tmp_path, [], trials=2).search()
    told: list[str] = []
    other = search(stand, tmp_path, told, trials=1)
    other.questions = [Question("w", "b", ({"role": "user", "content": "b"},), max_tokens=24, temperature=0.7)]
    other.search()
    assert told[0].startswith("trial 1: ")


def test_time_that_is_over_ends_it_after_the_trial_under_way(stand: Stand, tmp_path: Path) -> None:
    told: list[str] = []
    search(stand, tmp_path, told, trials=99, seconds=0.001).search()
    assert len(told) == 1
    assert "of 0 min" in told[0]


def test_money_is_time(stand: Stand, tmp_path: Path) -> None:
    assert Limits(seconds=7200, cost=0.69, price_per_hour=0.69).until_s == 3600
    assert Limits(seconds=600, cost=0.69, price_per_hour=0.69).until_s == 600
    assert Limits(seconds=3600, price_per_hour=0.5).spent(1800) == "30.0 of 60 min, 0.25 USD"
    with pytest.raises(CatalogError, match=r"wants a price an hour\. Fix: add --price"):
        Limits(cost=1)


def test_what_is_there_must_work(stand: Stand, tmp_path: Path) -> None:
    stand.modes.add("no timings")
    with pytest.raises(CatalogError, match=r"1 of 1 answers are no good: .*Fix: "):
        search(stand, tmp_path, [], trials=3).search()


def test_a_stopped_search_keeps_what_it_has(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    found = search(stand, tmp_path, told, trials=9)
    real = found._try
    monkeypatch.setattr(
        found, "_try", lambda values, number: _stop() if number == 2 else real(values, number)
    )  # fmt: skip
    best = found.search()
    assert set(best) == set(as_it_is(found.knobs))
    assert told[-1].startswith("stopped; what was tried is kept")


def _stop() -> float:
    raise KeyboardInterrupt


def test_the_best_is_proven_in_turns_with_what_was_there(stand: Stand, tmp_path: Path) -> None:
    found = search(stand, tmp_path, [], trials=1)
    best = {**as_it_is(found.knobs), "settings.ubatch": 128}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "of_host", lambda seen, *_: Measured(stand.url, None, spec=solved(seen, CATALOG).spec))
        record = found.prove(best)
    assert record.protocol.order == ("dflash", "dflash-tuned") * 2
    assert [one.name for one in record.variants] == ["dflash", "dflash-tuned"]
    batches = [data["llama_settings"]["ubatch"] for data in deploys(found)]
    assert batches == [512, 128, 512, 128]
    assert found.data(best) == {"llama_settings": {"ubatch": 128}}
    assert [one.fault for one in record.requests if one.fault] == []
