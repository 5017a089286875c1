"""The image that runtime compose carries to a host: the one that this machine's Docker Engine has."""

from beeyard import docker_here
from beeyard.catalog import CatalogError
from beeyard.images import tag
from beeyard.spec import ServerSpec


def with_carried_image(spec: ServerSpec) -> ServerSpec:
    """
    The spec with the image named after its content, if this machine is where it comes from; else as it was.

    :raises CatalogError: this machine does not have it.
    """
    if spec.image is None or spec.image.source != "carry":
        return spec
    wanted = tag(spec.engine_name, spec.image.variant)
    found = docker_here.image(wanted)
    if found is None:
        raise CatalogError(
            f"image {wanted} is not on this machine, from where it would be carried over. Fix: run `make image "
            f"ENGINE={spec.engine_name} IMAGE={spec.image.variant}` here, or set llama_image_from to build or pull"
        )
    return spec.carrying(found["Id"])
