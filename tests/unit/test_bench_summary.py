"""What a record says: figures of good answers alone, speed-ups, remarks, and how it looks on a terminal."""

import io

import pytest
from rich.console import Console

from beeyard.bench import terminal
from beeyard.bench.record import Asked, Record, Request, Variant
from beeyard.bench.summary import overhead, remarks, rows, speedups, too_few
from tests.records import record, request

PROMPTS = tuple(
    Asked(workload="guide", prompt=name, sha256="0" * 64, max_tokens=64, temperature=0.7) for name in ("kv", "list")
)
BOTH = (Variant(name="baseline", decoding="baseline"), Variant(name="dflash", decoding="dflash"))


def answers(variant: str, prompt: str, *speeds: float, **more: object) -> list[Request]:
    drafted = {"draft_n": 40, "draft_n_accepted": 30} if variant == "dflash" else {}
    return [
        request(
            variant=variant, prompt=prompt, round=number, decode_per_s=speed, completion_tokens=60,
            first_token_ms=100.0, prompt_per_s=1000.0, **drafted, **more,
        )
        for number, speed in enumerate(speeds, 1)
    ]  # fmt: skip


def compared(*more: Request) -> Record:
    return record(
        *answers("baseline", "kv", 40.0, 41.0, 39.0), *answers("baseline", "list", 40.0, 40.0, 40.0),
        *answers("dflash", "kv", 160.0, 150.0, 170.0), *answers("dflash", "list", 80.0, 80.0, 80.0), *more,
        prompts=PROMPTS, variants=BOTH,
    )  # fmt: skip


def test_a_row_is_of_good_answers_alone() -> None:
    bad = request(variant="dflash", prompt="kv", decode_per_s=9999.0, fault="cut. Fix: see its log")
    cold = request(variant="dflash", prompt="kv", decode_per_s=1.0, is_scored=False)
    found = {(row.variant, row.prompt): row for row in rows(compared(bad, cold))}
    assert list(found) == [("baseline", "kv"), ("baseline", "list"), ("dflash", "kv"), ("dflash", "list")]
    row = found["dflash", "kv"]
    assert row.decode_per_s is not None
    assert (row.n, row.faulty, row.decode_per_s.median, row.decode_per_s.most) == (3, 1, 160.0, 170.0)
    assert (row.acceptance, row.tokens_per_step) == (0.75, 2.0)
    assert (found["baseline", "kv"].acceptance, found["baseline", "kv"].tokens_per_step) == (None, None)


def test_speedups_are_by_prompt_and_over_all() -> None:
    by_prompt, total = speedups(compared(), "baseline", "dflash")
    assert list(by_prompt) == [("guide", "kv"), ("guide", "list")]
    assert [found.ratio for found in by_prompt.values()] == pytest.approx([4, 2])
    assert total is not None
    assert total.ratio == pytest.approx(8**0.5)
    assert total.is_faster
    back, slower = speedups(compared(), "dflash", "baseline")
    assert slower is not None
    assert slower.is_slower
    assert back["guide", "kv"].ratio == pytest.approx(0.25)


def test_a_prompt_that_only_one_variant_answered_is_compared_with_nothing() -> None:
    only = record(*answers("baseline", "kv", 40.0), *answers("dflash", "list", 80.0), prompts=PROMPTS, variants=BOTH)
    assert speedups(only, "baseline", "dflash") == ({}, None)


def test_too_few_good_answers_are_said_by_prompt() -> None:
    some = record(*answers("dflash", "kv", 40.0), prompts=PROMPTS)
    assert [text.partition(" out of")[0] for text in too_few(some)] == [
        "dflash has 0 good answers to guide/list"
    ]  # one round was asked for, so one answer is enough


def test_clocks_that_disagree_are_said() -> None:
    near = record(*answers("dflash", "kv", 40.0, decode_ms=1000.0, own_decode_ms=1004.0), prompts=PROMPTS[:1])
    far = record(*answers("dflash", "kv", 40.0, decode_ms=1000.0, own_decode_ms=1200.0), prompts=PROMPTS[:1])
    assert overhead(near, "dflash") == pytest.approx(0.004)
    assert not any("clock" in text for text in remarks(near))
    assert "dflash: its tokens took 20% longer by our clock" in " ".join(remarks(far))


def test_alike_faults_are_counted_as_one() -> None:
    texts = [f"cut after {number} pieces. Fix: see" for number in (3, 14)]
    faults = [request(variant="dflash", prompt="kv", fault=text) for text in texts]
    assert "dflash: 2 answers left out: cut after 3 pieces. Fix: see" in remarks(compared(*faults))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_run_can_be_watched(is_terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=110)
    bad = request(variant="dflash", prompt="kv", fault="the stream was cut. Fix: see its log")
    with terminal.Progressing(console, 2) as progress:
        progress.tell(request(is_scored=False, decode_per_s=1.0))
        for one in (*answers("dflash", "kv", 160.0), bad):
            progress.tell(one)
    terminal.show(compared(bad), console)
    text = out.getvalue()
    assert "left out: the stream was cut. Fix: see its log" in text
    assert ("\x1b[" in text) == is_terminal
    if not is_terminal:
        assert "[1/2] dflash guide/kv, round 1: 160.0 tokens/s, 60 tokens, first after 100 ms, 75%" in text
        assert "note: dflash: 1 answer left out" in text
    assert "3 of 4" in text
    assert "2.00" in text
