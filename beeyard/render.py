"""Files for hosts from a ServerSpec and the templates. Pure: text in, text out; quoting happens here, once."""

import hashlib
import json
import shlex
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from beeyard.catalog import PROJECT
from beeyard.dialects import argv
from beeyard.spec import ServerSpec

TEMPLATES = PROJECT / "templates"
MIB = 2**20


class Definition(NamedTuple):
    """A server as the guard takes it: its name among a host's servers, its facts, its unit or program."""

    id: str
    server_json: str
    definition: str


def define(spec: ServerSpec) -> Definition:
    """What is put under servers/ID on the host. The ID changes when anything of it does."""
    text = _RUNTIMES[spec.runtime](spec)
    facts = json.dumps(_server_facts(spec), indent=1, sort_keys=True)
    digest = hashlib.sha256(f"{facts}\0{text}".encode()).hexdigest()
    return Definition(digest[:12], facts + "\n", text)


def title(spec: ServerSpec) -> str:
    """A server's name for people."""
    return f"{spec.preset} {spec.variant} on {spec.engine.title}"


def supervisord_conf(prefix: str, *, is_root: bool) -> str:
    """The configuration of the supervisord that keeps a prefix's server running."""
    return _render("supervisord.conf.j2", prefix=prefix.replace("%", "%%"), is_root=is_root)


def systemd_quoted(arguments: list[str]) -> str:
    """Quote arguments for ExecStart=, whose rules are not the shell's: % and $ double up."""
    return " ".join(_systemd_word(argument) for argument in arguments)


def supervisor_quoted(arguments: list[str]) -> str:
    """Quote arguments for supervisor's command=, which splits like a shell and expands %."""
    return shlex.join(arguments).replace("%", "%%")


def _systemd_word(word: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%"), ("$", "$$")):
        word = word.replace(plain, escaped)
    return f'"{word}"'


def _systemd_unit(spec: ServerSpec) -> str:
    return _render(
        "llama-server.service.j2",
        title=title(spec),
        exec_start=systemd_quoted(argv(spec)),
        load_timeout_s=spec.settings.load_timeout_s,
        user=spec.user,
        memlock=spec.memlock,
        waits_for_gpu=_wants_gpu(spec),
    )


def _supervisor_program(spec: ServerSpec) -> str:
    return _render(
        "llama-server.conf.j2",
        title=title(spec),
        command=supervisor_quoted(argv(spec)),
        user=spec.user,
        log=str(spec.prefix / "log" / "llama-server.log").replace("%", "%%"),
    )


_RUNTIMES = {"systemd": _systemd_unit, "supervisor": _supervisor_program}


def _server_facts(spec: ServerSpec) -> dict[str, Any]:
    return {
        "title": title(spec),
        "preset": spec.preset,
        "variant": spec.variant,
        "engine": spec.engine_name,
        "runtime": spec.runtime,
        "argv": argv(spec),
        "url": spec.url,
        "port": spec.port,
        "api_key_file": str(spec.api_key_file),
        "drafts": spec.drafts,
        "gate": spec.gate.model_dump(),
        "load_timeout_s": spec.settings.load_timeout_s,
        "drain_timeout_s": spec.settings.drain_timeout_s,
        "min_vram_mib": _min_vram_mib(spec),
    }


def _wants_gpu(spec: ServerSpec) -> bool:
    return spec.engine.accelerator == "cuda" and spec.settings.gpu_layers != 0


def _min_vram_mib(spec: ServerSpec) -> int:
    """Half the model's size: less means that its layers did not go to the card."""
    if not _wants_gpu(spec) or spec.model.lock is None:
        return 0
    return spec.model.lock.size // 2 // MIB


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True  # noqa: S701
    )  # fmt: skip


def _render(template: str, **variables: object) -> str:
    return _environment().get_template(template).render(**variables)
