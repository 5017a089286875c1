"""The modules in a record's answers, tried one after the other once nothing is measured any more."""

from collections.abc import Callable, Sequence
from pathlib import Path

from beeyard.bench.record import Record, TriedAnswer
from beeyard.bench.sandbox import DEFAULT, SandboxError, find_sandbox, judge, our_tests, surroundings

CUT = "length"


def with_tests(
    record: Record, folders: Sequence[Path], images: Sequence[str], tell: Callable[[TriedAnswer], None]
) -> Record:
    """
    The record with what came of every good answer to a prompt that we have tests for; unchanged where there is none.

    :param folders: of presets, with the tests below ``answers``
    :param images: see ``find_sandbox``
    :param tell: is called with each answer as soon as it was tried
    """
    asked = [
        (one, our_tests(one.workload, one.prompt, folders)) for one in record.requests if one.counts and one.text
    ]
    wanted = [(one, tests) for one, tests in asked if tests]
    if not wanted:
        return record
    try:
        sandbox = find_sandbox(images)
        found = []
        for one, tests in wanted:
            verdict = judge(one.text or "", tests, sandbox, is_cut=one.finish_reason == CUT)
            found.append(
                TriedAnswer(
                    variant=one.variant, workload=one.workload, prompt=one.prompt, round=one.round, verdict=verdict
                )
            )
            tell(found[-1])
    except SandboxError as error:
        return record.model_copy(update={"notes": (*record.notes, f"the code in the answers was not tried: {error}")})
    return record.model_copy(
        update={"tests_passed": tuple(found), "sandbox": surroundings(sandbox, DEFAULT)}
    )  # fmt: skip


def said_of(one: TriedAnswer) -> str:
    """One of them in a line."""
    verdict = one.verdict
    counts = verdict.own.passed + verdict.ours.passed, verdict.own.failed + verdict.ours.failed
    tests = f", {counts[0]} of {sum(counts)} tests passed" if sum(counts) else ""
    name = f"{one.variant} {one.workload}/{one.prompt}, round {one.round}"
    return f"{name}: {verdict.outcome.replace('_', ' ')}{tests}: {verdict.reason}"
