"""How an operation ends in a sentence instead of a command."""

from pyinfra import logger
from pyinfra.api import FunctionCommand, Host, State


def refusal(message: str) -> FunctionCommand:
    """A command that says why this host fails, and fails it alone."""

    def refuse(state: State, host: Host) -> bool:
        logger.error(f"{host.print_prefix}{message}")
        return False

    return FunctionCommand(refuse, (), {})
