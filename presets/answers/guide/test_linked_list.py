"""
What prompt `linked-list` of workload `guide` asks for; `answer` is the module that a model wrote.

The prompt names methods alone. So the class is the one that has them, and what they leave open is left open here:
whether an index or a value comes first, whether `length` and `is_empty` are called, what `find` and `remove_at`
return.
"""

import inspect

import answer
import pytest

METHODS = ("append", "prepend", "insert_at", "remove_at", "find", "reverse", "to_list", "length", "is_empty")


def the_class():
    found = [
        one
        for one in vars(answer).values()
        if inspect.isclass(one) and one.__module__ == answer.__name__ and all(hasattr(one, name) for name in METHODS)
    ]
    assert found, f"no class has {', '.join(METHODS)}"
    return found[0]


@pytest.fixture
def filled():
    made = the_class()()
    for value in ("a", "b", "c"):
        made.append(value)
    return made


def told(made, name):
    found = getattr(made, name)
    return found() if callable(found) else found


def insert(made, index, value):
    first = next(iter(inspect.signature(made.insert_at).parameters))
    is_index_first = first.startswith(("i", "pos"))
    made.insert_at(*((index, value) if is_index_first else (value, index)))


def test_a_new_list_is_empty():
    made = the_class()()
    assert (list(made.to_list()), told(made, "length"), told(made, "is_empty")) == ([], 0, True)


def test_values_are_appended_in_order(filled):
    assert list(filled.to_list()) == ["a", "b", "c"]
    assert (told(filled, "length"), told(filled, "is_empty")) == (3, False)


def test_values_are_put_before_the_first(filled):
    filled.prepend("z")
    assert list(filled.to_list()) == ["z", "a", "b", "c"]


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_value_is_put_at_an_index(filled, index):
    insert(filled, index, "x")
    wanted = ["a", "b", "c"]
    wanted.insert(index, "x")
    assert list(filled.to_list()) == wanted
    assert told(filled, "length") == 4


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_value_is_removed_at_an_index(filled, index):
    filled.remove_at(index)
    wanted = ["a", "b", "c"]
    del wanted[index]
    assert list(filled.to_list()) == wanted
    # The ends are linked anew, too.
    filled.append("y")
    filled.prepend("x")
    assert list(filled.to_list()) == ["x", *wanted, "y"]


def test_the_last_one_can_be_removed():
    made = the_class()()
    made.append("a")
    made.remove_at(0)
    assert (list(made.to_list()), told(made, "is_empty")) == ([], True)
    made.prepend("b")
    assert list(made.to_list()) == ["b"]


@pytest.mark.parametrize("index", [3, 100])
def test_nothing_is_removed_behind_the_end(filled, index):
    try:
        filled.remove_at(index)
    except (IndexError, ValueError):
        pass
    assert list(filled.to_list()) == ["a", "b", "c"]


def test_what_is_there_is_told_from_what_is_not(filled):
    try:
        missing = filled.find("nothing")
    except (ValueError, KeyError, LookupError):
        missing = "refused"
    assert filled.find("b") != missing


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_a_list_is_reversed(size):
    made = the_class()()
    for value in range(size):
        made.append(value)
    returned = made.reverse()
    found = made if returned is None or returned is made else returned
    assert list(found.to_list()) == list(reversed(range(size)))
    found.append("end")
    found.prepend("start")
    assert list(found.to_list()) == ["start", *reversed(range(size)), "end"]


def test_it_can_be_iterated(filled):
    found = iter(filled) if hasattr(filled, "__iter__") else filled.iter()
    assert list(found) == ["a", "b", "c"]
