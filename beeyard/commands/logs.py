"""`beeyard logs`: what servers write, from all hosts at once. `beeyard.cli` takes it up."""

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from beeyard import status
from beeyard.catalog import PROJECT, CatalogError
from beeyard.commands.options import Data, Limit, TargetName
from beeyard.hosts import Target, pairs
from beeyard.logs import command

UNREAD = 1
STOP_S = 5


def logs(
    target: TargetName,
    lines: Annotated[int, typer.Option("--lines", min=0, help="How many of the last of each server.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until you stop it.")] = False,
    limit: Limit = None,
    data: Data = None,
) -> None:
    """Show the log of every server of an inventory, each line with its host where there are several."""
    where = Target(target, pairs(data), limit or [])
    seen, code, said = where.examined()
    unread = False
    if code or not seen:
        missing = sorted(set(where.names()) - {host.survey.name for host in seen})
        unread = bool(missing)
        for name in missing:
            typer.echo(f"[{name}] {status.unreached(name, said).why}", err=True)
    commands = {}
    for host in seen:
        try:
            commands[host.survey.name] = command(host, lines, follow=follow)
        except CatalogError as error:
            unread = True
            typer.echo(f"[{host.survey.name}] {error}", err=True)
    codes = _shown(commands, together=follow, with_names=len(commands) > 1)
    for name, ended in codes.items():
        if ended:
            unread = True
            typer.echo(
                f"[{name}] its log cannot be read, see above. Fix: see whether `make status` reaches it", err=True
            )
    raise typer.Exit(UNREAD if unread else 0)


def _shown(commands: Mapping[str, Sequence[str]], *, together: bool, with_names: bool) -> dict[str, int]:
    """Run them, one after the other or at once, until they end or are interrupted; how each ended."""
    codes: dict[str, int] = {}
    processes: list[subprocess.Popen[str]] = []
    printing = threading.Lock()

    def show(name: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None  # noqa: S101
        for line in process.stdout:
            with printing:
                sys.stdout.write(f"[{name}] " if with_names else "")
                sys.stdout.write(line.rstrip("\r\n") + "\n")
                sys.stdout.flush()
        codes[name] = process.wait()

    threads = []
    try:
        for name, words in commands.items():
            # Its own session: an interrupt at the terminal is ours to pass on, once.
            process = subprocess.Popen(
                words, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            processes.append(process)
            thread = threading.Thread(target=show, args=(name, process), daemon=True)
            thread.start()
            threads.append(thread)
            if not together:
                thread.join()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        return {}  # that is how following ends
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
    return codes
