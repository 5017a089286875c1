"""Which variants may be compared on a host, and that the one that was there is brought back whatever happens."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from beeyard.catalog import PRESETS, CatalogError, load_catalog
from beeyard.cli import app
from beeyard.comparing import Switching, as_it_was, in_order, one_host, way_back
from beeyard.hosts import DeployFailed, Target
from beeyard.render import define
from beeyard.spec import ANY_HOST, resolve
from beeyard.survey import Survey
from tests.unit.test_survey import survey

CATALOG = load_catalog([PRESETS])


def host(served: str | None = None, **data: Any) -> Survey:
    seen = survey(llama_runtime="supervisor", **data)
    seen = seen.model_copy(update={"probe": {**seen.probe, "listener_pid": None}})
    if served is None:
        return seen
    given = {**seen.data, "llama_variant": served}
    return seen.model_copy(update={"server": json.loads(define(resolve(given, CATALOG, ANY_HOST)).server_json)})


class Bed(Target):
    """Deploys that are only written down; ``seen`` is what the host says after each."""

    done: list[Mapping[str, Any]]
    fails: set[str]

    def __init__(self, fails: tuple[str, ...] = ()) -> None:
        super().__init__("local", {})
        object.__setattr__(self, "done", [])
        object.__setattr__(self, "fails", set(fails))

    def deploy(self, data: Mapping[str, Any]) -> None:
        self.done.append(data)
        if data.get("llama_variant") in self.fails:
            raise DeployFailed("the gate said no. Fix: another variant")

    def surveyed(self, data: Mapping[str, Any] | None = None) -> tuple[list[Survey], int, str]:
        return [host(self.done[-1].get("llama_variant", "dflash"))], 0, ""


def test_the_one_that_does_not_draft_comes_first() -> None:
    assert in_order(host("dflash"), ["dflash", "baseline"], CATALOG) == ("baseline", "dflash")
    assert in_order(host(), ["baseline", "dflash"], CATALOG) == ("baseline", "dflash")


def test_mtp_with_the_models_other_file_takes_turns_with_the_rest(tmp_path: Path) -> None:
    (tmp_path / "servers.yaml").write_text(
        "tiny:\n  model: tiny-qwen3\n  engine: llama.cpp-wheel\n  default_variant: baseline\n"
        "  settings: {context: 4096, gpu_layers: 0}\n  variants:\n"
        "    baseline: {decoding: {kind: baseline}}\n"
        "    dflash: {decoding: {kind: dflash, draft_model: tiny-qwen3-dflash}}\n"
        "    mtp: {decoding: {kind: mtp, model: tiny-gemma4}}\n"
    )
    catalog = load_catalog([PRESETS, tmp_path])
    assert in_order(host(), ["mtp", "dflash", "baseline"], catalog) == ("baseline", "mtp", "dflash")


@pytest.mark.parametrize("names", [[], ["dflash"], ["dflash", "dflash"]])
def test_one_variant_is_no_comparison(names: list[str]) -> None:
    with pytest.raises(CatalogError, match=r"not two or more different variants\. Fix: .*VARIANTS=baseline,dflash"):
        in_order(host(), names, CATALOG)


def test_a_variant_that_there_is_not_and_one_that_does_not_fit_are_refused() -> None:
    with pytest.raises(CatalogError, match=r"attic cannot have nope: no variant of tiny 'nope'.* Fix: "):
        in_order(host(), ["baseline", "nope"], CATALOG)
    with pytest.raises(CatalogError, match=r"attic cannot have baseline: .* Fix: "):
        in_order(host(llama_preset="qwen3.6-27b", llama_context=4_000_000), ["baseline", "dflash"], CATALOG)


@pytest.mark.parametrize(
    ("settings", "named", "fix"),
    [
        ("{context: 2048}", "--ctx-size", "--data llama_context=2048"),
        (
            "{context: 2048, batch: 333}",
            "-b, --ctx-size",
            "`beeyard bench` each and `beeyard report` on both",
        ),
    ],
)
def test_variants_that_differ_in_more_than_decoding_are_refused_by_name(
    settings: str, named: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "servers.yaml").write_text(
        "tiny:\n  model: tiny-gemma4\n  engine: llama.cpp-wheel\n  default_variant: baseline\n"
        "  settings: {context: 4096, gpu_layers: 0}\n  variants:\n"
        "    baseline: {decoding: {kind: baseline}}\n"
        f"    dflash: {{decoding: {{kind: dflash, draft_model: tiny-gemma4-dflash}}, settings: {settings}}}\n"
    )
    with pytest.raises(CatalogError) as refused:
        in_order(host(), ["dflash", "baseline"], load_catalog([PRESETS, tmp_path]))
    text = str(refused.value)
    assert text.startswith(f"baseline and dflash of tiny differ on attic in more than decoding ({named}), so ")
    assert "Fix: " in text
    assert fix in text


def test_what_no_deploy_would_bring_back_is_refused() -> None:
    seen = host("baseline")
    other = seen.model_copy(update={"server": {**seen.server, "preset": "smol", "title": "smol ngram"}})
    with pytest.raises(CatalogError, match=r"serves smol ngram, which its inventory does not ask for.* Fix: deploy"):
        in_order(other, ["baseline", "dflash"], CATALOG)


def test_at_the_end_the_one_that_was_there_serves() -> None:
    bed = Bed()
    switching = Switching(bed, CATALOG)
    with as_it_was(switching, host("baseline"), bed):
        switching.bring("baseline")
        switching.bring("dflash")
    assert bed.done == [{"llama_variant": name} for name in ("baseline", "dflash", "baseline")]


@pytest.mark.parametrize(
    ("given", "served", "keeps"),
    [
        ({"llama_gate_min_acceptance": 0.99}, {}, False),
        ({"llama_context": 2048}, {}, False),
        ({"llama_context": 2048}, {"llama_context": 2048}, True),
        ({"llama_preset": "smol"}, {"llama_preset": "smol"}, True),
    ],
)
def test_data_of_the_comparison_alone_are_left_out_of_the_way_back(
    given: dict[str, Any], served: dict[str, Any], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = "ngram" if "llama_preset" in served else "dflash"
    monkeypatch.setattr(Target, "surveyed", lambda self, data=None: ([host(**self.data)], 0, ""))
    there = host(variant, **served)
    seen = host(**given).model_copy(update={"server": there.server})
    assert way_back(Target("local", given), seen, CATALOG).data == (given if keeps else {})
    assert way_back(Target("local", {}), seen, CATALOG).data == {}
    assert way_back(Target("local", given), host(), CATALOG).data == given


def test_nothing_is_deployed_again_where_it_serves_already() -> None:
    bed = Bed()
    switching = Switching(bed, CATALOG)
    with as_it_was(switching, host("dflash"), bed):
        switching.bring("baseline")
        switching.bring("dflash")
    assert len(bed.done) == 2


def test_a_host_that_had_no_server_gets_its_inventorys() -> None:
    bed = Bed()
    switching = Switching(bed, CATALOG)
    with as_it_was(switching, host(), bed):
        switching.bring("baseline")
    assert bed.done[-1] == {}


def test_after_a_variant_that_failed_its_gate_the_old_one_is_brought_back() -> None:
    bed = Bed(fails=("dflash",))
    switching = Switching(bed, CATALOG)

    def both() -> None:
        with as_it_was(switching, host("baseline"), bed):
            switching.bring("baseline")
            switching.bring("dflash")

    with pytest.raises(DeployFailed, match="the gate said no"):
        both()
    # The gate went back to what had served; that need not be what was there before the comparison.
    assert bed.done[-1] == {"llama_variant": "baseline"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_bring_it_back_too(number: signal.Signals) -> None:
    bed = Bed()
    switching = Switching(bed, CATALOG)
    before = signal.getsignal(number)

    def interrupted() -> None:
        with as_it_was(switching, host("baseline"), bed):
            switching.bring("dflash")
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert bed.done[-1] == {"llama_variant": "baseline"}
    assert signal.getsignal(number) == before


def test_somebody_elses_deploy_in_between_is_seen() -> None:
    class Stolen(Bed):
        def surveyed(self, data: Mapping[str, Any] | None = None) -> tuple[list[Survey], int, str]:
            return [host("baseline")], 0, ""

    with pytest.raises(DeployFailed, match=r"attic serves baseline right after a deploy of dflash\. Fix: "):
        Switching(Stolen(), CATALOG).bring("dflash")


def test_several_hosts_and_none_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [host(), host().model_copy(update={"name": "cellar"})]
    monkeypatch.setattr(Target, "surveyed", lambda *_: (two, 0, ""))
    with pytest.raises(CatalogError, match=r"local has 2 hosts: attic, cellar\. Fix: name one, as in --limit attic"):
        one_host(Target("local", {}))
    monkeypatch.setattr(Target, "surveyed", lambda *_: ([], 1, "no route to host\n"))
    with pytest.raises(CatalogError, match=r"no route to host\nlocal cannot be looked at\. Fix: "):
        one_host(Target("local", {}))


def test_an_inventory_that_there_is_not_is_told() -> None:
    with pytest.raises(CatalogError, match=r"there is no inventories/nowhere\.py\. Fix: TARGET is one of .*local"):
        Target("nowhere", {})


@pytest.mark.parametrize("then_down", [False, True])
def test_a_rented_pod_ends_also_where_it_cannot_be_looked_at(
    then_down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[str, str | None]] = []

    @contextmanager
    def wanted(target: str, pod: str | None, _: object, *, is_wanted: bool) -> Iterator[None]:
        try:
            yield
        finally:
            if is_wanted:
                ended.append((target, pod))

    monkeypatch.setattr("beeyard.commands.bench.ending.then_down", wanted)
    monkeypatch.setattr(Target, "surveyed", lambda *_: ([], 1, "no route to host\n"))
    words = ["compare", "local", "--limit", "bee", *(["--then-down"] if then_down else [])]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, CatalogError)
    assert ended == ([("local", "bee")] if then_down else [])
