"""What came of the modules that models wrote, and how many of a variant's passed their tests. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from pydantic import Field

from beeyard.catalog import Strict

# ``no_module``: the answer held none. ``refused``: nothing was tried, so it counts for nobody and against nobody.
Outcome = Literal["passed", "failed", "crashed", "timed_out", "no_module", "refused"]


class Counts(Strict):
    """How many tests passed and failed; a file that could not be imported is one that failed."""

    passed: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)


class Verdict(Strict):
    """
    What came of one answer's module.

    ``own`` are the tests that the model wrote, ``ours`` those of the workload; it passed if there were any and all of
    them passed. ``lines`` are the last ones that the tests printed: the model's words, to be shown as text and never
    as anything else. ``seconds`` is the time in the sandbox, ``python`` the version there.
    """

    outcome: Outcome
    reason: str
    own: Counts = Counts()
    ours: Counts = Counts()
    is_cut: bool = False
    seconds: float = Field(default=0, ge=0)
    python: str = ""
    lines: tuple[str, ...] = ()


class PassRate(Strict):
    """
    How many modules passed, of those that were tried.

    ``tried`` leaves out what was refused; ``share`` is passed/tried from 0 to 1, None where none was tried. ``cut``
    counts those among the tried whose tokens ran out, which says more of the limit than of the model.
    """

    tried: int
    passed: int
    share: float | None
    cut: int
    outcomes: dict[Outcome, int]


def pass_rate(verdicts: Sequence[Verdict]) -> PassRate:
    """The pass rate of these."""
    counted = Counter(one.outcome for one in verdicts)
    tried = len(verdicts) - counted["refused"]
    return PassRate(
        tried=tried,
        passed=counted["passed"],
        share=counted["passed"] / tried if tried else None,
        cut=sum(one.is_cut for one in verdicts if one.outcome != "refused"),
        outcomes={outcome: counted[outcome] for outcome in get_args(Outcome) if counted[outcome]},
    )


def pass_rates(verdicts: Mapping[str, Sequence[Verdict]]) -> dict[str, PassRate]:
    """The pass rate of each variant, by name."""
    return {variant: pass_rate(given) for variant, given in verdicts.items()}
