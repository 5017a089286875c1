"""What prompt `kv-report` of workload `guide` asks for; `answer` is the module that a model wrote."""

import dataclasses

import answer
import pytest

ROWS = [("beta", "2"), ("alpha", "1"), ("alphabet", "3")]


@pytest.fixture
def report():
    made = answer.Report()
    for key, value in ROWS:
        made.add(key, value)
    return made


def pairs(rows):
    return [(row.key, row.value) if hasattr(row, "key") else tuple(row) for row in rows]


def test_all_names_the_two():
    assert sorted(answer.__all__) == ["Report", "Row"]


def test_a_row_is_a_dataclass_with_these_fields():
    assert [field.name for field in dataclasses.fields(answer.Row)] == ["key", "value"]


def test_rows_keep_their_order(report):
    assert list(report.keys()) == ["beta", "alpha", "alphabet"]
    assert list(report.values()) == ["2", "1", "3"]
    assert pairs(report.items()) == ROWS


def test_a_value_is_found_by_its_key(report):
    assert report.get("alpha") == "1"
    assert ("alpha" in report, "gamma" in report, len(report)) == (True, False, 3)


def test_set_updates_or_appends(report):
    report.set("alpha", "9")
    report.set("gamma", "4")
    assert pairs(report.items()) == [("beta", "2"), ("alpha", "9"), ("alphabet", "3"), ("gamma", "4")]


def test_a_deleted_row_is_gone(report):
    report.delete("alpha")
    assert list(report.keys()) == ["beta", "alphabet"]


def test_a_cleared_report_is_empty(report):
    report.clear()
    assert (len(report), list(report.keys())) == (0, [])


def test_rows_are_sorted_by_key(report):
    assert pairs(report.sorted_rows()) == sorted(ROWS)


def test_lines_and_text_are_key_and_value(report):
    lines = list(report.render_lines())
    assert sorted(lines) == ["alpha: 1", "alphabet: 3", "beta: 2"]
    assert report.render_text() == "\n".join(lines)


def test_csv_has_a_header(report):
    text = report.render_csv()
    lines = text.splitlines() if isinstance(text, str) else list(text)
    assert lines[0] == "key,value"
    assert sorted(lines[1:]) == ["alpha,1", "alphabet,3", "beta,2"]


def test_a_prefix_filters_and_counts(report):
    found = report.filter_prefix("alpha")
    assert isinstance(found, answer.Report)
    assert sorted(found.keys()) == ["alpha", "alphabet"]
    assert report.count_prefix("alpha") == 2
    assert len(report) == 3


def test_many_are_set_in_the_order_of_their_keys(report):
    report.update_many({"zeta": "7", "delta": "6", "beta": "5"})
    assert pairs(report.items()) == [("beta", "5"), *ROWS[1:], ("delta", "6"), ("zeta", "7")]


def test_a_dictionary_is_sorted(report):
    assert list(report.to_dict().items()) == sorted(ROWS)


def test_a_copy_is_another_report_with_the_same_rows(report):
    other = report.copy()
    assert pairs(other.items()) == ROWS
    other.set("beta", "0")
    other.delete("alpha")
    assert pairs(report.items()) == ROWS


def test_the_first_key_is_known_or_refused(report):
    assert report.first_key() in ("beta", "alpha")
    with pytest.raises(ValueError):
        answer.Report().first_key()


@pytest.mark.parametrize("key", ["", "alpha"])
def test_an_empty_or_known_key_cannot_be_added(report, key):
    with pytest.raises(ValueError):
        report.add(key, "x")


@pytest.mark.parametrize("method", ["get", "delete"])
def test_a_missing_key_is_refused(report, method):
    with pytest.raises(ValueError):
        getattr(report, method)("gamma")
