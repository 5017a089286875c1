"""The flag contract: a binary's own help against the arguments it would be given."""

import pytest

from beeyard.contract import Flag, load_table, parse_help, violations

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path to load
                                        (env: LLAMA_ARG_MODEL)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, q8_0
--mmap, --no-mmap                       whether to memory-map model
-dio,  --direct-io, -ndio, --no-direct-io
                                        use DirectIO if available. (default: disabled)
--spec-type none,draft-dflash,ngram-simple
                                        comma-separated list of types
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer
--port PORT                             port to listen
--lora-scaled FNAME:SCALE,...           path to LoRA adapter
"""
TABLE = parse_help(HELP)


def test_it_reads_values_switches_and_choices() -> None:
    assert TABLE["-m"] == TABLE["--model"] == Flag("--model", takes_value=True)
    assert TABLE["-fa"].choices == ("on", "off", "auto")
    assert TABLE["--cache-type-k"].choices == ("f32", "f16", "q8_0")
    assert TABLE["--spec-type"].choices == ("none", "draft-dflash", "ngram-simple")
    for switch in ("--no-mmap", "-ndio", "--no-kv-unified", "-h"):
        assert not TABLE[switch].takes_value, switch
    assert TABLE["--lora-scaled"].choices == ()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--load-mode", "mlock"], "E does not know --load-mode"),
        (["--cache-type-k", "turbo4"], "E's --cache-type-k does not take 'turbo4'; it takes f32, f16, q8_0"),
        (["--spec-type", "dflash"], "E's --spec-type does not take 'dflash'; it takes none, draft-dflash"),
        (["--port"], "E's --port wants a value and gets none"),
    ],
)
def test_it_names_the_flag_and_what_there_is_instead(arguments: list[str], complaint: str) -> None:
    (found,) = violations(["llama-server", "-m", "x", *arguments], TABLE, "E")
    assert complaint in found


def test_a_command_that_the_engine_takes_has_no_violations() -> None:
    words = ["-m", "x.gguf", "-fa", "on", "--no-mmap", "--spec-type", "none,ngram-simple", "--port", "8910"]
    assert violations(["llama-server", *words], TABLE, "E") == []


@pytest.mark.parametrize("text", ["", "usage: something else", "Illegal instruction"])
def test_what_is_not_that_programs_help_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not the help of a llama-server"):
        parse_help(text)


@pytest.mark.case("DFL-01")
def test_the_generations_of_beellama_differ_where_people_stumble() -> None:
    old, new = load_table("beellama-v0.2.0"), load_table("beellama-v0.4.3")
    assert "dflash" in old["--spec-type"].choices
    assert "dflash" not in new["--spec-type"].choices
    assert "--spec-dflash-cross-ctx" in old
    assert "--spec-dflash-cross-ctx" not in new
    assert "--load-mode" not in old
    assert "--load-mode" in new
    assert "turbo4" in old["--cache-type-k"].choices
    assert "turbo4" not in new["--cache-type-k"].choices
