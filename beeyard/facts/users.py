"""Facts about users."""

from pyinfra.api import FactBase, QuoteString, StringCommand


class UserExists(FactBase[bool]):
    """Returns whether there is a user of this name."""

    def command(self, user: str) -> StringCommand:
        """Ask for one name, not for all."""
        return StringCommand("id -u", QuoteString(user), ">/dev/null 2>&1 && echo yes || echo no")

    def process(self, output: list[str]) -> bool:
        """It says yes or no."""
        return output == ["yes"]
