"""Modules as a good model answers the guide's three coding prompts, and ways to get each of them wrong."""

TASK_STORE = """
from dataclasses import dataclass
from datetime import datetime
from typing import Dict, List


@dataclass
class Task:
    id: int
    title: str
    status: str
    created_at: str


class TaskStore:
    def __init__(self) -> None:
        self._tasks: Dict[int, Task] = {}
        self._next_id = 1

    def _check(self, task_id: int) -> Task:
        if task_id not in self._tasks:
            raise ValueError("missing task id")
        return self._tasks[task_id]

    def add(self, title: str) -> Task:
        if not title:
            raise ValueError("empty title")
        task = Task(self._next_id, title, "open", datetime(2024, 1, 1).isoformat())
        self._tasks[task.id] = task
        self._next_id += 1
        return task

    def get(self, task_id: int) -> Task:
        return self._check(task_id)

    def rename(self, task_id: int, title: str) -> None:
        if not title:
            raise ValueError("empty title")
        self._check(task_id).title = title

    def mark_done(self, task_id: int) -> None:
        self._check(task_id).status = "done"

    def reopen(self, task_id: int) -> None:
        self._check(task_id).status = "open"

    def delete(self, task_id: int) -> None:
        self._check(task_id)
        del self._tasks[task_id]

    def clear(self) -> None:
        self._tasks.clear()

    def list_all(self) -> List[Task]:
        return [self._tasks[key] for key in sorted(self._tasks)]

    def list_open(self) -> List[Task]:
        return [task for task in self.list_all() if task.status == "open"]

    def list_done(self) -> List[Task]:
        return [task for task in self.list_all() if task.status == "done"]

    def count_open(self) -> int:
        count = 0
        for task in self._tasks.values():
            if task.status == "open":
                count += 1
        return count

    def count_done(self) -> int:
        count = 0
        for task in self._tasks.values():
            if task.status == "done":
                count += 1
        return count

    def titles(self) -> List[str]:
        return [task.title for task in self.list_all()]

    def to_dicts(self) -> List[dict]:
        return [vars(task).copy() for task in self.list_all()]

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task_id: int) -> bool:
        return task_id in self._tasks


__all__ = ["Task", "TaskStore"]
"""

KV_REPORT = """
from dataclasses import dataclass
from typing import Dict, List


@dataclass
class Row:
    key: str
    value: str


class Report:
    def __init__(self) -> None:
        self._rows: List[Row] = []

    def _find(self, key: str):
        for row in self._rows:
            if row.key == key:
                return row
        return None

    def add(self, key: str, value: str) -> None:
        if not key:
            raise ValueError("empty key")
        if self._find(key) is not None:
            raise ValueError("duplicate key")
        self._rows.append(Row(key, value))

    def set(self, key: str, value: str) -> None:
        if not key:
            raise ValueError("empty key")
        row = self._find(key)
        if row is None:
            self._rows.append(Row(key, value))
        else:
            row.value = value

    def get(self, key: str) -> str:
        row = self._find(key)
        if row is None:
            raise ValueError("missing key")
        return row.value

    def delete(self, key: str) -> None:
        row = self._find(key)
        if row is None:
            raise ValueError("missing key")
        self._rows.remove(row)

    def clear(self) -> None:
        self._rows = []

    def keys(self) -> List[str]:
        return [row.key for row in self._rows]

    def values(self) -> List[str]:
        return [row.value for row in self._rows]

    def items(self) -> list:
        return [(row.key, row.value) for row in self._rows]

    def sorted_rows(self) -> List[Row]:
        return sorted(self._rows, key=lambda row: row.key)

    def render_lines(self) -> List[str]:
        return [row.key + ": " + row.value for row in self._rows]

    def render_text(self) -> str:
        return "\\n".join(self.render_lines())

    def render_csv(self) -> str:
        lines = ["key,value"]
        for row in self.sorted_rows():
            lines.append(row.key + "," + row.value)
        return "\\n".join(lines)

    def filter_prefix(self, prefix: str) -> "Report":
        made = Report()
        for row in self._rows:
            if row.key.startswith(prefix):
                made.add(row.key, row.value)
        return made

    def update_many(self, values: Dict[str, str]) -> None:
        for key in sorted(values):
            self.set(key, values[key])

    def to_dict(self) -> Dict[str, str]:
        return {row.key: row.value for row in self.sorted_rows()}

    def copy(self) -> "Report":
        made = Report()
        for row in self._rows:
            made.add(row.key, row.value)
        return made

    def count_prefix(self, prefix: str) -> int:
        count = 0
        for row in self._rows:
            if row.key.startswith(prefix):
                count += 1
        return count

    def first_key(self) -> str:
        if not self._rows:
            raise ValueError("no rows")
        return self._rows[0].key

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        return self._find(key) is not None


__all__ = ["Row", "Report"]
"""

