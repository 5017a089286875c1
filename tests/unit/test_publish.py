"""Publishing an image: the name it gets, the command that sends it, and what its failures say."""

from pathlib import Path

import pytest

from beeyard.catalog import CatalogError, load_catalog
from beeyard.image_build import check_builder, check_login, publish_command, reason
from beeyard.images import SBOM_SCANNER, Build, locked_scanner, pick_build, published_name

CATALOG = load_catalog()
DIGEST = "sha256:" + "ab" * 32
BASES = {base for variant in CATALOG.images.values() for base in (variant.build_base, variant.server_base)}
LOCK = CATALOG.lock.model_copy(update={"bases": dict.fromkeys(BASES | {SBOM_SCANNER}, DIGEST)})
LOCKED = CATALOG.model_copy(update={"lock": LOCK})
TARGET = "beellama-v0_4_3-cuda12"


def build() -> Build:
    return pick_build(LOCKED, "beellama-v0.4.3", "cuda12")


def command(version: str = "v1.2.3") -> list[str]:
    scanner = locked_scanner(LOCKED)
    return publish_command(build(), Path("/x/bake.hcl"), "auto", '{"-m":true}', version, scanner, ["--print"])


def test_an_image_is_sent_with_sbom_provenance_and_the_label_of_its_flags() -> None:
    assert command() == [
        "docker", "buildx", "bake", "--file", "/x/bake.hcl",
        "--push", "--provenance=mode=max",
        f"--sbom=generator=docker/buildkit-syft-scanner:stable-1@{DIGEST}", "--print",
        TARGET,
        "--set", f"{TARGET}.args.JOBS=auto",
        "--set", f'{TARGET}.labels.beeyard.flags={{"-m":true}}',
        "--set", f"{TARGET}.args.VERSION=v1.2.3",
    ]  # fmt: skip


def test_without_a_version_nothing_is_said_of_one() -> None:
    assert not [word for word in command("") if "VERSION" in word]
    assert published_name(build(), "ghcr.io/bees/beeyard", "") == "ghcr.io/bees/beeyard:beellama-v0.4.3-cuda12"


@pytest.mark.parametrize(
    "repository", ["ghcr.io/Bees/beeyard", "beeyard", "ghcr.io/bees/", "https://ghcr.io/b/c", ""]
)
def test_a_name_that_no_registry_takes_is_refused_before_the_build(repository: str) -> None:
    with pytest.raises(CatalogError, match=r"no registry takes the name .* Fix: write it as ghcr.io/OWNER/NAME"):
        published_name(build(), repository, "v1.2.3")


def test_a_registry_may_be_at_a_port() -> None:
    assert published_name(build(), "localhost:5000/bees", "") == "localhost:5000/bees:beellama-v0.4.3-cuda12"


@pytest.mark.parametrize(
    ("config", "repository", "allowed"),
    [
        ('{"auths": {"ghcr.io": {}}}', "ghcr.io/bees/beeyard", True),
        ('{"credHelpers": {"ghcr.io": "secretservice"}}', "ghcr.io/bees/beeyard", True),
        ('{"auths": {"quay.io": {}}}', "ghcr.io/bees/beeyard", False),
        ("", "ghcr.io/bees/beeyard", False),
        ("", "localhost:5000/bees", True),
    ],
)
def test_who_is_not_logged_in_is_told_before_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, repository: str, allowed: bool
) -> None:
    (tmp_path / "config.json").write_text(config)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    if allowed:
        check_login(repository)
    else:
        with pytest.raises(CatalogError, match=r"nobody is logged in at ghcr.io, .* Fix: docker login ghcr.io"):
            check_login(repository)


def test_a_builder_that_makes_no_attestations_is_told_before_the_build() -> None:
    own, other = "Name:   default\nDriver: docker\n", "Name: x\nDriver: docker-container\n"
    check_builder(other, "[]")
    check_builder(own, '[["driver-type","io.containerd.snapshotter.v1"]]')
    with pytest.raises(CatalogError, match=r"keeps no attestations\. Fix: "):
        check_builder(own, '[["Backing Filesystem","extfs"]]')


def test_what_writes_the_sbom_is_pinned() -> None:
    with pytest.raises(CatalogError, match=r"which writes the SBOM, has no digest .* Fix: run `make lock-images`"):
        locked_scanner(CATALOG.model_copy(update={"lock": LOCK.model_copy(update={"bases": {}})}))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "ERROR: Attestation is not supported for the docker driver.\nSwitch to a different driver",
            "this Docker Engine keeps no attestations. Fix: turn on its containerd image store",
        ),
        (
            "ERROR: failed to solve: failed to push ghcr.io/bees/beeyard:a-b: unexpected status: 403 Forbidden",
            "ghcr.io/bees/beeyard lets nobody push who is not logged in and allowed to. Fix: docker login",
        ),
        (
            "ERROR: failed to solve: failed to push localhost:5000/bees:a: unexpected status: 401 Unauthorized",
            "localhost:5000/bees lets nobody push",
        ),
        (
            "ERROR: failed to push ghcr.io/bees/beeyard:a: denied: permission_denied: write_package",
            "ghcr.io/bees/beeyard lets nobody push",
        ),
    ],
)
def test_a_push_that_fails_is_told_apart(said: str, sentence: str) -> None:
    assert reason(said, build()).startswith(sentence)
