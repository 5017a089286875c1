"""`beeyard drift` and the units that run it every night. `beeyard.cli` takes them up."""

import getpass
import json
from pathlib import Path
from typing import Annotated

import typer

from beeyard import drifting
from beeyard.catalog import CatalogError
from beeyard.commands.options import Data, Limit, TargetName
from beeyard.commands.status import DRIFT
from beeyard.hosts import Target, pairs

UNKNOWN = 1

Tell = Annotated[str | None, typer.Option("--tell", help="A command that gets the report, as JSON, if it differs.")]
Webhook = Annotated[
    Path | None, typer.Option("--webhook-file", help="A file with an address that the report is posted to.")
]


def drift(
    target: TargetName,
    verifies: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Whether what runs is looked at, as by `make verify`.")
    ] = True,
    tell: Tell = None,
    webhook_file: Webhook = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    limit: Limit = None,
    data: Data = None,
) -> None:
    """Say what is no longer as the spec says; 6 if anything is not, 1 if that cannot be told. Changes nothing."""
    where = Target(target, pairs(data), limit or [])
    found = drifting.look(where, verifies=verifies)
    report = drifting.as_json(target, found)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        for line in (*found.sentences, *(f"note: {note}" for note in found.notes)):
            typer.echo(line)
        if not found.sentences:
            typer.echo(f"{target} is as its spec says")
    faults = drifting.tell(report, tell, webhook_file) if found.sentences else []
    for fault in faults:
        typer.echo(fault, err=True)
    raise typer.Exit(DRIFT if found.differences else UNKNOWN if found.unknown or faults else 0)


def drift_timer(
    target: TargetName,
    out: Annotated[Path, typer.Option("--out", help="The folder to write the units to.")],
    when: Annotated[str, typer.Option("--when", help="As systemd's OnCalendar= has it.")] = "*-*-* 03:30:00",
    user: Annotated[str | None, typer.Option("--user", help="Whose keys reach the hosts; else you.")] = None,
    tell: Tell = None,
    webhook_file: Webhook = None,
) -> None:
    """Write a systemd service and timer that look for drift every night, on the machine where this clone is."""
    where = Target(target, {})
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in drifting.units(where, user or getpass.getuser(), when, tell, webhook_file).items():
            (out / name).write_text(text, encoding="utf-8")
            typer.echo(f"written: {out / name}", err=True)
    except OSError as error:
        raise CatalogError(f"{out}: {error.strerror}. Fix: name a folder that can be written") from error
    name = f"beeyard-drift-{target}"
    typer.echo(f"sudo cp {out}/{name}.* /etc/systemd/system/ && sudo systemctl daemon-reload")
    typer.echo(f"sudo systemctl enable --now {name}.timer")
