"""What a host will run: decisions and refusals, from facts of hosts that we do not have."""

from typing import Any

import pytest

from beeyard.catalog import PRESETS, Catalog, FileLock, Gguf, load_catalog
from beeyard.checks import host_compiler
from beeyard.machine import DockerState, Gpu, Gxx, Holder, Machine, Nvcc
from beeyard.render import define
from beeyard.sizing import what_is_served
from beeyard.solution import Kept, Own, Solution
from beeyard.solve import host_kind, solve
from beeyard.spec import resolve
from tests import headers

VOCABULARY = "89fd7bb9f623774c"
GEMMA = headers.GEMMA.header.model_copy(update={"vocabulary": VOCABULARY})
DRAFTER = headers.GEMMA_DRAFT.header.model_copy(update={"vocabulary": VOCABULARY})
SILENT = DockerState(command="/usr/bin/docker", silent="no")
DOCKER = DockerState(
    command="/usr/bin/docker", version="28.5.2", compose="2.40.3", runtimes=("nvidia", "runc"), has_toolkit=True
)
GIB = 2**30


def locked(header: Gguf, size: int, digit: str) -> FileLock:
    return FileLock(size=size, sha256=digit * 64, revision="0" * 40, gguf=header)


def catalog(model: Gguf = GEMMA, draft: Gguf = DRAFTER, **changes: Any) -> Catalog:
    """The project's presets, with the guide's pair locked as it would be where the Hub can be reached."""
    found = load_catalog([PRESETS])
    models = {
        "gemma-4-31b-it-q4_k_s": locked(model, 17_700_000_000, "a"),
        "gemma-4-31b-it-dflash-q5_k_m": locked(draft, 1_040_000_000, "b"),
    }
    lock = found.lock.model_copy(update={"models": {**found.lock.models, **models}, **changes})
    return found.model_copy(update={"lock": lock})


def card(name: str = "NVIDIA GeForce RTX 4090", capability: str = "8.9", **more: Any) -> Gpu:
    facts = {"index": 0, "uuid": "GPU-1", "memory_total_mib": 24564, "memory_free_mib": 24200, **more}
    return Gpu(name=name, compute_capability=capability, **facts)


def machine(*cards: Gpu, **more: Any) -> Machine:
    facts: dict[str, Any] = {
        "gpus": cards, "has_nvidia_smi": True, "driver": "570.86.15", "driver_cuda": "12.8", "init": "systemd",
        "is_root": True, "memory_mib": 64000, "memory_available_mib": 60000, "memlock_kib": None,
        "free_bytes": {"/opt/beeyard": 500 * GIB}, **more,
    }  # fmt: skip
    return Machine(**facts)


def plan(on: Machine, presets: Catalog | None = None, **data: Any) -> Solution:
    given = {"llama_preset": "gemma-4-31b", **{f"llama_{key}": value for key, value in data.items()}}
    return solve(given, presets or catalog(), on)


def decided(solution: Solution, what: str) -> tuple[str, str]:
    (found,) = (decision for decision in solution.decisions if decision.what == what)
    return found.value, found.why


# --------------------------------------------------------------------------------------------- -------- runtime


@pytest.mark.case("POD-01")
@pytest.mark.parametrize(
    ("facts", "runtime", "why"),
    [
        ({"init": "other"}, "supervisor", "systemd does not run this host"),
        ({"is_root": False}, "supervisor", "this user is not root"),
        ({}, "systemd", "there is no Docker Engine here"),
        (
            {"docker": SILENT},
            "systemd",
            "its Docker Engine does not answer",
        ),
        ({"docker": DOCKER.model_copy(update={"is_snap": True})}, "systemd", "its Docker is a snap"),
        ({"docker": DOCKER.model_copy(update={"compose": ""})}, "systemd", "its docker compose is missing"),
        ({"docker": DOCKER.model_copy(update={"runtimes": ()})}, "systemd", "cannot give containers the card"),
        ({"docker": DOCKER}, "systemd", "names no image of the engine to pull"),
    ],
)
def test_the_runtime_is_the_best_that_the_host_has(facts: dict[str, Any], runtime: str, why: str) -> None:
    found = decided(plan(machine(card(), **facts)), "runtime")
    assert found[0] == runtime
    assert why in found[1]


