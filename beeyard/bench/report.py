"""
What a report says of records, computed once for the terminal, Markdown and the page. Pure.

Every figure is of the good answers alone and comes from ``beeyard.bench.statistics`` by the record's own seed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from beeyard.bench.claims import Claim, Claims, Source
from beeyard.bench.configuration import MTP, Setting, beside_decoding, settings
from beeyard.bench.gpu import SPOILING
from beeyard.bench.record import Host, Record, RecordError, Request, Variant
from beeyard.bench.statistics import Speedup, Typical, percentiles, typical
from beeyard.bench.summary import Row, remarks, rows, speeds, speedups
from beeyard.bench.together import Together

Key = tuple[str, str]
TITLES = {"dflash": "DFlash", "mtp": "Multi-token prediction", "ngram": "N-gram drafting", "baseline": "The baseline"}
# A share of accepted tokens below which a drafter hardly fits its model, and one below which drafts are too long.
HARDLY = 0.10
SELDOM = 0.40
# Points of a distribution's curve.
CURVE = 120
SECONDS_AN_HOUR = 3600


class Line(NamedTuple):
    """A prompt of a variant: its row, its median rate with the interval, and every good answer's rate."""

    row: Row
    decode: Typical | None
    speeds: tuple[float, ...]


class Comparison(NamedTuple):
    """A variant against the one that it is compared with; ``verdict`` says the result, ``advice`` what to try."""

    before: str
    after: str
    by_prompt: Mapping[Key, Speedup]
    total: Speedup | None
    verdict: str
    is_slower: bool
    more: tuple[str, ...]
    advice: tuple[str, ...]


class Positions(NamedTuple):
    """Of all drafts of a variant, the share whose first, second, … token was accepted."""

    variant: str
    drafts: int
    shares: tuple[float, ...]


class Delays(NamedTuple):
    """
    The gaps between the pieces of a variant's answers, in ms, over all good answers.

    ``curve`` is their distribution at equal steps of shares from 0 to 1; it is empty, and the percentiles are the
    median of the answers' own (``most`` the largest), where the record does not have every gap.
    """

    variant: str
    gaps: int
    p50: float
    p95: float
    p99: float
    most: float
    curve: tuple[float, ...]


class Cost(NamedTuple):
    """What a million generated tokens cost, in the host's currency, when the one slot is always busy."""

    variant: str
    tokens_per_hour: float
    price_per_hour: float
    currency: str
    per_million: float


class Faulty(NamedTuple):
    """Answers that are in no figure, alike in all but their round."""

    variant: str
    workload: str
    prompt: str
    rounds: tuple[int, ...]
    text: str


class Claimed(NamedTuple):
    """A published figure, with who published it."""

    source: Source
    claim: Claim


@dataclass(frozen=True)
class Report:
    """All that is said of some records; ``base`` is the variant that the others are compared with."""

    record: Record
    hosts: Mapping[str, Host]
    base: str
    lines: tuple[Line, ...]
    comparisons: tuple[Comparison, ...]
    positions: tuple[Positions, ...]
    delays: tuple[Delays, ...]
    costs: tuple[Cost, ...]
    settings: tuple[Setting, ...]
    faults: tuple[Faulty, ...]
    remarks: tuple[str, ...]
    claims: tuple[Claimed, ...]

    def line(self, variant: str, key: Key) -> Line:
        """The line of one variant and prompt."""
        return next(
            one for one in self.lines if (one.row.variant, (one.row.workload, one.row.prompt)) == (variant, key)
        )

    @property
    def prompts(self) -> tuple[Key, ...]:
        """Workload and name of each prompt, in the record's order."""
        return tuple((one.workload, one.prompt) for one in self.record.prompts)


def report_of(found: Together, base: str | None = None, claims: Claims | None = None) -> Report:
    """
    Compute a report.

    :param base: the variant to compare with; by default the first that does not draft, else the first
    :param claims: published figures; those of a variant's preset are taken
    :raises RecordError: there is no such variant.
    """
    record = found.record
    reference = _base(record, base)
    compared = tuple(
        _compare(found, _named(record, reference), one) for one in record.variants if one.name != reference
    )
    return Report(
        record=record,
        hosts=found.hosts,
        base=reference,
        lines=tuple(_line(record, row) for row in rows(record)),
        comparisons=compared,
        positions=tuple(place for who in record.variants if (place := _positions(record, who.name))),
        delays=tuple(one for variant in record.variants if (one := _delays(record, variant.name))),
        costs=_costs(record, found.hosts),
        settings=settings(record.variants),
        faults=_faults(record),
        remarks=tuple(
            dict.fromkeys(
                [
                    *found.notes,
                    *(text for one in record.variants for text in _unlike(_named(record, reference), one)),
                    *(text for part in found.parts for text in remarks(part)),
                ]
            )
        ),
        claims=_claims(record, claims),
    )


