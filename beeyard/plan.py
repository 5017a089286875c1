"""A solution as people read it. Pure."""

from beeyard.solution import Solution


def report(solution: Solution, *, is_full: bool = True) -> list[str]:
    """
    What a host will run and why; the reasons against it are told by themselves.

    :param is_full: with the table of memory
    """
    lines = [_verdict(solution)] if solution.spec else []
    lines += [f"{found.what}: {found.value} ({found.why})" for found in solution.decisions]
    lines += solution.memory.splitlines() if solution.memory and is_full else []
    return [*lines, *(f"note: {note}" for note in solution.notes)]


def _verdict(solution: Solution) -> str:
    spec = solution.spec
    assert spec is not None  # noqa: S101 -- report saw to it
    what = f"{spec.preset}, variant {spec.variant}, on {spec.engine.title} ({spec.runtime})"
    if solution.fits:
        return f"{what} can run here"
    count = len(solution.reasons)
    return f"{what} cannot run here, for {count} reason{'' if count == 1 else 's'}"