def test_every_decision_has_its_reason() -> None:
    found = {decision.what: (decision.value, decision.why) for decision in plan(machine(card())).decisions}
    assert found["engine"] == ("beellama-v0.4.3", "the preset's")
    assert found["artefact"] == ("a release's tarball", "presets/engines.yaml says so")
    assert found.keys() >= {"runtime", "memory"}
    other = plan(machine(card()), variant="guide-baseline")
    assert decided(other, "engine") == ("beellama-07ac3ce", "the variant's")
    assert decided(plan(machine(card()), engine="beellama-07ac3ce", variant="baseline"), "engine")[1] == (
        "llama_engine says so"
    )


def test_docker_with_the_card_and_an_image_to_pull_is_the_best() -> None:
    images = {"beellama-v0.4.3-cuda12": f"ghcr.io/beeyard/engine@sha256:{'c' * 64}"}
    solution = plan(machine(card(), docker=DOCKER), catalog(images=images))
    assert decided(solution, "runtime")[0] == "compose"
    assert solution.spec is not None
    assert solution.spec.runtime == "compose"
    assert solution.fits, solution.reasons


@pytest.mark.case("POD-01")
def test_a_runtime_that_is_asked_for_is_checked_and_not_overruled() -> None:
    solution = plan(machine(card(), init="other"), runtime="systemd")
    assert solution.reasons == (
        "runtime 'systemd' is asked for, but systemd does not run this host (no /run/systemd/system). "
        "Fix: leave llama_runtime out, or set it to supervisor",
    )


# ------------------------------------------------------------------------------------------------ cards and driver


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"has_nvidia_smi": False}, "there is no nvidia-smi here"),
        ({"gpu_fault": "No devices were found"}, "nvidia-smi finds no card here"),
        (
            {
                "gpu_fault": "Failed to initialize NVML: Driver/library version mismatch",
                "kernel_module": "550.54.14",
            },
            "whose module is 550.54.14. Fix: reboot the host",
        ),
        (
            {"gpu_fault": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."},
            "the kernel module is not loaded. Fix: modprobe nvidia",
        ),
        (
            {"gpu_fault": "GPU 0 (NVIDIA GB10) has for memory.total: [N/A]"},
            "not how much memory the card has, as where it is the host's",
        ),
        ({"gpu_fault": "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error"}, "Xid"),
    ],
)
def test_a_host_without_a_usable_card_is_told_why(facts: dict[str, Any], sentence: str) -> None:
    (reason,) = plan(machine(**facts)).reasons
    assert sentence in reason
    assert "Fix: " in reason


def test_a_driver_that_a_deploy_installs_first_is_said_to_come() -> None:
    (reason,) = plan(machine(has_nvidia_smi=False), nvidia_driver="install").reasons
    assert reason.endswith(
        "deploy, which installs the driver alone (llama_nvidia_driver), reboot the host, and deploy again"
    )


def test_in_a_rented_pod_the_fix_is_another_pod() -> None:
    (reason,) = plan(machine(gpu_fault="No devices were found", provider="runpod", init="other")).reasons
    assert reason.endswith("in a rented pod, take another one")


def test_a_card_cut_into_instances_is_left_out() -> None:
    (reason,) = plan(machine(card("NVIDIA H100 80GB HBM3", "9.0", mig=True))).reasons
    assert "is cut into MIG instances" in reason
    both = plan(machine(card("NVIDIA H100 80GB HBM3", "9.0", mig=True), card(index=1, uuid="GPU-2")))
    assert both.fits, both.reasons
    assert "is cut into MIG instances" in both.notes[0]


@pytest.mark.case("GPU-03")
@pytest.mark.parametrize(
    ("on", "sentence"),
    [
        # GPU-03: no CUDA is right for a 5090 and a driver of the 12.4 time.
        (
            machine(card("NVIDIA GeForce RTX 5090", "12.0"), driver="550.54.14", driver_cuda="12.4"),
            "the driver 550.54.14 speaks CUDA 12.4, and NVIDIA GeForce RTX 5090 (compute capability 12.0) wants 12.8 "
            "or newer: no CUDA is right for both. Fix: update the NVIDIA driver",
        ),
        (
            machine(card(), driver="470.1", driver_cuda="11.4", provider="vast", init="other"),
            "wants 11.8 or newer: no CUDA is right for both. "
            "Fix: take another host: its driver is not ours to update",
        ),
    ],
)
def test_a_driver_too_old_for_the_card_is_told_before_anything(on: Machine, sentence: str) -> None:
    (reason,) = plan(on).reasons
    assert reason.endswith(sentence)


