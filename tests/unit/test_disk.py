"""What is still to come to a host's disks: counted by file system, with what is there left out."""

from typing import Any

import pytest

from beeyard.catalog import Catalog, EngineLock, FileLock, load_catalog
from beeyard.disk import BUILT, PULLED, SPARE, UNPACKED, disk_faults
from beeyard.machine import DockerState, Machine
from beeyard.solution import Solution
from beeyard.survey import Carried, Survey, missing_on_disk, planned, solved, with_carried_image
from tests.unit.test_solve import DOCKER, card, catalog, compiling, machine
from tests.unit.test_survey import PROBE

GIB = 2**30
MODELS, PREFIX = "/opt/beeyard/models", "/opt/beeyard"
WEIGHTS = 17_700_000_000 + 1_040_000_000
RELEASE = EngineLock(url="https://example.invalid/x.tar.gz", size=200_000_000, sha256="d" * 64)
IMAGE = f"ghcr.io/beeyard/engine@sha256:{'c' * 64}"


def presets(**changes: Any) -> Catalog:
    engines = {**load_catalog().lock.engines, "beellama-v0.4.3": RELEASE}
    return catalog(engines=engines, **changes)


def survey(on: Machine | None = None, free: dict[str, float] | None = None, **more: Any) -> Survey:
    """A host whose paths have so many GiB free, each on a file system of its own if nothing else is said."""
    facts = {"free_bytes": {path: int(size * GIB) for path, size in (free or {}).items()}}
    facts["file_systems"] = more.pop("file_systems", {})
    data = {"llama_preset": "gemma-4-31b", **more.pop("data", {})}
    probe = {**PROBE, "listener_pid": None}
    given = (on or machine(card())).model_copy(update=facts)
    return Survey.model_validate({"name": "attic", "data": data, "machine": given, "probe": probe, **more})


def made(of: Survey, presets_: Catalog | None = None) -> Solution:
    found = presets_ or presets()
    return planned(of, solved(of, found), found, [])


def on_disk(of: Survey, presets_: Catalog | None = None) -> dict[tuple[str, str], int]:
    spec = solved(of, presets_ or presets()).spec
    assert spec is not None
    return {(piece.path, piece.what): piece.bytes for piece in missing_on_disk(of, with_carried_image(of, spec))}


def disk_of(solution: Solution) -> list[str]:
    return [reason for reason in solution.reasons if "GiB free" in reason]


def test_models_and_an_engine_are_counted_with_what_its_archive_is_unpacked_to() -> None:
    assert on_disk(survey()) == {
        (MODELS, "model files"): WEIGHTS,
        (PREFIX, "the engine's archive"): 200_000_000,
        (PREFIX, "the engine unpacked"): int(200_000_000 * UNPACKED),
    }


def test_what_is_there_already_is_not_counted() -> None:
    spec = solved(survey(), presets()).spec
    assert spec is not None
    (model, _), (draft, _) = (pair for file in spec.model_files for pair in spec.pieces_of(file))
    seen = {str(model): ("absent", 17_000_000_000), str(draft): ("verified", 0)}
    there = survey(models=seen, engines={str(spec.engine_dir): "intact"})
    assert on_disk(there) == {(MODELS, "model files"): 700_000_000}
    whole = survey(models=dict.fromkeys(seen, ("verified", 0)), engines={str(spec.engine_dir): "intact"})
    assert on_disk(whole) == {}
    assert not any(decision.what == "disk" for decision in made(whole).decisions)
    damaged = survey(models=seen, engines={str(spec.engine_dir): "damaged: llama-server"})
    assert (PREFIX, "the engine's archive") in on_disk(damaged)


def test_two_paths_on_one_file_system_add_up() -> None:
    free = {MODELS: 19.0, PREFIX: 19.0}
    apart = made(survey(free=free))
    assert disk_of(apart) == []
    assert [decision.value for decision in apart.decisions if decision.what == "disk"] == [
        "18.33 GiB of 19.00 GiB free on /opt/beeyard/models",
        "0.88 GiB of 19.00 GiB free on /opt/beeyard",
    ]
    (reason,) = disk_of(made(survey(free=free, file_systems={MODELS: PREFIX, PREFIX: PREFIX})))
    assert reason == (
        "/opt/beeyard/models and /opt/beeyard are on one file system that has 19.00 GiB free, and 19.21 GiB are "
        "wanted for model files (17.45 GiB), the engine's archive (0.19 GiB) and the engine unpacked (0.65 GiB, an "
        "estimate), with 5 % to spare. Fix: free that much, or set llama_models_dir to another disk, or set "
        "llama_prefix to another disk"
    )