LINKED_LIST = """
from typing import Any, Iterator, Optional

import pytest


class Node:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.before: Optional["Node"] = None
        self.after: Optional["Node"] = None


class DoublyLinkedList:
    def __init__(self) -> None:
        self.head: Optional[Node] = None
        self.tail: Optional[Node] = None
        self._size = 0

    def append(self, value: Any) -> None:
        self.insert_at(self._size, value)

    def prepend(self, value: Any) -> None:
        self.insert_at(0, value)

    def insert_at(self, index: int, value: Any) -> None:
        if not 0 <= index <= self._size:
            raise IndexError("index out of range")
        node = Node(value)
        after = self._node(index) if index < self._size else None
        before = after.before if after else self.tail
        node.before, node.after = before, after
        if before:
            before.after = node
        else:
            self.head = node
        if after:
            after.before = node
        else:
            self.tail = node
        self._size += 1

    def remove_at(self, index: int) -> Any:
        node = self._node(index)
        if node.before:
            node.before.after = node.after
        else:
            self.head = node.after
        if node.after:
            node.after.before = node.before
        else:
            self.tail = node.before
        self._size -= 1
        return node.value

    def _node(self, index: int) -> Node:
        if not 0 <= index < self._size:
            raise IndexError("index out of range")
        node = self.head
        for _ in range(index):
            node = node.after
        return node

    def find(self, value: Any) -> int:
        for index, found in enumerate(self):
            if found == value:
                return index
        return -1

    def reverse(self) -> None:
        node = self.head
        while node:
            node.before, node.after = node.after, node.before
            node = node.before
        self.head, self.tail = self.tail, self.head

    def to_list(self) -> list:
        return list(self)

    def length(self) -> int:
        return self._size

    def is_empty(self) -> bool:
        return self._size == 0

    def __iter__(self) -> Iterator[Any]:
        node = self.head
        while node:
            yield node.value
            node = node.after

    def iter(self) -> Iterator[Any]:
        return iter(self)


@pytest.fixture
def filled():
    made = DoublyLinkedList()
    for value in (1, 2, 3):
        made.append(value)
    return made


def test_remove_at(filled):
    assert filled.remove_at(1) == 2
    with pytest.raises(IndexError):
        filled.remove_at(5)


class TestReverse:
    def test_reverse(self, filled):
        filled.reverse()
        assert filled.to_list() == [3, 2, 1]
"""

# Of each prompt: a good answer, and changes of it that make it wrong.
ANSWERS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "task-store": (
        TASK_STORE,
        [
            ("self._next_id = 1", "self._next_id = 0"),
            ('.status = "open"\n\n    def delete', '.status = "done"\n\n    def delete'),
            ('raise ValueError("missing task id")', 'raise KeyError("missing task id")'),
            ("if not title:", "if title is None:"),
            ('__all__ = ["Task", "TaskStore"]', "__all__ = []"),
        ],
    ),
    "kv-report": (
        KV_REPORT,
        [
            ("for key in sorted(values)", "for key in values"),
            ('lines = ["key,value"]', "lines = []"),
            ("for row in self.sorted_rows()}", "for row in self._rows}"),
            ("return self._rows[0].key", "return self._rows[-1].value"),
            ('raise ValueError("duplicate key")', "return"),
        ],
    ),
    "linked-list": (
        LINKED_LIST,
        [
            ("self.head, self.tail = self.tail, self.head", "self.head = self.tail"),
            ("self.tail = node.before", "pass"),
            ("return -1", "return 0 if self.to_list()[0] == value else 1"),
            ("return self._size == 0", "return self._size != 0"),
            ("assert filled.remove_at(1) == 2", "assert filled.remove_at(1) == 3"),
        ],
    ),
}  # fmt: skip