@pytest.mark.case("GPU-03")
def test_a_driver_of_an_older_major_than_the_images_cuda_is_refused() -> None:
    images = {"beellama-v0.4.3-cuda13": f"ghcr.io/beeyard/engine@sha256:{'c' * 64}"}
    solution = plan(machine(card(), docker=DOCKER), catalog(images=images), image_variant="cuda13", runtime="compose")
    (reason,) = solution.reasons
    assert "speaks CUDA 12.8, and the engine is compiled with CUDA 13.0" in reason


def test_an_older_minor_runs_code_that_was_compiled_for_the_card() -> None:
    # Debian 13's driver, and NVIDIA's minor version compatibility.
    images = {"beellama-v0.4.3-cuda12": f"ghcr.io/beeyard/engine@sha256:{'c' * 64}"}
    on = machine(card(), docker=DOCKER, driver="550.163.01", driver_cuda="12.4")
    assert plan(on, catalog(images=images), runtime="compose").fits


def released(presets: Catalog, **artefact: Any) -> Catalog:
    """The same, with facts of the release of the usual engine."""
    engine = presets.engines["beellama-v0.4.3"]
    changed = type(engine).model_validate({**engine.model_dump(), "artefact": {"kind": "release", **artefact}})
    return presets.model_copy(update={"engines": {**presets.engines, "beellama-v0.4.3": changed}})


@pytest.mark.case("GPU-03")
@pytest.mark.parametrize(
    ("capability", "artefact", "sentence"),
    [
        (
            "8.9",
            {"cuda": "13.0"},
            "the engine is compiled with CUDA 13.0. Fix: update the NVIDIA driver, or take",
        ),
        (
            "12.0",
            {"cuda": "12.4", "architectures": ["86", "89"]},
            "the engine holds code for architectures 86, 89, and NVIDIA GeForce RTX 4090 is 120. Fix: take another",
        ),
        ("8.9", {"cuda": "12.4", "architectures": ["86", "89"]}, ""),
        ("8.9", {}, ""),
    ],
)
def test_a_release_must_run_on_the_card_by_its_cuda_and_its_architectures(
    capability: str, artefact: dict[str, Any], sentence: str
) -> None:
    found = plan(machine(card(capability=capability)), released(catalog(), **artefact)).reasons
    assert bool(found) == bool(sentence)
    assert all(sentence in reason for reason in found)


@pytest.mark.case("BLD-03")
def test_an_image_variant_that_is_named_must_hold_code_for_the_card() -> None:
    images = {"beellama-v0.4.3-cuda12": f"ghcr.io/beeyard/engine@sha256:{'c' * 64}"}
    on = machine(card("NVIDIA GeForce RTX 5090", "12.0"), docker=DOCKER, driver_cuda="13.0")
    (reason,) = plan(on, catalog(images=images), runtime="compose", image_variant="cuda12").reasons
    assert "the engine holds code for architectures 86, 89, and NVIDIA GeForce RTX 5090 is 120" in reason
    # One of somebody's own may be for any card: its label is looked at once it is there.
    own = f"ghcr.io/me/engine@sha256:{'d' * 64}"
    assert plan(on, catalog(images=images), runtime="compose", image_variant="cuda12", image=own).fits


@pytest.mark.case("GPU-03")
def test_what_a_newer_toolkit_than_the_drivers_compiles_is_told_before_cloning() -> None:
    nvcc = Nvcc(path="/usr/local/cuda/bin/nvcc", version="13.0.88", architectures=("89",))
    (reason,) = plan(machine(card(), nvccs=(nvcc,)), compiling(catalog())).reasons
    assert "speaks CUDA 12.8, and the engine is compiled with CUDA 13.0.88" in reason
    assert reason.endswith("or install a CUDA toolkit of the driver's major version")


RTX_3090 = card("NVIDIA GeForce RTX 3090", "8.6", memory_total_mib=24576)
RTX_5090 = card("NVIDIA GeForce RTX 5090", "12.0", index=1, uuid="GPU-2", memory_total_mib=32607)


