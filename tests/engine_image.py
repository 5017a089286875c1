"""A real engine's image on the test machine's Docker Engine: its presets, and how it is built."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from beeyard.catalog import PROJECT, load_catalog
from beeyard.images import pod_tag, tag
from beeyard.render import CLONE_PRESET

STATE = Path(os.environ.get("BEEYARD_TESTBED_STATE", PROJECT / ".testbed"))
SOURCE = STATE / "sources" / "llama.cpp"
ENGINE, VARIANT = "llama.cpp-b11434", "cpu"
TAG = tag(ENGINE, VARIANT)
# `make image-try`: the tests of any image look at this one, and nothing is built.
GIVEN = (
    tag(os.environ.get("BEEYARD_ENGINE") or load_catalog().servers[CLONE_PRESET].engine, os.environ["BEEYARD_IMAGE"])
    if os.environ.get("BEEYARD_IMAGE")
    else None
)
BASE = "beeyard-testbed/debian:trixie"
DOCKER = {"DOCKER_HOST": "unix:///var/run/docker.sock"}
# Tables of presets: the engine's source is given as a checkout, its bases are what the test bed made.
TABLES: dict[str, dict[str, Any]] = {
    "engines": {
        ENGINE: {
            "title": "llama.cpp b11434", "commit": "0" * 40, "repository": "https://github.com/ggml-org/llama.cpp",
            "dialect": "llama.cpp", "flags": "llama.cpp-0.7.0", "accelerator": "cpu", "artefact": {"kind": "release"},
        }
    },
    "images": {VARIANT: {"build_base": BASE, "server_base": BASE}},
    "lock": {"bases": {BASE: "local"}},
}  # fmt: skip


def beeyard(*words: str, presets: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command `beeyard`, with these presets."""
    return subprocess.run(
        [sys.executable, "-m", "beeyard.cli", *words], check=False, capture_output=True, text=True, cwd=PROJECT,
        env={**os.environ, **DOCKER, "BEEYARD_PRESETS": str(presets), **(env or {})}, timeout=3600,
    )  # fmt: skip


def build(presets: Path, *options: str) -> str:
    """
    The engine's image, built by Dockerfile.cuda from its real source, and its name; of a pod, with ``--pod``.

    The first build on a machine takes ten minutes; later ones find every layer in BuildKit's cache.
    """
    run = beeyard("image", VARIANT, "--engine", ENGINE, "--source", str(SOURCE), *options, presets=presets)
    assert run.returncode == 0, run.stderr[-3000:]
    return pod_tag(TAG) if "--pod" in options else TAG
