"""Who is measured: by address, or as an inventory's host has it, with the variant that really runs there."""

from pathlib import Path
from typing import Any

import pytest

from beeyard.bench.client import BenchError
from beeyard.catalog import PRESETS, CatalogError, load_catalog
from beeyard.measured import by_address, of_host
from beeyard.render import define
from beeyard.spec import ANY_HOST, resolve
from beeyard.survey import Survey
from tests.unit.test_survey import survey

CATALOG = load_catalog([PRESETS])
SECRET = "k" * 40


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(SECRET + "\n")
    return tmp_path / "key"


def host(prefix: Path, **data: Any) -> Survey:
    given = {"llama_runtime": "supervisor", "llama_prefix": str(prefix), **data}
    return survey(**given).model_copy(update={"is_here": True, "own_pids": (4711,)})


def deployed(prefix: Path, **data: Any) -> None:
    """As a deploy leaves it: the current server's facts."""
    given = {"llama_preset": "tiny", "llama_runtime": "supervisor", "llama_prefix": str(prefix), **data}
    folder = prefix / "current"
    folder.mkdir(parents=True)
    (folder / "server.json").write_text(define(resolve(given, CATALOG, ANY_HOST)).server_json)


def test_of_an_address_alone_only_that_is_known(key: Path) -> None:
    found = by_address("http://192.0.2.7:8910", key)
    assert (found.key, found.has_card_here, found.own_pids) == (SECRET, False, ())
    assert found.host(0.4).name == "192.0.2.7"
    assert found.host(0.4).price_per_hour == 0.4
    variant = found.variant("mine", {"model_path": "a.gguf", "build_info": "b1"})
    assert (variant.name, variant.argv, variant.spec, variant.engine.build) == ("mine", (), {}, "b1")
    assert variant.model is not None
    assert variant.model.name == "a.gguf"
    with pytest.raises(BenchError, match=r"measure whom\? Fix: "):
        by_address(None, None)


def test_what_runs_as_the_inventory_says_is_known_in_full(tmp_path: Path, key: Path) -> None:
    deployed(tmp_path)
    found = of_host(host(tmp_path), CATALOG, None, key)
    assert found.notes == ()
    assert found.url == "http://127.0.0.1:8910"
    variant = found.variant("", {})
    assert (variant.name, variant.preset, variant.decoding) == ("dflash", "tiny", "dflash")
    assert variant.draft is not None
    assert variant.argv[0].startswith(str(tmp_path))
    assert variant.spec["settings"]["context"] == 4096
    assert found.own_pids == (4711,)
    assert [card.name for card in found.host(None).cards] == ["NVIDIA GeForce RTX 3090"]
    assert SECRET not in variant.model_dump_json() + found.host(None).model_dump_json()


def test_after_a_switch_it_is_the_variant_that_runs(tmp_path: Path, key: Path) -> None:
    deployed(tmp_path, llama_variant="baseline")
    found = of_host(host(tmp_path), CATALOG, None, key)
    assert found.notes == ()
    assert found.variant("", {}).name == "baseline"
    assert found.variant("", {}).decoding == "baseline"


def test_what_runs_with_other_arguments_is_recorded_and_said(tmp_path: Path, key: Path) -> None:
    deployed(tmp_path, llama_settings={"batch": 333})
    found = of_host(host(tmp_path), CATALOG, None, key)
    (note,) = found.notes
    assert "is not what the presets and the inventory say now" in note
    assert "Fix: " in note
    assert "333" in found.variant("", {}).argv


@pytest.mark.parametrize("content", [None, "{", "[]", '{"preset": "tiny"}'])
def test_where_nobody_knows_what_runs_the_inventorys_spec_is_taken_and_that_is_said(
    content: str | None, tmp_path: Path, key: Path
) -> None:
    if content is not None:
        (tmp_path / "current").mkdir()
        (tmp_path / "current" / "server.json").write_text(content)
    (note,) = of_host(host(tmp_path), CATALOG, None, key).notes
    assert note.startswith("what runs there was not looked at")


def test_a_loopback_elsewhere_wants_a_tunnel(key: Path) -> None:
    away = survey(llama_runtime="supervisor")
    with pytest.raises(BenchError, match=r"Fix: open a tunnel, as ssh -N -L 8910:127.0.0.1:8910 attic"):
        of_host(away, CATALOG, None, key)
    found = of_host(away, CATALOG, "http://127.0.0.1:9000", key)
    assert (found.url, found.has_card_here) == ("http://127.0.0.1:9000", False)
    assert found.name == "attic"
    open_one = of_host(survey(llama_runtime="supervisor", llama_bind="192.0.2.10"), CATALOG, None, key)
    assert open_one.url == "http://192.0.2.10:8910"


def test_a_host_that_cannot_have_it_is_refused_with_the_plans_reasons(key: Path) -> None:
    with pytest.raises(CatalogError, match="no variant of tiny 'nope'"):
        of_host(survey(llama_variant="nope"), CATALOG, None, key)
