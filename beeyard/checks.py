"""
What stands against a server on a host: its cards, its driver, its compiler, its model and drafter. Pure.

Each finding is a sentence that ends with its Fix.
"""

from typing import NamedTuple

from beeyard import images
from beeyard.catalog import Catalog, Gguf
from beeyard.machine import DockerState, Gpu, Gxx, Machine, Nvcc
from beeyard.spec import ServerSpec

LEAST_ENGINE = 23  # Docker's: BuildKit by default, and compose's health conditions
LEAST_COMPOSE = 2
# What a drafter's header says it is, and which dialects' engines read that. Source: the loaders of BeeLlama v0.2 to
# v0.4.3 and llama.cpp of 2026-08-09.
READ_DRAFTS = {
    "guide": ("dflash-draft", "dflash, early schema"),
    "bee4": ("dflash",),
    "llama.cpp": ("dflash",),
}
DFLASH_2 = "DFlash 2"
CONVERTER = "scripts/convert-dflash-draft-to-upstream.py of BeeLlama v0.4"
# The newest g++ that each CUDA's nvcc takes. Source: NVIDIA's CUDA installation guides, host compiler support.
NEWEST_GXX = {"12.4": 13, "12.8": 14, "13.0": 15}
# The major version of g++ in each release that a deploy installs compilers on. Source: its package gcc-defaults.
GXX_OF = {("debian", "12"): "12", ("debian", "13"): "14", ("ubuntu", "22.04"): "11", ("ubuntu", "24.04"): "13"}

MISMATCH = "version mismatch"
# What nvidia-smi says in place of cards, and what that means; the last is for everything else that it may say.
FAULTS = {
    MISMATCH: (
        "nvidia-smi says {said}: the driver was upgraded under the running kernel, whose module is {module}. "
        "Fix: reboot the host"
    ),
    "No devices": (
        "nvidia-smi finds no card here. Fix: give this machine one: in a container, --gpus all; in a VM, "
        "passthrough{rent}"
    ),
    "communicate with the NVIDIA driver": (
        "nvidia-smi says {said}: the kernel module is not loaded. Fix: modprobe nvidia; if that fails, install the "
        "running kernel's headers and the driver anew (Secure Boot wants its module signed), then reboot"
    ),
    "memory.total: [N/A]": (
        "nvidia-smi says {said}: not how much memory the card has, as where it is the host's. Fix: take another "
        "machine; Beeyard cannot tell yet what would fit into this one"
    ),
    "": (
        "nvidia-smi says {said}. Fix: look at dmesg for NVRM and Xid; a card that fell off the bus is back after a "
        "reboot{rent}"
    ),
}


def gpu_faults(machine: Machine, *, installs_driver: bool = False) -> list[str]:
    """Why no card of the host can be used, as far as nvidia-smi says it."""
    if not machine.has_nvidia_smi and installs_driver:
        return [
            "there is no NVIDIA driver here yet, and the engine wants a card. Fix: deploy, which installs the driver "
            "alone (llama_nvidia_driver), reboot the host, and deploy again"
        ]
    if not machine.has_nvidia_smi:
        return [
            "there is no nvidia-smi here, and the engine wants an NVIDIA card. Fix: install the NVIDIA driver (on "
            f"Debian and Ubuntu llama_nvidia_driver: install does), or take a CPU preset, as smol{_rent(machine)}"
        ]
    said = machine.gpu_fault
    if not said and not machine.gpus:
        said = "No devices were found"
    for what, sentence in FAULTS.items():
        if what in said and (not machine.gpus or what == MISMATCH):
            module = machine.kernel_module or "another version"
            return [sentence.format(said=repr(said), module=module, rent=_rent(machine))]
    return []


def _rent(machine: Machine) -> str:
    return "; in a rented pod, take another one" if machine.provider else ""


def usable_cards(machine: Machine) -> tuple[tuple[Gpu, ...], list[str]]:
    """The cards that a server can run on, and why others are left out; with none left, these are reasons."""
    usable, left_out = [], []
    for card in machine.gpus:
        if card.mig:
            left_out.append(
                f"GPU {card.index} ({card.name}) is cut into MIG instances, which Beeyard does not share out. "
                "Fix: nvidia-smi -mig 0, once nothing runs on it, or take another card"
            )
        elif not card.compute_capability:
            left_out.append(
                f"the driver {machine.driver} does not say GPU {card.index}'s ({card.name}) compute capability. "
                "Fix: update the NVIDIA driver"
            )
        else:
            usable.append(card)
    return tuple(usable), left_out


class Code(NamedTuple):
    """
    CUDA code that an engine comes with: what it was compiled with, and the architectures that it holds code for.

    ``cuda`` is None and ``architectures`` are empty where that is not known; ``other`` is how to get another one.
    """

    cuda: str | None = None
    architectures: tuple[str, ...] = ()
    other: str = ""


