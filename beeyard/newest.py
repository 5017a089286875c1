"""An engine's newest commit against what we know of the engine: its flags, and the presets that it serves."""

import os
import re
import subprocess
from typing import NamedTuple

from beeyard.catalog import Catalog, CatalogError, pick
from beeyard.contract import FlagTable, changes, load_table, violations
from beeyard.dialects import argv
from beeyard.spec import every_variant


class Comparison(NamedTuple):
    """What broke, and what there is beside it, a sentence each."""

    breaks: list[str]
    news: list[str]


def candidates(catalog: Catalog) -> list[str]:
    """Of each repository that engines are compiled from, the engine that is named last."""
    compiled = [name for name, engine in catalog.engines.items() if engine.artefact.kind in ("release", "source")]
    return list({catalog.engines[name].repository: name for name in compiled}.values())


def trial_name(engine_name: str) -> str:
    """What an engine is called at its newest commit: its pinned image keeps its own name."""
    return f"{engine_name}-newest"


def newest_commit(repository: str) -> str:
    """
    The newest commit of a repository's default branch.

    :raises CatalogError: it does not say.
    """
    command = ["timeout", "120", "git", "ls-remote", "--exit-code", repository, "HEAD"]
    # It would ask for a name where there is no such repository.
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    run = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=quiet)
    found = re.match(r"[0-9a-f]{40}\b", run.stdout)
    if run.returncode != 0 or found is None:
        said = (run.stderr.strip() or "it names no HEAD").splitlines()[-1]
        raise CatalogError(
            f"{repository} does not say what its newest commit is: {said}. Fix: check the network, and the "
            "repository in presets/engines.yaml"
        )
    return found[0]


def with_commit(catalog: Catalog, engine_name: str, commit: str) -> Catalog:
    """The catalog with an engine once more, under its trial name and at another commit."""
    engine = pick(catalog.engines, engine_name, "engine").model_copy(update={"commit": commit})
    return catalog.model_copy(update={"engines": {**catalog.engines, trial_name(engine_name): engine}})


def compare(catalog: Catalog, engine_name: str, found: FlagTable) -> Comparison:
    """An engine's flags against its committed table, and against every variant of a preset that it serves."""
    lost, gained = changes(load_table(catalog.engines[engine_name].flags), found)
    unfit = [
        f"{spec.preset} {spec.variant}: {violation}"
        for preset in catalog.servers
        for spec in every_variant({"llama_preset": preset}, catalog)
        if spec.engine_name == engine_name
        for violation in violations(argv(spec), found, trial_name(engine_name))
    ]
    return Comparison(lost + unfit, gained)
