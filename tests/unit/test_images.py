"""Names and variants of images, and the cards they are for."""

import re

import pytest

from beeyard import images
from beeyard.catalog import Catalog, CatalogError, load_catalog
from beeyard.spec import HostKind, ServerSpec, resolve

CATALOG = load_catalog()
BASES = ("nvidia/cuda:12.8.1-devel-ubuntu24.04", "nvidia/cuda:13.0.1-devel-ubuntu24.04", "ubuntu:24.04")
DIGEST = "sha256:" + "ab" * 32


def locked() -> Catalog:
    lock = CATALOG.lock.model_copy(update={"bases": dict.fromkeys(BASES, DIGEST)})
    return CATALOG.model_copy(update={"lock": lock})


def spec(catalog: Catalog = CATALOG, capabilities: tuple[str, ...] = ("8.9",), **data: str) -> ServerSpec:
    kind = HostKind(has_systemd=True, is_root=True, compute_capabilities=capabilities)
    return resolve({"llama_preset": "gemma-4-31b", "llama_runtime": "compose", **data}, catalog, kind)


def test_every_variant_holds_only_architectures_that_its_cuda_knows() -> None:
    for variant in CATALOG.images.values():
        if variant.cuda is not None:
            images.check_architectures(variant.cuda, variant.architectures, CATALOG.gpus)
            assert set(variant.architectures) <= set(images.known_architectures(variant.cuda, CATALOG.gpus))


@pytest.mark.case("BLD-03")
def test_a_card_that_is_too_new_is_refused_with_its_name_and_the_least_cuda() -> None:
    with pytest.raises(CatalogError) as error:
        images.check_architectures("12.4", ["89", "120"], CATALOG.gpus)
    assert str(error.value).startswith(
        "CUDA 12.4 does not know architecture 120 (NVIDIA GeForce RTX 5090), which wants CUDA 12.8 or newer. Fix: "
    )


@pytest.mark.parametrize(
    ("capabilities", "variant"),
    [
        (("8.6",), "cuda12"),
        (("8.9",), "cuda12"),
        (("12.0",), "cuda13"),
        (("8.9", "12.0"), "cuda13"),
        (("9.0",), "cuda12"),
    ],
)
def test_the_variant_is_chosen_by_the_card(capabilities: tuple[str, ...], variant: str) -> None:
    image = spec(capabilities=capabilities).image
    assert image is not None
    assert image.variant == variant


def test_a_card_that_no_cuda_of_ours_knows_is_refused() -> None:
    with pytest.raises(CatalogError, match=r"no image variant is for architecture 150 .* Fix: add the card"):
        spec(capabilities=("15.0",))


def test_a_host_without_a_card_is_told_so() -> None:
    with pytest.raises(CatalogError, match="nvidia-smi names none here"):
        spec(capabilities=())


def test_an_unlocked_base_cannot_be_built_on_and_says_what_to_do() -> None:
    with pytest.raises(CatalogError, match=r"ubuntu:24.04 has no digest .* Fix: run `make lock-images`"):
        images.pick_build(CATALOG, "beellama-v0.4.3", "cpu")
    assert images.locked_base(CATALOG, "ubuntu:24.04") == "run-make-lock-images.invalid/ubuntu:24.04"
    assert images.pick_build(locked(), "beellama-v0.4.3", "cpu").server_base == f"ubuntu:24.04@{DIGEST}"


@pytest.mark.case("BLD-03")
def test_an_image_is_never_named_by_what_may_change() -> None:
    carried = spec().carrying("sha256:0123456789abcdef").image
    built = spec(locked(), llama_image_from="build").image
    other_card = spec(locked(), ("8.6",), llama_image_from="build").image
    pulled = spec(llama_image=f"ghcr.io/bees/beeyard@{DIGEST}").image
    assert carried is not None
    assert built is not None
    assert other_card is not None
    assert pulled is not None
    assert carried.reference == "beeyard:beellama-v0.4.3-cuda12-0123456789ab"
    assert re.fullmatch(r"beeyard:beellama-v0\.4\.3-cuda12-[0-9a-f]{12}", built.reference)
    assert built.reference != other_card.reference
    assert (pulled.reference, pulled.source) == (f"ghcr.io/bees/beeyard@{DIGEST}", "pull")


def test_the_lock_names_what_is_pulled_by_default() -> None:
    lock = CATALOG.lock.model_copy(update={"images": {"beellama-v0.4.3-cuda12": f"ghcr.io/bees/beeyard@{DIGEST}"}})
    image = spec(CATALOG.model_copy(update={"lock": lock})).image
    assert image is not None
    assert image.source == "pull"


def test_only_root_may_run_it() -> None:
    with pytest.raises(CatalogError, match="this user is not root"):
        resolve(
            {"llama_preset": "gemma-4-31b", "llama_runtime": "compose"},
            CATALOG,
            HostKind(has_systemd=True, is_root=False),
        )
