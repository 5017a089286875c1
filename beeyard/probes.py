"""What hosts said of themselves, as far as it stands for or against a deploy."""

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12


class Probe(TypedDict):
    """
    What a deploy must know of a host besides its hardware, before it changes anything.

    ``first_free_port`` is the lowest that a user who is not root may listen on; ``listener_pid`` holds the wanted
    port: None where nobody does, 0 where it cannot be seen who; ``held_engine`` is what a pod's image says of its
    engine.
    """

    has_apt: bool
    python: str
    curl: str
    prefix_parent: str
    prefix_writable: bool
    held_engine: dict[str, str] | None
    first_free_port: int
    listener_pid: int | None
    listener: str


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
    # Whether the firmware wants modules signed, and the key that signs those that are built there, once enrolled.
    secure_boot: bool
    enrolled_key: str
