"""A report as Markdown, for an issue or a README. Pure."""

from beeyard.bench.against import Against, table_of, verdict_of
from beeyard.bench.report import Report
from beeyard.bench.tables import Table, machine_lines, tables
from beeyard.bench.words import marked


def as_markdown(report: Report, change: Against | None = None) -> str:
    """
    The whole report; nothing that a record says can become a mark, a link or a tag.

    :param change: how it stands against an older record, which then comes first
    """
    lines = []
    if change is not None:
        lines += [f"**{marked(verdict_of(change))}**", "", *_table(table_of(change))]
        lines += [*(f"* {marked(text)}" for text in change.notes), ""]
    for one in report.comparisons:
        lines += [f"**{marked(one.verdict)}**", ""]
        lines += [text for more in one.more for text in (marked(more), "")]
        if one.advice:
            lines += ["What to try:", "", *(f"* {marked(text)}" for text in one.advice), ""]
    for table in tables(report):
        lines += _table(table)
    if report.faults:
        lines += ["### Left out of every figure", ""]
        for fault in report.faults:
            rounds = ", ".join(str(number) for number in fault.rounds)
            lines.append(
                f"* {marked(f'{fault.variant} {fault.workload}/{fault.prompt}, round {rounds}: {fault.text}')}"
            )
        lines.append("")
    if report.remarks:
        lines += ["### To be said beside it", "", *(f"* {marked(text)}" for text in report.remarks), ""]
    lines += [f"{marked(text)}  " for text in machine_lines(report)]
    return "\n".join(lines) + "\n"


def _table(table: Table) -> list[str]:
    sides = ["---" if place < table.texts else "---:" for place in range(len(table.columns))]
    rows = [table.columns, *table.rows]
    text = [f"| {' | '.join(marked(cell) for cell in row)} |" for row in rows]
    return [
        f"### {marked(table.title)}", "", text[0], f"| {' | '.join(sides)} |", *text[1:], "",
        *([marked(table.note), ""] if table.note else []),
    ]  # fmt: skip
