"""The same spec for what is not ours: orchestrators, model switchers, gateways, clients. Pure: files by name."""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from beeyard import images
from beeyard.catalog import PROJECT, Catalog, CatalogError, HubFile, ImageReference, UrlFile, pick
from beeyard.dialects import argv
from beeyard.render import fetched, rendered, systemd_quoted, title
from beeyard.spec import ANY_HOST, HostKind, ServerSpec, every_variant, resolve

GIB = 2**30
# What a model's container needs beside its files, in host memory: libraries, buffers, prompts.
SPARE_GIB = 4
MODELS_DIR = "/models"
# The variable that clients and clouds take the key from. Not BEEYARD_API_KEY, which a deploy would give to a host.
KEY_VARIABLE = "LLAMA_API_KEY"
# Cards as SkyPilot's and dstack's catalogs call them.
SKYPILOT_CARDS = {
    "rtx-3090": "RTX3090", "rtx-4090": "RTX4090", "rtx-5090": "RTX5090", "a100-40gb": "A100",
    "a100-80gb": "A100-80GB", "h100-80gb": "H100", "h200": "H200", "l40s": "L40S", "rtx-6000-ada": "RTX6000-Ada",
}  # fmt: skip
DSTACK_CARDS = {
    "rtx-3090": "RTX3090", "rtx-4090": "RTX4090", "rtx-5090": "RTX5090", "a100-40gb": "A100:40GB",
    "a100-80gb": "A100:80GB", "h100-80gb": "H100", "h200": "H200", "l40s": "L40S", "rtx-6000-ada": "RTX6000Ada",
}  # fmt: skip

Files = dict[str, str]
_REFERENCE: TypeAdapter[str] = TypeAdapter(ImageReference)


class Wish(NamedTuple):
    """
    What is to be exported, and what only its user knows.

    ``image`` and ``fetch_image`` are references by digest, ``card`` a key of presets/gpus.yaml, ``urls`` where
    servers answer, ``replicas`` how many servers there may be at most, ``prometheus`` its address inside the cluster.
    """

    preset: str
    variant: str | None = None
    engine: str | None = None
    image: str | None = None
    fetch_image: str | None = None
    card: str | None = None
    urls: tuple[str, ...] = ("http://127.0.0.1:8910",)
    prefix: str = "/opt/beeyard"
    port: int = 8910
    replicas: int = 3
    prometheus: str = "http://prometheus-operated.monitoring.svc:9090"


def export(name: str, wish: Wish, catalog: Catalog) -> Files:
    """
    The files of a format, by their names below one folder. No secret is in them.

    :raises CatalogError: there is no such format, or something that it needs is not said or not locked.
    """
    return pick(FORMATS, name, "format")(wish, catalog)


# --- what runs in a container ------------------------------------------------------------------------