def _base(record: Record, wanted: str | None) -> str:
    names = [one.name for one in record.variants]
    if wanted is not None:
        if wanted not in names:
            raise RecordError(
                f"there is no variant {wanted!r} to compare with. Fix: --base is one of {', '.join(names)}"
            )
        return wanted
    plain = [one.name for one in record.variants if one.decoding == "baseline" or one.name == "baseline"]
    return (plain or names)[0]


def _named(record: Record, name: str) -> Variant:
    return next(one for one in record.variants if one.name == name)


def _line(record: Record, row: Row) -> Line:
    found = speeds(record, row.variant, row.workload, row.prompt)
    return Line(row, typical(found, seed=record.protocol.seed) if found else None, tuple(found))


# --- was it faster? ---------------------------------------------------------------------------------


def title_of(variant: Variant) -> str:
    """A way of decoding as sentences call it, with the variant's name where that says more."""
    known = TITLES.get(variant.decoding)
    if known is None:
        return variant.name
    return known if variant.name == variant.decoding else f"{known} ({variant.name})"


def _compare(found: Together, before: Variant, after: Variant) -> Comparison:
    record = found.record
    by_prompt, total = speedups(record, before.name, after.name)
    name = title_of(after)
    if total is None:
        text = f"{name} and {before.name} have no good answers to the same prompt: there is nothing to compare."
        return Comparison(before.name, after.name, by_prompt, None, text, False, (), ())
    slower = [key for key, one in by_prompt.items() if one.is_slower]
    over = f"over {len(by_prompt)} prompts" if len(by_prompt) > 1 else "on one prompt"
    figure = f"{said_of(total)} times {before.name} {over}"
    if total.is_slower:
        text = f"{name} is slower here: {figure}."
    elif total.is_faster:
        text = f"{name} is faster here: {figure}."
    else:
        text = f"{name} makes no clear difference here: {figure}."
    more: tuple[str, ...] = ()
    if slower and not total.is_slower:
        listed = ", ".join(f"{'/'.join(key)} ({said_of(by_prompt[key])})" for key in slower)
        more = (f"{name} is slower here on {listed}.",)
    advice = _advice(record, found.hosts[after.name], before, after, list(by_prompt) if total.is_slower else slower)
    return Comparison(before.name, after.name, by_prompt, total, text, total.is_slower, more, advice)


def said_of(found: Speedup | Typical, digits: int = 2) -> str:
    """A figure with its interval, as ``3.21 (3.10 to 3.30)``, or with what keeps it from having one."""
    value = found.ratio if isinstance(found, Speedup) else found.median
    if found.low is None or found.high is None:
        return f"{value:.{digits}f} (no interval: {found.n} answer{'' if found.n == 1 else 's'})"
    return f"{value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _advice(record: Record, host: Host, before: Variant, after: Variant, keys: Sequence[Key]) -> tuple[str, ...]:
    """What to try where it is slower on those prompts; sentences, the likeliest first."""
    if not keys or after.decoding == "baseline":
        return ()
    good = [one for key in keys for one in record.scored(after.name, *key)]
    drafted = sum(one.draft_n or 0 for one in good)
    found = []
    if not drafted:
        found.append(
            "Nothing was drafted, or the server does not say so: see its log for the drafter, and that it was "
            "started with one (the arguments below)."
        )
    else:
        found += _advice_on_drafts(after, sum(one.draft_n_accepted or 0 for one in good) / drafted)
    if not host.cards:
        found.append(
            "No GPU is in the record: on a CPU the model often checks a drafted token at nearly the price of a "
            "generated one, so that few drafts pay. Measure where it is to serve."
        )
    else:
        found.append(
            "See that nothing of the model, the drafter or the attention is left to the CPU: the server's log says "
            "where each went (docs/variants.md)."
        )
    if any(set(one.throttle or ()) & set(SPOILING) for one in record.gpu_samples):
        found.append("A card was throttled during the run: see the remarks, let it cool or free it, measure again.")
    listed = ", ".join(sorted({key[0] for key in keys}))
    found.append(
        f"If it stays so, serve {before.name} for what is like {listed}: `make switch VARIANT={before.name}`."
    )
    return tuple(found)


