"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

TargetName = Annotated[str, typer.Argument(metavar="TARGET", help="An inventory, as homelab.")]
Limit = Annotated[list[str] | None, typer.Option("--limit", help="Only this host.")]
Data = Annotated[list[str] | None, typer.Option("--data", help="KEY=VALUE over the hosts' data.")]
Workloads = Annotated[
    list[str] | None, typer.Option("--workload", help="NAME or NAME/PROMPT, as often as wanted; all: every one.")
]
WarmUps = Annotated[int, typer.Option("--warm-ups", min=0, help="Unscored requests before a server's first.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of sampling, statistics and search.")]
Price = Annotated[
    float | None, typer.Option("--price", min=0, help="US dollars an hour of the host; else what its data say.")
]
Url = Annotated[str | None, typer.Option("--url", help="Where the server is reached already.")]
RecordFile = Annotated[Path | None, typer.Option("--out", help="The record's file.")]
