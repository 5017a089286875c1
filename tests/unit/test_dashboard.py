"""Grafana's dashboard: its expressions by Prometheus' own tool; its places; and the compose profile around it."""

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from beeyard.catalog import PRESETS, PROJECT, load_catalog
from beeyard.dashboard import DATASOURCE, PANELS, dashboard
from beeyard.images import GRAFANA_IMAGE, PROMETHEUS_IMAGE
from beeyard.render import CLONE_PRESET, clone_compose
from tests.needs import program

FOLDER = PROJECT / "observability"
CATALOG = load_catalog([PRESETS])
FOUND: dict[str, Any] = json.loads(dashboard())


def test_promtool_takes_every_expression(tmp_path: Path) -> None:
    expressions = [
        line.expr.replace("$__rate_interval", "5m").replace("$host", ".*") for p in PANELS for line in p.lines
    ]
    assert not any("$" in one for one in expressions)
    rules = [{"record": f"shown:number{number}", "expr": one} for number, one in enumerate(expressions)]
    (tmp_path / "shown.yaml").write_text(yaml.safe_dump({"groups": [{"name": "shown", "rules": rules}]}))
    run = subprocess.run(
        [program("promtool", "prometheus"), "check", "rules", "shown.yaml"],
        check=False, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(expressions)} rules found" in run.stdout


def test_no_panel_lies_on_another_and_each_asks_prometheus() -> None:
    taken = [
        {(x, y) for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])}
        for p in (panel["gridPos"] for panel in FOUND["panels"])
    ]
    assert all(not one & other for one, other in itertools.combinations(taken, 2))
    assert max(x for cells in taken for x, _ in cells) < 24
    assert len({panel["id"] for panel in FOUND["panels"]}) == len(PANELS)
    for panel in FOUND["panels"]:
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {DATASOURCE["uid"]}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_grafana_is_told_of_that_very_prometheus_and_dashboard() -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert (source["uid"], source["url"]) == (DATASOURCE["uid"], "http://prometheus:9090")
    (provider,) = provisioned("dashboards/beeyard.yaml")["providers"]
    grafana = clone()["grafana"]
    there = dict(reversed(volume.removesuffix(":ro").rsplit(":", 1)) for volume in grafana["volumes"])
    assert (PROJECT / there[provider["options"]["path"]] / "beeyard.json").is_file()
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].startswith(provider["options"]["path"])


def provisioned(name: str) -> Any:
    return yaml.safe_load((FOLDER / "grafana/provisioning" / name).read_text())


def clone(**lock: Any) -> dict[str, dict[str, Any]]:
    catalog = CATALOG.model_copy(update={"lock": CATALOG.lock.model_copy(update=lock)}) if lock else CATALOG
    found: dict[str, dict[str, Any]] = yaml.safe_load(clone_compose(catalog, CLONE_PRESET))["services"]
    return found


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_what_watches_is_open_to_this_machine_alone_and_may_do_as_little_as_it_can(name: str) -> None:
    found = clone()[name]
    assert found["profiles"] == ["observability"]
    assert all(port.startswith("127.0.0.1:") for port in found["ports"])
    assert (found["read_only"], found["cap_drop"], "cap_add" in found) == (True, ["ALL"], False)
    written = [volume for volume in found["volumes"] if not volume.endswith(":ro")]
    assert written == ["prometheus:/data" if name == "prometheus" else "grafana:/var/lib/grafana"]
    assert not re.search("password|token", json.dumps(found), re.IGNORECASE)


def test_its_images_are_by_digest_or_cannot_be_pulled() -> None:
    for name, image in (("prometheus", PROMETHEUS_IMAGE), ("grafana", GRAFANA_IMAGE)):
        assert clone(bases={})[name]["image"] == f"run-make-lock-images.invalid/{image}"
        digest = "sha256:" + "a" * 64
        assert clone(bases={image: digest})[name]["image"] == f"{image}@{digest}"
