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
