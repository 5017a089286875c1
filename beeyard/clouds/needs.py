"""
What a preset needs of a rented machine, and which offers have it: the very plan that a deploy makes. Pure.

Nothing is rented that a deploy would then refuse.
"""

from typing import Any, NamedTuple

from beeyard.catalog import Catalog, CatalogError, pick
from beeyard.checks import version
from beeyard.clouds.pods import PREFIX, CloudError, Offer, Order, Wish
from beeyard.images import variant_for
from beeyard.machine import Gpu, Machine
from beeyard.solution import Solution
from beeyard.solve import solve
from beeyard.spec import ANY_HOST, HeldEngine, ServerSpec, resolve

MIB, GB = 2**20, 10**9
# GB beside the models on the volume: an engine, its sources and objects, Python's environment, logs. Not measured.
ROOM_GB = 20
# What offers do not say of the host: enough for a preset that is all on the card. A deploy looks again.
HOST_MEMORY_MIB = 32 * 1024


class DoesNotFit(CloudError):
    """No offer can run what is asked for."""


class Choice(NamedTuple):
    """An offer with the plan for it."""

    offer: Offer
    solution: Solution


class Judged(NamedTuple):
    """Offers that do, the cheapest first, and how many do not, by the reason."""

    choices: list[Choice]
    against: dict[str, int]


class Start(NamedTuple):
    """What a pod starts from: the provider's image, or ours with the engine that it holds."""

    image: str
    cuda: str = ""
    held: HeldEngine | None = None


def host_data(preset: str, variant: str | None) -> dict[str, Any]:
    """A rented host's data, as its inventory will have it."""
    data: dict[str, Any] = {"llama_preset": preset, "llama_prefix": PREFIX}
    return data if variant is None else {**data, "llama_variant": variant}


def our_image(catalog: Catalog, preset: str, variant: str | None, image: str, image_variant: str | None) -> Start:
    """
    Start from an image that ``make image POD=1`` built.

    :param image_variant: of presets/images.yaml; else the first one with the usual CUDA
    """
    spec = resolve(host_data(preset, variant), catalog, ANY_HOST)
    cards = ("86",) if spec.engine.accelerator == "cuda" else ()
    name = image_variant or variant_for(cards, catalog.images, catalog.gpus)
    build = pick(catalog.images, name, "image variant")
    if build.accelerator != spec.engine.accelerator:
        raise CloudError(
            f"image variant {name} is for {build.accelerator}, and {preset} wants {spec.engine.accelerator}. "
            "Fix: name another with --image-variant"
        )
    held = HeldEngine(name=spec.engine_name, commit=spec.engine.commit or "", architectures=build.architectures)
    return Start(image=image, cuda=build.cuda or "", held=held)


def wish(catalog: Catalog, preset: str, variant: str | None, start: Start, disk_gb: int, hours: float) -> Wish:
    """What a provider can be asked for beforehand: at least the weights must fit onto the card."""
    spec = resolve(host_data(preset, variant), catalog, ANY_HOST)
    weights = model_bytes(spec) // MIB if spec.wants_gpu and spec.settings.gpu_layers == "all" else 0
    return Wish(memory_mib=weights, cuda=start.cuda, disk_gb=disk_gb, hours=hours)


def model_bytes(spec: ServerSpec) -> int:
    """What the lock says that its model files have; those that are not locked count nothing."""
    return sum(piece.size for file in spec.model_files for piece in file.pieces)


def judge(offers: list[Offer], catalog: Catalog, order: Order, held: HeldEngine | None) -> Judged:
    """Plan for every offer. Sorted by price, then by reliability."""
    choices, against = [], dict[str, int]()
    for offer in sorted(offers, key=lambda one: (one.price, -(one.reliability or 0))):
        solution = solve(host_data(order.preset, order.variant), catalog, machine_of(offer), held=held)
        reasons = [*solution.reasons, *_driver(offer, order), *_more(solution.spec, order)]
        if reasons:
            against[reasons[0]] = against.get(reasons[0], 0) + 1
        else:
            choices.append(Choice(offer, solution))
    return Judged(choices, against)


def machine_of(offer: Offer) -> Machine:
    """An offer as facts of a host: a container whose card nobody else uses."""
    card = Gpu(
        index=0,
        uuid=f"GPU-{offer.cloud}-{offer.id}",
        name=offer.gpu,
        compute_capability=offer.compute_capability,
        memory_total_mib=offer.memory_mib,
        memory_free_mib=offer.memory_mib,
    )
    memory = offer.host_memory_mib or HOST_MEMORY_MIB
    return Machine(
        gpus=(card,),
        has_nvidia_smi=True,
        driver=offer.driver,
        driver_cuda=offer.cuda,
        init="other",
        virtualisation="docker",
        provider=offer.cloud,
        volume="/workspace",
        is_root=True,
        memory_mib=memory,
        memory_available_mib=memory,
    )


def _driver(offer: Offer, order: Order) -> list[str]:
    """What the image that the pod starts from wants of the driver: the plan knows of the engine alone."""
    if not (offer.cuda and order.cuda) or version(offer.cuda) >= version(order.cuda):
        return []
    return [
        f"the driver speaks CUDA {offer.cuda}, and {order.image} wants {order.cuda} or newer. "
        "Fix: take another offer, or an image for an older CUDA (--image, --image-variant)"
    ]


def _more(spec: ServerSpec | None, order: Order) -> list[str]:
    """What a deploy looks at beside the plan."""
    if spec is None:
        return []
    found = list(spec.unlocked)
    wanted = -(-model_bytes(spec) // GB) + ROOM_GB
    if order.network_volume is None and order.disk_gb < wanted:
        found.append(
            f"{spec.preset} wants {wanted} GB on /workspace for models, engine and environment, and {order.disk_gb} "
            f"are asked for. Fix: --disk {wanted}"
        )
    return found


def nothing_fits(judged: Judged, cloud: str, preset: str) -> CatalogError:
    """Why no offer does: the reason that most of them have."""
    if not judged.against:
        return CloudError(
            f"{cloud} offers nothing like this now. Fix: try again later, raise --max-price, or take the other cloud"
        )
    reason, count = max(judged.against.items(), key=lambda one: one[1])
    total = sum(judged.against.values())
    return DoesNotFit(f"none of {total} offers of {cloud} can run {preset}; {count} of them because {reason}")