def test_of_several_cards_the_one_with_the_most_memory_is_taken_and_said() -> None:
    solution = plan(machine(RTX_3090, RTX_5090))
    assert decided(solution, "card") == (
        "GPU 1 (NVIDIA GeForce RTX 5090)",
        "the most memory; of GPU 0 (NVIDIA GeForce RTX 3090, 24576 MiB), GPU 1 (NVIDIA GeForce RTX 5090, 32607 MiB). "
        "One alone: over several, DFlash ends the server under --split-mode tensor",
    )
    assert solution.spec is not None
    assert (solution.spec.card, solution.spec.architectures) == ("GPU-2", ("120",))
    assert "CUDA_VISIBLE_DEVICES=GPU-2" in define(solution.spec).definition


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("guide-dflash", "One alone: over several, this engine switches off what of DFlash runs on the card"),
        ("baseline", ""),
    ],
)
def test_where_dflash_would_suffer_on_several_cards_one_is_picked_and_that_is_said(variant: str, says: str) -> None:
    solution = plan(machine(RTX_3090, RTX_5090), variant=variant)
    assert ("One alone" in decided(solution, "card")[1]) == bool(says)
    assert decided(solution, "card")[1].endswith(says)
    assert solution.spec is not None
    assert solution.spec.card == "GPU-2"


def test_a_server_stays_on_the_card_where_it_runs() -> None:
    busy = RTX_3090.model_copy(update={"holders": (Holder(pid=7, name="llama-server", used_mib=20000),)})
    solution = solve({"llama_preset": "gemma-4-31b"}, catalog(), machine(busy, RTX_5090), Own(pids=(7,)))
    assert decided(solution, "card")[1].startswith("our server runs there")
    assert solution.spec is not None
    assert solution.spec.card == RTX_3090.uuid


@pytest.mark.parametrize("name", ["0", "GPU-1"])
def test_a_card_can_be_named(name: str) -> None:
    solution = plan(machine(RTX_3090, RTX_5090), card=name)
    assert solution.spec is not None
    assert solution.spec.card == "GPU-1"
    assert decided(solution, "card")[1].startswith("llama_card says so; of GPU 0 ")


def test_a_card_that_is_not_there_is_named_with_those_that_are() -> None:
    (reason,) = plan(machine(RTX_3090), card="1").reasons
    assert reason.startswith("llama_card is '1', and the cards here are GPU 0 (NVIDIA GeForce RTX 3090, 24576 MiB).")


def test_the_only_card_needs_no_name() -> None:
    solution = plan(machine(card()))
    assert solution.spec is not None
    assert solution.spec.card is None
    assert "CUDA_VISIBLE_DEVICES" not in define(solution.spec).definition


# ----------------------------------------------------------------------------------------------- locked in memory


POD = {"init": "other", "virtualisation": "docker", "memlock_kib": 8192}


def test_where_the_limit_is_too_low_the_model_is_not_locked_and_that_is_said() -> None:
    solution = plan(machine(card(), **POD))
    value, why = decided(solution, "mlock")
    assert value == "off"
    assert why.startswith("this host lets a process lock 8192 KiB of memory, and the model wants ")
    assert solution.spec is not None
    assert solution.spec.settings.load_mode == "none"
    again = resolve(
        {"llama_preset": "gemma-4-31b", **solution.decided}, catalog(), host_kind(machine(card()), (card(),), None)
    )
    assert again.settings == solution.spec.settings


def test_a_lock_that_is_required_is_refused_where_it_cannot_be() -> None:
    (reason,) = plan(machine(card(), **POD), mlock="require").reasons
    assert reason.endswith("or set llama_mlock to auto")


@pytest.mark.parametrize("facts", [{**POD, "memlock_kib": None}, {"memlock_kib": 8192}])
def test_no_limit_or_one_that_systemd_lifts_is_none(facts: dict[str, Any]) -> None:
    solution = plan(machine(card(), **facts))
    assert solution.spec is not None
    assert solution.spec.settings.load_mode == "mlock"


def test_a_server_of_roots_that_has_the_capability_needs_no_limit() -> None:
    facts = machine(card(), **POD, has_ipc_lock=True)
    assert "llama_mlock" not in plan(facts, user="self").decided
    assert decided(plan(facts), "mlock")[0] == "off"  # another user has no capabilities


