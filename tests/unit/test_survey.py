"""Saved facts: they come back as they were, hold no secret, and are planned for without the host."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from beeyard.catalog import CatalogError
from beeyard.cli import app
from beeyard.machine import Gpu, Holder, Machine
from beeyard.survey import Survey, dump, load
from tests.unit.test_drivers import probe as driver_probe

PROBE: dict[str, Any] = {
    "has_apt": True, "python": "/usr/bin/python3", "curl": "/usr/bin/curl", "prefix_parent": "/opt",
    "prefix_writable": True, "held_engine": None, "first_free_port": 1024, "listener_pid": 7,
    "listener": "llama-server --api-key verysecret",
}  # fmt: skip


def survey(**data: Any) -> Survey:
    card = Gpu(
        index=0, uuid="GPU-1", name="NVIDIA GeForce RTX 3090", compute_capability="8.6", memory_total_mib=24576,
        memory_free_mib=24124, power_limit_w=350.0, holders=(Holder(pid=1, name="llama-server", used_mib=None),),
    )  # fmt: skip
    machine = Machine(
        gpus=(card,), has_nvidia_smi=True, init="systemd", is_root=True, memory_mib=64000, memory_available_mib=60000,
        cpu_flags=("avx2",), free_bytes={"/opt/beeyard/models": 2**40},
    )  # fmt: skip
    given = {"llama_preset": "tiny", **data}
    return Survey.model_validate({"name": "attic", "data": given, "machine": machine, "probe": dict(PROBE)})


def test_they_come_back_as_they_were_but_for_what_nobody_else_should_see() -> None:
    given = survey()
    text = dump([given])
    assert "verysecret" not in text
    (found,) = load(text, "facts")
    assert found.probe["listener"] == "llama-server"
    assert (found.machine, found.data) == (given.machine, given.data)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "Invalid JSON"),
        ("[1]", "should be an object"),
        ("{}", "beeyard_facts"),
        (dump([survey()]).replace('"kernel"', '"kernal"'), "unknown key 'hosts.0.machine.kernal'"),
        (dump([survey()]).replace("64000", '"much"'), "memory_mib is 'much'"),
    ],
)
def test_another_text_is_refused_in_a_sentence(text: str, wrong: str) -> None:
    with pytest.raises(CatalogError, match="facts is no file of facts that this version reads") as error:
        load(text, "facts")
    assert wrong in str(error.value)
    assert str(error.value).endswith("Fix: write it anew with --save-facts")
    assert "\n" not in str(error.value)


def planned(tmp_path: Path, given: Survey, *words: str) -> tuple[int, str]:
    file = tmp_path / "facts.json"
    file.write_text(dump([given]))
    run = CliRunner().invoke(app, ["plan", "--facts", str(file), *words])
    return run.exit_code, run.stdout


def test_a_saved_host_is_planned_for_without_it(tmp_path: Path) -> None:
    free = survey().model_copy(update={"probe": {**PROBE, "listener_pid": None, "listener": ""}})
    code, said = planned(tmp_path, free)
    assert code == 0, said
    assert "[attic] tiny, variant dflash, on llama.cpp b10068 (systemd) can run here" in said
    assert "[attic] runtime: systemd (there is no Docker Engine here)" in said
    assert "MiB" in said
    code, said = planned(tmp_path, free, "--data", "llama_context=800000000", "--json")
    assert code == 3
    found = json.loads(said)["attic"]
    assert "it takes" in found["reasons"][0]
    assert "Fix: set llama_context to" in found["reasons"][0]


def test_all_that_stands_against_it_is_told_at_once(tmp_path: Path) -> None:
    code, said = planned(tmp_path, survey(), "--data", "llama_preset=gemma-4-31b", "--data", "llama_port=80")
    assert code == 3
    told = [line for line in said.splitlines() if line.startswith("[attic] no: ")]
    assert len(told) > 2
    assert all("Fix: " in line for line in told)


def test_what_stands_against_a_driver_that_comes_first_is_in_the_plan(tmp_path: Path) -> None:
    given = survey(llama_preset="gemma-4-31b", llama_nvidia_driver="install")
    none = given.machine.model_copy(update={"gpus": (), "has_nvidia_smi": False})
    bare = driver_probe(secure_boot=True, components=["main"])
    code, said = planned(tmp_path, given.model_copy(update={"machine": none, "driver": bare}))
    assert code == 3
    assert "[attic] no: there is no NVIDIA driver here yet" in said
    assert "[attic] no: apt does not know contrib, non-free, non-free-firmware here" in said
    assert "[attic] note: Secure Boot is on here" in said
