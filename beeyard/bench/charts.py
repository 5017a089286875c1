"""
A report's charts as inline SVG, by matplotlib: no script, a few kilobytes each, sharp at any size.

Each is drawn as wide as a phone's page, so that its text is never smaller than 10 px there. Text stays text, in
DejaVu Sans, which is wider than the sans-serif fonts that a browser may take in its place: what fits here fits there.
Colours are names of the page's style sheet, so that one drawing serves its light and its dark side.
"""

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any, NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from beeyard.bench.record import GpuSample
from beeyard.bench.report import Report
from beeyard.bench.words import plain

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
# Points; as many CSS pixels on a phone.
WIDTH = 344
ROW = 18
LEFT, RIGHT, BELOW, ABOVE = 10, 62, 34, 8
FONT = 11
LABEL = 40
# Colours that stand for those of the style sheet, and the sheet's names.
INK, MUTED, GRID, CARD = "#010203", "#020304", "#030405", "#040506"
SHEET = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", CARD: "var(--card)"}
# Points of a line over time; more would be a blot on a phone, and make the page heavy.
MOST_POINTS = 240
SERIES = 6
MARKERS = "osD^vP"
LINES: tuple[str, ...] = ("-", "--", ":", "-.")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": ["DejaVu Sans"], "font.size": FONT, "text.parse_math": False,
    "text.color": INK, "axes.edgecolor": GRID, "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "axes.labelsize": FONT, "xtick.labelsize": FONT,
    "ytick.labelsize": FONT, "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "axes.unicode_minus": False,
}  # fmt: skip


class Chart(NamedTuple):
    """A drawing with its title and what is to be read from it; ``svg`` is markup that needs no more escaping."""

    title: str
    note: str
    svg: str


class Mark(NamedTuple):
    """A value on a row, with its interval, single values, what is written beside it, the series of its colour."""

    series: int
    value: float
    low: float | None
    high: float | None
    text: str
    points: tuple[float, ...] = ()


Rows = list[tuple[str, list[Mark]]]


def charts(report: Report) -> list[Chart]:
    """Those that have something to show."""
    makers: tuple[Callable[[Report], Chart | None], ...] = (
        _speedups, _rates, _acceptance, _positions, _delays, _temperature, _power,
    )  # fmt: skip
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # A browser has the letters that DejaVu Sans has not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return [chart for make in makers if (chart := make(report)) is not None]


def colour(series: int) -> str:
    """What stands for a series' colour until the page's style sheet says it."""
    return f"#0a00{series % SERIES:02d}"


def marker(series: int) -> str:
    """A series' mark, so that it is known without its colour."""
    return MARKERS[series % len(MARKERS)]


def _series(report: Report, variant: str) -> int:
    return [one.name for one in report.record.variants].index(variant)


# --- rows: a prompt each --------------------------------------------------------------------------------


def _speedups(report: Report) -> Chart | None:
    rows: Rows = []
    for key in report.prompts:
        marks = [
            Mark(_series(report, one.after), found.ratio, found.low, found.high, f"{found.ratio:.2f}x")
            for one in report.comparisons
            if (found := one.by_prompt.get(key)) is not None
        ]
        rows += [("/".join(key), marks)] if marks else []
    totals = [
        Mark(_series(report, one.after), one.total.ratio, one.total.low, one.total.high, f"{one.total.ratio:.2f}x")
        for one in report.comparisons
        if one.total is not None
    ]
    if not rows:
        return None
    if len(rows) > 1:
        rows.append(("all (geometric mean)", totals))
    svg = _by_rows("speedup", "Speed-up by prompt", rows, f"times as fast as {plain(report.base, 24)}", line_at=1)
    return Chart("Speed-up by prompt", "Ratio of medians with its 95 % interval; left of the line is slower.", svg)


def _rates(report: Report) -> Chart | None:
    rows: Rows = []
    for key in report.prompts:
        marks = []
        for series, who in enumerate(report.record.variants):
            line = report.line(who.name, key)
            if line.decode is not None:
                found = line.decode
                marks.append(Mark(series, found.median, found.low, found.high, f"{found.median:.1f}", line.speeds))
        rows += [("/".join(key), marks)] if marks else []
    if not rows:
        return None
    svg = _by_rows("rate", "Tokens a second by prompt", rows, "tokens/s")
    return Chart("Tokens a second", "Median with its 95 % interval; each small mark below is an answer.", svg)


