"""Where a host's data asks for it: what its variant brings over the baseline, measured there."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beeyard.bench import record
from beeyard.bench.summary import speedups
from beeyard.catalog import PROJECT, load_catalog
from beeyard.spec import ServerSpec, every_variant, host_settings


def test_it_is_as_much_faster_as_it_should_be(machine: dict[str, Any], spec: ServerSpec, tmp_path: Path) -> None:
    wanted = host_settings(machine["data"]).gate_min_speedup
    if wanted is None:
        pytest.skip("llama_gate_min_speedup is not set")
    assert spec.drafts, f"llama_gate_min_speedup is set, and {spec.variant} does not draft. Fix: take one that does"
    others = every_variant(machine["data"], load_catalog())
    base = next((one.variant for one in others if _is_baseline_of(one, spec)), None)
    assert base, f"{spec.preset} has no baseline that differs in decoding alone. Fix: add one, or ask for no speed-up"
    file = tmp_path / "record.json"
    words = [word for pair in shlex.split(os.environ.get("DATA", "")) for word in ("--data", pair)]
    command = [
        sys.executable, "-m", "beeyard.cli", "compare", os.environ["TARGET"], "--limit", machine["name"],
        "--variants", f"{base},{spec.variant}", "--rounds", "3", "--no-agreement", "--no-tests", "--out", str(file),
        *words,
    ]  # fmt: skip
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=PROJECT)
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"
    total = speedups(record.load(file), base, spec.variant)[1]
    assert total is not None
    assert total.ratio >= wanted, (
        f"{spec.variant} is {total.ratio:.2f} ({total.low:.2f} to {total.high:.2f}) times as fast as {base}, and "
        f"{wanted:g} is wanted (llama_gate_min_speedup). Fix: see `make compare` for what to try, or take {base}"
    )


def _is_baseline_of(one: ServerSpec, spec: ServerSpec) -> bool:
    return one.decoding.kind == "baseline" and (one.engine_name, one.settings) == (spec.engine_name, spec.settings)
