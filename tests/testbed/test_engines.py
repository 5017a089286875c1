"""Engines on a real host: side by side, back and forward, damaged and mended, from tarballs and from source."""

import pytest

from tests.testbed.conftest import Bed

pytestmark = pytest.mark.usefixtures("light")
ENGINES = "/opt/beeyard/engines"


def engines(bed: Bed) -> dict[str, str]:
    """The engines on the light host, the links with what they lead to."""
    rows = bed.sh("light", f"cd {ENGINES} && find . -mindepth 1 -maxdepth 1 -printf '%f %l\\n'").splitlines()
    return {name: target for name, _, target in (row.partition(" ") for row in rows)}


def link(bed: Bed, name: str) -> str:
    """The engine that a link leads to, without its digest."""
    return engines(bed).get(name, "").rpartition("-")[0]


def test_with_no_server_before_it_there_is_nothing_to_go_back_to(bed: Bed) -> None:
    run = bed.rollback("light")
    assert run.code != 0
    assert "no server was deployed here. Fix: deploy first" in run.stderr
    assert bed.deploy("light").code == 0
    serving = bed.serving("light")
    run = bed.rollback("light")
    assert run.code != 0
    assert "there is no server before this one here. Fix: deploy what you want" in run.stderr
    assert bed.serving("light") == serving


def test_a_rollback_returns_to_engine_and_spec_and_a_second_one_goes_forward_again(bed: Bed) -> None:
    before = bed.serving("light")
    run = bed.deploy("light", llama_engine="good", llama_variant="baseline")
    assert run.code == 0, run.output
    after = bed.serving("light")
    assert link(bed, "current") == "good"
    assert link(bed, "previous") == "llama.cpp-wheel"
    for there, serves, engine in (("tiny dflash", before, "llama.cpp-wheel"), ("tiny baseline", after, "good")):
        run = bed.rollback("light")
        assert run.code == 0, run.output
        assert bed.serving("light") == serves
        assert link(bed, "current") == engine
        assert f"to {there} on " in run.stderr
        assert "the next deploy brings what the inventory says" in run.stderr
    assert bed.rollback("light").code == 0
    assert bed.deploy("light", llama_engine="good", llama_variant="baseline").code == 0
    assert bed.serving("light") == after
