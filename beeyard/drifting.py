"""`beeyard drift`: a dry run and a look by another road, and word of what differs."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx

from beeyard.catalog import PROJECT, CatalogError, Strict
from beeyard.hosts import Target
from beeyard.render import rendered, systemd_quoted

# What `make verify` runs, but for what switches servers to measure them.
VERIFICATION = "tests/host/test_server.py"
VERIFY_S = 1800
TELL_S = 60


class Difference(Strict):
    """One thing that is not as its spec says; ``by`` is what found it."""

    host: str
    by: str
    what: str


@dataclass(frozen=True)
class Found:
    """All that differs; ``unknown`` is what could not be told, ``notes`` what was left out, a sentence each."""

    differences: tuple[Difference, ...]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """As people read it."""
        return [*(f"[{one.host}] {one.by}: {one.what}" for one in self.differences), *self.unknown]


def look(target: Target, *, verifies: bool) -> Found:
    """
    What differs, on all hosts. It changes nothing, and starts and stops nothing.

    :param verifies: whether what runs is looked at, too, as `make verify` does
    """
    changes, code, said = target.changes()
    found = [Difference(host=host, by="a deploy would change", what=name) for host, name in changes]
    unknown = [] if code == 0 else _reasons(said)
    notes = []
    if verifies and find_spec("testinfra") is None:
        notes.append("what runs was not verified: pytest-testinfra is not here. Fix: make drift, which installs it")
    elif verifies:
        more, why = verified(target)
        found += more
        unknown += why
    return Found(tuple(found), tuple(unknown), tuple(notes))


def verified(target: Target) -> tuple[list[Difference], list[str]]:
    """What `make verify` finds wrong with what runs, and why it could not look; nothing is killed for it."""
    limits: list[str | None] = list(target.limit) or [None]
    found: list[Difference] = []
    unknown: list[str] = []
    for limit in limits:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "verified.xml"
            pairs = " ".join(f"{key}={_word(value)}" for key, value in target.data.items())
            environment = {**os.environ, "TARGET": target.name, "DATA": pairs, "KILL": "0"}
            environment.pop("LIMIT", None)
            if limit is not None:
                environment["LIMIT"] = limit
            run = subprocess.run(
                [sys.executable, "-m", "pytest", VERIFICATION, "-q", "--junitxml", str(file)],
                check=False, capture_output=True, text=True, cwd=PROJECT, env=environment, timeout=VERIFY_S,
            )  # fmt: skip
            report = file.read_text() if file.exists() else ""
        if run.returncode not in (0, 1) or not report:
            last = (run.stdout + run.stderr).strip().splitlines()[-1:] or ["it says nothing"]
            unknown.append(f"what runs could not be verified: {last[0]}. Fix: see `make verify TARGET={target.name}`")
            continue
        found += differences(report)
    return found, unknown


def differences(report: str) -> list[Difference]:
    """What failed by pytest's report in JUnit's XML: the host is in the brackets of a test's name."""
    found = []
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314 -- our own pytest wrote it
        for kind in ("failure", "error"):
            for fault in case.findall(kind):
                test, _, host = case.get("name", "").partition("[")
                lines = (fault.get("message") or fault.text or "").strip().splitlines()
                what = test.removeprefix("test_").replace("_", " ")
                said = f" ({lines[0].strip()})" if lines else ""
                found.append(Difference(host=host.removesuffix("]") or "?", by="not so", what=f"{what}{said}"))
    return found


def as_json(target: str, found: Found) -> dict[str, Any]:
    """For a machine; ``text`` and ``content`` are what chat services show."""
    text = "\n".join([f"Beeyard: drift of {target}", *found.sentences])
    return {
        "target": target,
        "drift": [one.model_dump() for one in found.differences],
        "unknown": list(found.unknown),
        "text": text,
        "content": text[:1900],  # Discord takes 2000 characters
    }


def tell(report: Mapping[str, Any], command: str | None, webhook_file: Path | None) -> list[str]:
    """
    Give the report to a command on its standard input, as JSON, and post it to an address that a file holds.

    :returns: why somebody could not be told, a sentence each; the address, which may be a secret, is in none.
    """
    faults = []
    if command is not None:
        try:
            run = subprocess.run(
                ["sh", "-c", command], input=json.dumps(report), check=False, text=True, timeout=TELL_S
            )
            if run.returncode:
                faults.append(f"the command that is to tell ended with {run.returncode}. Fix: try it by hand")
        except subprocess.TimeoutExpired:
            faults.append(f"the command that is to tell took more than {TELL_S} s. Fix: try it by hand")
    if webhook_file is not None:
        try:
            url = webhook_file.read_text().strip()
            httpx.post(url, json=dict(report), timeout=TELL_S).raise_for_status()
        except OSError as error:
            faults.append(f"{webhook_file}: {error.strerror}. Fix: put the webhook's address into it")
        except httpx.HTTPStatusError as error:
            faults.append(f"the webhook answers {error.response.status_code}. Fix: see the address in {webhook_file}")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            faults.append(
                f"the webhook was not reached ({type(error).__name__}). Fix: see the address in {webhook_file}"
            )
    return faults


def units(target: Target, user: str, when: str, command: str | None, webhook_file: Path | None) -> dict[str, str]:
    """
    Units for the controller, by name.

    :param user: whose keys reach the hosts
    :param when: as systemd's OnCalendar= has it
    :raises CatalogError: something in them has a line break.
    """
    words = [sys.executable, "-m", "beeyard.cli", "drift", target.name]
    words += ["--tell", command] if command else []
    words += ["--webhook-file", str(webhook_file.resolve())] if webhook_file else []
    if any("\n" in word for word in (*words, user, when)):
        raise CatalogError("a unit cannot hold a line break. Fix: put a longer command into a script, and name that")
    common = {
        "target": target.name,
        "user": user,
        "when": when,
        "clone": str(PROJECT).replace("%", "%%"),
        "exec_start": systemd_quoted(words),
    }
    name = f"beeyard-drift-{target.name}"
    return {
        f"{name}.service": rendered("beeyard-drift.service.j2", **common),
        f"{name}.timer": rendered("beeyard-drift.timer.j2", **common),
    }


def _reasons(said: str) -> list[str]:
    """Out of what pyinfra says, what says why."""
    lines = [line.strip() for line in said.splitlines()]
    told: Sequence[str] = [line for line in lines if "Fix: " in line and line.startswith("[")]
    told = told or [line for line in lines if "Error: " in line][-1:]
    return list(told) or ["the dry run failed. Fix: see what `make plan` says"]


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "'" + text.replace("'", "'\\''") + "'" if any(char in text for char in " '\"\\$") else text
