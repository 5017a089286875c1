"""What a record says: rates by variant and prompt, speed-ups, and the sentences that belong beside them. Pure."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from beeyard.bench import gpu
from beeyard.bench.record import Record, Request
from beeyard.bench.statistics import LEAST, Speedup, Spread, overall, speedup, spread

# Of the server's time for the same tokens: more is a slow way to the server, not the server.
CLOCKS_AGREE = 0.05


class Row(NamedTuple):
    """One prompt of one variant: the good answers' figures; None where none was said."""

    variant: str
    workload: str
    prompt: str
    faulty: int
    decode_per_s: Spread | None
    prompt_per_s: Spread | None
    first_token_ms: Spread | None
    completion_tokens: Spread | None
    acceptance: float | None
    # Tokens that one step of the target brings: all tokens by those that no draft brought.
    tokens_per_step: float | None

    @property
    def n(self) -> int:
        """How many answers are in it."""
        return self.decode_per_s.n if self.decode_per_s else 0


def rows(record: Record) -> list[Row]:
    """One for each variant and prompt, in the record's order, also where no answer was good."""
    return [
        _row(record, variant.name, asked.workload, asked.prompt)
        for variant in record.variants
        for asked in record.prompts
    ]


def _row(record: Record, variant: str, workload: str, prompt: str) -> Row:
    good = list(record.scored(variant, workload, prompt))
    bad = [one for one in record.faulty if (one.variant, one.workload, one.prompt) == (variant, workload, prompt)]
    tokens, drafted, accepted = (
        sum(found) for found in zip(*((one.completion_tokens or 0, one.draft_n or 0, one.draft_n_accepted or 0)
                                      for one in good), strict=True)
    ) if good else (0, 0, 0)  # fmt: skip
    return Row(
        variant=variant, workload=workload, prompt=prompt, faulty=len(bad),
        decode_per_s=_spread(good, lambda one: one.decode_per_s),
        prompt_per_s=_spread(good, lambda one: one.prompt_per_s),
        first_token_ms=_spread(good, lambda one: one.first_token_ms),
        completion_tokens=_spread(good, lambda one: one.completion_tokens),
        acceptance=accepted / drafted if drafted else None,
        tokens_per_step=tokens / (tokens - accepted) if drafted and tokens > accepted else None,
    )  # fmt: skip


def _spread(requests: Iterable[Request], of: Callable[[Request], float | None]) -> Spread | None:
    values = [value for value in map(of, requests) if value is not None]
    return spread(values) if values else None


def speeds(record: Record, variant: str, workload: str, prompt: str) -> list[float]:
    """The decode rates of the good answers, in tokens a second."""
    return [one.decode_per_s for one in record.scored(variant, workload, prompt) if one.decode_per_s]


def speedups(
    record: Record, before: str, after: str, seed: int | None = None
) -> tuple[dict[tuple[str, str], Speedup], Speedup | None]:
    """
    How many times as fast one variant decodes as another: for each prompt that both answered, and over all those.

    :param seed: of the bootstrap; the record's own, if it is left out
    """
    chance = record.protocol.seed if seed is None else seed
    pairs = {}
    for asked in record.prompts:
        key = (asked.workload, asked.prompt)
        sides = speeds(record, before, *key), speeds(record, after, *key)
        if all(sides):
            pairs[key] = sides
    found = {key: speedup(*sides, seed=chance) for key, sides in pairs.items()}
    return found, overall(list(pairs.values()), seed=chance) if pairs else None


def too_few(record: Record) -> list[str]:
    """A sentence for each variant and prompt that has not enough good answers for a median of anything."""
    least = min(LEAST, record.protocol.rounds)
    return [
        f"{row.variant} has {row.n} good answers to {row.workload}/{row.prompt} out of {row.n + row.faulty}, too few "
        f"to compare. Fix: see its faults, and measure again"
        for row in rows(record)
        if row.n < least
    ]


def remarks(record: Record) -> list[str]:
    """What must be said beside the figures: faults, heat, company, no drafts, a slow way to the server; sentences."""
    found = list(record.notes)
    # Faults that differ in their numbers alone are one; the first of them is told.
    alike: dict[tuple[str, str], list[str]] = {}
    for one in record.faulty:
        alike.setdefault((one.variant, re.sub(r"\d+", "#", one.fault or "")), []).append(one.fault or "")
    found += [
        f"{variant}: {len(faults)} answer{'' if len(faults) == 1 else 's'} left out: {faults[0]}"
        for (variant, _), faults in alike.items()
    ]
    found += _heat(record)
    for variant in record.variants:
        found += _drafts(record, variant.name, variant.decoding) + _clocks(record, variant.name)
    return found + too_few(record)


def _heat(record: Record) -> list[str]:
    found: dict[str, None] = {}
    for request in record.requests:
        if request.is_scored:
            for mark in gpu.marks(request, record.gpu_samples):
                found[f"{mark} during {request.variant}, round {request.round}"] = None
    return list(found)


def _drafts(record: Record, variant: str, decoding: str) -> list[str]:
    good = list(record.scored(variant))
    without = [one for one in good if not one.draft_n]
    if decoding in ("", "baseline") or not without:
        return []
    return [f"{variant} drafted nothing, or does not say so, in {len(without)} of {len(good)} answers"]


def overhead(record: Record, variant: str) -> float | None:
    """By how much of the server's time our clock saw its tokens come later, at the median; negative is sooner."""
    shares = [
        one.own_decode_ms / one.decode_ms - 1
        for one in record.scored(variant)
        if one.own_decode_ms is not None and one.decode_ms
    ]
    return spread(shares).median if shares else None


def _clocks(record: Record, variant: str) -> list[str]:
    share = overhead(record, variant)
    if share is None or abs(share) <= CLOCKS_AGREE:
        return []
    how = "longer" if share > 0 else "less"
    return [
        f"{variant}: its tokens took {abs(share):.0%} {how} by our clock than by the server's own; the rates are the "
        "server's"
    ]
