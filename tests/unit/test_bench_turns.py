"""Variants in turns: their order, what a stopped run keeps, and agreement that cannot be asked for."""

from collections.abc import Iterator

import pytest

from beeyard.bench.agreement import Agreement, Divergence, GreedyServer
from beeyard.bench.client import BenchError, Patience, Server
from beeyard.bench.record import Host, Record, Variant, dump, parse
from beeyard.bench.run import Session
from beeyard.bench.turns import Agreeing, in_turns
from beeyard.bench.workloads import Question
from tests.stand_in import Stand, stand_in

HERE = Host(name="here")
QUICK = Patience(connect_s=2, silence_s=2, answer_s=10, load_s=2, return_s=0.2)
ASKED = [
    Question("w", name, ({"role": "user", "content": name},), max_tokens=24, temperature=0.7) for name in ("a", "b")
]


class Host2:
    """What a switch does to the stand-in: another process. ``fails_at`` is the switch that does not come through."""

    def __init__(self, stand: Stand, fails_at: int = 0, error: BaseException | None = None) -> None:
        self.stand, self.switched, self.fails_at, self.error = stand, list[str](), fails_at, error

    def __call__(self, name: str) -> Variant:
        self.switched.append(name)
        if len(self.switched) == self.fails_at and self.error:
            raise self.error
        self.stand.restart()
        return Variant(name=name, decoding="baseline" if name == "baseline" else "dflash")


@pytest.fixture
def stand() -> Iterator[Stand]:
    with stand_in() as made:
        yield made


def turns(stand: Stand, host: Host2, rounds: int, agreeing: Agreeing | None = None) -> Record:
    with Server(stand.url, None, QUICK) as server:
        session = Session(server, ASKED, nonce="n")
        return in_turns(session, ("baseline", "dflash"), rounds, host, HERE, agreeing=agreeing)


def test_variants_take_turns_and_answer_the_very_same(stand: Stand) -> None:
    host = Host2(stand)
    found = turns(stand, host, 2)
    assert host.switched == ["baseline", "dflash", "baseline", "dflash"]
    assert found.protocol.order == ("baseline", "dflash", "baseline", "dflash")
    scored = [(one.variant, one.round, one.prompt) for one in found.requests if one.is_scored]
    assert scored == [
        ("baseline", 1, "a"), ("baseline", 1, "b"), ("dflash", 1, "a"), ("dflash", 1, "b"),
        ("baseline", 2, "a"), ("baseline", 2, "b"), ("dflash", 2, "a"), ("dflash", 2, "b"),
    ]  # fmt: skip
    # The new process behind each switch is no fault, and is warmed up.
    assert [one.fault for one in found.requests if one.fault] == []
    assert sum(not one.is_scored for one in found.requests) == 4
    sides = {
        (name, number): {
            (one.prompt, one.nonce, one.seed)
            for one in found.requests
            if (one.variant, one.round, one.is_scored) == (name, number, True)
        }
        for name in ("baseline", "dflash")
        for number in (1, 2)
    }
    assert sides["baseline", 1] == sides["dflash", 1]
    assert sides["baseline", 2] == sides["dflash", 2]
    assert not sides["baseline", 1] & sides["baseline", 2]
    assert parse(dump(found), "it") == found


@pytest.mark.parametrize(
    ("error", "why"),
    [(KeyboardInterrupt(), "it was stopped"), (BenchError("dflash does not fit. Fix: less"), "dflash does not fit")],
)
def test_a_run_that_ends_early_keeps_whole_rounds(stand: Stand, error: BaseException, why: str) -> None:
    found = turns(stand, Host2(stand, 6, error), 5)
    assert found.protocol.rounds == 2
    assert {one.round for one in found.requests} == {1, 2}
    assert found.protocol.order == ("baseline", "dflash") * 2
    assert found.notes[0].startswith(f"2 of 5 rounds were whole: {why}")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BenchError("dflash does not fit. Fix: less")])
def test_without_a_whole_round_there_is_no_record(stand: Stand, error: BaseException) -> None:
    with pytest.raises(BenchError, match=r"Fix: "):
        turns(stand, Host2(stand, 2, error), 5)


def test_agreement_that_cannot_be_asked_for_is_a_note_and_the_rest_goes_on(stand: Stand) -> None:
    with GreedyServer(stand.url) as greedy:  # it knows no /apply-template
        found = turns(stand, Host2(stand), 2, Agreeing(greedy, {"w/a": ASKED[0].messages}))
    assert found.agreement is None
    (note,) = found.notes
    assert note.startswith("whether answers agree was not seen: ")
    assert "Fix: " in note
    assert found.protocol.rounds == 2


def test_a_record_keeps_what_agreement_found() -> None:
    parted = Divergence(
        position=3, baseline_token=1, variant_token=2, baseline_token_text="a", variant_token_text="b", before="c",
        baseline_after="d", variant_after="e", gap_nats=0.01,
    )  # fmt: skip
    one = {
        "prompt": "w/a", "baseline_tokens": 9, "variant_tokens": 8, "common_tokens": 3, "is_identical": False,
        "agreed_share": 3 / 9, "divergence": parted,
    }  # fmt: skip
    agreement = Agreement.model_validate(
        {
            "baseline": "baseline", "variant": "dflash", "baseline_model": "m", "variant_model": "m", "max_tokens": 9,
            "comparisons": (one,), "identical": 0, "identical_share": 0.0, "agreed_share": 3 / 9, "drafted": 4,
            "accepted": 2,
        }
    )  # fmt: skip
    with stand_in() as stand:
        found = turns(stand, Host2(stand), 1)
    kept = found.model_copy(update={"agreement": (agreement,)})
    assert parse(dump(kept), "it") == kept
    strange = dump(kept.model_copy(update={"agreement": (agreement.model_copy(update={"variant": "mtp"}),)}))
    with pytest.raises(Exception, match=r"says of 'mtp' whether it is right.* Fix: "):
        parse(strange, "it")
