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


class DriverProbe(TypedDict):
    """
    An NVIDIA driver, or what could give a host one.

    ``container`` is its kind, empty for none; ``cards`` are the PCI device numbers of its NVIDIA cards, of four hex
    digits; ``installed`` and ``offers`` are packages with their versions; ``images`` are the kernels' metapackages.
    """

    is_root: bool
    has_apt: bool
    works: bool
    has_nvidia_smi: bool
    container: str
    distribution: str
    release: str
    architecture: str
    kernel: str
    cards: list[str]
    components: list[str]
    images: list[str]
    installed: dict[str, str]
    # Whether the host was booted since the driver was installed.
    booted_since: bool
    offers: dict[str, str]
    recommended: str