def _advice_on_drafts(variant: Variant, acceptance: float) -> list[str]:
    share = f"{acceptance:.1%} of the drafted tokens were accepted there"
    found = []
    if acceptance < HARDLY:
        found.append(
            f"Only {share}: a drafter of another model, version or vocabulary is likelier than a hard prompt. "
            "Take the pair that presets/models.yaml names."
        )
    if variant.decoding in ("dflash", "mtp"):
        why = f"{share}: draft" if HARDLY <= acceptance < SELDOM else "Draft"
        found.append(
            f"{why} fewer tokens at a time: `draft_max` below the variant's `decoding` in presets/servers.yaml."
        )
    if variant.decoding == "dflash":
        found.append("Try a drafter of another quantisation, and a lower temperature if the task allows it.")
    if variant.decoding == "ngram":
        found.append(f"{share}: n-grams help where an answer repeats its prompt; try another `type` or sizes.")
    return found


def _unlike(base: Variant, other: Variant) -> list[str]:
    if other.name == base.name:
        return []
    said = []
    if MTP in (base.decoding, other.decoding) and base.model != other.model:
        files = " and ".join(one.model.name if one.model else "an unknown one" for one in (base, other))
        said.append(
            f"{base.name} and {other.name} are of two files ({files}): where their weights are quantised otherwise, "
            "that is in the speed-up, too"
        )
    found = beside_decoding(base, other)
    if found:
        listed = ", ".join(found)
        said.append(
            f"{base.name} and {other.name} differ in more than decoding ({listed}): a speed-up is of all that"
        )
    return said


# --- distributions, money ---------------------------------------------------------------------------


def _positions(record: Record, variant: str) -> Positions | None:
    good = [one for one in record.scored(variant) if one.drafts and one.accepted_per_position]
    drafts = sum(one.drafts or 0 for one in good)
    if not drafts:
        return None
    accepted = [sum(row) for row in zip_longest(*(one.accepted_per_position or () for one in good), fillvalue=0)]
    return Positions(variant, drafts, tuple(count / drafts for count in accepted))


def _delays(record: Record, variant: str) -> Delays | None:
    good = [one for one in record.scored(variant) if one.latency is not None]
    if not good:
        return None
    if all(one.gaps_us for one in good):
        gaps = [gap / 1000 for one in good for gap in one.gaps_us or ()]
        p50, p95, p99, most = percentiles(gaps, (0.5, 0.95, 0.99, 1))
        curve = percentiles(gaps, [place / CURVE for place in range(CURVE + 1)])
        return Delays(variant, len(gaps), p50, p95, p99, most, tuple(curve))
    said = [one.latency for one in good if one.latency is not None]
    p50, p95, p99 = (
        percentiles(values, (0.5,))[0]
        for values in ([one.p50_ms for one in said], [one.p95_ms for one in said], [one.p99_ms for one in said])
    )
    return Delays(variant, sum(one.count for one in said), p50, p95, p99, max(one.max_ms for one in said), ())


def _costs(record: Record, hosts: Mapping[str, Host]) -> tuple[Cost, ...]:
    """Over the prompts that every variant answered well, each answer from sending to its end."""
    prompts = [
        (one.workload, one.prompt)
        for one in record.prompts
        if all(
            any(_is_timed(it) for it in record.scored(who.name, one.workload, one.prompt)) for who in record.variants
        )
    ]
    found = []
    for variant in record.variants:
        host = hosts[variant.name]
        shares = [_seconds_a_token(record.scored(variant.name, *key)) for key in prompts]
        if host.price_per_hour is None or not shares:
            continue
        tokens = SECONDS_AN_HOUR * len(shares) / sum(shares)
        found.append(
            Cost(variant.name, tokens, host.price_per_hour, host.currency, host.price_per_hour / tokens * 1e6)
        )
    return tuple(found)


def _is_timed(request: Request) -> bool:
    return bool(request.wall_ms and request.completion_tokens)


def _seconds_a_token(requests: Iterable[Request]) -> float:
    good = [one for one in requests if _is_timed(one)]
    return sum(one.wall_ms or 0 for one in good) / 1000 / sum(one.completion_tokens or 0 for one in good)


def _faults(record: Record) -> tuple[Faulty, ...]:
    alike: dict[tuple[str, str, str, str], list[int]] = {}
    for one in record.faulty:
        alike.setdefault((one.variant, one.workload, one.prompt, one.fault or ""), []).append(one.round)
    return tuple(
        Faulty(variant, workload, prompt, tuple(numbers), text)
        for (variant, workload, prompt, text), numbers in alike.items()
    )


def _claims(record: Record, claims: Claims | None) -> tuple[Claimed, ...]:
    presets = {one.preset for one in record.variants}
    return tuple(
        Claimed(source, claim)
        for source in (claims.sources if claims else ())
        if source.preset in presets
        for claim in source.claims
    )
