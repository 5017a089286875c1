"""The compose files: what is committed is what the presets say, and containers may do as little as they can."""

from typing import Any

import pytest
import yaml

from beeyard.catalog import PRESETS, PROJECT, load_catalog
from beeyard.dialects import argv
from beeyard.render import CLONE_PRESET, clone_compose, compose_quoted, define, rendered_files
from beeyard.spec import HostKind, ServerSpec, resolve

CATALOG = load_catalog([PRESETS])


def spec(**data: Any) -> ServerSpec:
    found = {name: data.pop(name, False) for name in ("has_cdi", "has_nvidia_runtime")}
    kind = HostKind(has_systemd=True, is_root=True, compute_capabilities=("8.9",), **found)
    return resolve({"llama_preset": "gemma-4-31b", "llama_runtime": "compose", **data}, CATALOG, kind)


def service(**data: Any) -> dict[str, Any]:
    (found,) = yaml.safe_load(define(spec(**data)).definition)["services"].values()
    return dict(found)


def clone() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(clone_compose(CATALOG, CLONE_PRESET))
    return found


@pytest.mark.parametrize(("name", "text"), rendered_files(CATALOG).items())
def test_what_is_committed_is_what_the_presets_say(name: str, text: str) -> None:
    assert (PROJECT / name).read_text() == text, f"{name} is stale. Fix: make render"


@pytest.mark.parametrize("variant", ["baseline", "dflash"])
def test_a_clone_runs_the_very_arguments_of_the_preset(variant: str) -> None:
    data = {"llama_variant": variant, "llama_models_dir": "/models"}
    command = [word.replace("${CTX_SIZE:-32768}", "32768") for word in clone()["services"][variant]["command"]]
    assert command == argv(spec(**data))[1:]


def test_a_deploy_runs_them_too_word_by_word() -> None:
    assert service()["command"] == argv(spec())[1:]


@pytest.mark.parametrize("found", [service(), clone()["services"]["baseline"], clone()["services"]["dflash"]])
def test_a_server_may_do_as_little_as_it_can(found: dict[str, Any]) -> None:
    assert found["user"] == "8910:8910"
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert "cap_add" not in found
    assert "privileged" not in found
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["restart"] == "unless-stopped"
    assert found["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert "environment" not in found
    assert all(volume.endswith(":ro") for volume in found["volumes"])


def test_ports_are_loopbacks_unless_told_otherwise() -> None:
    assert service()["ports"] == ["127.0.0.1:8910:8910"]
    assert service(llama_bind="::1", llama_port=8911)["ports"] == ["[::1]:8911:8911"]
    assert clone()["services"]["dflash"]["ports"] == ["${BIND_HOST:-127.0.0.1}:${PORT:-8910}:8910"]


def test_the_card_comes_by_reservation_or_by_cdi() -> None:
    def devices(**data: Any) -> Any:
        return service(**data)["deploy"]["resources"]["reservations"]["devices"]

    assert devices() == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert devices(has_cdi=True)[0]["device_ids"] == ["nvidia.com/gpu=0"]
    assert "deploy" not in service(llama_preset="tiny")


def test_the_overlays_name_services_that_there_are() -> None:
    for name in ("compose.cdi.yaml", "compose.token.yaml"):
        text = (PROJECT / name).read_text().replace("!override", "")
        assert set(yaml.safe_load(text)["services"]) <= set(clone()["services"])


def test_a_dollar_stands_for_itself() -> None:
    assert yaml.safe_load(compose_quoted('a "$HOME" \\ é')) == 'a "$$HOME" \\ é'


def test_variables_are_documented_where_people_look() -> None:
    example = (PROJECT / ".env.example").read_text()
    for name in ("MODEL_DIR", "PORT", "BIND_HOST", "CTX_SIZE", "HF_TOKEN", "MEMLOCK", "JOBS", "CUDA_ARCHITECTURES"):
        assert f"{name}=" in example


def test_a_toolkit_that_also_writes_a_cdi_file_changes_nothing_at_the_next_deploy() -> None:
    assert spec(has_nvidia_runtime=True, has_cdi=True) == spec()
    assert spec(has_cdi=True).gpu_access == "cdi"
