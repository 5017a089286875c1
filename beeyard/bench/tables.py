"""A report's tables as rows of text, the same for a terminal, Markdown and the page. Pure."""

from typing import NamedTuple

from beeyard.bench.agreement import WHY, Agreement
from beeyard.bench.report import Claimed, Line, Report, said_of
from beeyard.bench.verdicts import PassRate, pass_rates

MORE_DIGITS_BELOW = 10
# Of a configuration, what says it all: the rest follows from these.
SHORT = ("engine", "model", "draft", "arguments")


class Table(NamedTuple):
    """A title, its columns, its rows; the first ``texts`` columns are words, the others figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    note: str = ""


def tables(report: Report) -> list[Table]:
    """Those that have something to say, in the order that they are read."""
    every = (speedup_table, rate_table, acceptance_table, position_table, delay_table, cost_table, right_table,
             difference_table, claim_table)  # fmt: skip
    return [table for make in every if (table := make(report)).rows]


def speedup_table(report: Report) -> Table:
    """How many times as fast, by prompt, one column for each variant that is compared."""
    columns = ("prompt", *(f"{one.after} / {one.before}" for one in report.comparisons))
    rows = [
        ("/".join(key), *(said_of(one.by_prompt[key]) if key in one.by_prompt else "" for one in report.comparisons))
        for key in report.prompts
        if any(key in one.by_prompt for one in report.comparisons)
    ]
    if len(rows) > 1:
        rows.append(
            ("all (geometric mean)", *(said_of(one.total) if one.total else "" for one in report.comparisons))
        )
    return Table(
        "Speed-up", columns, tuple(rows),
        note="Ratio of the medians of decoded tokens/s; the 95 % interval of the percentile bootstrap in brackets.",
    )  # fmt: skip


def rate_table(report: Report) -> Table:
    """Rates and first tokens of every variant and prompt."""
    columns = ("prompt", "variant", "n", "tokens/s", "quartiles", "prompt tokens/s", "first token ms", "tokens")
    rows = tuple(_rate(report.line(who.name, key)) for key in report.prompts for who in report.record.variants)
    return Table("Tokens a second", columns, rows, 2, "Medians, with the 95 % interval of the bootstrap in brackets.")


def _rate(line: Line) -> tuple[str, ...]:
    row = line.row
    spread = row.decode_per_s
    return (
        f"{row.workload}/{row.prompt}",
        row.variant,
        f"{row.n} of {row.n + row.faulty}" if row.faulty else str(row.n) if row.n else "not asked",
        said_of(line.decode, 1) if line.decode else "",
        f"{spread.lower:.1f} to {spread.upper:.1f}" if spread else "",
        f"{row.prompt_per_s.median:.0f}" if row.prompt_per_s else "",
        f"{row.first_token_ms.median:.0f}" if row.first_token_ms else "",
        f"{row.completion_tokens.median:.0f}" if row.completion_tokens else "",
    )


def acceptance_table(report: Report) -> Table:
    """Accepted of drafted tokens, and what a step brings."""
    rows = tuple(
        (
            "/".join(key),
            who.name,
            f"{row.acceptance:.1%}",
            "" if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}",
        )
        for key in report.prompts
        for who in report.record.variants
        if (row := report.line(who.name, key).row).acceptance is not None
    )
    return Table("Accepted drafts", ("prompt", "variant", "accepted of drafted", "tokens a step"), rows, 2)


def position_table(report: Report) -> Table:
    """Acceptance by the place in the draft."""
    most = max((len(one.shares) for one in report.positions), default=0)
    rows = tuple(
        (one.variant, str(one.drafts), *(f"{share:.0%}" for share in one.shares), *[""] * (most - len(one.shares)))
        for one in report.positions
    )
    columns = ("variant", "drafts", *(str(place) for place in range(1, most + 1)))
    return Table(
        "Accepted by position", columns, rows, 1, "Of all drafts, those whose first, second, … token was right."
    )


def delay_table(report: Report) -> Table:
    """The gaps between pieces of text."""
    rows = tuple(
        (one.variant, str(one.gaps), *(_digits(value) for value in (one.p50, one.p95, one.p99, one.most)))
        for one in report.delays
    )
    note = "Between two pieces of text as they reached us; a draft's tokens come together, with next to no gap."
    if any(not one.curve for one in report.delays):
        note += " Without every gap in the record these are medians of the answers' own percentiles."
    return Table("Gaps between tokens, ms", ("variant", "gaps", "p50", "p95", "p99", "longest"), rows, 1, note)


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < MORE_DIGITS_BELOW else f"{value:.0f}"


def cost_table(report: Report) -> Table:
    """What tokens cost."""
    rows = tuple(
        (
            one.variant,
            f"{one.price_per_hour:.2f} {one.currency}",
            f"{one.tokens_per_hour:.0f}",
            f"{one.per_million:.2f} {one.currency}",
        )
        for one in report.costs
    )
    columns = ("variant", "an hour", "tokens an hour", "a million tokens")
    note = "Generated tokens, prefill's time included, over the prompts that every variant answered; always busy."
    return Table("Cost", columns, rows, 1, note)


def right_table(report: Report) -> Table:
    """Whether answers are still right, where the record says so."""
    record = report.record
    rows = [(one.variant, _against(one), _agreed(one)) for one in record.agreement or ()]
    rates = pass_rates(
        {
            who.name: [one.verdict for one in record.tests_passed or () if one.variant == who.name]
            for who in record.variants
        }
    )
    rows += [
        (name, "tests of the code that it wrote", _passed(rate)) for name, rate in rates.items() if rate.outcomes
    ]
    parts = [one for one in record.agreement or () if one.identical < len(one.comparisons)]
    return Table("Is it still right?", ("variant", "what", "found"), tuple(rows), 3, WHY if parts else "")


def _against(one: Agreement) -> str:
    return "the same words as itself" if one.variant == one.baseline else f"the same words as {one.baseline}"


def _agreed(one: Agreement) -> str:
    """In one line: whole answers, tokens, and where the first of them part."""
    text = (
        f"{one.identical} of {len(one.comparisons)} answers whole, {one.agreed_share:.1%} of tokens before a first "
        "divergence"
    )
    parted = [it.divergence for it in one.comparisons if it.divergence is not None]
    if parted:
        gaps = [f"{abs(it.gap_nats):.3f}" for it in parted if it.gap_nats is not None]
        text += f"; the first after {min(it.position for it in parted)}"
        text += f", between tokens {', '.join(gaps)} nats apart" if gaps else ""
    return text


def _passed(rate: PassRate) -> str:
    if rate.share is None:
        return "none was tried"
    text = f"{rate.passed} of {rate.tried} answers passed ({rate.share:.0%})"
    others = [f"{count} {name}" for name, count in rate.outcomes.items() if name != "passed"]
    if rate.cut:
        others.append(f"{rate.cut} of those cut by the limit of tokens")
    return f"{text}; {', '.join(others).replace('_', ' ')}" if others else text


def difference_table(report: Report) -> Table:
    """What the variants differ in, as far as it is no mere consequence of something else here."""
    columns = ("setting", *(one.name for one in report.record.variants))
    rows = tuple(
        (f"{one.section}: {one.name}", *(value or "(none)" for value in one.values))
        for one in report.settings
        if one.differs and one.section in SHORT
    )
    return Table("What differs", columns, rows, len(columns))


def claim_table(report: Report) -> Table:
    """What others published of the same model: never measured here."""
    columns = ("claim", "by", "on", "before", "with DFlash", "times", "accepted")
    said = dict.fromkeys(f"{one.source.name}: {one.source.note}" for one in report.claims if one.source.note)
    note = " ".join(
        ["Published by others on their machines, and quoted: not one of these figures was measured here.", *said]
    )
    return Table("Claims, not measurements", columns, tuple(_claim(one) for one in report.claims), 3, note)


def _claim(one: Claimed) -> tuple[str, ...]:
    claim, source = one.claim, one.source
    best = "" if claim.best_per_s is None else f" (best {claim.best_per_s:g})"
    return (
        claim.title,
        source.name,
        f"{source.card}, {source.model}",
        f"{claim.base_per_s:g}",
        f"{claim.drafted_per_s:g}{'' if claim.drafted_to_per_s is None else f' to {claim.drafted_to_per_s:g}'}{best}",
        "" if claim.speedup is None
        else f"{claim.speedup:g}{'' if claim.speedup_to is None else f' to {claim.speedup_to:g}'}",
        "" if claim.accepted_of_drafted is None else f"{claim.accepted_of_drafted:.1%}",
    )  # fmt: skip


def machine_lines(report: Report) -> list[str]:
    """What it was measured on and how, a line each."""
    record = report.record
    found = []
    for host in {one.name: one for one in report.hosts.values()}.values():
        cards = ", ".join(card.name for card in host.cards) or "no GPU in the record"
        driver = f"driver {host.driver}" if host.driver else ""
        price = "" if host.price_per_hour is None else f"{host.price_per_hour:g} {host.currency} an hour"
        parts = [host.name, cards, driver, host.cpu, price]
        found.append(", ".join(part for part in parts if part))
    rounds = record.protocol.rounds
    found.append(
        f"{rounds} round{'' if rounds == 1 else 's'}, {record.began:%Y-%m-%d %H:%M} to {record.ended:%H:%M} UTC, "
        f"Beeyard {record.tool_version}"
    )
    return found
