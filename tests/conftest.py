"""What several rings share."""

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """
    Let Ctrl+C be heard, by what tests start, too.

    A shell gives its background jobs a SIGINT that is ignored, all programs below inherit that, and a test that sends
    one would wait in vain.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
