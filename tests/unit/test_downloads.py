"""What a host must fetch, who is asked for it, and what is said where it reaches nobody who gives it."""

from typing import Any

import pytest

from beeyard.catalog import Catalog
from beeyard.downloads import registry_of
from beeyard.machine import Machine
from beeyard.solution import Solution
from beeyard.survey import Survey, dump, load, missing_downloads, planned, solved
from tests.unit.test_disk import IMAGE, presets, survey
from tests.unit.test_solve import DOCKER, card, compiling, machine

HUB, FORGE = "https://huggingface.co", "https://example.invalid"
COMPOSE = {"llama_runtime": "compose", "llama_image": IMAGE}


@pytest.fixture(autouse=True)
def _the_public_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


def wanted(of: Survey, presets_: Catalog | None = None) -> dict[str, list[str]]:
    """What is wanted of each address."""
    found = presets_ or presets()
    spec = solved(of, found).spec
    assert spec is not None, solved(of, found).reasons
    addresses: dict[str, list[str]] = {}
    for download in missing_downloads(of, spec, found):
        for address in download.addresses:
            addresses.setdefault(f"{address} ({download.way})", []).append(download.what)
    return addresses


def made(of: Survey, reachable: dict[str, bool]) -> Solution:
    on = of.machine.model_copy(update={"reachable": reachable})
    of = of.model_copy(update={"machine": on})
    return planned(of, solved(of, presets()), presets(), [])


def network(solution: Solution) -> list[str]:
    return [reason for reason in solution.reasons if "does not reach" in reason]


MODELS = ["model gemma-4-31b-it-q4_k_s", "model gemma-4-31b-it-dflash-q5_k_m"]


def test_models_are_asked_of_the_hub_and_an_engine_of_its_forge() -> None:
    assert wanted(survey()) == {f"{HUB} (env)": MODELS, f"{FORGE} (env)": ["engine beellama-v0.4.3"]}


def test_another_hub_is_the_one_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.lan:8080/")
    assert wanted(survey())["http://hub.lan:8080 (env)"] == MODELS


def test_nobody_is_asked_for_what_is_there() -> None:
    spec = solved(survey(), presets()).spec
    assert spec is not None
    paths = [str(path) for file in spec.model_files for path, _ in spec.pieces_of(file)]
    models = dict.fromkeys(paths, ("verified", 0))
    engines = {str(spec.engine_dir): "intact"}
    assert wanted(survey(models=models, engines=engines)) == {}
    models[paths[1]] = ("absent", 10)
    assert wanted(survey(models=models, engines=engines)) == {f"{HUB} (env)": MODELS[1:]}


def test_what_this_machine_or_another_host_gives_needs_no_network() -> None:
    names = tuple(name.removeprefix("model ") for name in MODELS)
    assert f"{HUB} (env)" not in wanted(survey(sent=names))
    assert wanted(survey(sent=names[:1]))[f"{HUB} (env)"] == MODELS[1:]


def test_what_the_host_reaches_is_no_reason_and_what_it_does_not_is_a_sentence() -> None:
    assert network(made(survey(), {HUB: True, FORGE: True})) == []
    assert network(made(survey(), {})) == []  # nothing there could try
    assert network(made(survey(), {HUB: False, FORGE: True})) == [
        "this host does not reach https://huggingface.co, where model gemma-4-31b-it-q4_k_s and model "
        "gemma-4-31b-it-dflash-q5_k_m come from. Fix: let it reach that address (a proxy: https_proxy in its "
        "/etc/environment), or set llama_model_source to where the files are: a directory of this machine, a mirror, "
        "or host:NAME"
    ]
    (_, engine) = network(made(survey(), {HUB: False, FORGE: False}))
    assert engine.startswith(
        "this host does not reach https://example.invalid, where engine beellama-v0.4.3 comes from. Fix: "
    )


