"""What can be tuned, what a host's data then are, and that the preset which keeps it resolves to just that."""

from pathlib import Path
from typing import Any

import pytest

from beeyard import tiny
from beeyard.catalog import PRESETS, CatalogError, load_catalog
from beeyard.contract import load_table
from beeyard.dialects import argv
from beeyard.space import Knob, Value, as_it_is, changed, data_of, knobs, preset, said
from beeyard.spec import ANY_HOST, ServerSpec, every_variant, resolve

CATALOG = load_catalog([PRESETS])


def spec_of(**data: Any) -> ServerSpec:
    return resolve({f"llama_{key}": value for key, value in data.items()}, CATALOG, ANY_HOST)


def names(spec: ServerSpec) -> list[str]:
    return [knob.name for knob in knobs(spec, load_table(spec.engine.flags))]


EVERY = ["settings.batch", "settings.ubatch", "settings.kv"]


def test_knobs_are_those_that_the_engine_has() -> None:
    bee2 = spec_of(preset="gemma-4-31b", variant="guide-dflash")
    bee4 = spec_of(preset="gemma-4-31b", variant="dflash")
    assert names(bee2) == ["decoding.draft_max", "decoding.adaptive", "decoding.cross_context", *EVERY]
    assert names(bee4) == ["decoding.draft_max", "decoding.adaptive", *EVERY]
    assert names(spec_of(preset="tiny", variant="dflash")) == ["decoding.draft_max", *EVERY]
    assert names(spec_of(preset="qwen3.6-27b", variant="mtp")) == ["decoding.draft_max", *EVERY]
    assert names(spec_of(preset="smol", variant="ngram")) == ["decoding.type", *EVERY]
    assert names(spec_of(preset="tiny", variant="baseline")) == EVERY


def test_what_is_there_now_comes_first_and_once() -> None:
    spec = spec_of(preset="tiny", variant="dflash", decoding={"draft_max": 2}, settings={"ubatch": 128})
    found = {knob.name: knob.choices for knob in knobs(spec, load_table(spec.engine.flags))}
    # Of a block the first token is the target's own.
    assert tiny.BLOCK == 8
    assert found["decoding.draft_max"] == (2, 1, 3, 4, 5, 6, 7)
    assert found["settings.ubatch"] == (128, 256, 512, 1024, 2048)
    assert as_it_is((Knob("a", (3, 1)),)) == {"a": 3}


@pytest.mark.parametrize(
    ("variant", "decoding", "words"),
    [
        ("dflash", {"adaptive": False, "draft_max": 6}, ["--spec-draft-n-max", "6", "--spec-dm-controller", "off"]),
        ("dflash", {"adaptive": True}, ["--spec-dm-controller", "profit"]),
        ("guide-dflash", {"adaptive": False, "cross_context": 256}, ["--no-spec-dm-adaptive"]),
        ("guide-dflash", {"adaptive": True}, ["--spec-dm-adaptive"]),
    ],
)
def test_each_dialect_has_words_of_its_own_for_them(variant: str, decoding: dict[str, Any], words: list[str]) -> None:
    found = argv(spec_of(preset="gemma-4-31b", variant=variant, decoding=decoding))
    place = found.index(words[0])
    assert found[place : place + len(words)] == words


def test_upstream_has_no_depth_that_adapts_itself() -> None:
    with pytest.raises(CatalogError, match="a depth that adapts itself"):
        argv(spec_of(preset="tiny", variant="dflash", decoding={"adaptive": False}))


def test_a_decoding_of_the_hosts_own_is_checked() -> None:
    with pytest.raises(CatalogError, match=r"llama_decoding of tiny: .*draft_maxx"):
        spec_of(preset="tiny", variant="dflash", decoding={"draft_maxx": 6})
    with pytest.raises(CatalogError, match=r"sets a kind, .* Fix: name a variant of that kind with llama_variant"):
        spec_of(preset="tiny", variant="dflash", decoding={"kind": "baseline"})
    # Of a comparison with its baseline, which has nothing to set.
    assert spec_of(preset="tiny", variant="baseline", decoding={"draft_max": 6}).decoding.kind == "baseline"
    given = {"llama_preset": "qwen3.6-27b", "llama_variant": "mtp", "llama_decoding": {"draft_max": 2}}
    depths = {one.variant: getattr(one.decoding, "draft_max", None) for one in every_variant(given, CATALOG)}
    assert depths == {"baseline": None, "dflash": None, "mtp": 2}


def test_data_go_over_what_the_host_sets_already() -> None:
    host = {"llama_settings": {"slots": 1, "ubatch": 64}, "llama_port": 1}
    values = {"decoding.draft_max": None, "settings.ubatch": 256, "settings.kv": "q8_0/q4_0"}
    assert data_of(values, host) == {
        "llama_settings": {"slots": 1, "ubatch": 256, "kv": {"k": "q8_0", "v": "q4_0"}},
        "llama_decoding": {"draft_max": None},
    }
    assert data_of({}, {}) == {}
    assert said({"decoding.draft_max": None, "settings.kv": "a/b"}) == "draft_max as the engine wants, kv a/b"
    one = (Knob("settings.batch", (1, 2)), Knob("settings.ubatch", (3, 4)))
    assert changed({"settings.batch": 1, "settings.ubatch": 4}, one) == {"settings.ubatch": 4}


@pytest.mark.parametrize("variant", ["dflash", "guide-dflash", "baseline"])
def test_the_preset_that_keeps_it_resolves_to_what_was_measured(tmp_path: Path, variant: str) -> None:
    spec = spec_of(preset="gemma-4-31b", variant=variant)
    values: dict[str, Value] = {"settings.ubatch": 256, "settings.kv": "q8_0/q8_0"}
    if variant != "baseline":
        values |= {"decoding.draft_max": 6, "decoding.adaptive": False}
    data = data_of(values, {})
    (tmp_path / "servers.yaml").write_text(preset(spec, data, f"{variant}-tuned", CATALOG, "1.2 times\nRecord: a"))
    text = (tmp_path / "servers.yaml").read_text()
    assert text.startswith("# 1.2 times\n# Record: a\ngemma-4-31b:\n")
    catalog = load_catalog([PRESETS, tmp_path])
    given = {"llama_preset": "gemma-4-31b", "llama_variant": f"{variant}-tuned"}
    kept = resolve(given, catalog, ANY_HOST)
    measured = resolve({**given, "llama_variant": variant, **data}, CATALOG, ANY_HOST)
    assert argv(kept) == argv(measured)
    # The preset's other variants are there as before.
    before, after = (
        {one.variant: one for one in every_variant({"llama_preset": "gemma-4-31b"}, found)}
        for found in (CATALOG, catalog)
    )
    assert {name: one for name, one in after.items() if name in before} == before
