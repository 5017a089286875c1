"""Commands for hosts that serve: how they do. `beeyard.cli` takes them up."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from beeyard.bench.terminal import console as console_of
from beeyard.catalog import Catalog, load_catalog
from beeyard.commands.options import Data, Limit, TargetName
from beeyard.examination import Examined
from beeyard.hosts import Target, pairs
from beeyard.status import HostStatus, of_host, unreached

DRIFT = 6
UNKNOWN = "-"


def status(
    target: TargetName,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until you stop it.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0, help="Seconds between two looks.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON; with --watch, one line a look.")] = False,
    limit: Limit = None,
    data: Data = None,
) -> None:
    """Say on one screen how all hosts and their servers do; 6 if one does not serve what it is to serve."""
    where, catalog = Target(target, pairs(data), limit or []), load_catalog()
    looks = _looks(where, catalog)
    if not watch:
        found = next(looks)
        if as_json:
            typer.echo(json.dumps([one.model_dump(mode="json") for one in found], indent=1))
        else:
            _show(found, console_of())
        raise typer.Exit(0 if all(one.is_well for one in found) else DRIFT)
    try:
        _watch(looks, interval, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _looks(where: Target, catalog: Catalog) -> Iterator[list[HostStatus]]:
    """All hosts, again each time."""
    before: dict[str, Examined] = {}
    names: list[str] | None = None
    while True:
        seen, code, said = where.examined()
        found = {one.survey.name: of_host(one, catalog, before.get(one.survey.name)) for one in seen}
        if code or not seen:
            names = where.names() if names is None else names
            found |= {name: unreached(name, said) for name in names if name not in found}
        yield [found[name] for name in sorted(found)]
        before |= {one.survey.name: one for one in seen}


def _watch(looks: Iterator[list[HostStatus]], interval_s: float, *, as_json: bool) -> None:
    console = console_of()
    if as_json or not console.is_terminal:
        for found in looks:
            if as_json:
                typer.echo(json.dumps([one.model_dump(mode="json") for one in found]))
            else:
                _show(found, console)
            time.sleep(interval_s)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        live.update(Text("asking …"), refresh=True)
        for found in looks:
            live.update(_screen(found), refresh=True)
            time.sleep(interval_s)


def _screen(found: list[HostStatus]) -> Table:
    whole = Table.grid()
    whole.add_row(_table(found))
    for line in _remarks(found):
        whole.add_row(Text(line))
    whole.add_row(Text(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC; Ctrl+C ends it", style="dim"))
    return whole


def _show(found: list[HostStatus], console: Console) -> None:
    console.print(_table(found))
    for line in _remarks(found):
        console.print(Text(line))


def _table(found: list[HostStatus]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("host", "state", "serves", "engine"):
        table.add_column(name, overflow="fold")
    for name in ("tokens/s", "accepted", "busy", "queue", "VRAM GiB", "°C", "up", "$/h"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("drift", no_wrap=True)
    for one in found:
        style = "" if one.is_well else "yellow" if one.state in ("serving", "loading") else "red"
        table.add_row(
            one.name,
            Text(one.state, style=style),
            f"{one.preset} {one.variant}".strip() or UNKNOWN,
            f"{one.engine} {one.runtime}".strip() or UNKNOWN,
            # * since its start: nothing was decoded since the look before, or there was none.
            UNKNOWN if one.tokens_per_s is None else f"{one.tokens_per_s:.1f}{'*' if one.since == 'start' else ''}",
            UNKNOWN if one.acceptance is None else f"{one.acceptance:.0%}",
            UNKNOWN if one.busy is None else f"{one.busy}/{one.slots}",
            UNKNOWN if one.queued is None else str(one.queued),
            _gib(one.vram_used_mib, one.vram_total_mib),
            UNKNOWN if one.temperature_c is None else str(one.temperature_c),
            UNKNOWN if one.uptime_s is None else lasted(one.uptime_s),
            UNKNOWN if one.price_per_hour is None else f"{one.price_per_hour:.2f}",
            Text(UNKNOWN if one.state.startswith("not ") else "yes" if one.drift else "no", style=style),
        )  # fmt: skip
    return table


def _gib(used_mib: int | None, total_mib: int | None) -> str:
    return UNKNOWN if used_mib is None or total_mib is None else f"{used_mib / 1024:.1f}/{total_mib / 1024:.1f}"


def _remarks(found: list[HostStatus]) -> list[str]:
    lines = [f"[{one.name}] {one.why}" for one in found if one.why]
    lines += [f"[{one.name}] drift: {text}" for one in found for text in one.drift]
    if any(one.since == "start" for one in found):
        lines.append("* on average since the server's start")
    priced = [one.price_per_hour for one in found if one.price_per_hour is not None]
    if len(priced) > 1:
        lines.append(f"in all {sum(priced):.2f} $ an hour")
    return lines


def lasted(seconds: float) -> str:
    """A time in its two largest units, as 3d4h or 2m10s."""
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    left, parts = int(seconds), list[str]()
    for unit, size in units:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
