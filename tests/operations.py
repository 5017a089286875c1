"""Operations run through pyinfra's own engine: the real shell of a host, nothing mocked."""

from typing import Any

from pyinfra.api import Config, Inventory, State
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops


class Failed(Exception):
    """The operation failed on the host."""


def applied(host: str, data: dict[str, Any], operation: Any, **arguments: Any) -> int:
    """Apply an operation to a host; returns how many commands it needed: 0 means that nothing was to be done."""
    state = State(inventory=Inventory(([(host, data)], {})), config=Config())
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
