"""A record against an older one: what has become slower, for people and for CI. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from beeyard.bench.record import Record, RecordError
from beeyard.bench.statistics import Speedup, speedup, spread
from beeyard.bench.summary import speeds
from beeyard.bench.tables import Table
from beeyard.bench.together import Together, is_same_question

THRESHOLD = 0.05
# Prompt tokens from which prefill is work, and not only a start.
LONG_PROMPT = 1000


class Change(NamedTuple):
    """One rate then and now; ``ratio`` is None where there is no good answer any more."""

    variant: str
    workload: str
    prompt: str
    what: str
    before: float
    after: float | None
    ratio: Speedup | None
    is_regression: bool


@dataclass(frozen=True)
class Against:
    """Every rate that both have, with what is to be said beside it."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    threshold: float

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Those that are worse by more than the threshold."""
        return tuple(one for one in self.changes if one.is_regression)


def against(new: Together, old: Together, threshold: float = THRESHOLD) -> Against:
    """
    Compare each variant and prompt with the same one of an older record.

    It is a regression if the median is lower by more than the threshold and the interval of the ratio, where there
    are answers enough for one, lies below 1; or if no answer is good any more.

    :param threshold: a share, 0.05 for 5 %
    :raises RecordError: nothing of both can be compared.
    """
    now, then = new.record, old.record
    known = {one.name for one in then.variants}
    questions = {(one.workload, one.prompt): one for one in then.prompts}
    changes: list[Change] = []
    notes = []
    for variant in now.variants:
        if variant.name not in known:
            notes.append(f"{variant.name} is not in the older record: it is compared with nothing")
            continue
        for asked in now.prompts:
            key = (asked.workload, asked.prompt)
            if key not in questions:
                continue
            if not is_same_question(asked, questions[key]):
                notes.append(f"{'/'.join(key)} has other words, tokens or temperature than before: left out")
                continue
            changes += _changes(now, then, variant.name, key, threshold)
    if not changes:
        raise RecordError(
            "the records have no variant and prompt in common that the older one answered well. Fix: name records of "
            "the same variants and workloads"
        )
    for name in sorted(known - {one.name for one in now.variants}):
        notes.append(f"{name} is in the older record alone: whether it became slower is not known")
    missing = [key for key in questions if key not in {(one.workload, one.prompt) for one in now.prompts}]
    if missing:
        notes.append(f"no longer asked: {', '.join('/'.join(key) for key in missing)}")
    for name in dict.fromkeys(one.variant for one in changes):
        notes += _other_machine(new, old, name)
    return Against(tuple(changes), tuple(dict.fromkeys(notes)), threshold)


def _changes(now: Record, then: Record, variant: str, key: tuple[str, str], threshold: float) -> list[Change]:
    found = []
    sides = [("decode tokens/s", speeds(then, variant, *key), speeds(now, variant, *key))]
    long_ones = _prefill(then, variant, key)
    if long_ones:
        sides.append(("prompt tokens/s", long_ones, _prefill(now, variant, key)))
    for what, before, after in sides:
        if not before:
            continue
        if not after:
            if any(
                one.is_scored and (one.variant, one.workload, one.prompt) == (variant, *key) for one in now.requests
            ):
                found.append(Change(variant, *key, what, spread(before).median, None, None, True))
            continue
        ratio = speedup(before, after, seed=now.protocol.seed)
        worse = ratio.ratio < 1 - threshold and ratio.is_slower
        found.append(Change(variant, *key, what, spread(before).median, spread(after).median, ratio, worse))
    return found


def _prefill(record: Record, variant: str, key: tuple[str, str]) -> list[float]:
    return [
        one.prompt_per_s
        for one in record.scored(variant, *key)
        if one.prompt_per_s and (one.prompt_tokens or 0) >= LONG_PROMPT
    ]


def _other_machine(new: Together, old: Together, variant: str) -> list[str]:
    now, then = new.hosts[variant], old.hosts[variant]
    found = []
    if (now.name, [card.name for card in now.cards]) != (then.name, [card.name for card in then.cards]):
        found.append(
            f"{variant} ran on another machine before ({then.name}, now {now.name}): a change may be of that"
        )
    if now.driver != then.driver:
        found.append(f"{variant}: the driver was {then.driver or 'not known'}, and is {now.driver or 'not known'}")
    mine, before = (next(one for one in each.record.variants if one.name == variant) for each in (new, old))
    if mine.engine.build != before.engine.build:
        was, now_is = (one.engine.build or "not known" for one in (before, mine))
        found.append(f"{variant}: the engine was {was}, and is {now_is}")
    return found


def table_of(found: Against) -> Table:
    """Then and now, a row a rate, regressions marked in words."""
    rows = tuple(
        (
            f"{one.workload}/{one.prompt}",
            one.variant,
            "no good answer" if one.after is None else "slower" if one.is_regression else "",
            one.what,
            f"{one.before:.1f}",
            "" if one.after is None else f"{one.after:.1f}",
            "" if one.ratio is None else f"{one.ratio.ratio - 1:+.1%}",
            "" if one.ratio is None or one.ratio.low is None or one.ratio.high is None
            else f"{one.ratio.low - 1:+.1%} to {one.ratio.high - 1:+.1%}",
        )
        for one in found.changes
    )  # fmt: skip
    columns = ("prompt", "variant", "regression", "what", "before", "now", "change", "95 % interval")
    return Table(
        "Against the older record", columns, rows, 4,
        f"A regression is lower by more than {found.threshold:.1%} with an interval that lies below no change.",
    )  # fmt: skip


def verdict_of(found: Against) -> str:
    """The sentence for CI."""
    count = len(found.regressions)
    if not count:
        return f"No regression: none of {len(found.changes)} rates is lower by more than {found.threshold:.1%}."
    names = ", ".join(f"{one.variant} {one.workload}/{one.prompt}" for one in found.regressions)
    return (
        f"{count} of {len(found.changes)} rates are worse by more than {found.threshold:.1%}: {names}. "
        "Fix: see what differs between the two (engine, driver, machine, arguments), measure both anew in turns"
    )
