"""What runtime compose needs of a host: a Docker Engine, its access to the card, and the image of the engine."""

from pathlib import Path
from typing import IO, cast

from pyinfra.api import deploy

from beeyard.catalog import PROJECT, Repository, load_catalog
from beeyard.deploys.host_spec import Plan
from beeyard.docker_here import ImageStream, image, name_image
from beeyard.images import CONTEXT, pick_build, tag
from beeyard.operations import docker_engines, images, packages

# The distribution's own Docker with compose 2: what provides each is called differently.
DISTRIBUTION = {
    "debian": ("docker.io", "docker-cli", "docker-compose", "docker-buildx"),
    "ubuntu": ("docker.io", "docker-compose-v2", "docker-buildx"),
}


@deploy("Prepare Docker")
def engine(plan: Plan) -> None:
    """A Docker Engine with compose, and access to the card; each only if the host's data asks for it."""
    spec, machine = plan.spec, plan.machine
    repositories = load_catalog().repositories
    names: tuple[str, ...] = DISTRIBUTION.get(machine.distribution, DISTRIBUTION["debian"])
    if spec.docker == "docker.com":
        names = repositories["docker"].packages
        _add("docker", repositories["docker"], machine.distribution, machine.codename)
    if spec.docker != "present":
        docker_engines.installed(name="Docker Engine", packages=names)
    if spec.wants_gpu and spec.nvidia_toolkit == "install":
        _add("nvidia", repositories["nvidia"], machine.distribution, machine.codename)
        packages.installed(name="NVIDIA container toolkit", packages=repositories["nvidia"].packages)
        docker_engines.sees_nvidia(name="Docker's access to the card")
    docker_engines.answers(name="Check Docker", wants_gpu=spec.wants_gpu)


@deploy("Bring the image")
def bring_image(plan: Plan) -> None:
    """From wherever the host's data says."""
    assert plan.spec.image is not None  # noqa: S101 -- runtime compose has one
    match plan.spec.image.source:
        case "pull":
            images.pulled(name="Pull the image", reference=plan.spec.image.reference)
        case "carry":
            _carry(plan, plan.spec.image.reference)
        case "build":
            _build(plan, plan.spec.image.reference, plan.spec.image.variant)


def _add(name: str, repository: Repository, distribution: str, codename: str) -> None:
    packages.installed(name=f"What adds the repository of {name}", packages=["ca-certificates", "curl", "gpg"])
    key_url = repository.key_url.format(distribution=distribution)
    line = repository.line.format(distribution=distribution, codename=codename, keyring=f"beeyard-{name}.gpg")
    docker_engines.repository(
        name=f"apt repository of {name}",
        repository=name,
        key_url=key_url,
        fingerprint=repository.fingerprint,
        line=line,
    )


def _carry(plan: Plan, reference: str) -> None:
    assert plan.spec.image is not None  # noqa: S101
    found = image(tag(plan.spec.engine_name, plan.spec.image.variant))
    assert found is not None  # noqa: S101 -- the plan looked for it
    name_image(found["Id"], reference)
    images.carried(
        name="Carry the image over",
        reference=reference,
        layers=found["RootFS"]["Layers"],
        directory=str(plan.spec.prefix / "run"),
        stream=lambda there: cast("IO[bytes]", ImageStream(reference, there)),
    )


def _build(plan: Plan, reference: str, variant: str) -> None:
    build = pick_build(load_catalog(), plan.spec.engine_name, variant)
    if plan.probe["has_apt"]:
        # The engine's source is fetched by Docker itself, with the host's git.
        packages.installed(name="What fetches the engine's source", packages=["git"])
    images.built(
        name="Build the image",
        reference=reference,
        directory=str(plan.spec.prefix / "build"),
        files={name: Path(PROJECT, name).read_bytes() for name in CONTEXT},
        target="server",
        arguments=build.arguments(plan.spec.architectures),
        log=str(plan.spec.prefix / "log" / "build.log"),
    )
