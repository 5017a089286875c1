"""An engine's newest commit: which engines are tried, and what counts as broken."""

import subprocess
from pathlib import Path

import pytest

from beeyard import newest
from beeyard.catalog import CatalogError, load_catalog
from beeyard.contract import Flag, FlagTable, changes, load_table

CATALOG = load_catalog()
ENGINE = "beellama-v0.4.3"
KNOWN = load_table(CATALOG.engines[ENGINE].flags)


def without(*names: str) -> FlagTable:
    return {name: flag for name, flag in KNOWN.items() if name not in names}


def test_each_repository_that_is_compiled_from_is_tried_once() -> None:
    assert newest.candidates(CATALOG) == [ENGINE, "llama.cpp-2026-08-09"]


def test_a_trial_changes_neither_the_engine_nor_its_images_name() -> None:
    trial = newest.with_commit(CATALOG, ENGINE, "1" * 40)
    assert trial.engines[ENGINE] == CATALOG.engines[ENGINE]
    assert trial.engines[newest.trial_name(ENGINE)].commit == "1" * 40
    assert newest.trial_name(ENGINE) != ENGINE


def test_the_same_flags_are_no_news() -> None:
    assert newest.compare(CATALOG, ENGINE, KNOWN) == ([], [])


def test_a_flag_that_is_gone_breaks_and_names_the_presets_that_use_it() -> None:
    found = newest.compare(CATALOG, ENGINE, without("--load-mode", "-lm"))
    assert "--load-mode is gone" in found.breaks
    assert any(
        line.startswith(f"gemma-4-31b dflash: {ENGINE}-newest does not know --load-mode") for line in found.breaks
    )
    assert found.news == []


def test_a_new_flag_is_news_and_breaks_nothing() -> None:
    assert newest.compare(CATALOG, ENGINE, {**KNOWN, "--bees": Flag("--bees", takes_value=True)}) == (
        [], ["--bees is new"]
    )  # fmt: skip


def test_values_and_their_choices_are_compared_too() -> None:
    old = {"-a": Flag("-a", takes_value=True, choices=("x", "y")), "-b": Flag("-b", takes_value=False)}
    new = {"-a": Flag("-a", takes_value=True, choices=("y", "z")), "-b": Flag("-b", takes_value=True)}
    assert changes(old, new) == (["-a does not take x any more", "-b takes a value now"], ["-a also takes z"])
    assert changes(new, old)[0] == ["-a does not take z any more", "-b takes no value now"]


def test_the_newest_commit_is_the_default_branchs(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert newest.newest_commit(str(tmp_path)) == head


def test_a_repository_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"/nothing does not say what its newest commit is: .* Fix: "):
        newest.newest_commit(str(tmp_path / "nothing"))
