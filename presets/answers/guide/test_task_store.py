"""What prompt `task-store` of workload `guide` asks for; `answer` is the module that a model wrote."""

import dataclasses

import answer
import pytest


@pytest.fixture
def store():
    made = answer.TaskStore()
    for title in ("first", "second", "third"):
        made.add(title)
    return made


def ids(tasks):
    return [task.id for task in tasks]


def id_of(added):
    return getattr(added, "id", added)


def test_all_names_the_two():
    assert sorted(answer.__all__) == ["Task", "TaskStore"]


def test_a_task_is_a_dataclass_with_these_fields():
    fields = [field.name for field in dataclasses.fields(answer.Task)]
    assert fields == ["id", "title", "status", "created_at"]


def test_ids_start_at_1_and_increase():
    made = answer.TaskStore()
    assert [id_of(made.add(title)) for title in ("a", "b")] in ([1, 2], [None, None])
    assert ids(made.list_all()) == [1, 2]


def test_a_task_is_found_by_its_id(store):
    task = store.get(2)
    assert (task.id, task.title, task.status) == (2, "second", "open")
    assert isinstance(task.created_at, str)


def test_a_task_can_be_renamed(store):
    store.rename(1, "other")
    assert store.get(1).title == "other"
    assert store.titles() == ["other", "second", "third"]


def test_done_and_open_are_told_apart(store):
    store.mark_done(3)
    store.mark_done(1)
    assert (ids(store.list_open()), ids(store.list_done())) == ([2], [1, 3])
    assert (store.count_open(), store.count_done()) == (1, 2)
    store.reopen(3)
    assert (ids(store.list_open()), ids(store.list_done())) == ([2, 3], [1])
    assert {task.status for task in store.list_all()} == {"open", "done"}


def test_a_deleted_task_is_gone(store):
    store.delete(2)
    assert ids(store.list_all()) == [1, 3]
    assert (len(store), 2 in store, 3 in store) == (2, False, True)


def test_a_cleared_store_is_empty(store):
    store.clear()
    assert (len(store), list(store.list_all()), store.titles()) == (0, [], [])


def test_dictionaries_are_sorted_and_whole(store):
    store.mark_done(2)
    found = store.to_dicts()
    assert [(one["id"], one["title"], one["status"]) for one in found] == [
        (1, "first", "open"),
        (2, "second", "done"),
        (3, "third", "open"),
    ]
    assert all(set(one) == {"id", "title", "status", "created_at"} for one in found)


def test_an_empty_title_is_refused(store):
    with pytest.raises(ValueError):
        store.add("")
    with pytest.raises(ValueError):
        store.rename(1, "")


@pytest.mark.parametrize("method", ["get", "mark_done", "reopen", "delete"])
def test_a_missing_task_is_refused(store, method):
    with pytest.raises(ValueError):
        getattr(store, method)(99)


def test_a_missing_task_cannot_be_renamed(store):
    with pytest.raises(ValueError):
        store.rename(99, "x")
