"""The image of an engine: its name, its variants, the cards it holds code for. Pure."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from beeyard.catalog import PROJECT, Catalog, CatalogError, Gpu, ImageVariant, pick

REPOSITORY = "beeyard"
# The user that the image names, by number: no table of users need know it.
USER_ID = 8910
BINARY = "/opt/llama/llama-server"
# In a pod's image: what engine it holds, for those who see its files but not its labels.
HELD = "/opt/llama/engine.json"
FLAGS_LABEL = "beeyard.flags"
# Lists what a published image holds, its packages above all.
SBOM_SCANNER = "docker/buildkit-syft-scanner:stable-1"
# What models' modules are tried in, where no image of ours has Python.
SANDBOX_IMAGE = "python:3.13-slim"
# What watches the servers of a clone: compose.yaml's profile observability.
PROMETHEUS_IMAGE, GRAFANA_IMAGE = "prom/prometheus:v3.5.0", "grafana/grafana:11.6.0"
BUILD_SCRIPT = "image/build-engine.sh"
GPUS_TABLE = "presets/gpus.yaml"
# All that Dockerfile.cuda reads of the project to make a server.
CONTEXT = (
    "Dockerfile.cuda",
    BUILD_SCRIPT,
    "image/collect-libraries.sh",
    "image/healthy.sh",
    "image/install.sh",
    GPUS_TABLE,
)


class Build(NamedTuple):
    """What an image is built from: a target of docker-bake.hcl."""

    engine_name: str
    variant_name: str
    variant: ImageVariant
    repository: str
    commit: str
    dialect: str
    build_base: str
    server_base: str

    @property
    def target(self) -> str:
        """Its name in docker-bake.hcl, where a name has no dots."""
        return f"{self.engine_name}-{self.variant_name}".replace(".", "_")

    @property
    def tag(self) -> str:
        """Its name on a Docker Engine."""
        return tag(self.engine_name, self.variant_name)

    def arguments(self, architectures: Iterable[str]) -> dict[str, str]:
        """Dockerfile.cuda's build arguments."""
        return {
            "BUILD_BASE": self.build_base,
            "SERVER_BASE": self.server_base,
            "ACCELERATOR": self.variant.accelerator,
            "CUDA_ARCHITECTURES": ";".join(architectures),
            "ENGINE_NAME": self.engine_name,
            "ENGINE_DIALECT": self.dialect,
            "ENGINE_REPOSITORY": self.repository,
            "ENGINE_COMMIT": self.commit,
        }


def tag(engine_name: str, variant_name: str) -> str:
    """What an engine's image is called on a Docker Engine."""
    return f"{REPOSITORY}:{engine_name}-{variant_name}"


def pod_tag(server_tag: str) -> str:
    """What the image is called that a rented pod starts from."""
    return f"{server_tag}-pod"


