"""What a host must fetch from the network, and whether it reaches who gives it. Pure."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from beeyard import hub, images
from beeyard.catalog import Catalog, HubFile, UrlFile
from beeyard.machine import Machine
from beeyard.spec import ModelFile, ServerSpec

# How the host goes there: by its environment's proxies, by git's, or by none.
Way = Literal["env", "git", "direct"]
MODELS_FIX = (
    "let it reach that address (a proxy: https_proxy in its /etc/environment), or set llama_model_source to where "
    "the files are: a directory of this machine, a mirror, or host:NAME"
)
ENGINE_FIX = (
    "let it reach that address (a proxy: https_proxy in its /etc/environment), or take an engine that comes another "
    "way, as an image that this machine carries there (llama_runtime: compose, llama_image_from: carry)"
)
IMAGE_FIX = (
    "let its Docker Engine reach that address (a proxy: in /etc/docker/daemon.json), or set llama_image_from to carry"
)
REPOSITORY_FIX = "let it reach that address, or install {what} on the host yourself and leave {key} out"


class Download(NamedTuple):
    """Something that is missing on a host, where it comes from (any of these will do), and what to do without."""

    what: str
    addresses: tuple[str, ...]
    way: Way
    fix: str


def downloads(
    spec: ServerSpec,
    catalog: Catalog,
    machine: Machine,
    absent_models: list[ModelFile],
    repositories: tuple[str, ...],
    *,
    lacks_engine: bool,
) -> list[Download]:
    """
    What of the spec the host must fetch from elsewhere than the machine that deploys and its other hosts.

    Files out of wheels, and packages of the distribution, have mirrors of their own in pip's and apt's configuration
    and are not in it.

    :param absent_models: those that are not there, and that nobody of ours sends
    :param repositories: those of presets/repositories.yaml that its apt knows already
    :param lacks_engine: whether the engine, or its image, is not there
    """
    found = [_model(spec, file) for file in absent_models if isinstance(file.source, HubFile | UrlFile)]
    if lacks_engine:
        found += _of_image(spec, catalog, machine) if spec.image is not None else _of_engine(spec)
    return [*found, *_of_repositories(spec, catalog, machine, repositories)]


def unreached(wanted: list[Download], reachable: Mapping[str, bool]) -> list[str]:
    """A sentence for each address that the host does not reach; what was not tried is no reason."""
    found: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for download in wanted:
        if not any(reachable.get(address, True) for address in download.addresses):
            found.setdefault((download.addresses, download.fix), []).append(download.what)
    return [
        f"this host does not reach {' or '.join(addresses)}, where {' and '.join(dict.fromkeys(whats))} "
        f"{'comes' if len(set(whats)) == 1 else 'come'} from. Fix: {fix}"
        for (addresses, fix), whats in found.items()
    ]


def _model(spec: ServerSpec, file: ModelFile) -> Download:
    address = hub.endpoint() if isinstance(file.source, HubFile) else _root(file.source)
    mirror = spec.model_source if (spec.model_source or "").startswith(("http://", "https://")) else None
    return Download(f"model {file.name}", (*([mirror] if mirror else []), address), "env", MODELS_FIX)


def _root(source: object) -> str:
    assert isinstance(source, UrlFile)  # noqa: S101 -- downloads() leaves out the others
    return _origin(source.url)


def _origin(url: str) -> str:
    """An address without its path, which nobody needs to read in a message."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"


def _of_engine(spec: ServerSpec) -> list[Download]:
    if spec.engine_is_held:
        return []
    artefact, lock = spec.engine.artefact, spec.engine_lock
    if artefact.kind == "release" and lock is not None and lock.url is not None:
        return [Download(f"engine {spec.engine_name}", (_origin(lock.url),), "env", ENGINE_FIX)]
    if artefact.kind == "source" and (repository := artefact.mirror or spec.engine.repository).startswith("http"):
        return [Download(f"the source of {spec.engine_name}", (_origin(repository),), "git", ENGINE_FIX)]
    return []


def _of_image(spec: ServerSpec, catalog: Catalog, machine: Machine) -> list[Download]:
    image, docker = spec.image, machine.docker
    assert image is not None  # noqa: S101 -- downloads() asks for no other
    if image.source == "carry" or docker.has_proxy:  # what a proxy reaches only Docker itself can try
        return []
    names = {f"image {image.reference.partition('@')[0]}": image.reference}
    found = []
    if image.source == "build":
        build = images.pick_build(catalog, spec.engine_name, image.variant)
        names = {f"base {base.partition('@')[0]}": base for base in (build.build_base, build.server_base)}
        names = {what: base for what, base in names.items() if "@" in base}  # another one is the host's own
        if build.repository.startswith("http"):  # of git's other ways nobody knows how to ask
            found = [Download(f"the source of {spec.engine_name}", (_origin(build.repository),), "direct", IMAGE_FIX)]
    for what, reference in names.items():
        registry = registry_of(reference)
        if registry is not None:
            found.append(Download(what, (registry,), "direct", IMAGE_FIX))
    return found


def registry_of(reference: str) -> str | None:
    """
    The registry that an image's name begins with: what stands before the first slash, if it can be a host's name.

    None where it names none: which one Docker then asks is Docker's own affair, and a mirror may stand before it.
    """
    first, slash, _ = reference.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return first if is_host else None


def _of_repositories(spec: ServerSpec, catalog: Catalog, machine: Machine, known: tuple[str, ...]) -> list[Download]:
    if spec.image is None:
        return []
    asked = []
    if spec.docker == "docker.com":
        asked.append(("docker", "Docker", "llama_docker"))
    if spec.wants_gpu and spec.nvidia_toolkit == "install":
        asked.append(("nvidia", "NVIDIA's container toolkit", "llama_nvidia_toolkit"))
    return [
        Download(
            f"the apt repository of {what}",
            (_origin(catalog.repositories[name].key_url.format(distribution=machine.distribution)),),
            "env",
            REPOSITORY_FIX.format(what=what, key=key),
        )
        for name, what, key in asked
        if name not in known
    ]
