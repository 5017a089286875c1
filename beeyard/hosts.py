"""Hosts of an inventory, by pyinfra in a process of its own: look at them, or bring them to their spec."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beeyard.catalog import PROJECT, CatalogError
from beeyard.examination import LINES, Examined
from beeyard.survey import SURVEY_FILE, Survey

# Of what a deploy said, so many lines are shown where it failed.
TAIL = 60


class DeployFailed(CatalogError):
    """A deploy that a host did not come through; its own words are in the text."""


@dataclass(frozen=True)
class Target:
    """
    An inventory, with data over its hosts' own.

    :raises CatalogError: there is no such inventory.
    """

    name: str
    data: Mapping[str, Any]
    limit: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.inventory.is_file():
            known = sorted(path.stem for path in self.inventory.parent.glob("*.py"))
            raise CatalogError(
                f"there is no inventories/{self.name}.py. Fix: TARGET is one of {', '.join(known)}"
            )  # fmt: skip

    @property
    def inventory(self) -> Path:
        """Its file."""
        return PROJECT / "inventories" / f"{self.name}.py"

    def surveyed(self, data: Mapping[str, Any] | None = None) -> tuple[list[Survey], int, str]:
        """
        What the hosts say, how it ended, and what pyinfra said.

        Hosts that could not be asked are not among them, and the exit status is not 0 then.

        :param data: more data over theirs
        """
        rows, code, said = self._rows("survey.py", data or {}, {})
        return [Survey.model_validate_json(row) for row in rows], code, said

    def examined(self, lines: int = 0) -> tuple[list[Examined], int, str]:
        """
        What the hosts and the servers that run there say, how it ended, and what pyinfra said.

        Hosts that could not be asked are not among them, and the exit status is not 0 then.

        :param lines: of each server's log
        """
        rows, code, said = self._rows("examine.py", {}, {LINES: str(lines)})
        return [Examined.model_validate_json(row) for row in rows], code, said

    def changes(self) -> tuple[list[tuple[str, str]], int, str]:
        """
        What a deploy would change now, host and operation; how the dry run ended, and what pyinfra said.

        Of hosts that could not be asked, or that their plan does not fit, nothing is told; the status is not 0 then.
        """
        run = self._pyinfra("deploy.py", {}, {}, ("--dry", "--json"))
        try:
            plan = json.loads(run.stdout)["plan"] or []
        except (ValueError, LookupError, TypeError):
            return [], run.returncode or 1, run.stderr
        found = [(host, operation["name"]) for operation in plan for host in operation["hosts_with_change"]]
        return found, run.returncode, run.stderr

    def names(self) -> list[str]:
        """
        The hosts that the inventory names, as far as they are not left out by ``limit``.

        :raises CatalogError: it cannot be read.
        """
        run = self._pyinfra("debug-inventory", {}, {}, ("--json",))
        if run.returncode:
            raise CatalogError(
                f"inventories/{self.name}.py cannot be read: {run.stderr.strip()}. Fix: correct it"
            )  # fmt: skip
        wanted = set(self.limit)
        rows = json.loads(run.stdout)
        return [row["name"] for row in rows if not wanted or wanted & {row["name"], *row["groups"]}]

    def _rows(self, script: str, data: Mapping[str, Any], variables: Mapping[str, str]) -> tuple[list[str], int, str]:
        """The lines that a script writes of the hosts, how it ended, and what pyinfra said."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "facts"
            run = self._pyinfra(script, data, {SURVEY_FILE: str(file), **variables})
            return file.read_text().splitlines() if file.exists() else [], run.returncode, run.stderr

    def deploy(self, data: Mapping[str, Any]) -> None:
        """
        Bring them to their spec, with more data over it. Left alone by an interrupt at the terminal until it is done.

        :raises DeployFailed: a host refused, or its gate did.
        """
        run = self._pyinfra("deploy.py", data, {})
        if run.returncode:
            said = "\n".join((run.stdout + run.stderr).strip().splitlines()[-TAIL:])
            raise DeployFailed(
                f"the deploy of {self.name} failed:\n{said}\n"
                f"Fix: see the lines above; `make deploy TARGET={self.name}` shows all of it"
            )

    def _pyinfra(
        self, script: str, data: Mapping[str, Any], variables: Mapping[str, str], options: Sequence[str] = ("--yes",)
    ) -> "subprocess.CompletedProcess[str]":
        words = [word for key, value in {**self.data, **data}.items() for word in ("--data", f"{key}={_text(value)}")]
        words += [word for host in self.limit for word in ("--limit", host)]
        process = subprocess.Popen(
            [sys.executable, "-m", "pyinfra", *words, str(self.inventory), script, *options], cwd=PROJECT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **variables},
        )  # fmt: skip
        stopped: KeyboardInterrupt | None = None
        while True:
            try:
                out, err = process.communicate()
                break
            except KeyboardInterrupt as error:
                # Killed now, a host might be left in the middle of something; it ends within its own limits.
                if stopped is not None:
                    process.terminate()
                stopped = error
        if stopped is not None:
            raise stopped
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def pairs(items: Sequence[str] | None) -> dict[str, Any]:
    """
    Data from ``--data KEY=VALUE``, as pyinfra takes it: a value that is JSON is what that says.

    :raises CatalogError: one that sets nothing.
    """
    return dict(_pair(item) for item in items or [])


def _pair(item: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if not equals:
        raise CatalogError(f"--data holds {item!r}, which sets nothing. Fix: write it as KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