def published_name(build: Build, repository: str, version: str) -> str:
    """
    What an engine's image is called in a registry.

    :raises CatalogError: no registry takes the name.
    """
    name = f"{repository}:{build.tag.partition(':')[2]}{'-' if version else ''}{version}"
    if not re.fullmatch(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+:[\w.-]{1,128}", name):
        raise CatalogError(
            f"no registry takes the name {name!r}. Fix: write it as ghcr.io/OWNER/NAME in lower case, "
            "the version as v1.2.3"
        )
    return name


def built_tag(build: Build, architectures: Iterable[str]) -> str:
    """The name of an image that a host builds itself: it changes with anything that it is built from."""
    content = [(PROJECT / name).read_bytes() for name in CONTEXT] + [repr((build, list(architectures))).encode()]
    return f"{build.tag}-{hashlib.sha256(bytes(1).join(content)).hexdigest()[:12]}"


def source_digest(commit: str | None, accelerator: str, architectures: Iterable[str]) -> str:
    """Twelve hex digits of what a host compiles an engine from: they change with the commit or the options."""
    script = (PROJECT / BUILD_SCRIPT).read_bytes()
    return hashlib.sha256(script + repr((commit, accelerator, tuple(architectures))).encode()).hexdigest()[:12]


def builds(catalog: Catalog) -> list[Build]:
    """Every engine that has a commit, in every variant."""
    return [
        Build(
            engine_name=engine_name,
            variant_name=variant_name,
            variant=variant,
            repository=engine.repository,
            commit=engine.commit,
            dialect=engine.dialect,
            build_base=locked_base(catalog, variant.build_base),
            server_base=locked_base(catalog, variant.server_base),
        )
        for engine_name, engine in catalog.engines.items()
        for variant_name, variant in catalog.images.items()
        if engine.commit is not None
    ]


def pick_build(catalog: Catalog, engine_name: str, variant_name: str) -> Build:
    """
    One of them.

    :raises CatalogError: there is no such engine or variant, the engine names no commit, or a base is unlocked.
    """
    engine = pick(catalog.engines, engine_name, "engine")
    variant = pick(catalog.images, variant_name, "image variant")
    if engine.commit is None:
        can = sorted({build.engine_name for build in builds(catalog)})
        raise CatalogError(
            f"engine {engine_name!r} names no commit, so no image of it can be built. "
            f"Fix: take one of {', '.join(can)}"
        )
    missing = unlocked_bases(catalog, [variant])
    if missing:
        raise _unlocked(f"the base image {' and '.join(missing)}")
    (found,) = (b for b in builds(catalog) if (b.engine_name, b.variant_name) == (engine_name, variant_name))
    return found


def locked_scanner(catalog: Catalog) -> str:
    """
    What writes a published image's SBOM, by digest.

    :raises CatalogError: the lock has none.
    """
    if SBOM_SCANNER not in catalog.lock.bases:
        raise _unlocked(f"{SBOM_SCANNER}, which writes the SBOM,")
    return locked_base(catalog, SBOM_SCANNER)


def sandbox_images(catalog: Catalog) -> list[str]:
    """
    Images that models' modules may be tried in, the best first: Python's own, then our pods', which have it.

    Python's is by digest once the lock has one, and by its tag until then; a record has the image's id either way.
    """
    own = SANDBOX_IMAGE if SANDBOX_IMAGE not in catalog.lock.bases else locked_base(catalog, SANDBOX_IMAGE)
    pods = [
        pod_tag(tag(engine, variant))
        for engine, found in catalog.engines.items()
        for variant in catalog.images
        if found.commit is not None
    ]
    return [own, *pods]


def _unlocked(what: str) -> CatalogError:
    return CatalogError(
        f"{what} has no digest in presets/lock.yaml. Fix: run `make lock-images` "
        "where the registry can be reached, and commit what it writes"
    )


def locked_base(catalog: Catalog, name: str) -> str:
    """A base by digest; while it has none, a name that cannot resolve, and that says what to do."""
    digest = catalog.lock.bases.get(name)
    if digest is None:
        return f"run-make-lock-images.invalid/{name}"
    return name if digest == "local" else f"{name}@{digest}"


def unlocked_bases(catalog: Catalog, variants: Iterable[ImageVariant]) -> list[str]:
    """Bases without a digest, each once."""
    names = dict.fromkeys(base for variant in variants for base in (variant.build_base, variant.server_base))
    return [name for name in names if name not in catalog.lock.bases]


def architecture(compute_capability: str) -> str:
    """8.9, as nvidia-smi says it, as CMake wants it: 89."""
    return compute_capability.replace(".", "")


def known_architectures(cuda: str, gpus: Mapping[str, Gpu]) -> list[str]:
    """Those of our cards that a CUDA version has a compiler for."""
    capabilities = {gpu.compute_capability for gpu in gpus.values() if _version(gpu.min_cuda) <= _version(cuda)}
    return [architecture(capability) for capability in sorted(capabilities, key=_version)]


def named_architectures(cuda: str, catalog: Catalog) -> list[str]:
    """Those that any variant of the image holds code for, as far as a CUDA version knows them."""
    named = {name for variant in catalog.images.values() for name in variant.architectures}
    return [name for name in known_architectures(cuda, catalog.gpus) if name in named]


def check_architectures(cuda: str, wanted: Iterable[str], gpus: Mapping[str, Gpu]) -> None:
    """
    Refuse what a CUDA version has no compiler for.

    :raises CatalogError: the card, its architecture, the CUDA version, and the least one that would do.
    """
    for name in wanted:
        card = next((gpu for gpu in gpus.values() if architecture(gpu.compute_capability) == name), None)
        if card is not None and _version(card.min_cuda) > _version(cuda):
            raise CatalogError(
                f"CUDA {cuda} does not know architecture {name} ({card.smi_name}), which wants CUDA {card.min_cuda} "
                "or newer. Fix: take the image variant cuda13, or leave that card out"
            )


def variant_for(architectures: Iterable[str], images: Mapping[str, ImageVariant], gpus: Mapping[str, Gpu]) -> str:
    """
    The first variant that holds code for all these architectures, else the first whose CUDA could be told to.

    :raises CatalogError: no CUDA of presets/images.yaml knows them.
    """
    wanted = set(architectures)
    if not wanted:
        return next(name for name, variant in images.items() if variant.accelerator == "cpu")
    for name, variant in images.items():
        if wanted <= set(variant.architectures):
            return name
    for name, variant in images.items():
        if variant.cuda is not None and wanted <= set(known_architectures(variant.cuda, gpus)):
            return name
    held = "; ".join(f"{name}: CUDA {variant.cuda}" for name, variant in images.items() if variant.cuda)
    raise CatalogError(
        f"no image variant is for architecture {', '.join(sorted(wanted))} ({held}). "
        "Fix: add the card to presets/gpus.yaml, and a variant for it to presets/images.yaml"
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
