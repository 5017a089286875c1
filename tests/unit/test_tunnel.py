"""How ssh is called, from an inventory's data; tests/testbed opens real tunnels."""

from itertools import pairwise

import pytest

from beeyard.catalog import CatalogError
from beeyard.tunnel import Ssh, tunnel


def test_data_of_pyinfra_becomes_sshs_own_options() -> None:
    data = {
        "ssh_hostname": "192.0.2.10", "ssh_user": "me", "ssh_port": "2201", "ssh_key": "~/.ssh/id",
        "ssh_known_hosts_file": ".testbed/known_hosts", "ssh_strict_host_key_checking": "accept-new",
        "llama_preset": "tiny",
    }  # fmt: skip
    words = Ssh.of_data("attic", data).words("-N")
    assert words[0] == "ssh"
    assert words[-1] == "192.0.2.10"
    pairs = set(pairwise(words))
    assert pairs >= {
        ("-o", "BatchMode=yes"), ("-p", "2201"), ("-i", "~/.ssh/id"), ("-l", "me"),
        ("-o", "UserKnownHostsFile=.testbed/known_hosts"), ("-o", "StrictHostKeyChecking=accept-new"),
    }  # fmt: skip


def test_what_is_not_said_is_left_to_the_users_own_configuration() -> None:
    words = Ssh.of_data("attic", {"ssh_password": "a secret"}).words()
    assert words == ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "attic"]


def test_a_host_that_is_not_reached_is_a_sentence() -> None:
    with (
        pytest.raises(CatalogError, match=r"no tunnel to 127\.0\.0\.1: ssh says '.*[Rr]efused.*'\. Fix: "),
        tunnel(Ssh(hostname="127.0.0.1", port=9, config_file="/dev/null"), 8910),
    ):
        pass
