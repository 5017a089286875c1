"""Facts about Python environments."""

from pyinfra.api import FactBase, QuoteString, StringCommand


class PipWorks(FactBase[bool]):
    """Returns whether a Python is there, runs, and finds pip."""

    def command(self, python: str) -> StringCommand:
        """Look for pip without importing it, which takes a second."""
        look = "import importlib.util as u, sys; sys.exit(u.find_spec('pip') is None)"
        return StringCommand(QuoteString(python), "-c", QuoteString(look), "2>/dev/null && echo yes || echo no")

    def process(self, output: list[str]) -> bool:
        """It says yes or no."""
        return output == ["yes"]
