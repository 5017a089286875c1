"""From host data to a spec, and what is refused on the way."""

from typing import Any

import pytest

from beeyard.catalog import PROJECT, CatalogError, SourceArtefact, load_catalog
from beeyard.images import BINARY
from beeyard.spec import HeldEngine, HostKind, ServerSpec, resolve

CATALOG = load_catalog()
SYSTEMD = HostKind(has_systemd=True, is_root=True)
POD = HostKind(has_systemd=False, is_root=True)
ORDINARY = HostKind(has_systemd=True, is_root=False)


def spec(kind: HostKind = SYSTEMD, **data: Any) -> ServerSpec:
    return resolve({"llama_preset": "tiny", "ssh_user": "ops", **data}, CATALOG, kind)


@pytest.mark.case("PYI-03")
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"llama_expose": "tcp"}, "llama_expose_at does not say where clients find it"),
        ({"llama_expose": "tcp", "llama_expose_at": "pod.example"}, "expose_at is 'pod.example'"),
        (
            {"llama_expose": "tcp", "llama_expose_at": "192.0.2.7:31911", "llama_bind": "0.0.0.0"},
            "llama_bind 0.0.0.0 opens the server itself beside its TLS port",
        ),
        (
            {"llama_expose": "tcp", "llama_expose_at": "192.0.2.7:31911", "llama_expose_port": 8910},
            "llama_expose_port 8910 is the server's own port",
        ),
        ({"llama_preset": "nope"}, "no preset 'nope' in presets/. Fix: use one of gemma-4-31b,"),
        ({"llama_variant": "warp"}, "no variant of tiny 'warp'"),
        ({"llama_engine": "steam"}, "no engine 'steam'"),
        ({"llama_prot": 8911}, "unknown key 'prot'"),
        ({"llama_port": 70000}, "port is 70000"),
        ({"llama_bind": "all"}, "'all' does not appear to be an IPv4 or IPv6 address"),
        ({"llama_runtime": "magic"}, "runtime is 'magic'"),
        ({"llama_runtime": "compose", "llama_image_variant": "nope"}, "no image variant 'nope'"),
        ({"llama_runtime": "compose", "llama_image_from": "pull"}, "names no image llama.cpp-wheel-cpu to pull"),
        ({"llama_runtime": "compose", "llama_image_from": "build"}, "engine 'llama.cpp-wheel' names no commit"),
        ({"llama_image": "ghcr.io/bees/beeyard:latest"}, "image is 'ghcr.io/bees/beeyard:latest'"),
        ({"llama_prefix": "/" + "long/" * 30}, "at most 80"),
        ({"llama_prefix": "/a\nb"}, "control characters"),
        ({"llama_prefix": "/srv/50%"}, "must not hold any of %"),
        ({"llama_prefix": "/srv/bees' $HOME"}, "must not hold any of %"),
        ({"llama_settings": {"contxt": 1}}, "unknown key 'contxt'"),
        ({"llama_settings": {"flash_attention": "off"}}, "V cache type q4_1 needs flash attention"),
    ],
)
def test_wrong_host_data_is_refused_by_name(data: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CatalogError) as error:
        spec(**data)
    assert complaint in str(error.value)
    assert "Fix: " in str(error.value)


def test_runtime_auto_takes_what_the_host_has() -> None:
    assert spec(SYSTEMD).runtime == "systemd"
    assert spec(POD).runtime == "supervisor"
    assert spec(ORDINARY).runtime == "supervisor"


@pytest.mark.parametrize(("kind", "why"), [(POD, "systemd does not run this host"), (ORDINARY, "not root")])
def test_a_runtime_that_the_host_cannot_serve_is_refused_not_replaced(kind: HostKind, why: str) -> None:
    with pytest.raises(CatalogError, match=why):
        spec(kind, llama_runtime="systemd")


def test_as_root_the_server_gets_a_user_of_its_own() -> None:
    assert spec(SYSTEMD).user == "beeyard"
    assert spec(SYSTEMD, llama_user="self").user is None
    assert spec(ORDINARY).user is None


def test_a_relative_prefix_lies_in_the_clone() -> None:
    assert str(spec(llama_prefix=".beeyard/local").prefix) == f"{PROJECT}/.beeyard/local"


