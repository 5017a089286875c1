"""What hosts said of themselves, as far as it stands for or against a deploy."""

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12


class Probe(TypedDict):
    """What a deploy must know of a host before it changes anything."""

    is_root: bool
    has_systemd: bool
    has_apt: bool
    python: str
    curl: str
    cpu_flags: list[str]
    memlock_kib: int | None
    prefix_parent: str
    prefix_writable: bool
    free_bytes: int
    has_nvidia_smi: bool
    compute_capabilities: list[str]
    held_engine: dict[str, str] | None
    first_free_port: int
    listener_pid: int | None
    listener: str


class DockerProbe(TypedDict):
    """
    A host's Docker Engine. ``version`` is empty where none answers, and ``silent`` then says why.

    ``free_bytes`` is what is free where it keeps its data.
    """

    command: str
    is_snap: bool
    candidate: str
    distribution: str
    codename: str
    has_toolkit: bool
    compose: str
    buildx: str
    version: str
    silent: str
    runtimes: list[str]
    has_cdi: bool
    root: str
    keeps_layers_apart: bool
    free_bytes: int
