"""What comes out of solving for a host, and what goes in beside its data and its facts. Pure."""

from typing import Any, NamedTuple

from beeyard.catalog import Strict
from beeyard.spec import ServerSpec

# What leaves a choice to the solver.
AUTO = "auto"


class Decision(Strict):
    """Something that was decided, and why."""

    what: str
    value: str
    why: str


class Solution(Strict):
    """The spec that a host gets, with what was decided for it; or reasons why it cannot have it, each with a Fix."""

    spec: ServerSpec | None = None
    decisions: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    # What it takes of the cards and of the host, as a table.
    memory: str | None = None
    # The decisions as a host's data has them: with these, resolve() makes the same spec.
    decided: dict[str, Any] = {}

    @property
    def fits(self) -> bool:
        """Whether nothing stands against it."""
        return self.spec is not None and not self.reasons


class Own(NamedTuple):
    """What our own server holds on the host, and a new one will have: processes, memory of the card and the host."""

    pids: tuple[int, ...] = ()
    vram_mib: int = 0
    resident_mib: int = 0


class Kept(NamedTuple):
    """What was decided for the server that the host has, and what that serves."""

    of: str = ""
    context: int | None = None


NOTHING, NEVER = Own(), Kept()


class Found:
    """What comes together on the way to a solution."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.notes: list[str] = []
        self.reasons: list[str] = []
        self.decided: dict[str, Any] = {}
        self.memory: str | None = None

    def decide(self, what: str, value: str, why: str, **decided: Any) -> None:
        """Keep a decision; ``decided`` is what of a host's data would say the same."""
        self.decisions.append(Decision(what=what, value=value, why=why))
        self.decided.update({f"llama_{key}": given for key, given in decided.items()})

    def solution(self, spec: ServerSpec | None) -> Solution:
        """All of it, for this spec."""
        return Solution(
            spec=spec, decisions=tuple(self.decisions), notes=tuple(self.notes), reasons=tuple(self.reasons),
            decided=self.decided, memory=self.memory,
        )  # fmt: skip
