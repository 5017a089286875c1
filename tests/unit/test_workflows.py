"""The GitHub workflows: what they may do, what they run, and that they know every image."""

import re
from typing import Any

import pytest
import yaml

from beeyard.catalog import PROJECT, load_catalog

FILES = sorted((PROJECT / ".github" / "workflows").glob("*.yaml"))
WORKFLOWS: dict[str, dict[str, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
JOBS = [(workflow, name, job) for workflow, text in WORKFLOWS.items() for name, job in text["jobs"].items()]


def test_every_action_is_pinned_by_its_commit_and_says_its_version() -> None:
    for file in FILES:
        for line in file.read_text().splitlines():
            if "uses:" in line:
                assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), (file.name, line)


@pytest.mark.parametrize(("workflow", "name", "job"), JOBS)
def test_a_job_has_an_end_and_no_more_rights_than_it_needs(workflow: str, name: str, job: dict[str, Any]) -> None:
    more = {("image", "publish"): {"packages": "write"}, ("engines", "report"): {"issues": "write"}}
    assert WORKFLOWS[workflow]["permissions"] == {}
    assert job["permissions"] == {"contents": "read", **more.get((workflow, name), {})}
    assert 0 < job["timeout-minutes"] <= 360


def test_every_variant_of_the_image_is_published() -> None:
    assert set(WORKFLOWS["image"]["jobs"]["publish"]["strategy"]["matrix"]["variant"]) == set(load_catalog().images)


def test_only_the_steps_that_log_in_or_report_see_the_token_and_never_as_an_argument() -> None:
    steps = [(name, step) for _, name, job in JOBS for step in job["steps"]]
    seeing = [(name, step["run"]) for name, step in steps if "github.token" in str(step)]
    assert [name for name, _ in seeing] == ["report", "publish"]
    assert seeing[1][1].startswith("printf '%s' \"$TOKEN\" | docker login ghcr.io ")
    assert seeing[1][1].endswith(" --password-stdin")
    assert all("${{" not in step["run"] for _, step in steps if "run" in step)


def test_nothing_is_published_that_was_not_tried() -> None:
    steps = [str(step.get("run", "")) for step in WORKFLOWS["image"]["jobs"]["publish"]["steps"]]
    order = [
        next(i for i, run in enumerate(steps) if word in run) for word in ("make image ", "image-try", " publish ")
    ]
    assert order == sorted(order)


def test_what_they_run_is_in_the_makefile_or_here() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    for _, _, job in JOBS:
        for run in (str(step.get("run", "")) for step in job["steps"]):
            assert set(re.findall(r"make (?:--no-print-directory )?([a-z-]+)", run)) <= targets
            for script in re.findall(r"\.ci/\S+", run):
                assert (PROJECT / script).stat().st_mode & 0o100, script
