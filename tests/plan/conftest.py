"""Operations run through pyinfra's own engine on this machine: the real shell, nothing mocked."""

from collections.abc import Callable
from typing import Any

import pytest
from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops

Apply = Callable[..., int]


class Failed(Exception):
    """The operation failed on the host."""


@pytest.fixture
def apply() -> Apply:
    """Apply an operation to @local; returns how many commands it needed: 0 means that nothing was to be done."""

    def run(operation: Any, **arguments: Any) -> int:
        state = State(inventory=Inventory((["@local"], {})), config=Config())
        connect_all(state)
        try:
            (meta,) = add_op(state, operation, **arguments).values()
            try:
                run_ops(state)
            except PyinfraError as error:
                raise Failed(str(error)) from error
            return len(meta._commands)
        finally:
            disconnect_all(state)

    return run
