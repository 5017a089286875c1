"""Units and programs: quoted for where they go, and never with what breaks CUDA."""

import configparser
import shlex
from typing import Any

import pytest

from beeyard.catalog import load_catalog
from beeyard.dialects import argv
from beeyard.render import define, supervisor_quoted, systemd_quoted
from beeyard.spec import HostKind, ServerSpec, resolve

CATALOG = load_catalog()


def spec(runtime: str, **data: Any) -> ServerSpec:
    kind = HostKind(has_systemd=True, is_root=True, compute_capabilities=("8.9",))
    return resolve({"llama_preset": "gemma-4-31b", "llama_runtime": runtime, **data}, CATALOG, kind)


def test_systemd_quoting() -> None:
    assert systemd_quoted(["a b", '{"x": "$y"}', "50%"]) == '"a b" "{\\"x\\": \\"$$y\\"}" "50%%"'


@pytest.mark.parametrize("word", ["a b", "50%", 'say "x"', "it's", "$HOME", "back\\slash"])
def test_supervisor_reads_back_what_was_quoted(word: str) -> None:
    assert shlex.split(supervisor_quoted(["server", word]).replace("%%", "%")) == ["server", word]


@pytest.mark.parametrize("directive", ["PrivateDevices", "DevicePolicy", "DeviceAllow", "MemoryDenyWriteExecute"])
def test_the_unit_has_nothing_that_hides_a_card_from_cuda(directive: str) -> None:
    unit = define(spec("systemd")).definition
    assert not any(line.startswith(directive) for line in unit.splitlines())


def test_the_unit_waits_for_the_card_only_where_one_is_wanted() -> None:
    assert "/dev/nvidia-uvm" in define(spec("systemd")).definition
    assert "/dev/nvidia-uvm" not in define(spec("systemd", llama_preset="smol")).definition


def test_a_program_is_what_supervisors_own_parser_takes() -> None:
    parser = configparser.RawConfigParser()
    made = spec("supervisor", llama_prefix="/srv/my bees")
    parser.read_string(define(made).definition)
    section = parser["program:llama-server"]
    assert shlex.split(section["command"]) == argv(made)
    assert section["autorestart"] == "true"


@pytest.mark.case("PYI-03")
@pytest.mark.parametrize("runtime", ["systemd", "supervisor", "compose"])
def test_no_secret_and_no_undefined_value_is_rendered(runtime: str) -> None:
    made = define(spec(runtime))
    for text in (made.definition, made.server_json):
        assert "None" not in text
        assert "{{" not in text
        assert "--api-key " not in text


def test_the_id_changes_with_anything_that_runs() -> None:
    ids = {
        define(spec("systemd", **data)).id
        for data in ({}, {"llama_port": 8911}, {"llama_variant": "baseline"}, {"llama_memlock": 8388608})
    }
    assert len(ids) == 4