@pytest.mark.parametrize(("more", "fits"), [(1024, True), (-(2**22), False)])
def test_five_percent_stay_free(more: int, fits: bool) -> None:
    free = (WEIGHTS * SPARE + more) / GIB
    assert (disk_of(made(survey(free={MODELS: free, PREFIX: 100}))) == []) == fits


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"llama_image": IMAGE}, {("/var/lib/docker", "the image"): PULLED["cuda"]}),
        (
            {"llama_image_from": "carry"},
            {("/var/lib/docker", "the image"): PULLED["cuda"], (PREFIX, "the image as a file"): PULLED["cuda"]},
        ),
        (
            {"llama_image_from": "build"},
            {("/var/lib/docker", "the image and what it is built in"): BUILT["cuda"]},
        ),
    ],
)
def test_an_image_is_counted_where_docker_keeps_it(data: dict[str, Any], wanted: dict[tuple[str, str], int]) -> None:
    bases = {"nvidia/cuda:12.8.1-devel-ubuntu24.04": "local", "ubuntu:24.04": "local"}
    given = {"llama_runtime": "compose", **data}
    found = on_disk(survey(machine(card(), docker=DOCKER), data=given), presets(bases=bases))
    assert found == {(MODELS, "model files"): WEIGHTS, **wanted}


def test_an_image_that_is_carried_is_as_large_as_it_is_here_and_lies_there_as_a_file_first() -> None:
    docker = DOCKER.model_copy(update={"root": "/data/docker"})
    name = "beeyard:beellama-v0.4.3-cuda12"
    given = {
        "data": {"llama_runtime": "compose", "llama_image_from": "carry"},
        "carried": {name: Carried(id="sha256:" + "e" * 64, bytes=3 * GIB, architectures=("89",))},
    }
    free = {MODELS: 100.0, PREFIX: 100.0, "/data/docker": 2.0}
    first = survey(machine(card(), docker=docker), free, **given)
    assert on_disk(first)["/data/docker", "the image"] == 3 * GIB == on_disk(first)[PREFIX, "the image as a file"]
    (reason,) = disk_of(made(first))
    assert reason == (
        "/data/docker has 2.00 GiB free, and 3.15 GiB are wanted for the image, with 5 % to spare. Fix: free that "
        "much, or docker system prune, or give Docker another disk"
    )
    there = survey(machine(card(), docker=docker), free, images=(f"{name}-eeeeeeeeeeee",), **given)
    assert disk_of(made(there)) == []


def test_an_image_that_this_machine_lacks_is_told_with_the_plan() -> None:
    said = "image x is not on this machine. Fix: build it"
    given = {"llama_runtime": "compose", "llama_image_from": "carry"}
    solution = made(
        survey(machine(card(), docker=DOCKER), data=given, carried={"beeyard:beellama-v0.4.3-cuda12": said})
    )
    assert said in solution.reasons


@pytest.mark.case("BLD-03")
def test_an_image_that_holds_no_code_for_the_card_is_not_sent() -> None:
    given = {"llama_runtime": "compose", "llama_image_from": "carry"}
    image = Carried(id="sha256:" + "e" * 64, bytes=GIB, architectures=("86",))
    carried = {"beeyard:beellama-v0.4.3-cuda12": image}
    (reason,) = made(survey(machine(card(), docker=DOCKER), data=given, carried=carried)).reasons
    assert reason == (
        "image beeyard:beellama-v0.4.3-cuda12 of this machine holds code for architectures 86; the card there is 89. "
        "Fix: run `make image CUDA_ARCHITECTURES=89` here, or set llama_image_variant"
    )


def test_where_docker_is_to_be_installed_its_disk_is_asked_for_as_well() -> None:
    given = {"llama_runtime": "compose", "llama_docker": "docker.com", "llama_nvidia_toolkit": "install"}
    on = machine(card(), docker=DockerState())
    free = {MODELS: 100.0, PREFIX: 100.0, "/var/lib/docker": 1.0}
    (reason,) = disk_of(made(survey(on, free, data={**given, "llama_image": IMAGE})))
    assert reason.startswith("/var/lib/docker has 1.00 GiB free")


def test_what_a_host_compiles_is_counted_for_each_architecture() -> None:
    (on_cuda,) = (size for (_, what), size in on_disk(survey(), compiling(presets())).items() if "build" in what)
    assert 2 * GIB < on_cuda < 5 * GIB
    cpu = survey(data={"llama_settings": {"gpu_layers": 0}})
    (on_cpu,) = (size for (_, what), size in on_disk(cpu, compiling(presets())).items() if "build" in what)
    assert on_cpu < on_cuda


def test_a_wheel_lies_beside_what_comes_out_of_it() -> None:
    lock = load_catalog().lock.models["smollm2-135m-instruct-q4_1"]
    assert isinstance(lock, FileLock)
    on = machine(cpu_flags=("avx2",))
    found = on_disk(survey(on, data={"llama_preset": "smol"}), load_catalog())
    assert found[MODELS, "model files"] == 2 * lock.size


def test_a_path_of_which_nobody_knows_what_is_free_is_no_reason() -> None:
    found = solved(survey(), presets()).spec
    assert found is not None
    assert disk_faults(missing_on_disk(survey(), found), machine(card()).model_copy(update={"free_bytes": {}})) == []
