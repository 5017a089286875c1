"""The presets we ship are sound, and faults in others are said in a sentence. A new preset needs no new test."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from beeyard.catalog import CatalogError, Engine, load_catalog
from beeyard.contract import load_table, violations
from beeyard.dialects import argv
from beeyard.spec import HostKind, resolve

CATALOG = load_catalog()
HOST = HostKind(has_systemd=True, is_root=True)
VARIANTS = [(name, variant) for name, server in CATALOG.servers.items() for variant in server.variants]


@pytest.mark.parametrize(("preset", "variant"), VARIANTS)
def test_every_variant_resolves_to_a_command_that_its_engine_takes(preset: str, variant: str) -> None:
    spec = resolve({"llama_preset": preset, "llama_variant": variant}, CATALOG, HOST)
    assert violations(argv(spec), load_table(spec.engine.flags), spec.engine.title) == []


@pytest.mark.parametrize("preset", CATALOG.servers)
def test_baseline_and_the_default_variant_differ_in_decoding_alone(preset: str) -> None:
    baseline, default = (
        resolve({"llama_preset": preset, "llama_variant": variant}, CATALOG, HOST)
        for variant in ("baseline", CATALOG.servers[preset].default_variant)
    )
    differ = {name for name in type(baseline).model_fields if getattr(baseline, name) != getattr(default, name)}
    assert differ <= {"variant", "decoding", "draft"}


def test_every_name_in_a_preset_exists() -> None:
    for server in CATALOG.servers.values():
        assert server.model in CATALOG.models
        assert server.engine in CATALOG.engines
        assert server.default_variant in server.variants
    assert set(CATALOG.lock.models) <= set(CATALOG.models)
    assert set(CATALOG.lock.engines) <= set(CATALOG.engines)


def test_it_knows_the_cards_that_people_have() -> None:
    cards = {gpu.smi_name: gpu.compute_capability for gpu in CATALOG.gpus.values()}
    assert cards["NVIDIA GeForce RTX 3090"] == "8.6"
    assert cards["NVIDIA GeForce RTX 4090"] == "8.9"
    assert cards["NVIDIA GeForce RTX 5090"] == "12.0"


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        (
            "servers.yaml",
            "x: {model: m, engine: e, default_variant: b, colour: red}",
            "unknown key 'servers.x.colour'",
        ),
        ("servers.yaml", "x: [", "servers.yaml is not YAML"),
        ("servers.yaml", "- x", "servers.yaml holds a list"),
        (
            "lock.yaml",
            "models: {tiny-gemma4: {size: 5, sha256: abc}}",
            "lock.models.tiny-gemma4.sha256 is 'abc'",
        ),
        ("engines.yaml", "e: {title: E, dialect: klingon}", "'klingon'"),
    ],
)
def test_a_wrong_preset_is_named_with_its_key(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(CatalogError) as error:
        load_catalog([tmp_path])
    assert complaint in str(error.value)
    assert "Fix: " in str(error.value)


def test_more_presets_come_from_folders_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models.yaml").write_text("mine: {source: {kind: path, path: mine.gguf}}")
    (tmp_path / "lock.yaml").write_text(f"models: {{mine: {{size: 1, sha256: {'a' * 64}}}}}")
    monkeypatch.setenv("BEEYARD_PRESETS", str(tmp_path))
    catalog = load_catalog()
    assert catalog.models["mine"].source.file == "mine.gguf"
    assert set(CATALOG.lock.models) < set(catalog.lock.models)


def test_an_engine_without_a_commit_cannot_be_compiled() -> None:
    tables = {
        "title": "an engine", "dialect": "llama.cpp", "flags": "llama.cpp-b10068", "repository": "https://example.com/x",
        "accelerator": "cpu", "artefact": {"kind": "source"},
    }  # fmt: skip
    with pytest.raises(ValidationError, match=r"is compiled from source and names no commit. Fix: add its commit"):
        Engine.model_validate(tables)