@pytest.mark.parametrize(("limits", "is_locked"), [({"memlock": 4096}, False), ({"memlock": "unlimited"}, True)])
def test_limits_that_the_deploy_sets_are_those_that_count(limits: dict[str, Any], is_locked: bool) -> None:
    for memlock in (8192, 4096):  # before it and after it: the plan is the same one
        solution = plan(machine(card(), **{**POD, "memlock_kib": memlock}), limits=limits)
        assert ("llama_mlock" not in solution.decided) == is_locked
        if not is_locked:
            assert decided(solution, "mlock")[1].startswith("this host lets a process lock 4096 KiB")


def test_a_limit_of_the_units_own_counts_too() -> None:
    assert decided(plan(machine(card()), memlock=8 * 2**20), "mlock")[0] == "off"


# ------------------------------------------------------------------------------------------- context and memory


def test_the_largest_usual_context_that_fits_is_taken_and_kept_while_it_fits() -> None:
    data = {"llama_preset": "gemma-4-31b", "llama_context": "auto"}
    first = solve(data, catalog(), machine(card()))
    assert first.spec is not None
    context = first.spec.settings.context
    assert (first.decided["llama_context"], first.fits) == (context, True)
    # A browser opens: less would be chosen now, and a little more is free later; neither changes what serves.
    kept = Kept(what_is_served(first.spec), context)
    for free in (24200, 24564):
        again = solve(data, catalog(), machine(card(memory_free_mib=free)), kept=kept)
        assert again.decided["llama_context"] == context
    roomy = machine(card("NVIDIA GeForce RTX 5090", "12.0", memory_total_mib=32607, memory_free_mib=32000))
    other = Kept("another preset", context)
    assert solve(data, catalog(), roomy, kept=other).decided["llama_context"] > context


def test_our_own_servers_memory_counts_as_free() -> None:
    ours = (Holder(pid=7, name="llama-server", used_mib=21000),)
    busy = machine(card(memory_free_mib=3200, holders=ours))
    assert not solve({"llama_preset": "gemma-4-31b"}, catalog(), busy).fits
    assert solve({"llama_preset": "gemma-4-31b"}, catalog(), busy, Own(pids=(7,))).fits


@pytest.mark.case("DFL-02")
def test_too_much_for_the_card_names_what_would_fit_and_who_holds_the_rest() -> None:
    others = (Holder(pid=9, name="python3", used_mib=900),)
    on = machine(card(memory_free_mib=23400, holders=others))
    (reason,) = plan(on, context=131072).reasons
    assert (
        "MiB of GPU memory, and 23400 are free on GPU 0 (NVIDIA GeForce RTX 4090), which python3 (9) uses too"
        in reason
    )
    context = int(reason.partition("set llama_context to ")[2].partition(" ")[0])
    assert plan(on, context=context).fits
    assert not plan(on, context=context + 256).fits


@pytest.mark.case("MEM-03")
def test_too_little_memory_of_the_host_is_told() -> None:
    (reason,) = plan(machine(card(), memory_limit_mib=1000)).reasons
    assert reason.startswith("it takes ")
    assert "MiB of the host's memory, and 1000 are free. Fix: " in reason


@pytest.mark.case("MEM-03")
def test_memory_that_is_short_only_later_is_a_note() -> None:
    big = {"cache_ram_mib": 8192}
    assert plan(machine(card()), settings=big).notes == ()
    solution = plan(machine(card(), memory_limit_mib=12000), settings=big)
    assert solution.fits, solution.reasons
    (note,) = solution.notes
    assert note.startswith("the host's memory may be short later: up to ")
    assert "prompt cache 8192 MiB, and 12000 are free. Fix: fewer slots" in note


@pytest.mark.case("KV-01")
def test_a_pair_of_cache_types_without_a_kernel_is_refused_or_noted() -> None:
    kv = {"kv": {"k": "q8_0", "v": "q4_0"}}
    assert "was built with a CUDA kernel for KV q8_0/q4_0 is not known" in plan(machine(card()), settings=kv).notes[0]
    presets = catalog()
    engine = presets.engines["beellama-v0.4.3"].model_copy(update={"fa_all_quants": False})
    presets = presets.model_copy(update={"engines": {**presets.engines, "beellama-v0.4.3": engine}})
    (reason,) = plan(machine(card()), presets, settings=kv).reasons
    assert reason.startswith("this build has no CUDA kernel of flash attention for KV q8_0/q4_0")


