"""The command that shows a host's log, by runtime and by how the host is reached."""

from typing import Any

import pytest

from beeyard.catalog import CatalogError
from beeyard.examination import Examined
from beeyard.logs import command
from beeyard.tunnel import Ssh
from tests.unit.test_examination import examined


def on(runtime: str, **changes: Any) -> Examined:
    found = examined()
    survey = found.survey.model_copy(
        update={
            "server": {**found.survey.server, "runtime": runtime},
            "data": {**found.survey.data, "llama_prefix": "/work space/beeyard"},
            "is_here": True,
            **changes,
        }
    )
    return found.model_copy(update={"survey": survey})


def test_each_runtime_has_its_log_in_its_own_place() -> None:
    unit = "--unit=beeyard-llama-server.service"
    shown = ["journalctl", unit, "--lines=7", "--no-pager", "--output=short-iso"]
    assert command(on("systemd"), 7, follow=False) == shown
    assert command(on("systemd"), 7, follow=True) == [*shown, "--follow"]
    assert command(on("compose"), 7, follow=True) == [
        "docker", "logs", "--tail=7", "--timestamps", "--follow", "llama-server"
    ]  # fmt: skip
    file = "/work space/beeyard/log/llama-server.log"
    assert command(on("supervisor"), 7, follow=False) == ["tail", "--lines=7", file]
    assert command(on("supervisor"), 0, follow=True) == ["tail", "--lines=0", "--follow=name", "--retry", file]


def test_over_ssh_the_words_are_quoted_and_sudo_asks_nobody() -> None:
    there = on("supervisor", is_here=False, ssh=Ssh(hostname="attic", user="me", port=2222))
    *ssh, told = command(there.model_copy(update={"uses_sudo": True}), 7, follow=True)
    assert ssh[0] == "ssh"
    assert "-tt" in ssh
    assert ssh[-1] == "attic"
    assert told == "sudo -n tail --lines=7 --follow=name --retry '/work space/beeyard/log/llama-server.log'"
    assert "-tt" not in command(there, 7, follow=False)


def test_a_host_without_a_server_or_a_way_to_it_is_told() -> None:
    with pytest.raises(CatalogError, match=r"has no server yet, and no log\. Fix: deploy"):
        command(on("supervisor", server={}), 7, follow=False)
    with pytest.raises(CatalogError, match=r"is not known\. Fix: "):
        command(on("systemd", is_here=False), 7, follow=False)