def code_of(spec: ServerSpec, catalog: Catalog, machine: Machine) -> Code:
    """
    What is known of the code that a spec's engine will run on a card.

    A locked image holds what its variant says, one that llama_image names may be any. One that is carried is asked
    itself before it is sent, and one that is built has the card's.
    """
    artefact = spec.engine.artefact
    if spec.image is not None:
        variant = catalog.images[spec.image.variant]
        is_locked = spec.image.reference == catalog.lock.images.get(f"{spec.engine_name}-{spec.image.variant}")
        held = variant.architectures if is_locked else ()
        return Code(variant.cuda, held, "take another image variant (llama_image_variant)")
    if spec.engine_is_compiled:
        cuda = machine.nvccs[0].version if machine.nvccs else None
        return Code(cuda, (), "install a CUDA toolkit of the driver's major version")
    if spec.engine_is_held or artefact.kind != "release":
        return Code()
    return Code(artefact.cuda, artefact.architectures, "take another release or engine (llama_engine)")


def code_faults(code: Code, cards: tuple[Gpu, ...]) -> list[str]:
    """Why an engine's code does not run on these cards, whatever the driver: it holds none for them, and no PTX."""
    if not code.architectures:
        return []
    return [
        f"the engine holds code for architectures {', '.join(code.architectures)}, and {card.name} is "
        f"{images.architecture(card.compute_capability)}. Fix: {code.other}, or compile it for this card"
        for card in cards
        if images.architecture(card.compute_capability) not in code.architectures
    ]


def driver_faults(code: Code, machine: Machine, cards: tuple[Gpu, ...], catalog: Catalog) -> list[str]:
    """
    Why the host's driver cannot run an engine's code on these cards.

    A driver runs code of its own major version, older or newer, as long as that was compiled for the very card:
    NVIDIA's minor version compatibility. There is no forward compatibility on GeForce. What we compile holds no PTX.
    """
    if not machine.driver_cuda or not cards:
        return []
    for card in cards:
        known = next(
            (gpu for gpu in catalog.gpus.values() if gpu.compute_capability == card.compute_capability), None
        )
        if known is not None and version(machine.driver_cuda) < version(known.min_cuda):
            return [
                f"the driver {machine.driver} speaks CUDA {machine.driver_cuda}, and {card.name} (compute capability "
                f"{card.compute_capability}) wants {known.min_cuda} or newer: no CUDA is right for both. "
                f"Fix: {_newer_driver(machine)}"
            ]
    if code.cuda is not None and version(code.cuda)[0] > version(machine.driver_cuda)[0]:
        return [
            f"the driver {machine.driver} speaks CUDA {machine.driver_cuda}, and the engine is compiled with CUDA "
            f"{code.cuda}. Fix: {_newer_driver(machine)}, or {code.other}"
        ]
    return []


def _newer_driver(machine: Machine) -> str:
    if machine.provider or machine.virtualisation in ("docker", "podman", "lxc"):
        return "take another host: its driver is not ours to update"
    return "update the NVIDIA driver"


def compiler_faults(machine: Machine, cards: tuple[Gpu, ...], catalog: Catalog) -> list[str]:
    """Why the host's nvcc cannot compile for these cards."""
    if not machine.nvccs:
        return []  # that there is none is told where the tools are looked for
    nvcc = machine.nvccs[0]
    found = []
    for card in cards:
        name = images.architecture(card.compute_capability)
        if nvcc.architectures and name not in nvcc.architectures:
            known = next(
                (gpu for gpu in catalog.gpus.values() if gpu.compute_capability == card.compute_capability), None
            )
            wanted = f"; CUDA {known.min_cuda} or newer does" if known else ""
            found.append(
                f"{card.name} is architecture {name}, which {nvcc.path} (CUDA {nvcc.version}) does not know{wanted}. "
                "Fix: install a newer CUDA toolkit, or take an image or a release instead of compiling here"
            )
    newest = _newest_gxx(nvcc)
    if _is_too_new(machine, nvcc) and host_compiler(machine) is None:
        what = f"c++ is version {machine.cxx}"
        if not machine.cxx:
            what = f"there is no c++ here, the distribution's is version {cxx_of(machine)}"
        found.append(
            f"{what}, and CUDA {nvcc.version} takes {newest} at most. "
            f"Fix: install g++-{newest} (it is found beside c++), or install a newer CUDA toolkit"
        )
    return found


def host_compiler(machine: Machine) -> Gxx | None:
    """The newest C++ compiler that the host's nvcc takes, where its own c++ is too new for it; None to take that."""
    if not machine.nvccs or not _is_too_new(machine, machine.nvccs[0]):
        return None
    taken = [gxx for gxx in machine.gxxs if gxx.version and version(gxx.version)[0] <= _newest_gxx(machine.nvccs[0])]
    return max(taken, key=lambda gxx: version(gxx.version), default=None)


def _is_too_new(machine: Machine, nvcc: Nvcc) -> bool:
    newest, cxx = _newest_gxx(nvcc), cxx_of(machine)
    return bool(newest and cxx and version(cxx)[0] > newest)