def _acceptance(report: Report) -> Chart | None:
    rows: Rows = []
    for key in report.prompts:
        marks = [
            Mark(series, found * 100, None, None, f"{found:.0%}")
            for series, who in enumerate(report.record.variants)
            if (found := report.line(who.name, key).row.acceptance) is not None
        ]
        rows += [("/".join(key), marks)] if marks else []
    if not rows:
        return None
    svg = _by_rows("acceptance", "Accepted of drafted tokens by prompt", rows, "% of drafted tokens", most=100)
    return Chart("Accepted drafts", "Of all tokens that were drafted, those that the model kept.", svg)


def _by_rows(
    name: str, title: str, rows: Rows, unit: str, line_at: float | None = None, most: float | None = None
) -> str:
    """A line of text for each prompt, below it a line for each mark: nothing can lie upon anything else."""
    lines = sum(1 + len(marks) for _, marks in rows)
    figure, axes = _axes(lines * ROW + ABOVE + BELOW)
    place = 0.0
    for label, marks in rows:
        axes.text(
            0, place, plain(label, LABEL), transform=axes.get_yaxis_transform(), va="center", color=INK,
            bbox={"facecolor": CARD, "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
        for number, mark in enumerate(marks, 1):
            _draw(axes, mark, place + number)
        place += 1 + len(marks)
    furthest = max(max(mark.high or 0, mark.value, *mark.points) for _, marks in rows for mark in marks)
    axes.set_xlim(0, most or max(furthest * 1.04, (line_at or 0) * 1.25))
    axes.set_ylim(lines - 0.5, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_axisbelow(True)
    axes.set_xlabel(unit)
    if line_at is not None:
        axes.axvline(line_at, color=MUTED, linewidth=1.2)
    return _svg(figure, name, f"{title}: " + "; ".join(
        f"{plain(label, LABEL)} {', '.join(mark.text for mark in marks)}" for label, marks in rows
    ))  # fmt: skip


def _draw(axes: Axes, mark: Mark, place: float) -> None:
    shade = colour(mark.series)
    if mark.points:
        below = [place + 0.34] * len(mark.points)
        axes.plot(mark.points, below, marker(mark.series), color=shade, alpha=0.55, ms=3, mew=0)
    if mark.low is not None and mark.high is not None:
        axes.plot([mark.low, mark.high], [place] * 2, color=shade, linewidth=2.4, solid_capstyle="butt")
        axes.plot([mark.low, mark.high], [place] * 2, "|", color=shade, ms=8, mew=1.6)
    axes.plot([mark.value], [place], marker(mark.series), color=shade, ms=6, mew=0)
    axes.text(1.03, place, mark.text, transform=axes.get_yaxis_transform(), va="center", color=INK)


# --- curves ----------------------------------------------------------------------------------------------


def _positions(report: Report) -> Chart | None:
    if not report.positions:
        return None
    figure, axes = _axes(170, left=46, right=12)
    for one in report.positions:
        series = _series(report, one.variant)
        axes.plot(
            range(1, len(one.shares) + 1), [share * 100 for share in one.shares], f"{marker(series)}-",
            color=colour(series), ms=5, linewidth=1.6,
        )  # fmt: skip
    axes.set_ylim(0, 104)
    longest = max(len(one.shares) for one in report.positions)
    axes.set_xlim(0.5, longest + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    _finish(axes, "token of the draft", "% of drafts")
    said = "; ".join(f"{plain(one.variant, LABEL)} {', '.join(f'{share:.0%}' for share in one.shares)}"
                     for one in report.positions)  # fmt: skip
    svg = _svg(figure, "position", f"Accepted by position in the draft: {said}")
    return Chart("Accepted by position", "Of all drafts, those whose token at that place was kept.", svg)


def _delays(report: Report) -> Chart | None:
    curves = [one for one in report.delays if one.curve and one.most > 0]
    if not curves:
        return None
    figure, axes = _axes(190, left=46, right=12)
    least = min(value for one in curves for value in one.curve if value > 0)
    for one in curves:
        series = _series(report, one.variant)
        values = [max(value, least) for value in one.curve]
        shares = [100 * place / (len(values) - 1) for place in range(len(values))]
        axes.plot(values, shares, color=colour(series), linewidth=1.8, linestyle=LINES[series % len(LINES)])
        axes.plot(
            [max(one.p50, least), max(one.p95, least)], [50, 95], marker(series), color=colour(series), ms=6, mew=0
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda _, __: ""))
    axes.set_ylim(0, 103)
    _finish(axes, "ms between two pieces of text", "% of gaps")
    said = "; ".join(f"{plain(one.variant, LABEL)} half below {one.p50:.2f} ms, 95 % below {one.p95:.2f} ms"
                     for one in curves)  # fmt: skip
    svg = _svg(figure, "gaps", f"Distribution of the gaps between tokens: {said}")
    return Chart("Gaps between tokens", "How many gaps are at most that long; marks at 50 % and 95 %.", svg)


def _temperature(report: Report) -> Chart | None:
    return _over_time(report, "heat", "Temperature", "°C", lambda one: one.temperature_c)


def _power(report: Report) -> Chart | None:
    return _over_time(report, "power", "Power", "W", lambda one: one.power_w)


def _over_time(
    report: Report, name: str, title: str, unit: str, of: Callable[[GpuSample], float | None]
) -> Chart | None:
    seen = [one for one in report.record.gpu_samples if of(one) is not None]
    if not seen:
        return None
    figure, axes = _axes(180, left=46, right=12)
    cards = sorted({one.index for one in seen})
    values = [value for one in seen if (value := of(one)) is not None]
    together = math.ceil(len(seen) / len(cards) / MOST_POINTS)
    for place, card in enumerate(cards):
        mine = sorted((one for one in seen if one.index == card), key=lambda one: one.at_s)
        for variant, stretch in _stretches(mine):
            series = _series(report, variant) if variant in {one.name for one in report.record.variants} else None
            spots = [stretch[start : start + together] for start in range(0, len(stretch), together)]
            axes.plot(
                [fmean(one.at_s for one in spot) / 60 for spot in spots],
                [fmean(value for one in spot if (value := of(one)) is not None) for spot in spots],
                color=MUTED if series is None else colour(series), linewidth=1.8, linestyle=LINES[place % len(LINES)],
                marker=None if len(spots) > 1 else ".",
            )  # fmt: skip
    room = max((max(values) - min(values)) * 0.1, 1)
    axes.set_ylim(min(values) - room, max(values) + room)
    _finish(axes, "minutes since the beginning", unit)
    svg = _svg(figure, name, f"{title} of the cards: {min(values):g} to {max(values):g} {unit}")
    which = f" A line for each of {len(cards)} cards." if len(cards) > 1 else ""
    return Chart(f"{title} over time", f"In the colour of the variant that was measured.{which}", svg)


def _stretches(samples: Sequence[GpuSample]) -> Iterator[tuple[str, list[GpuSample]]]:
    """Samples of one variant after another; each stretch begins where the one before ended."""
    last: GpuSample | None = None
    for variant, group in itertools.groupby(samples, key=lambda one: one.variant):
        stretch = list(group)
        yield variant, [last, *stretch] if last is not None else stretch
        last = stretch[-1]


# --- figures -------------------------------------------------------------------------------------------


def _axes(height: float, left: float = LEFT, right: float = RIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    box = (left / WIDTH, BELOW / height, (WIDTH - left - right) / WIDTH, (height - BELOW - ABOVE) / height)
    return figure, figure.add_axes(box)


def _finish(axes: Axes, along: str, up: str) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(along)
    axes.set_ylabel(up)


@contextmanager
def _salted(name: str) -> Iterator[None]:
    with mpl.rc_context({"svg.hashsalt": f"beeyard-{name}"}):
        yield


def _svg(figure: Figure, name: str, said: str) -> str:
    """The drawing as an element of a page: ids of its own, the sheet's colours, words for who cannot see it."""
    out = io.BytesIO()
    with _salted(name):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(out.getvalue())  # noqa: S314
    for found in root.findall(f"{{{SVG}}}metadata"):
        root.remove(found)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", said)
    for element in root.iter():
        _adopt(element, name)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return re.sub(r"\s*\n\s*", " ", ElementTree.tostring(root, encoding="unicode"))


def _adopt(element: ElementTree.Element, name: str) -> None:
    if "id" in element.attrib:
        element.set("id", f"{name}-{element.attrib['id']}")
    link = element.attrib.get(f"{{{XLINK}}}href")
    if link is not None:
        element.set(f"{{{XLINK}}}href", f"#{name}-{link.removeprefix('#')}")
    clip = element.attrib.get("clip-path")
    if clip is not None:
        element.set("clip-path", clip.replace("url(#", f"url(#{name}-"))
    for attribute in ("style", "fill", "stroke"):
        text = element.attrib.get(attribute)
        if text is not None:
            element.set(attribute, _sheet(text))


def _sheet(style: str) -> str:
    for stands_for, real in SHEET.items():
        style = style.replace(stands_for, real)
    return re.sub(r"#0a00(\d\d)", lambda found: f"var(--s{int(found[1])})", style)