def test_a_mirror_or_the_hub_will_do() -> None:
    mirror = "http://nas.lan/models"
    of = survey(data={"llama_model_source": mirror})
    assert network(made(of, {mirror: True, HUB: False, FORGE: True})) == []
    assert network(made(of, {mirror: False, HUB: True, FORGE: True})) == []
    (reason,) = network(made(of, {mirror: False, HUB: False, FORGE: True}))
    assert "does not reach http://nas.lan/models or https://huggingface.co, where" in reason


@pytest.mark.parametrize(
    ("data", "docker", "asked"),
    [
        (COMPOSE, {}, {"ghcr.io (direct)": ["image ghcr.io/beeyard/engine"]}),
        (COMPOSE, {"has_proxy": True}, {}),  # which Docker alone can try
        ({"llama_runtime": "compose", "llama_image_from": "carry"}, {}, {}),
        (
            {"llama_runtime": "compose", "llama_image_from": "build"},
            {},
            {"https://github.com (direct)": ["the source of beellama-v0.4.3"]},
        ),
    ],
)
def test_an_image_is_asked_of_its_registry(
    data: dict[str, Any], docker: dict[str, Any], asked: dict[str, list[str]]
) -> None:
    # One base by digest, one of the host's own.
    bases = {"nvidia/cuda:12.8.1-devel-ubuntu24.04": f"sha256:{'f' * 64}", "ubuntu:24.04": "local"}
    on = machine(card(), docker=DOCKER.model_copy(update=docker))
    assert wanted(survey(on, data=data), presets(bases=bases)) == {f"{HUB} (env)": MODELS, **asked}


def test_the_registry_that_is_not_reached_is_named_with_the_way_around() -> None:
    on = machine(card(), docker=DOCKER)
    (reason,) = network(made(survey(on, data=COMPOSE), {"ghcr.io": False}))
    assert reason == (
        "this host does not reach ghcr.io, where image ghcr.io/beeyard/engine comes from. Fix: let its Docker Engine "
        "reach that address (a proxy: in /etc/docker/daemon.json), or set llama_image_from to carry"
    )
    there = survey(on, data=COMPOSE, images=(IMAGE,))
    assert network(made(there, {"ghcr.io": False})) == []


@pytest.mark.parametrize(
    ("reference", "registry"),
    [
        ("ghcr.io/a/b@sha256:0", "ghcr.io"),
        ("localhost:5000/a@sha256:0", "localhost:5000"),
        ("localhost/a:1", "localhost"),
        ("nvidia/cuda:12", None),
        ("ubuntu:24.04", None),
    ],
)
def test_the_registry_is_what_docker_takes_for_one(reference: str, registry: str | None) -> None:
    assert registry_of(reference) == registry


def test_repositories_of_others_are_asked_for_where_a_deploy_adds_them() -> None:
    data = {**COMPOSE, "llama_docker": "docker.com", "llama_nvidia_toolkit": "install"}
    on = machine(card(), docker=DOCKER, distribution="debian", codename="bookworm")
    found = wanted(survey(on, data=data))
    assert found["https://download.docker.com (env)"] == ["the apt repository of Docker"]
    assert found["https://nvidia.github.io (env)"] == ["the apt repository of NVIDIA's container toolkit"]
    assert "https://download.docker.com (env)" not in wanted(survey(on, data=data, repositories=("docker",)))
    assert "https://nvidia.github.io (env)" not in wanted(survey(on, data=COMPOSE))


def test_what_a_host_compiles_comes_by_git() -> None:
    assert wanted(survey(), compiling(presets()))["https://github.com (git)"] == ["the source of beellama-v0.4.3"]


def test_saved_facts_keep_what_was_reached() -> None:
    on: Machine = machine(card(), reachable={HUB: False})
    (found,) = load(dump([survey(on)]), "facts")
    assert len(network(planned(found, solved(found, presets()), presets(), []))) == 1