def cxx_of(machine: Machine) -> str:
    """The version of the host's c++, or of what a deploy would install there; empty where nobody knows."""
    release = (machine.distribution, machine.release)
    return machine.cxx or machine.cxx_candidate or GXX_OF.get(release, "")


def _newest_gxx(nvcc: Nvcc) -> int:
    """The newest GCC that it takes; 0 where that is not known."""
    return next((gxx for cuda, gxx in sorted(NEWEST_GXX.items(), reverse=True) if _at_least(nvcc.version, cuda)), 0)


def _at_least(found: str, wanted: str) -> bool:
    return version(found)[:2] >= version(wanted)


def version(text: str) -> tuple[int, ...]:
    """Numbers to compare: 12.8 is older than 12.10."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def draft_kind(draft: Gguf) -> str:
    """What kind of drafter a header describes; a model that drafts nothing is called by its architecture."""
    if draft.architecture != "dflash" or draft.drafter is None:
        return draft.architecture
    return {"early": "dflash, early schema", "dflash-2": DFLASH_2, "dspark": "DSpark"}[draft.drafter]


def pair_faults(spec: ServerSpec) -> list[str]:
    """Why a model and its drafter do not go together on an engine, as far as their headers say."""
    if spec.draft is None or spec.draft.lock is None or spec.draft.lock.gguf is None:
        return []
    draft = spec.draft.lock.gguf
    model = spec.model.lock.gguf if spec.model.lock else None
    found = []
    if model is not None and model.architecture.startswith("dflash"):
        return [
            f"{spec.model.file} is a drafter ({model.architecture}), and {spec.draft.file} is a "
            f"{draft.architecture}: they are swapped. Fix: swap model and draft_model in presets/servers.yaml"
        ]
    kind, reads = draft_kind(draft), READ_DRAFTS[spec.engine.dialect]
    reads += (DFLASH_2,) if spec.engine.reads_dflash_2 else ()
    if kind not in reads:
        found.append(
            f"{spec.draft.file} is a {kind} drafter; {spec.engine.title} reads {' and '.join(reads)}. "
            f"Fix: {_other_format(kind)}"
        )
    if model is None or model.vocabulary is None or draft.vocabulary is None:
        return found
    if (model.words, model.vocabulary) != (draft.words, draft.vocabulary):
        found.append(
            f"{spec.draft.file} has another vocabulary ({draft.words} words, {draft.vocabulary}) than "
            f"{spec.model.file} ({model.words} words, {model.vocabulary}): its drafts would be nonsense. "
            "Fix: take the drafter that was made for this model"
        )
    return found


def _other_format(kind: str) -> str:
    if kind in READ_DRAFTS["guide"]:
        return f"convert it with {CONVERTER}, or set llama_engine to a BeeLlama of v0.2 or v0.3"
    if kind == DFLASH_2:
        return (
            "take a plain DFlash drafter of this model, or an engine that reads DFlash 2 (BeeLlama from v0.4.4, "
            "llama.cpp from 2026-08-27), with reads_dflash_2: true in presets/engines.yaml"
        )
    return "take a drafter in a format that it reads, or set llama_engine to one that reads this"


def docker_faults(engine: DockerState, *, wants_gpu: bool) -> list[str]:
    """Why a host's Docker cannot run our containers, each with its Fix; what is missing altogether comes alone."""
    if not engine.command:
        return [
            "Docker is not installed, which runtime compose wants. Fix: set llama_docker to distribution or "
            "docker.com, or llama_runtime to systemd"
        ]
    if engine.is_snap:
        return [
            "Docker is installed from snap, which NVIDIA's container toolkit does not support. Fix: snap remove "
            "docker, and set llama_docker to distribution or docker.com"
        ]
    if not engine.version:
        return [
            f"the Docker Engine does not answer: {engine.silent or 'no reason given'}. "
            "Fix: systemctl status docker; journalctl -u docker"
        ]
    found = []
    if _major(engine.version) < LEAST_ENGINE:
        found.append(
            f"Docker Engine {engine.version} is too old; {LEAST_ENGINE} or newer is wanted. "
            "Fix: upgrade it; Docker's own repository has one for this release (llama_docker: docker.com)"
        )
    if _major(engine.compose) < LEAST_COMPOSE:
        found.append(
            f"docker compose is {engine.compose or 'missing'}; version {LEAST_COMPOSE} or newer is wanted. "
            "Fix: install docker-compose-plugin (Docker's repository), docker-compose-v2 (Ubuntu) or docker-compose "
            "(Debian 13)"
        )
    if wants_gpu and "nvidia" not in engine.runtimes and not engine.has_cdi:
        found.append(
            "Docker has no access to the NVIDIA card: docker info lists no nvidia runtime, and there is no CDI "
            "description of it. Fix: set llama_nvidia_toolkit to install, or install nvidia-container-toolkit, run "
            "`nvidia-ctk runtime configure --runtime=docker` and restart docker"
        )
    return found


def _major(version: str) -> int:
    digits = version.removeprefix("v").partition(".")[0]
    return int(digits) if digits.isdigit() else 0