def test_what_cannot_be_computed_is_a_note_and_stands_against_nothing() -> None:
    turbo = {"kv": {"k": "turbo3", "v": "turbo3"}}
    solution = plan(machine(card()), variant="guide-baseline", settings=turbo)
    assert solution.fits, solution.reasons
    assert "what it takes of memory is not known: " in solution.notes[0]
    (reason,) = plan(machine(card()), variant="guide-baseline", settings=turbo, context="auto").reasons
    assert reason.startswith("llama_context: auto cannot be decided: ")


def test_a_context_to_be_decided_waits_for_the_header_that_a_deploy_locks() -> None:
    solution = solve(
        {"llama_preset": "gemma-4-31b", "llama_context": "auto"}, load_catalog([PRESETS]), machine(card())
    )
    assert solution.spec is not None, "or nothing would be locked"
    assert solution.spec.unlocked_models
    assert "has no header of gemma-4-31b-it-q4_k_s" in solution.reasons[0]


# ------------------------------------------------------------------------------------------------ compiling there


def compiling(presets: Catalog) -> Catalog:
    engine = presets.engines["beellama-v0.4.3"]
    changed = type(engine).model_validate({**engine.model_dump(), "artefact": {"kind": "source"}})
    return presets.model_copy(update={"engines": {**presets.engines, "beellama-v0.4.3": changed}})


@pytest.mark.case("BLD-02")
def test_an_nvcc_that_does_not_know_the_card_is_told_before_cloning() -> None:
    nvcc = Nvcc(path="/usr/local/cuda/bin/nvcc", version="12.4.131", architectures=("80", "86", "89", "90"))
    solution = plan(machine(card("NVIDIA GeForce RTX 5090", "12.0"), nvccs=(nvcc,)), compiling(catalog()))
    (reason,) = solution.reasons
    assert reason.startswith(
        "NVIDIA GeForce RTX 5090 is architecture 120, which /usr/local/cuda/bin/nvcc (CUDA 12.4.131) does not know; "
        "CUDA 12.8 or newer does. Fix: "
    )


@pytest.mark.case("BLD-09")
@pytest.mark.parametrize(("cuda", "cxx", "most"), [("12.4.131", "14.2.0", 13), ("12.8.93", "15.1.0", 14)])
def test_a_compiler_newer_than_nvcc_takes_is_told(cuda: str, cxx: str, most: int) -> None:
    nvcc = Nvcc(path="/usr/local/cuda/bin/nvcc", version=cuda, architectures=("89",))
    (reason,) = plan(machine(card(), nvccs=(nvcc,), cxx=cxx), compiling(catalog())).reasons
    assert f"c++ is version {cxx}, and CUDA {cuda} takes {most} at most" in reason
    assert plan(machine(card(), nvccs=(nvcc,), cxx=f"{most}.1.0"), compiling(catalog())).fits


@pytest.mark.case("BLD-09")
def test_an_older_compiler_beside_it_is_taken_in_its_place() -> None:
    nvcc = Nvcc(path="/opt/cuda/bin/nvcc", version="12.4.131", architectures=("89",))
    beside = tuple(Gxx(path=f"/usr/bin/g++-{number}", version=f"{number}.2.0") for number in (9, 12, 13, 14))
    facts = machine(card(), nvccs=(nvcc,), cxx="14.2.0", gxxs=beside)
    solution = plan(facts, compiling(catalog()))
    assert solution.fits
    assert decided(solution, "compiler") == ("/usr/bin/g++-13", "c++ is 14.2.0, which CUDA 12.4.131 does not take")
    too_new = machine(card(), nvccs=(nvcc,), cxx="14.2.0", gxxs=beside[-1:])
    assert "Fix: install g++-13 (it is found beside c++)" in plan(too_new, compiling(catalog())).reasons[0]
    assert host_compiler(machine(card(), nvccs=(nvcc,), cxx="13.1.0", gxxs=beside)) is None


