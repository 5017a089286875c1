"""Modules in answers as models really write them, and the reason where there is none."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beeyard.bench import answers
from beeyard.bench.answers import Extracted, extract, without_reasoning

CODE = "class Bee:\n    def fly(self):\n        return 1\n"
MORE = "def test_bee():\n    assert Bee().fly() == 1\n"


def fenced(code: str, language: str = "python", fence: str = "```") -> str:
    body = code.rstrip("\n")
    return f"{fence}{language}\n{body}\n{fence}\n"


@pytest.mark.parametrize(
    "answer",
    [
        CODE,
        f"\n\n{CODE}\n",
        fenced(CODE),
        fenced(CODE, "py"),
        fenced(CODE, "Python3"),
        fenced(CODE, "{.python}"),
        fenced(CODE, 'python title="bee.py"'),
        fenced(CODE, "python:bee.py"),
        fenced(CODE, ""),
        fenced(CODE, "python", "~~~"),
        fenced(CODE, "python", "````"),
        f"Sure! Here it is:\n\n{fenced(CODE)}\nHope it helps, and `Bee().fly()` flies.",
        f"Install it:\n{fenced('pip install bee', 'bash')}\n{fenced(CODE)}\nIt prints:\n{fenced('1', 'text')}",
        f"<think>\nA bee... {fenced('class Wrong: pass')}\n</think>\n{fenced(CODE)}",
        f"First I think.\n</think>\n\n{fenced(CODE)}",
        f"<|channel>thought\nHm. {fenced('class Wrong: pass')}<channel|>{CODE}",
        f"1. The module:\n\n   {fenced(CODE).strip().replace(chr(10), chr(10) + '   ')}\n\n2. That is all.",
    ],
)
def test_the_module_is_found(answer: str) -> None:
    found = extract(answer)
    assert found.source is not None, found
    assert found.source.strip() == CODE.strip()
    assert not found.is_cut


def test_several_blocks_are_one_module_in_their_order() -> None:
    found = extract(f"{fenced(CODE)}\nThe tests:\n{fenced(MORE)}")
    assert found.source == f"{CODE}\n{MORE}"
    assert found.reason == "2 Python blocks"


def test_a_fence_inside_a_string_ends_no_block_of_a_longer_fence() -> None:
    code = 'TEXT = """\n```python\nx\n```\n"""\n' + CODE
    assert extract(fenced(code, "python", "````")).source == code


def test_tests_may_import_the_module_by_a_name_that_nobody_has() -> None:
    tests = "import os\nfrom os import path\nfrom bee_hive import Bee\nfrom pytest import raises\n"
    found = extract(f"{fenced(CODE)}{fenced(tests + MORE)}")
    assert found.other_names == ("bee_hive",)
    assert extract(fenced("from numpy import array\n" + CODE)).other_names == ()
    assert extract(fenced("from ..escape import Bee\n" + CODE)).other_names == ()
    assert extract(fenced("from answer import Bee\n" + CODE)).other_names == ()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "is empty"),
        ("Bees fly.", "no code block, and is no Python as a whole (line 1: "),
        ("bees", "defines no class or function"),
        (fenced("ls", "bash") + fenced("{}", "json"), "none of its 2 code blocks is Python (bash, json)"),
        (fenced("bees fly", ""), "none of its 1 code block is Python (no language)"),
        (fenced("class Bee:\ndef"), "1 Python block cannot be parsed: line 2: "),
        (fenced("# nothing"), "says nothing but comments"),
        ("<think>\nbees " + fenced(CODE), "inside of its reasoning"),
        (fenced("x = 1\0\n" + CODE), "cannot be parsed"),
        (fenced("(" * 5000), "cannot be parsed"),
        (fenced("x = " + "-" * 100_000 + "1\n"), "cannot be parsed"),
        ("x" * (answers.LONGEST + 1), "more than the 262144"),
    ],
)
def test_why_there_is_none_is_said(answer: str, reason: str) -> None:
    found = extract(answer)
    assert found.source is None
    assert reason in found.reason, found.reason


def test_a_block_without_its_closing_fence_is_whole_if_the_model_ended_by_itself() -> None:
    found = extract(fenced(CODE).removesuffix("```\n"))
    assert (found.source, found.is_cut) == (CODE, False)
    assert found.reason == "1 Python block, the last one without its closing fence"


@pytest.mark.parametrize("start", ["```python\n", ""])
def test_of_an_answer_that_was_cut_whole_statements_are_kept(start: str) -> None:
    found = extract(f"{start}{CODE}\n\n{MORE}\n\ndef test_other():\n    assert Be", is_cut=True)
    assert found.source is not None
    assert found.is_cut
    assert [getattr(node, "name", "") for node in ast.parse(found.source).body][:2] == ["Bee", "test_bee"]
    assert "test_other" not in found.source or found.dropped_lines == 0


def test_what_was_dropped_of_a_cut_answer_is_counted() -> None:
    found = extract(f"```python\n{CODE}def half(\n    x,\n    y", is_cut=True)
    assert (found.source, found.is_cut, found.dropped_lines) == (CODE, True, 3)
    assert found.reason == "1 Python block, whose tokens ran out; its last 3 lines left out"


def test_a_cut_answer_without_a_whole_class_has_no_module() -> None:
    found = extract("```python\nimport os\n\nclass Bee:\n    def fly(self", is_cut=True)
    assert (found.source, found.is_cut) == (None, True)
    assert found.reason == "tokens ran out before 1 Python block had a whole class or function"


def test_an_answer_that_was_cut_behind_its_code_has_all_of_it() -> None:
    found = extract(fenced(CODE) + "This module is", is_cut=True)
    assert (found.source, found.is_cut) == (CODE, False)
    also = extract(fenced(CODE) + fenced("pip inst", "bash").removesuffix("```\n"), is_cut=True)
    assert (also.source, also.is_cut) == (CODE, False)


def test_a_cut_answer_with_many_lines_is_looked_at_in_time() -> None:
    text = "```python\nclass (\n" + "x\n" * 100_000
    assert extract(text, is_cut=True).source is None


def test_reasoning_further_on_is_the_answers_own() -> None:
    text = f"{fenced(CODE)}\nModels write <think> and </think>."
    assert without_reasoning(text) == (text, False)
    assert extract(text).source == CODE


@given(st.text(alphabet="`~<>/thinkpyo\n :=()#\"'|clas", max_size=200), st.booleans())
def test_whatever_comes_the_same_is_found_and_it_parses(text: str, is_cut: bool) -> None:
    found = extract(text, is_cut=is_cut)
    assert found == extract(text, is_cut=is_cut)
    assert found.reason
    if found.source is not None:
        ast.parse(found.source)
    assert Extracted.model_validate_json(found.model_dump_json()) == found