@pytest.mark.case("POD-04")
@pytest.mark.parametrize(
    ("bind", "url", "loopback"),
    [
        ("127.0.0.1", "http://127.0.0.1:8910", True),
        ("0.0.0.0", "http://127.0.0.1:8910", False),
        ("::", "http://[::1]:8910", False),
        ("192.0.2.7", "http://192.0.2.7:8910", False),
    ],
)
def test_the_url_is_where_the_host_itself_finds_it(bind: str, url: str, loopback: bool) -> None:
    assert (spec(llama_bind=bind).url, spec(llama_bind=bind).is_loopback) == (url, loopback)


def test_what_the_lock_does_not_name_is_told_with_its_fix() -> None:
    unlocked = spec(llama_preset="gemma-4-31b", llama_variant="dflash").unlocked
    assert [text.split(" is not ")[0].split(" has no ")[0] for text in unlocked] == [
        "model 'gemma-4-31b-it-q4_k_s'",
        "model 'gemma-4-31b-it-dflash-q5_k_m'",
        "engine 'beellama-v0.4.3'",
    ]
    assert all("Fix: " in text for text in unlocked)
    assert spec(llama_preset="smol").unlocked == []


def test_data_from_a_command_line_may_be_text() -> None:
    assert spec(llama_port="8911", llama_context="2048").settings.context == 2048


def test_mtp_takes_the_model_that_has_the_heads() -> None:
    mtp, plain = (spec(llama_preset="qwen3.6-27b", llama_variant=variant) for variant in ("mtp", "baseline"))
    assert mtp.model.name != plain.model.name
    assert mtp.settings == plain.settings


BEE = CATALOG.engines["beellama-v0.4.3"]


def held(cards: tuple[str, ...] = ("8.9",), commit: str | None = None, **data: Any) -> ServerSpec:
    """What a pod is told that started from an image with code for an RTX 4090."""
    engine = HeldEngine(name="beellama-v0.4.3", commit=commit or str(BEE.commit), architectures=("86", "89"))
    kind = HostKind(has_systemd=False, is_root=True, compute_capabilities=cards, held_engine=engine)
    return resolve({"llama_preset": "gemma-4-31b", "llama_engine": "beellama-v0.4.3", **data}, CATALOG, kind)


def test_a_pod_serves_with_the_engine_of_its_image() -> None:
    found = held()
    assert found.engine_is_in_image
    assert str(found.binary) == BINARY
    assert not any("engine" in sentence for sentence in found.unlocked)


@pytest.mark.parametrize(
    "found",
    [held(commit="1" * 40), held(llama_engine="beellama-07ac3ce")],
    ids=["commit", "engine"],
)
def test_another_engine_than_the_images_must_be_locked_as_ever(found: ServerSpec) -> None:
    assert not found.engine_is_in_image
    assert str(found.binary) != BINARY
    assert any("has no tarball in presets/lock.yaml. Fix: " in sentence for sentence in found.unlocked)


def test_a_pod_whose_image_has_no_code_for_its_card_is_refused() -> None:
    with pytest.raises(CatalogError, match=r"holds beellama-v0.4.3 for architectures 86, 89; the card here is 120"):
        held(cards=("12.0",))


def test_a_compiled_engine_has_a_folder_for_each_commit_and_each_card() -> None:
    engine = CATALOG.engines["beellama-v0.4.3"]
    compiled = engine.model_copy(update={"artefact": SourceArtefact(kind="source")})
    other = compiled.model_copy(update={"commit": "1" * 40})
    folders = set()
    for made in (compiled, other):
        catalog = CATALOG.model_copy(update={"engines": {**CATALOG.engines, "beellama-v0.4.3": made}})
        for card in ("8.6", "8.9"):
            kind = SYSTEMD.model_copy(update={"compute_capabilities": (card,)})
            found = resolve({"llama_preset": "gemma-4-31b", "llama_engine": "beellama-v0.4.3"}, catalog, kind)
            assert found.engine_is_compiled
            assert found.unlocked_engine == []
            assert found.architectures == (card.replace(".", ""),)
            folders.add(found.engine_dir)
    assert len(folders) == 4