@pytest.mark.case("BLD-09")
@pytest.mark.parametrize(
    ("facts", "version"),
    [
        ({"distribution": "debian", "release": "13"}, "14"),
        ({"distribution": "ubuntu", "release": "26.04", "cxx_candidate": "15.2.0"}, "15.2.0"),
        ({"distribution": "ubuntu", "release": "24.04"}, ""),
        ({"distribution": "ubuntu", "release": "26.04"}, ""),  # nobody knows
        ({"distribution": "debian", "release": "13", "cxx": "12.2.0"}, ""),
    ],
)
def test_a_compiler_that_a_deploy_would_install_and_nvcc_not_take_is_told_before(
    facts: dict[str, Any], version: str
) -> None:
    nvcc = Nvcc(path="/usr/local/cuda/bin/nvcc", version="12.4.131", architectures=("89",))
    found = plan(machine(card(), nvccs=(nvcc,), **facts), compiling(catalog())).reasons
    assert bool(found) == bool(version)
    for reason in found:
        assert reason.startswith(
            f"there is no c++ here, the distribution's is version {version}, and CUDA 12.4.131 takes 13 at most. "
        )
    beside = (Gxx(path="/usr/bin/g++-12", version="12.4.0"),)
    solution = plan(machine(card(), nvccs=(nvcc,), gxxs=beside, **facts), compiling(catalog()))
    assert solution.fits
    assert any(decision.what == "compiler" for decision in solution.decisions) == bool(version)


# ---------------------------------------------------------------------------------------------- model and drafter


@pytest.mark.case("DFL-03")
@pytest.mark.parametrize(
    ("engine", "draft", "sentence"),
    [
        (
            "beellama-v0.4.3",
            {"architecture": "dflash-draft"},
            "is a dflash-draft drafter; BeeLlama v0.4.3 reads dflash. ",
        ),
        (
            "beellama-v0.4.3",
            {"drafter": "early"},
            "is a dflash, early schema drafter; BeeLlama v0.4.3 reads dflash. ",
        ),
        (
            "beellama-v0.4.3",
            {"drafter": "dflash-2"},
            "is a DFlash 2 drafter; BeeLlama v0.4.3 reads dflash. Fix: take a plain DFlash drafter of this model",
        ),
        ("beellama-v0.4.3", {"drafter": "dspark"}, "is a DSpark drafter; BeeLlama v0.4.3 reads dflash. Fix: take a"),
        (
            "beellama-07ac3ce",
            {},
            "is a dflash drafter; BeeLlama v0.2.0+2 reads dflash-draft and dflash, early schema. ",
        ),
    ],
)
def test_a_drafter_in_a_format_that_the_engine_does_not_read_is_named(
    engine: str, draft: dict[str, Any], sentence: str
) -> None:
    presets = catalog(draft=DRAFTER.model_copy(update=draft))
    variant = "guide-dflash" if engine == "beellama-07ac3ce" else "dflash"
    found = plan(machine(card()), presets, variant=variant).reasons
    assert any(sentence in reason for reason in found), found


@pytest.mark.case("DFL-03")
def test_an_engine_that_reads_dflash_2_is_given_it() -> None:
    presets = catalog(draft=DRAFTER.model_copy(update={"drafter": "dflash-2"}))
    engine = presets.engines["beellama-v0.4.3"].model_copy(update={"reads_dflash_2": True})
    presets = presets.model_copy(update={"engines": {**presets.engines, "beellama-v0.4.3": engine}})
    assert plan(machine(card()), presets).fits


@pytest.mark.case("DFL-04")
def test_a_drafter_with_another_vocabulary_is_named() -> None:
    presets = catalog(draft=DRAFTER.model_copy(update={"words": 151936, "vocabulary": "0123456789abcdef"}))
    found = plan(machine(card()), presets).reasons
    assert any("has another vocabulary (151936 words, 0123456789abcdef)" in reason for reason in found), found


def test_swapped_files_are_recognised() -> None:
    found = plan(machine(card()), catalog(model=DRAFTER, draft=GEMMA)).reasons
    assert any("they are swapped" in reason for reason in found), found


def test_the_newest_engine_that_reads_the_drafter_is_taken() -> None:
    engines = {
        name: {"url": f"https://example.invalid/{name}.tar.gz", "size": 1, "sha256": "d" * 64}
        for name in ("beellama-07ac3ce", "beellama-v0.4.3")
    }
    lock = catalog().lock
    presets = catalog(
        engines={**lock.engines, **{name: _engine_lock(lock, facts) for name, facts in engines.items()}}
    )
    value, why = decided(plan(machine(card()), presets, engine="auto"), "engine")
    assert value == "beellama-v0.4.3"
    assert "llama.cpp-2026-08-09: engine 'llama.cpp-2026-08-09' has no tarball" in why


def _engine_lock(lock: Any, facts: dict[str, Any]) -> Any:
    return type(next(iter(lock.engines.values()))).model_validate(facts)
