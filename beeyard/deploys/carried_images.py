"""The image that runtime compose carries to a host: the one that this machine's Docker Engine has."""

from beeyard import docker_here
from beeyard.catalog import CatalogError
from beeyard.facts.docker import image_state
from beeyard.spec import ServerSpec
from beeyard.survey import Carried, carried_tag


def looked_for(spec: ServerSpec) -> dict[str, Carried | str]:
    """What this machine has of the image that it is to carry, by its name, or why it has none; empty for no image."""
    wanted = carried_tag(spec)
    if wanted is None or spec.image is None:
        return {}
    try:
        found = docker_here.image(wanted)
    except CatalogError as error:
        return {wanted: str(error)}
    if found is not None:
        state = image_state(found)
        held = state["labels"].get("beeyard.cuda-architectures", "").split(";")
        architectures = tuple(name for name in held if name)
        return {wanted: Carried(id=state["id"], bytes=found.get("Size") or 0, architectures=architectures)}
    return {
        wanted: f"image {wanted} is not on this machine, from where it would be carried over. Fix: run `make image "
        f"ENGINE={spec.engine_name} IMAGE={spec.image.variant}` here, or set llama_image_from to build or pull"
    }
