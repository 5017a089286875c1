"""Operations on Python environments on hosts."""

from collections.abc import Generator

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard.facts.pythons import PipWorks
from beeyard.facts.seen import seen


@operation()
def with_pip(directory: str) -> Generator[StringCommand, None, None]:
    """
    Ensure that there is a virtual environment with pip, to fetch wheels with.

    + directory: where

    One whose Python went away (a pod that came back with another image) is made anew.
    """
    if seen(PipWorks, python=f"{directory}/bin/python"):
        host.noop(f"{directory} has pip")
        return
    yield StringCommand("python3 -m venv --clear", QuoteString(directory))
