"""`beeyard publish` with a docker that only notes what it is asked: nothing is built, nothing is sent."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from beeyard.catalog import PROJECT, load_catalog
from beeyard.images import SBOM_SCANNER

DIGEST = "sha256:" + "ab" * 32
DOCKER = """#!/bin/bash
echo "$*" >>"$NOTES"
case $1 in
version) echo 27.0.1 ;;
info) echo /nowhere ;;
run) printf -- '--model FNAME\\n--port PORT\\n' ;;
buildx)
  # Newer ones ask whether a folder outside the project may be read, and take no answer for no.
  [ "$2" != bake ] || [ "$BUILDX_BAKE_ENTITLEMENTS_FS" = 0 ] || exit 1
  while [ $# -gt 0 ]; do
    [ "$1" != --metadata-file ] || echo '{"beellama-v0_4_3-cpu": {"containerimage.digest": "DIGEST"}}' >"$2"
    shift
  done ;;
esac
""".replace("DIGEST", DIGEST)


def publish(tmp_path: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    bases = {base for variant in load_catalog().images.values() for base in (variant.build_base, variant.server_base)}
    (tmp_path / "lock.yaml").write_text(yaml.safe_dump({"bases": dict.fromkeys(bases | {SBOM_SCANNER}, DIGEST)}))
    docker, notes = tmp_path / "docker", tmp_path / "notes"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NOTES": str(notes)}
    (tmp_path / "config.json").write_text('{"auths": {"ghcr.io": {}}}')
    env["DOCKER_CONFIG"] = str(tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "beeyard.cli", "publish", *words], check=False, capture_output=True, text=True,
        cwd=PROJECT, env={**env, "BEEYARD_PRESETS": str(tmp_path)}, timeout=60,
    )  # fmt: skip
    builds = notes.read_text().splitlines() if notes.exists() else []
    return run, [line for line in builds if line.startswith("buildx bake")]


def test_what_is_sent_is_what_was_built_and_its_line_is_printed(tmp_path: Path) -> None:
    run, builds = publish(tmp_path, "cpu", "--to", "ghcr.io/bees/beeyard", "--version", "v1.2.3")
    assert (run.returncode, run.stdout) == (0, f"  beellama-v0.4.3-cpu: ghcr.io/bees/beeyard@{DIGEST}\n"), run.stderr
    _, labelled, sent = builds
    label = 'beellama-v0_4_3-cpu.labels.beeyard.flags={"--model":true,"--port":true}'
    assert label in labelled
    assert label in sent
    assert [" --push " in f"{line} " for line in builds] == [False, False, True]
    assert "beellama-v0_4_3-cpu.tags=ghcr.io/bees/beeyard:beellama-v0.4.3-cpu-v1.2.3" in sent
    # The lock that these presets have takes the line as it is.
    images = yaml.safe_load(run.stdout)
    (tmp_path / "lock.yaml").write_text(yaml.safe_dump({"images": images}))
    assert load_catalog([PROJECT / "presets", tmp_path]).lock.images == images


def test_a_pods_image_is_sent_under_its_own_name(tmp_path: Path) -> None:
    run, builds = publish(tmp_path, "cpu", "--to", "ghcr.io/bees/beeyard", "--version", "v1.2.3", "--pod")
    assert (run.returncode, run.stdout) == (0, f"ghcr.io/bees/beeyard@{DIGEST}\n"), run.stderr
    assert all("beellama-v0_4_3-cpu.target=pod" in line for line in builds)
    assert "beellama-v0_4_3-cpu.tags=ghcr.io/bees/beeyard:beellama-v0.4.3-cpu-v1.2.3-pod" in builds[-1]


def test_a_bad_name_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    run, builds = publish(tmp_path, "cpu", "--to", "ghcr.io/Bees/beeyard")
    assert run.returncode == 2
    assert "Fix: write it as ghcr.io/OWNER/NAME in lower case" in run.stderr
    assert builds == []
