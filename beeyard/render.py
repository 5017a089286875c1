"""Files for hosts from a ServerSpec and the templates. Pure: text in, text out; quoting happens here, once."""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from beeyard import hub, images
from beeyard.catalog import PROJECT, Catalog, CatalogError, HubFile, UrlFile, pick
from beeyard.dashboard import dashboard
from beeyard.dialects import argv
from beeyard.spec import ANY_HOST, ServerSpec, resolve

TEMPLATES = PROJECT / "templates"
# The preset that `docker compose up` serves from a clone.
CLONE_PRESET = "gemma-4-31b"
CONTAINER = "llama-server"
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


def gpu_unit(script: str) -> str:
    """The unit that makes the cards ready at boot, by a script on the host."""
    before = "docker.service beeyard-llama-server.service"
    return _render("beeyard-gpu.service.j2", before=before, script=systemd_quoted([script]))


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
        waits_for_gpu=spec.wants_gpu,
        card=spec.card,
    )


def _supervisor_program(spec: ServerSpec) -> str:
    return _render(
        "llama-server.conf.j2",
        title=title(spec),
        command=supervisor_quoted(argv(spec)),
        user=spec.user,
        card=spec.card,
        log=str(spec.prefix / "log" / "llama-server.log").replace("%", "%%"),
    )


def _compose_file(spec: ServerSpec) -> str:
    assert spec.image is not None, "resolve() gives runtime compose its image"  # noqa: S101
    return _render(
        "compose.yaml.j2",
        title=title(spec),
        change="change presets/ or the inventory, not this file.",
        clone=None,
        container=CONTAINER,
        gpu=spec.gpu_access,
        card=spec.card,
        memlock=-1 if spec.memlock == "infinity" else spec.memlock,
        key_file=compose_quoted(str(spec.api_key_file)),
        image=spec.image.reference,
        port=compose_quoted(f"{_bracketed(spec.bind)}:{spec.port}:{spec.port}"),
        models=compose_quoted(f"{spec.models_dir}:{spec.models_dir}:ro"),
        load_timeout_s=spec.settings.load_timeout_s,
        services=[{"name": CONTAINER, "command": _command_lines(argv(spec)[1:])}],
    )


_RUNTIMES = {"systemd": _systemd_unit, "supervisor": _supervisor_program, "compose": _compose_file}


def compose_quoted(word: str) -> str:
    """Quote a word for a compose file: a YAML string in which $ stands for itself."""
    return json.dumps(word.replace("$", "$$"), ensure_ascii=False)


def clone_compose(catalog: Catalog, preset: str) -> str:
    """
    The compose.yaml of a clone: a preset's baseline and dflash, which people start with `docker compose up`.

    :raises CatalogError: the preset has no such variants, or they have different engines.
    """
    specs = {name: _clone_spec(catalog, preset, name) for name in ("baseline", "dflash")}
    first, second = specs.values()
    if first.engine_name != second.engine_name:
        raise CatalogError(f"the variants of {preset} have different engines. Fix: name another preset")
    assert first.image is not None  # noqa: S101
    variant = catalog.images[first.image.variant]
    arguments = {
        "BUILD_BASE": images.locked_base(catalog, variant.build_base),
        "SERVER_BASE": images.locked_base(catalog, variant.server_base),
        "ACCELERATOR": variant.accelerator,
        "ENGINE_NAME": first.engine_name,
        "ENGINE_DIALECT": first.engine.dialect,
        "ENGINE_REPOSITORY": first.engine.repository,
        "ENGINE_COMMIT": first.engine.commit or "",
    }
    build = {name: compose_quoted(value) for name, value in arguments.items()}
    if variant.cuda:
        # Code for every card that the project names; the deploy's runtime compose takes the host's card alone.
        named = ";".join(images.named_architectures(variant.cuda, catalog))
        build["CUDA_ARCHITECTURES"] = f'"${{CUDA_ARCHITECTURES:-{named}}}"'
    build["JOBS"] = '"${JOBS:-auto}"'
    return _render(
        "compose.yaml.j2",
        title=f"{preset} on {first.engine.title}",
        change="change presets/ or templates/, then run `make render`.",
        clone={
            "server_base": arguments["SERVER_BASE"],
            "arguments": build,
            "fetch": _fetch_lines(specs.values()),
            "models_written": '"${MODEL_DIR:-./models}:/models"',
            "prometheus": compose_quoted(images.locked_base(catalog, images.PROMETHEUS_IMAGE)),
            "grafana": compose_quoted(images.locked_base(catalog, images.GRAFANA_IMAGE)),
        },
        container=None,
        gpu=first.gpu_access,
        card=None,
        memlock='"${MEMLOCK:--1}"',
        key_file=None,
        image=f'"${{IMAGE:-{images.REPOSITORY}:{first.engine_name}}}"',
        port=f'"${{BIND_HOST:-127.0.0.1}}:${{PORT:-{first.port}}}:{first.port}"',
        models='"${MODEL_DIR:-./models}:/models:ro"',
        load_timeout_s=first.settings.load_timeout_s,
        services=[
            {"name": name, "command": _command_lines(argv(spec)[1:], {"--ctx-size": "CTX_SIZE"})}
            for name, spec in specs.items()
        ],
    )


