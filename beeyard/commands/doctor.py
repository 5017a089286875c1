"""`beeyard doctor`: every check there is, and a file for whoever helps. `beeyard.cli` takes it up."""

import getpass
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from beeyard import doctor as checks_of
from beeyard import status
from beeyard.bench.terminal import console as console_of
from beeyard.bundle import Redactor, bundle
from beeyard.catalog import PROJECT, CatalogError, load_catalog
from beeyard.commands.options import Data, Limit, TargetName
from beeyard.commands.status import DRIFT
from beeyard.doctor import Check, all_good
from beeyard.examination import Examined
from beeyard.hosts import Target, pairs
from beeyard.keys import KEYS, every_secret, key_copy

LOG_LINES = 200
HERE = "this machine"
MARKS = {True: ("ok", "green"), False: ("no", "red"), None: ("?", "yellow")}
# Names of environment variables whose values are nobody else's.
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
OURS = ("beeyard", "pyinfra", "paramiko", "pydantic", "httpx", "supervisor", "huggingface-hub")
# What says nothing of a machine or a person.
COMMON_NAMES = {"root", "localhost", "@local"}


def doctor(
    target: TargetName,
    file: Annotated[
        Path | None,
        typer.Option("--bundle", help="Write a support bundle, without keys, addresses, prompts."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The checks as JSON.")] = False,
    limit: Limit = None,
    data: Data = None,
) -> None:
    """Check hosts and what serves there, each fault with its Fix; 6 if there is any. Changes nothing."""
    where, catalog = Target(target, pairs(data), limit or []), load_catalog()
    seen, code, said = where.examined(LOG_LINES)
    modes = _modes()
    found = {HERE: [*checks_of.of_keys_here(modes), _ssh(seen)]}
    for host in seen:
        name = host.survey.name
        found[name] = checks_of.of_host(host, catalog, modes.get(f"keys/{key_copy(name).name}"))
    if code or not seen:
        for name in where.names():
            if name not in found:
                found[name] = [checks_of.unreached(status.unreached(name, said).why)]
    if as_json:
        typer.echo(json.dumps({name: [one.model_dump() for one in some] for name, some in found.items()}, indent=1))
    else:
        _show(found, console_of())
    if file is not None:
        _write(file, bundle(seen, found, _versions(), catalog, _redactor(seen)))
    raise typer.Exit(0 if all(all_good(some) for some in found.values()) else DRIFT)


def _show(found: Mapping[str, Sequence[Check]], console: Console) -> None:
    for name, some in found.items():
        console.print(Text(name, style="bold"))
        for check in some:
            mark, style = MARKS[check.is_good]
            console.print(Text.assemble("  ", (f"{mark:<3}", style), f"{check.name}: {check.said}"))
    faults = sum(check.is_good is False for some in found.values() for check in some)
    console.print(Text(f"{faults} of {sum(map(len, found.values()))} checks failed" if faults else "all is well"))


def _ssh(seen: Sequence[Examined]) -> Check:
    wanted = any(host.survey.ssh for host in seen)
    path = shutil.which("ssh")
    if path is None and wanted:
        said = "there is no ssh here, which tunnels and logs need. Fix: install the OpenSSH client"
        return Check(name="ssh", is_good=False, said=said)
    return Check(name="ssh", is_good=True if path else None, said=path or "not there, and not needed here")


def _modes() -> dict[str, int]:
    """Of the folder of keys and all in it."""
    if not KEYS.is_dir():
        return {}
    return {
        str(path.relative_to(KEYS.parent)): path.stat().st_mode & 0o7777 for path in (KEYS, *sorted(KEYS.iterdir()))
    }


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0], "system": f"{platform.system()} {platform.machine()}"}
    for name in OURS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _redactor(seen: Sequence[Examined]) -> Redactor:
    secrets = [value for name, value in os.environ.items() if SECRET.search(name.upper())]
    secrets += every_secret()
    names = {str(PROJECT): "<clone>", str(Path.home()): "<home>", platform.node(): "<this machine>"}
    names[getpass.getuser()] = "<user>"
    for index, host in enumerate(seen, 1):
        names[host.survey.name] = f"<machine-{index}>"
        if host.survey.ssh is not None:
            ssh = host.survey.ssh
            names |= {ssh.hostname: f"<machine-{index}>", ssh.user: "<user>", ssh.key: "<key file>"}
    return Redactor(secrets, {name: word for name, word in names.items() if name not in COMMON_NAMES})


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # As private as what it was made from, whatever was left out of it.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise CatalogError(f"{file}: {error.strerror}. Fix: name a file that can be written") from error
    typer.echo(f"written: {file}. Read it before you send it", err=True)
