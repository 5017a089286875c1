"""Who is measured: by address, or as an inventory's host has it, with the variant that really runs there."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from beeyard.bench.client import BenchError
from beeyard.catalog import PRESETS, CatalogError, load_catalog
from beeyard.measured import by_address, of_host, reached
from beeyard.render import define
from beeyard.spec import ANY_HOST, resolve
from beeyard.survey import Survey
from beeyard.tunnel import Ssh
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


def serving(seen: Survey, **data: Any) -> Survey:
    """The same, as it is after a deploy: with the current server's facts."""
    given = {**seen.data, **data}
    return seen.model_copy(update={"server": json.loads(define(resolve(given, CATALOG, ANY_HOST)).server_json)})


def test_of_an_address_alone_only_that_is_known(key: Path) -> None:
    found = by_address("http://192.0.2.7:8910", key)
    assert (found.key, found.smi, found.own_pids) == (SECRET, (), ())
    assert found.host(0.4).name == "192.0.2.7"
    assert found.host(0.4).price_per_hour == 0.4
    variant = found.variant("mine", {"model_path": "a.gguf", "build_info": "b1"})
    assert (variant.name, variant.argv, variant.spec, variant.engine.build) == ("mine", (), {}, "b1")
    assert variant.model is not None
    assert variant.model.name == "a.gguf"
    with pytest.raises(BenchError, match=r"measure whom\? Fix: "):
        by_address(None, None)


@pytest.mark.case("POD-04")
def test_a_pods_proxy_is_noted_in_the_record() -> None:
    (note,) = by_address("https://abc123-8910.proxy.runpod.net", None).notes
    assert note.startswith("abc123-8910.proxy.runpod.net is a proxy in front of the pod")
    assert by_address("http://127.0.0.1:8910", None).notes == ()


def test_what_runs_as_the_inventory_says_is_known_in_full(tmp_path: Path, key: Path) -> None:
    found = of_host(serving(host(tmp_path)), CATALOG, None, key)
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
    found = of_host(serving(host(tmp_path), llama_variant="baseline"), CATALOG, None, key)
    assert found.notes == ()
    assert found.variant("", {}).name == "baseline"
    assert found.variant("", {}).decoding == "baseline"


def test_what_runs_with_other_arguments_is_recorded_and_said(tmp_path: Path, key: Path) -> None:
    found = of_host(serving(host(tmp_path), llama_settings={"batch": 333}), CATALOG, None, key)
    (note,) = found.notes
    assert "is not what the presets and the inventory say now" in note
    assert "Fix: " in note
    assert "333" in found.variant("", {}).argv


@pytest.mark.parametrize("content", [{}, {"preset": "tiny"}])
def test_where_nobody_knows_what_runs_the_inventorys_spec_is_taken_and_that_is_said(
    content: dict[str, Any], tmp_path: Path, key: Path
) -> None:
    (note,) = of_host(host(tmp_path).model_copy(update={"server": content}), CATALOG, None, key).notes
    assert note.startswith("no server was deployed there, as far as could be seen")


AWAY = Ssh(hostname="192.0.2.10", user="me", port=2201)


def test_a_loopback_elsewhere_is_reached_through_a_tunnel(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = survey(llama_runtime="supervisor").model_copy(update={"ssh": AWAY})
    opened: list[tuple[Ssh, int]] = []

    @contextmanager
    def tunnel(ssh: Ssh, port: int) -> Iterator[str]:
        opened.append((ssh, port))
        yield "http://127.0.0.1:9000"

    monkeypatch.setattr("beeyard.measured.tunnel", tunnel)
    with reached(away, CATALOG, None) as url:
        found = of_host(away, CATALOG, url, key)
    assert opened == [(AWAY, 8910)]
    assert (found.url, found.name, found.smi) == ("http://127.0.0.1:9000", "attic", ())
    with reached(away, CATALOG, "http://127.0.0.1:1") as url:
        assert url == "http://127.0.0.1:1"
    open_one = survey(llama_runtime="supervisor", llama_bind="192.0.2.10")
    with reached(open_one, CATALOG, None) as url:
        assert url == "http://192.0.2.10:8910"
    with reached(away.model_copy(update={"is_here": True}), CATALOG, None) as url:
        assert url == "http://127.0.0.1:8910"
    assert len(opened) == 1


def test_how_a_host_is_reached_that_nobody_knows_is_said() -> None:
    away = survey(llama_runtime="supervisor")
    with pytest.raises(BenchError, match=r"how attic is reached is not known\. Fix: "), reached(away, CATALOG, None):
        pass


def test_what_a_host_costs_is_its_inventorys_word_unless_one_is_given(tmp_path: Path, key: Path) -> None:
    rented = serving(host(tmp_path)).model_copy(update={"price_per_hour": 0.69})
    found = of_host(rented, CATALOG, None, key)
    assert found.host(None).price_per_hour == 0.69
    assert found.host(0.0).price_per_hour == 0.0


def test_the_cards_of_a_host_elsewhere_are_asked_over_ssh(key: Path) -> None:
    away = survey(llama_preset="qwen3.6-27b", llama_runtime="supervisor").model_copy(update={"ssh": AWAY})
    found = of_host(away, CATALOG, "http://127.0.0.1:9000", key)
    assert found.smi == (*AWAY.words(), "nvidia-smi")


def test_a_host_that_cannot_have_it_is_refused_with_the_plans_reasons(key: Path) -> None:
    with pytest.raises(CatalogError, match="no variant of tiny 'nope'"):
        of_host(survey(llama_variant="nope"), CATALOG, None, key)
