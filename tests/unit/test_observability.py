"""The alerts' rules, by Prometheus' own tool; what they count is what HAProxy says (tests/plan/test_gateway.py)."""

import re
import subprocess

import pytest
import yaml

from beeyard.catalog import PROJECT
from tests.needs import program

FOLDER = PROJECT / "observability"


@pytest.mark.parametrize("words", [("check", "rules", "rules.yaml"), ("test", "rules", "rules_test.yaml")])
def test_promtool_takes_them(words: tuple[str, ...]) -> None:
    run = subprocess.run(
        [program("promtool", "prometheus"), *words], check=False, capture_output=True, text=True, cwd=FOLDER
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_alert_says_what_to_do_and_how_urgent_it_is() -> None:
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(alerts) >= 10
    for alert in alerts:
        assert "Fix: " in alert["annotations"]["summary"], alert["alert"]
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert re.fullmatch(r"\d+[sm]", alert["for"])