def _kubernetes(wish: Wish, catalog: Catalog) -> Files:
    spec = _container_spec(wish, catalog, mlock="off")  # a pod may not raise its limit of locked memory
    files = _fetched(spec)
    arguments = [word for file in files for word in file]
    card = pick(catalog.gpus, wish.card, "card") if wish.card else None
    common: dict[str, Any] = {
        "title": title(spec),
        "image": _image(spec),
        "fetch_image": _by_digest(wish.fetch_image, "--fetch-image", FETCH_IMAGE),
        "arguments": argv(spec)[1:],
        "fetch_arguments": arguments,
        # A job cannot be changed: other files are another job.
        "job": f"llama-models-{hashlib.sha256(' '.join(arguments).encode()).hexdigest()[:8]}",
        "stamps": [f"{MODELS_DIR}/{place}.verified" for _, place, _, _ in files],
        "port": wish.port,
        "user": images.USER_ID,
        "has_gpu": spec.wants_gpu,
        "product": card.smi_name.replace(" ", "-") if card else None,
        "memory_gib": _model_gib(spec) + SPARE_GIB,
        "storage_gib": _storage_gib(spec),
        "starts": max(1, spec.settings.load_timeout_s // 5),
        "grace_s": spec.settings.drain_timeout_s + 30,
        "slots": spec.settings.slots,
        "replicas": wish.replicas,
        "prometheus": wish.prometheus,
    }
    return {
        name: rendered(f"export/kubernetes/{name}.j2", **common)
        for name in (
            "secret.yaml",
            "base/kustomization.yaml", "base/deployment.yaml", "base/pvc.yaml", "base/models.yaml",
            "base/service.yaml", "base/networkpolicy.yaml", "base/poddisruptionbudget.yaml",
            "overlays/watched/kustomization.yaml", "overlays/watched/servicemonitor.yaml",
            "overlays/scaled/kustomization.yaml", "overlays/scaled/scaledobject.yaml",
        )
    }  # fmt: skip


def _quadlet(wish: Wish, catalog: Catalog) -> Files:
    spec = _container_spec(wish, catalog)
    arguments = [word for file in _fetched(spec) for word in file]
    common: dict[str, Any] = {
        "title": title(spec),
        "image": _image(spec),
        "fetch_image": _by_digest(wish.fetch_image, "--fetch-image", FETCH_IMAGE),
        "command": systemd_quoted(argv(spec)[1:]),
        "fetch_command": systemd_quoted(arguments),
        "port": wish.port,
        "user": images.USER_ID,
        "has_gpu": spec.wants_gpu,
        "load_timeout_s": spec.settings.load_timeout_s,
    }
    names = ("llama-server.container", "llama-models.container", "llama-models.volume")
    return {name: rendered(f"export/quadlet/{name}.j2", **common) for name in names}


def _skypilot(wish: Wish, catalog: Catalog) -> Files:
    common = _cloud(wish, catalog, SKYPILOT_CARDS)
    return {
        "task.yaml": rendered("export/skypilot.yaml.j2", **common, is_service=False),
        "service.yaml": rendered("export/skypilot.yaml.j2", **common, is_service=True),
        **_tools(),
    }


def _dstack(wish: Wish, catalog: Catalog) -> Files:
    common = _cloud(wish, catalog, DSTACK_CARDS)
    return {"llama-server.dstack.yml": rendered("export/dstack.yml.j2", **common), **_tools()}


def _cloud(wish: Wish, catalog: Catalog, cards: Mapping[str, str]) -> dict[str, Any]:
    """What a machine that a cloud gives must do: fetch the files, write the key, serve."""
    spec = _container_spec(wish, catalog, mlock="off", models_dir="/root/models")
    if spec.wants_gpu and wish.card is None:
        raise CatalogError(f"a cloud is asked for a card by name. Fix: add --card, one of {', '.join(sorted(cards))}")
    key_file = "/root/api-key"
    command = [key_file if word == str(spec.served_key_file) else word for word in argv(spec)]
    return {
        "title": title(spec),
        "name": re.sub(r"[^a-z0-9-]", "-", f"{spec.preset}-{spec.variant}".lower()),
        "image": _image(spec),
        "card": pick(cards, wish.card, "card") if spec.wants_gpu and wish.card else None,
        "memory_gib": _model_gib(spec) + SPARE_GIB,
        "disk_gib": _storage_gib(spec) + 20,
        "port": wish.port,
        "key_variable": KEY_VARIABLE,
        "key_file": key_file,
        "fetches": [
            shlex.join(["sh", "/root/beeyard/fetch.sh", "get", url, f"/root/models/{place}", size, sha256])
            for url, place, size, sha256 in _fetched(spec)
        ],
        "command": shlex.join(command),
        "load_timeout_s": spec.settings.load_timeout_s,
        "replicas": wish.replicas,
    }


def _tools() -> Files:
    return {"fetch.sh": (PROJECT / "beeyard" / "onhost" / "fetch.sh").read_text()}


# --- what switches and routes ------------------------------------------------------------------------


def _llama_swap(wish: Wish, catalog: Catalog) -> Files:
    specs = every_variant({**_data(wish), "llama_runtime": "supervisor", "llama_prefix": wish.prefix}, catalog)
    wanted = [spec for spec in specs if wish.variant in (None, spec.variant)]
    if not wanted:
        pick({spec.variant: spec for spec in specs}, wish.variant or "", f"variant of {wish.preset}")
    unlocked = [text for spec in wanted for text in spec.unlocked]
    if unlocked:
        raise CatalogError("\n".join(dict.fromkeys(unlocked)))
    models = [
        {
            "name": f"{spec.preset}-{spec.variant}",
            "title": title(spec),
            "lines": _command_lines(_behind_a_switch(argv(spec))),
        }
        for spec in wanted
    ]
    timeout = max(spec.settings.load_timeout_s for spec in wanted)
    return {"llama-swap.yaml": rendered("export/llama-swap.yaml.j2", models=models, load_timeout_s=timeout)}


def _litellm(wish: Wish, catalog: Catalog) -> Files:
    return {"litellm.yaml": rendered("export/litellm.yaml.j2", **_client(wish, catalog))}


# --- clients -----------------------------------------------------------------------------------------


def _open_webui(wish: Wish, catalog: Catalog) -> Files:
    return {"open-webui.env": rendered("export/open-webui.env.j2", **_client(wish, catalog))}


def _opencode(wish: Wish, catalog: Catalog) -> Files:
    return {"opencode.json": rendered("export/opencode.json.j2", **_client(wish, catalog))}


def _aider(wish: Wish, catalog: Catalog) -> Files:
    common = _client(wish, catalog)
    return {
        ".aider.conf.yml": rendered("export/aider.conf.yml.j2", **common),
        ".aider.model.metadata.json": rendered("export/aider.model.metadata.json.j2", **common),
    }


def _continue(wish: Wish, catalog: Catalog) -> Files:
    return {"config.yaml": rendered("export/continue.yaml.j2", **_client(wish, catalog))}


def _cline(wish: Wish, catalog: Catalog) -> Files:
    return {"cline.md": rendered("export/cline.md.j2", **_client(wish, catalog))}


def _claude_code(wish: Wish, catalog: Catalog) -> Files:
    return {"settings.json": rendered("export/claude-code.json.j2", **_client(wish, catalog))}


def _client(wish: Wish, catalog: Catalog) -> dict[str, Any]:
    spec = resolve({**_data(wish), "llama_runtime": "systemd"}, catalog, ANY_HOST)
    settings = spec.settings
    # Each slot has its share, unless all use one cache.
    context = settings.context if settings.kv_unified else settings.context // settings.slots
    for url in wish.urls:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise CatalogError(f"--url {url} is no address. Fix: write it as http://127.0.0.1:8910, without /v1")
    return {
        "title": title(spec),
        "model": spec.preset,
        "urls": [url.rstrip("/").removesuffix("/v1") for url in wish.urls],
        "url": wish.urls[0].rstrip("/").removesuffix("/v1"),
        "key_variable": KEY_VARIABLE,
        "context": context,
        # An answer may take a quarter of it: what is asked of a coding model is long.
        "output": max(1024, context // 4),
        "slots": settings.slots,
        "temperature": settings.sampling.temperature,
        "reasons": settings.reasoning == "on",
    }


FORMATS: dict[str, Callable[[Wish, Catalog], Files]] = {
    "kubernetes": _kubernetes,
    "quadlet": _quadlet,
    "skypilot": _skypilot,
    "dstack": _dstack,
    "llama-swap": _llama_swap,
    "litellm": _litellm,
    "open-webui": _open_webui,
    "opencode": _opencode,
    "aider": _aider,
    "continue": _continue,
    "cline": _cline,
    "claude-code": _claude_code,
}


# --- what they share ---------------------------------------------------------------------------------

FETCH_IMAGE = (
    "what fetches the models, built by `docker build --file Dockerfile.cuda --target fetch` with SERVER_BASE as in "
    "docker-bake.hcl"
)
SERVER_IMAGE = "the engine's image, as `make publish` pushed it"


def _data(wish: Wish) -> dict[str, Any]:
    given = {"llama_variant": wish.variant, "llama_engine": wish.engine}
    return {
        "llama_preset": wish.preset,
        "llama_port": wish.port,
        **{key: value for key, value in given.items() if value is not None},
    }


def _container_spec(wish: Wish, catalog: Catalog, mlock: str = "auto", models_dir: str = MODELS_DIR) -> ServerSpec:
    plain = resolve({**_data(wish), "llama_runtime": "systemd"}, catalog, ANY_HOST)
    card = pick(catalog.gpus, wish.card, "card") if wish.card and plain.wants_gpu else None
    if card is not None:
        cards: tuple[str, ...] = (images.architecture(card.compute_capability),)
    else:
        cards = next(iter(catalog.images.values())).architectures if plain.wants_gpu else ()
    variant = images.variant_for(cards, catalog.images, catalog.gpus)
    reference = wish.image or catalog.lock.images.get(f"{plain.engine_name}-{variant}")
    data = {
        **_data(wish),
        "llama_runtime": "compose",
        "llama_models_dir": models_dir,
        "llama_image_variant": variant,
        "llama_image_from": "pull",
        "llama_image": _by_digest(reference, "--image", SERVER_IMAGE),
        "llama_mlock": mlock,
    }
    kind = HostKind(
        has_systemd=True, is_root=True, compute_capabilities=(card.compute_capability,) if card is not None else ()
    )
    spec = resolve(data, catalog, kind)
    if spec.unlocked_models:
        raise CatalogError("\n".join(spec.unlocked_models))
    return spec


def _by_digest(reference: str | None, option: str, what: str) -> str:
    if reference is None:
        raise CatalogError(f"no image is named for this: {what}. Fix: push it, and name it by digest with {option}")
    try:
        return _REFERENCE.validate_python(reference)
    except ValidationError as error:
        raise CatalogError(
            f"{option} {reference} names no digest, so its content may change. "
            f"Fix: write it as REPOSITORY@sha256:…, as `docker buildx imagetools inspect` tells it"
        ) from error


def _image(spec: ServerSpec) -> str:
    assert spec.image is not None, "runtime compose has an image"  # noqa: S101
    return spec.image.reference


def _fetched(spec: ServerSpec) -> list[tuple[str, str, str, str]]:
    for file in spec.model_files:
        if not isinstance(file.source, HubFile | UrlFile):
            raise CatalogError(
                f"model {file.name!r} comes from a {file.source.kind}, which nobody else can fetch. "
                "Fix: name a preset whose models come from the Hub or an address"
            )
    return fetched([spec])


def _model_bytes(spec: ServerSpec) -> int:
    return sum(piece.size for file in spec.model_files for piece in file.pieces)


def _model_gib(spec: ServerSpec) -> int:
    return -(-_model_bytes(spec) // GIB)


def _storage_gib(spec: ServerSpec) -> int:
    """The files, and as much again: the next model is fetched beside this one."""
    return max(10, 2 * _model_gib(spec) + 5)


def _behind_a_switch(words: list[str]) -> list[str]:
    """The same command on the port that llama-swap chooses."""
    index = words.index("--port") + 1
    return [*words[:index], "${PORT}", *words[index + 1 :]]


def _command_lines(words: list[str]) -> list[str]:
    """An option with its values a line."""
    lines: list[list[str]] = [[words[0]]]
    for word in words[1:]:
        if word.startswith("-") and not word[1:2].isdigit():
            lines.append([word])
        else:
            lines[-1].append(word)
    return [" ".join(word if word == "${PORT}" else shlex.quote(word) for word in line) for line in lines]


def written(name: str, text: str) -> str:
    """
    A file as it is given out: JSON is put in order, all else is as the template has it.

    :raises ValueError: a template made what is no JSON.
    """
    return json.dumps(json.loads(text), indent=2) + "\n" if name.endswith(".json") else text
