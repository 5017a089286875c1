"""Programs that tests want of the machine that they run on."""

import shutil

import pytest

from tests.engine_image import STATE

# Written by tests/testbed/up.sh once it has brought all of them.
BROUGHT = STATE / "tools.done"
# Of a user who is not root.
SBIN = "/usr/sbin:/usr/local/sbin:/sbin"


def program(command: str, package: str) -> str:
    """
    Its path. Where it is not there the test is left out; behind `make testbed`, which brings it, the test fails.

    :param package: the Debian package that has it
    """
    found = shutil.which(command) or shutil.which(command, path=SBIN)
    if found is None:
        text = f"there is no {command} here. Fix: apt-get install {package}"
        if BROUGHT.exists():
            pytest.fail(f"{text}, or remove {BROUGHT} and run `make testbed`, which brings it")
        pytest.skip(text)
    return found
