"""Which answers' code is tried, and what a record says where none can be; tests/image tries real ones."""

from pathlib import Path
from typing import Any

import pytest

from beeyard.bench import tried
from beeyard.bench.record import Asked, Record, TriedAnswer
from beeyard.bench.report import report_of
from beeyard.bench.sandbox import Docker, SandboxError
from beeyard.bench.tables import right_table
from beeyard.bench.together import together
from beeyard.bench.verdicts import Counts, Verdict
from beeyard.catalog import PRESETS
from tests.records import record, request


def answered(**fields: Any) -> Record:
    good = {
        "workload": "guide",
        "prompt": "task-store",
        "text": "```python\nclass A: ...\n```",
        "finish_reason": "stop",
    }
    one = request(**{**good, **fields})
    asked = Asked(workload="guide", prompt=one.prompt, sha256="0" * 64, max_tokens=64, temperature=0.7)
    return record(one, prompts=(asked,))


def test_without_a_sandbox_the_record_says_why_and_is_else_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: object) -> None:
        raise SandboxError("there is nothing here. Fix: docker pull python")

    monkeypatch.setattr(tried, "find_sandbox", none)
    before = answered()
    found = tried.with_tests(before, [PRESETS], ["python:3.13-slim"], lambda _: None)
    assert found.notes == ("the code in the answers was not tried: there is nothing here. Fix: docker pull python",)
    assert found.model_copy(update={"notes": ()}) == before


@pytest.mark.parametrize(
    "fields", [{"prompt": "bees"}, {"text": None}, {"fault": "cut. Fix: again"}, {"is_scored": False}]
)
def test_where_nothing_is_to_be_tried_no_sandbox_is_looked_for(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tried, "find_sandbox", lambda _: pytest.fail("looked for one"))
    before = answered(**fields)
    assert tried.with_tests(before, [PRESETS], [], lambda _: None) == before


def test_a_good_answer_is_tried_with_our_tests_and_the_report_has_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[str], bool]] = []

    def judge(text: str, tests: dict[str, str], _: object, *, is_cut: bool) -> Verdict:
        seen.append((text, list(tests), is_cut))
        return Verdict(outcome="failed", reason="1 of 4 tests failed", ours=Counts(passed=3, failed=1), is_cut=is_cut)

    monkeypatch.setattr(tried, "find_sandbox", lambda _: Docker("29", "python:3.13-slim", "sha256:1"))
    monkeypatch.setattr(tried, "judge", judge)
    told: list[TriedAnswer] = []
    found = tried.with_tests(answered(finish_reason="length"), [PRESETS], ["python:3.13-slim"], told.append)
    assert seen == [("```python\nclass A: ...\n```", ["test_task_store.py"], True)]
    assert found.tests_passed == tuple(told)
    assert found.sandbox is not None
    assert found.sandbox.image_id == "sha256:1"
    assert tried.said_of(told[0]).endswith("round 1: failed, 3 of 4 tests passed: 1 of 4 tests failed")
    (row,) = right_table(report_of(together([("a", found)]))).rows
    assert row[1:] == (
        "tests of the code that it wrote",
        "0 of 1 answers passed (0%); 1 failed, 1 of those cut by the limit of tokens",
    )


def test_our_tests_are_found_by_the_prompts_name() -> None:
    assert {path.name for path in (Path(PRESETS) / "answers" / "guide").glob("test_*.py")} == {
        "test_kv_report.py", "test_linked_list.py", "test_task_store.py",
    }  # fmt: skip
