"""A report as one HTML page that needs nothing else: no network, no script, light and dark, as wide as a phone."""

import jinja2
from markupsafe import Markup, escape

from beeyard.bench import charts
from beeyard.bench.against import Against, table_of, verdict_of
from beeyard.bench.report import Report
from beeyard.bench.tables import SHORT, machine_lines, tables
from beeyard.bench.words import plain
from beeyard.catalog import PROJECT

TEMPLATE = "report.html.j2"
# Longer values of a configuration (a chat template) are cut off.
LONGEST_VALUE = 160
SIGNS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚"}


def as_page(report: Report, change: Against | None = None) -> str:
    """
    The whole report; whatever a record says is text there, never markup.

    :param change: how it stands against an older record, which then comes first
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PROJECT / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["plain"] = plain
    environment.filters["coded"] = _coded
    found = {table.title: table for table in tables(report)}
    differing = [one for one in report.settings if one.differs]
    return environment.get_template(TEMPLATE).render(
        title=f"{', '.join(one.name for one in report.record.variants)} on {report.record.host.name}",
        variants=[
            {
                "name": one.name,
                "title": one.title,
                "series": place % charts.SERIES,
                "sign": SIGNS[charts.marker(place)],
            }
            for place, one in enumerate(report.record.variants)
        ],
        report=report,
        change=change,
        change_verdict=verdict_of(change) if change else "",
        change_table=table_of(change) if change else None,
        charts=charts.charts(report),
        tables=[one for one in found.values() if one.title != "What differs"],
        differing=[one for one in differing if one.section in SHORT],
        following=[one for one in differing if one.section not in SHORT],
        same=[one for one in report.settings if not one.differs],
        longest=LONGEST_VALUE,
        machine=machine_lines(report),
    )


def _coded(text: str) -> Markup:
    """A sentence of ours, with what is between two backticks as code; all of it is escaped."""
    parts = plain(text).split("`")
    if len(parts) % 2 == 0:
        return escape("`".join(parts))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )
