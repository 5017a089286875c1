"""A run as people watch it, and what it found as a table: rich on a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from beeyard.bench.against import Against, table_of, verdict_of
from beeyard.bench.record import Record, Request
from beeyard.bench.report import Report
from beeyard.bench.statistics import Spread
from beeyard.bench.summary import remarks, rows
from beeyard.bench.tables import Table as Plain
from beeyard.bench.tables import machine_lines, tables
from beeyard.bench.words import plain

# Columns where nobody is at a terminal, so that no line is folded.
WIDE = 160


def said_of(request: Request) -> str:
    """One request in a line: its speed, or what is wrong with it."""
    name = f"{request.variant} {request.workload}/{request.prompt}, round {request.round}"
    if request.fault is not None:
        return f"{name}: left out: {request.fault}"
    parts = [f"{request.decode_per_s:.1f} tokens/s" if request.decode_per_s is not None else "no rate"]
    if request.completion_tokens is not None:
        parts.append(f"{request.completion_tokens} tokens")
    if request.first_token_ms is not None:
        parts.append(f"first after {request.first_token_ms:.0f} ms")
    if request.acceptance is not None:
        parts.append(f"{request.acceptance:.0%} of {request.draft_n} drafted accepted")
    return f"{name}{'' if request.is_scored else ', warm-up'}: {', '.join(parts)}"


class Progressing:
    """Tells of every request: a bar with the last one beside it on a terminal, else a line each."""

    def __init__(self, console: Console, total: int) -> None:
        """
        Get ready.

        :param total: scored requests that will come
        """
        self._console, self._total, self._done = console, total, 0
        self._bar = Progress(
            BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
            console=console, disable=not console.is_terminal, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("warming up", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def tell(self, request: Request) -> None:
        """One more is done."""
        self._done += request.is_scored
        text = said_of(request)
        self._bar.update(self._task, completed=self._done, description=text.split(": left out")[0])
        if not self._console.is_terminal:
            self._console.print(f"[{self._done}/{self._total}] {text}", markup=False, highlight=False, soft_wrap=True)
        elif request.fault is not None:
            self._bar.console.print(text, markup=False, highlight=False)


def show(record: Record, console: Console) -> None:
    """What was found, by prompt, and what must be said beside it."""
    table = Table(title=f"{', '.join(one.title or one.name for one in record.variants)}, {record.host.name}")
    table.add_column("prompt")
    for name in ("n", "tokens/s", "quartiles", "prompt tokens/s", "first token ms", "accepted", "tokens a step"):
        table.add_column(name, justify="right")
    for row in rows(record):
        table.add_row(
            f"{row.workload}/{row.prompt}",
            f"{row.n}" + (f" of {row.n + row.faulty}" if row.faulty else ""),
            _median(row.decode_per_s, 1),
            f"{row.decode_per_s.lower:.1f} to {row.decode_per_s.upper:.1f}" if row.decode_per_s else "",
            _median(row.prompt_per_s, 0),
            _median(row.first_token_ms, 0),
            "" if row.acceptance is None else f"{row.acceptance:.1%}",
            "" if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}",
        )
    console.print(table)
    for text in remarks(record):
        console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


def show_report(report: Report, console: Console) -> None:
    """A report: what came out, what to try, the tables, what differs, what was left out."""
    for one in report.comparisons:
        say(console, one.verdict, "bold red" if one.is_slower else "bold")
        for text in (*one.more, *(f"try: {text}" for text in one.advice)):
            say(console, text)
    for table in tables(report):
        show_table(table, console)
    for fault in report.faults:
        rounds = ", ".join(str(number) for number in fault.rounds)
        say(console, f"left out: {fault.variant} {fault.workload}/{fault.prompt}, round {rounds}: {fault.text}")
    for text in report.remarks:
        say(console, f"note: {text}")
    for text in machine_lines(report):
        say(console, text)


def show_against(change: Against, console: Console) -> None:
    """What became slower, and what did not."""
    show_table(table_of(change), console)
    for text in change.notes:
        say(console, f"note: {text}")
    if not change.regressions:
        say(console, verdict_of(change), "bold")


def show_table(found: Plain, console: Console) -> None:
    """One of a report's tables."""
    note = Text(plain(found.note)) if found.note else None
    table = Table(title=Text(plain(found.title)), title_justify="left", caption=note, caption_justify="left")
    for place, name in enumerate(found.columns):
        table.add_column(Text(plain(name)), justify="left" if place < found.texts else "right", overflow="fold")
    for row in found.rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console.print(table)


def say(console: Console, text: str, style: str | None = None) -> None:
    """A line, with nothing in it taken for markup or folded."""
    console.print(Text(plain(text), style=style or ""), soft_wrap=True)


def console() -> Console:
    """Of standard output."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDE)


def _median(found: Spread | None, digits: int) -> str:
    return "" if found is None else f"{found.median:.{digits}f}"
