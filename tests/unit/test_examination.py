"""Drift as it is seen without a dry run: what runs against what presets and inventory say now."""

import json
from typing import Any

import pytest

from beeyard.catalog import PRESETS, load_catalog
from beeyard.examination import Examined, Running, differing_arguments, drift
from beeyard.render import define
from beeyard.spec import ANY_HOST, resolve
from tests.unit.test_survey import survey

CATALOG = load_catalog([PRESETS])


def examined(*, running: dict[str, Any] | None = None, state: dict[str, Any] | None = None, **data: Any) -> Examined:
    """A host whose server was deployed as its inventory says, but for ``data``."""
    seen = survey(llama_runtime="systemd")
    served = define(resolve({**seen.data, **data}, CATALOG, ANY_HOST))
    guard = {
        "current": served.id,
        "installed": True,
        "pid": 4711,
        "runs_its_command": True,
        "engine_is_current": True,
    }
    return Examined(
        survey=seen.model_copy(update={"server": json.loads(served.server_json), "own_pids": (4711,)}),
        state={**guard, "health": 200, "vram_mib": None, "resident_mib": 80, **(state or {})},
        running=Running.model_validate({"health": 200, **(running or {})}),
    )


def test_a_server_as_its_inventory_says_has_no_drift() -> None:
    assert drift(examined(), CATALOG) == []


def test_every_fact_that_differs_is_named_with_both_values() -> None:
    (variant, arguments) = drift(examined(llama_variant="baseline"), CATALOG)
    assert variant == "variant is baseline, wanted is dflash. Fix: deploy"
    assert "--spec-type draft-dflash is missing" in arguments
    (said,) = drift(examined(llama_port=8911), CATALOG)
    assert said == "of its arguments --port is 8911, wanted is 8910. Fix: deploy"


def test_a_definition_from_other_templates_is_drift_though_its_arguments_are_the_same() -> None:
    (said,) = drift(examined(state={"current": "0123456789ab"}), CATALOG)
    assert "written from other templates" in said


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"installed": False}, "was changed, or would not start at boot"),
        ({"runs_its_command": False}, "its process has other arguments"),
        ({"engine_is_current": False}, "leads to another engine"),
        ({"current": None}, "no server was deployed here"),
    ],
)
def test_what_the_guard_sees_is_told(state: dict[str, Any], said: str) -> None:
    (found,) = drift(examined(state=state), CATALOG)
    assert said in found
    assert found.endswith("Fix: deploy")


def test_data_that_cannot_be_planned_for_is_told_as_it_is() -> None:
    seen = examined()
    seen = seen.model_copy(
        update={"survey": seen.survey.model_copy(update={"data": {"llama_preset": "tiny", "llama_variant": "x"}})}
    )
    (said,) = drift(seen, CATALOG)
    assert said.startswith("what its data asks for cannot be said: ")
    assert "Fix: " in said


def test_arguments_are_compared_option_by_option() -> None:
    now = ["/old/llama-server", "-m", "a.gguf", "--metrics", "-ngl", "-1", "--jinja"]
    wanted = ["/new/llama-server", "-m", "a.gguf", "-ngl", "99", "--jinja", "--no-host"]
    assert differing_arguments(now, wanted) == [
        "the binary is /old/llama-server, wanted is /new/llama-server",
        "--metrics is there, and not wanted",
        "-ngl is -1, wanted is 99",
        "--no-host is missing",
    ]
    assert differing_arguments(now, now) == []
