"""What went wrong for people who did this by hand: each has a test that says so."""

import re

from beeyard.catalog import PROJECT

TESTS = PROJECT / "tests"


def test_every_case_of_the_docs_has_a_test_and_the_other_way_round() -> None:
    documented = re.findall(r"^\| ([A-Z]{2,3}-\d\d) \|", (PROJECT / "docs" / "testing.md").read_text(), re.MULTILINE)
    marks = (re.findall(r"mark\.case\(([^)]*)\)", file.read_text()) for file in TESTS.rglob("test_*.py"))
    marked = {case for some in marks for mark in some for case in re.findall(r'"([A-Z]{2,3}-\d\d)"', mark)}
    assert len(documented) == len(set(documented))
    assert set(documented) == marked
