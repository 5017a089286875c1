"""Limits of a host's logins, which a server without systemd has from them."""

import pytest

from tests.testbed.conftest import Bed

pytestmark = pytest.mark.hosts("light")


def test_limits_hold_for_the_server_that_the_same_deploy_starts(light: str, bed: Bed) -> None:
    limits = '{"memlock": 4096, "nofile": 4096}'
    run = bed.deploy(light, llama_limits=limits)
    assert run.code == 0, run.output
    assert "4194304" in bed.sh(light, "grep 'Max locked memory' /proc/$(pgrep llama-server | head -n 1)/limits")
    assert bed.deploy(light, llama_limits=limits).changed == []
    # A login of its own gets them from PAM.
    assert bed.sh(light, "ulimit -H -n") == "4096"
    assert bed.deploy(light).code == 0
    bed.wipe(light)
