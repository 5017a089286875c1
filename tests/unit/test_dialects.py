"""Argument lists: the guide's to the letter, every engine's within its own table, nothing lost, always the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beeyard.catalog import CatalogError, load_catalog
from beeyard.contract import load_table, violations
from beeyard.dialects import argv
from beeyard.spec import HostKind, ServerSpec, resolve

CATALOG = load_catalog()
HOST = HostKind(has_systemd=True, is_root=True)
TARGET = "/opt/beeyard/models/unlocked/gemma-4-31B-it-Q4_K_S.gguf"
DRAFT = "/opt/beeyard/models/unlocked/gemma4-31b-it-dflash-Q5_K_M.gguf"
OUR_OWN = ["--api-key-file", "/opt/beeyard/etc/api-key"]


def spec(preset: str = "gemma-4-31b", variant: str = "dflash", **data: Any) -> ServerSpec:
    return resolve({"llama_preset": preset, "llama_variant": variant, **data}, CATALOG, HOST)


def test_the_guides_baseline_is_reproduced_argument_for_argument() -> None:
    assert argv(spec(variant="guide-baseline"))[1:] == [
        *("-m", TARGET),
        *("--host", "127.0.0.1", "--port", "8910", "-np", "1", "-ngl", "all", "-b", "2048", "-ub", "512"),
        *("--ctx-size", "32768", "--cache-type-k", "q5_0", "--cache-type-v", "q4_1", "--flash-attn", "on"),
        *("--jinja", "--metrics", "--log-timestamps", "--log-prefix", "--reasoning", "off"),
        *("--temp", "0.7", "--top-k", "64", "--top-p", "0.95", "--min-p", "0.0"),
        *OUR_OWN,
    ]


def test_the_guides_dflash_is_reproduced_argument_for_argument() -> None:
    assert argv(spec(variant="guide-dflash"))[1:] == [
        *(
            "-m",
            TARGET,
            "--spec-draft-model",
            DRAFT,
            "--spec-type",
            "dflash",
            "--spec-dflash-cross-ctx",
            "512",
        ),
        *("--host", "127.0.0.1", "--port", "8910", "-np", "1", "--kv-unified"),
        *("-ngl", "all", "--spec-draft-ngl", "all", "-b", "2048", "-ub", "512", "--ctx-size", "32768"),
        *("--flash-attn", "on", "--cache-ram", "0", "--jinja", "--no-mmap", "--mlock", "--no-host"),
        *("--metrics", "--log-timestamps", "--log-prefix", "--reasoning", "off"),
        *("--temp", "0.7", "--top-k", "64", "--top-p", "0.95", "--min-p", "0.0"),
        *OUR_OWN,
    ]


def test_dflash_adds_only_its_own_flags() -> None:
    plain, drafted = argv(spec(variant="baseline")), argv(spec(variant="dflash"))
    own = ["--spec-draft-model", DRAFT, "--spec-type", "draft-dflash", "--spec-draft-ngl", "all"]
    rest = list(drafted)
    for word in own:
        rest.remove(word)
    assert sorted(rest) == sorted(plain)


@pytest.mark.case("MEM-02")
@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("beellama-07ac3ce", ["--no-mmap", "--mlock"]),
        ("beellama-v0.4.3", ["--load-mode", "mlock"]),
        ("llama.cpp-2026-08-09", ["--load-mode", "mlock"]),
        ("llama.cpp-wheel", ["--no-mmap", "--mlock"]),
    ],
)
def test_locked_and_not_mapped_is_said_in_each_engines_words(engine: str, words: list[str]) -> None:
    arguments = argv(spec(variant="baseline", llama_engine=engine))
    start = arguments.index(words[0])
    assert arguments[start : start + 2] == words
    both = {"--load-mode"} & set(arguments), {"--mlock", "--no-mmap"} & set(arguments)
    assert sum(1 for found in both if found) == 1


@pytest.mark.case("DFL-01")
@pytest.mark.parametrize(
    ("preset", "variant", "engine", "what"),
    [
        ("gemma-4-31b", "guide-dflash", "beellama-v0.4.3", "cross context is not known to BeeLlama v0.4.3"),
        ("gemma-4-31b", "guide-dflash", "llama.cpp-wheel", "cross context is not known to llama.cpp b10068"),
        (
            "qwen3.6-27b",
            "mtp",
            "beellama-07ac3ce",
            "multi-token prediction (draft-mtp) is not known to BeeLlama v0.2",
        ),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name(preset: str, variant: str, engine: str, what: str) -> None:
    with pytest.raises(CatalogError) as error:
        argv(spec(preset, variant, llama_engine=engine))
    assert what in str(error.value)
    assert "Fix: " in str(error.value)


KV_TYPES = st.sampled_from(["f16", "q8_0", "q4_0", "q5_0", "q4_1"])
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "context": st.integers(1, 300_000),
        "slots": st.integers(1, 16),
        "gpu_layers": st.sampled_from(["all", "auto", 0, 12]),
        "batch": st.integers(1, 8192),
        "kv": st.none() | st.fixed_dictionaries({"k": KV_TYPES, "v": KV_TYPES}),
        "kv_unified": st.booleans(),
        "load_mode": st.sampled_from(["mmap", "none", "mlock", "mmap+mlock"]),
        "no_host_buffer": st.booleans(),
        "cache_ram_mib": st.none() | st.integers(0, 10_000),
        "jinja": st.booleans(),
        "reasoning": st.sampled_from(["on", "off", "auto"]),
        "metrics": st.booleans(),
        "sampling": st.fixed_dictionaries({"temperature": st.floats(0, 5), "top_k": st.integers(0, 300)}),
    },
)
PAIRS = [(name, variant) for name, server in CATALOG.servers.items() for variant in server.variants]


@given(pair=st.sampled_from(PAIRS), engine=st.sampled_from(sorted(CATALOG.engines)), settings=SETTINGS)
def test_any_valid_spec_renders_only_what_the_engine_knows(
    pair: tuple[str, str], engine: str, settings: dict[str, Any]
) -> None:
    made = spec(*pair, llama_engine=engine, llama_settings=settings)
    try:
        arguments = argv(made)
    except CatalogError as error:
        assert "is not known to" in str(error)  # noqa: PT017
        return
    assert violations(arguments, load_table(made.engine.flags), engine) == []
    assert argv(made) == arguments
    given_values = [
        made.settings.context,
        made.settings.batch,
        made.settings.slots,
        made.settings.sampling.top_k,
    ]
    assert all(str(value) in arguments for value in given_values)
    assert float(arguments[arguments.index("--temp") + 1]) == made.settings.sampling.temperature
    assert all(isinstance(word, str) and word for word in arguments)