def bake_file(catalog: Catalog) -> str:
    """docker-bake.hcl: a target for every engine that has a commit, in every variant of the image."""
    found = images.builds(catalog)
    default = catalog.servers[CLONE_PRESET].engine
    return _render(
        "docker-bake.hcl.j2",
        default=default,
        variants={
            name: next(build.target for build in found if (build.engine_name, build.variant_name) == (default, name))
            for name in catalog.images
        },
        builds=[
            {
                "target": build.target,
                "tag": build.tag,
                "arguments": {
                    name: json.dumps(value)
                    for name, value in build.arguments(build.variant.architectures).items()
                },
            }
            for build in found
        ],
    )  # fmt: skip


def rendered_files(catalog: Catalog) -> dict[str, str]:
    """The files of the project that are written from presets, templates and code, by name."""
    return {
        "compose.yaml": clone_compose(catalog, CLONE_PRESET),
        "docker-bake.hcl": bake_file(catalog),
        "observability/grafana/dashboards/beeyard.json": dashboard(),
    }


def _clone_spec(catalog: Catalog, preset: str, variant: str) -> ServerSpec:
    server = pick(catalog.servers, preset, "preset")
    engine = pick(catalog.engines, server.engine, "engine")
    cards = () if engine.accelerator == "cpu" else next(iter(catalog.images.values())).architectures
    data = {
        "llama_preset": preset,
        "llama_variant": variant,
        "llama_runtime": "compose",
        "llama_models_dir": "/models",
        "llama_image_from": "carry",
        "llama_image_variant": images.variant_for(cards, catalog.images, catalog.gpus),
    }
    return resolve(data, catalog, ANY_HOST)


def _command_lines(words: list[str], variables: Mapping[str, str] | None = None) -> list[str]:
    """A flow sequence, an option and its value a line; a value that a variable may replace has its name."""
    lines: list[list[str]] = []
    for word in words:
        if lines and len(lines[-1]) == 1 and not word.startswith("-"):
            variable = (variables or {}).get(words[words.index(word) - 1])
            lines[-1].append(f'"${{{variable}:-{word}}}"' if variable else compose_quoted(word))
        else:
            lines.append([compose_quoted(word)])
    return [", ".join(line) + "," for line in lines]


def _fetch_lines(specs: Iterable[ServerSpec]) -> list[str]:
    return [", ".join(compose_quoted(word) for word in words) + "," for words in fetched(specs)]


def fetched(specs: Iterable[ServerSpec]) -> list[tuple[str, str, str, str]]:
    """Address, place, size and sha256 of each file that comes from the network; 0 and unlocked where not locked."""
    files = {file.name: (spec, file) for spec in specs for file in spec.model_files}
    found = []
    for spec, file in files.values():
        match file.source:
            case HubFile() as source:
                revision = file.lock.revision if file.lock else None
                url = hub.public_url(source, revision or source.revision)
            case UrlFile(url=url):
                pass
            case _:  # its folder holds it already
                continue
        pieces = [(path, str(piece.size), piece.sha256) for path, piece in spec.pieces_of(file)]
        for path, size, sha256 in pieces or [(spec.path_of(file), "0", "unlocked")]:
            address = url if path == spec.path_of(file) else f"{url.rpartition('/')[0]}/{path.name}"
            place = str(path.relative_to(spec.models_dir))
            found.append((address, place, size, sha256))
    return found


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _server_facts(spec: ServerSpec) -> dict[str, Any]:
    return {
        "title": title(spec),
        "preset": spec.preset,
        "variant": spec.variant,
        "engine": spec.engine_name,
        "runtime": spec.runtime,
        "argv": argv(spec),
        "image": spec.image.reference if spec.image else None,
        "url": spec.url,
        "port": spec.port,
        "api_key_file": str(spec.api_key_file),
        "user": spec.user,
        "drafts": spec.drafts,
        "gate": spec.gate.model_dump(),
        "load_timeout_s": spec.settings.load_timeout_s,
        "drain_timeout_s": spec.settings.drain_timeout_s,
        "min_vram_mib": _min_vram_mib(spec),
    }


def _min_vram_mib(spec: ServerSpec) -> int:
    """Half the model's size: less means that its layers did not go to the card."""
    if not spec.wants_gpu or spec.model.lock is None:
        return 0
    return spec.model.lock.size // 2 // MIB


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True  # noqa: S701
    )  # fmt: skip


def rendered(template: str, **variables: object) -> str:
    """A template below templates/, with every variable that it names."""
    return _render(template, **variables)


def _render(template: str, **variables: object) -> str:
    return _environment().get_template(template).render(**variables)
