"""Each fault a host can have is found, and told with its Fix; a host that is well passes."""

from typing import Any

import pytest

from beeyard.catalog import PRESETS, load_catalog
from beeyard.doctor import Check, all_good, of_host, of_keys_here
from beeyard.examination import Examined
from tests.unit.test_examination import examined

CATALOG = load_catalog([PRESETS])
KEY = {"path": "/opt/beeyard/etc/api-key", "mode": "0600", "owner": "beeyard", "bytes": 49, "keys": 1, "shortest": 48}


def well(*, machine: dict[str, Any] | None = None, running: dict[str, Any] | None = None, **more: Any) -> Examined:
    """A host that passes."""
    found = examined(
        running={"key_file": KEY, "restarts": 0, "space": {"/opt/beeyard": [2**40, 2**39]}, **(running or {})}, **more
    )
    seen = found.survey.machine.model_copy(update={"time_synchronised": True, "driver": "570.1", **(machine or {})})
    survey = found.survey.model_copy(update={"machine": seen, "probe": {**found.survey.probe, "listener_pid": 4711}})
    return found.model_copy(update={"survey": survey, "flag_faults": ()})


def failed(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.said for check in checks if check.is_good is False}


def test_a_host_that_is_well_passes_every_check() -> None:
    checks = of_host(well(), CATALOG, 0o600)
    assert failed(checks) == {}
    assert all_good(checks)
    names = {check.name for check in checks}
    assert names == {"plan", "driver", "time", "disk", "health", "restarts", "drift", "key", "flags"}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("health", {"state": {"pid": 0}, "running": {"health": 0}}, "does not run"),
        ("health", {"running": {"health": 503}}, "/health answers 503"),
        ("restarts", {"running": {"restarts": 9}}, "9 times"),
        ("key", {"running": {"key_file": {**KEY, "mode": "0644"}}}, "has mode 0644"),
        ("key", {"running": {"key_file": {**KEY, "keys": 0}}}, "anyone could use"),
        ("key", {"running": {"key_file": None}}, "is not there"),
        ("key", {"running": {"key_seen_in": ["its log"]}}, "can be read in its log"),
        ("time", {"machine": {"time_synchronised": False}}, "timedatectl"),
        ("driver", {"machine": {"kernel_module": "560.2"}}, "Fix: reboot"),
        ("disk", {"running": {"space": {"/opt/beeyard": [2**40, 2**20]}}}, "make prune"),
        ("drift", {"llama_port": 8911}, "--port is 8911"),
        ("plan", {"machine": {"cpu_flags": ()}}, "avx2"),
    ],
)
def test_each_fault_fails_its_check_with_a_fix(name: str, changes: dict[str, Any], said: str) -> None:
    found = failed(of_host(well(**changes), CATALOG, 0o600))
    assert said in found[name]
    assert "Fix: " in found[name]


def test_a_short_key_is_a_fault_where_others_reach_the_server() -> None:
    short = well(running={"key_file": {**KEY, "shortest": 8}})
    assert "key" not in failed(of_host(short, CATALOG, None))
    survey = short.survey.model_copy(update={"data": {**short.survey.data, "llama_bind": "192.0.2.7"}})
    assert "of 8 characters" in failed(of_host(short.model_copy(update={"survey": survey}), CATALOG, None))["key"]


def test_arguments_that_the_engine_does_not_know_and_an_engine_that_was_not_asked() -> None:
    found = well().model_copy(update={"flag_faults": ("x does not know --jinja",)})
    assert "--jinja" in failed(of_host(found, CATALOG, None))["flags"]
    unasked = of_host(well().model_copy(update={"flag_faults": None}), CATALOG, None)
    assert next(check for check in unasked if check.name == "flags").is_good is None
    assert all_good(unasked)


def test_keys_here_are_this_users_alone() -> None:
    assert all_good(of_keys_here({"keys": 0o700, "keys/attic": 0o600}))
    (found,) = of_keys_here({"keys": 0o700, "keys/attic": 0o644})
    assert found.is_good is False
    assert "keys/attic has mode 0644" in found.said
    assert "chmod" in failed(of_host(well(), CATALOG, 0o640))["key"]
    assert of_keys_here({})[0].is_good is None


def test_a_host_without_a_server_is_told_of_its_machine_all_the_same() -> None:
    found = of_host(well(state={"current": None}), CATALOG, None)
    assert failed(found)["server"] == "no server was deployed here. Fix: deploy"
    assert {"plan", "driver", "time", "disk"} <= {check.name for check in found}
