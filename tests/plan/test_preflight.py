"""What deploy.py refuses before it touches a host: each reason in a sentence, and the other hosts go on."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def dry_deploy(
    *arguments: str, inventory: str = "inventories/local.py", script: str = "deploy.py"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyinfra", *arguments, inventory, script, "--dry"]
    # No Hub answers on port 9.
    env = {**os.environ, "PYINFRA_PROGRESS": "off", "HF_ENDPOINT": "http://127.0.0.1:9"}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("llama_preset=nope", "no preset 'nope'"),
        ("llama_prot=8911", "unknown key 'prot'"),
        ("llama_preset=gemma-4-31b", "unsloth/gemma-4-31B-it-GGUF at main: the Hub cannot be reached"),
        ("llama_runtime=compose", "llama.cpp-wheel-cpu is not on this machine, from where it would be carried over"),
        ("llama_prefix=/dev/null/nowhere", "/dev/null/nowhere cannot be written"),
    ],
)
def test_a_wrong_wish_is_refused_with_its_fix(data: str, complaint: str) -> None:
    run = dry_deploy("--data", data)
    assert run.returncode != 0
    assert complaint in run.stderr
    assert "Fix: " in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("script", ["down.py", "rollback.py", "prune.py"])
def test_every_script_refuses_a_wrong_key_in_a_sentence(script: str) -> None:
    run = dry_deploy("--data", "llama_prot=8911", script=script)
    assert run.returncode != 0
    assert "unknown key 'prot'. Fix: " in run.stderr
    assert "Traceback" not in run.stderr


def test_a_port_that_another_program_holds_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = dry_deploy("--data", f"llama_port={port}", "--data", f"llama_prefix={tmp_path}")
    assert run.returncode != 0
    assert f"port {port} is in use by process {os.getpid()}" in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    (presets / "lock.yaml").write_text(
        f"models: {{smollm2-135m-instruct-q4_1: {{size: {10**15}, sha256: {'a' * 64}, wheel_sha256: {'b' * 64}}}}}"
    )
    command = [sys.executable, "-m", "pyinfra", "--data", f"llama_prefix={tmp_path}/p", "--data", "llama_port=18910"]
    env = {**os.environ, "BEEYARD_PRESETS": str(presets)}
    run = subprocess.run(
        [*command, "inventories/local.py", "deploy.py", "-y"], check=False, capture_output=True, text=True, env=env
    )  # fmt: skip
    assert run.returncode != 0
    assert re.search(
        r"GiB free, and 19557\d\d\.\d\d GiB are wanted for model files \(1862645\.15 GiB\)",
        run.stderr.replace("\n", " "),
    )
    assert not (tmp_path / "p").exists()


@pytest.fixture
def honey(tmp_path: Path) -> Path:
    """A folder of presets: the server `honey`, whose model is locked and comes from the Hub."""
    model = b"GGUF of a kind"
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "honey.gguf").write_bytes(model)
    tables = {
        "models": {"honey": {"source": {"kind": "hub", "repository": "bees/honey", "file": "honey.gguf"}}},
        "servers": {
            "honey": {
                "model": "honey",
                "engine": "llama.cpp-wheel",
                "default_variant": "baseline",
                "variants": {"baseline": {"decoding": {"kind": "baseline"}}},
            }
        },
        "lock": {"models": {"honey": {"size": len(model), "sha256": hashlib.sha256(model).hexdigest()}}},
    }
    presets = tmp_path / "presets"
    presets.mkdir()
    for name, table in tables.items():
        (presets / f"{name}.yaml").write_text(json.dumps(table))
    return presets


def test_a_hub_that_the_host_does_not_reach_is_named_before_anything_is_changed(
    tmp_path: Path, honey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEEYARD_PRESETS", str(honey))
    prefix = tmp_path / "p"
    words = [f"llama_prefix={prefix}", "llama_port=18910", "llama_preset=honey"]
    data = [word for pair in words for word in ("--data", pair)]
    run = dry_deploy(*data)
    assert run.returncode != 0
    said = " ".join(run.stderr.split())
    assert "this host does not reach http://127.0.0.1:9, where model honey comes from. Fix: " in said
    assert "set llama_model_source to" in said
    assert not prefix.exists()
    # What this machine sends needs no Hub.
    sent = dry_deploy(*data, "--data", f"llama_model_source={tmp_path}/files")
    assert sent.returncode == 0, sent.stderr
    assert "does not reach" not in sent.stderr


def test_the_plan_says_it_too_and_its_facts_keep_it(
    tmp_path: Path, honey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEEYARD_PRESETS", str(honey))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    facts = tmp_path / "facts.json"
    words = [f"llama_prefix={tmp_path}/p", "llama_port=18910", "llama_preset=honey"]
    data = [word for pair in words for word in ("--data", pair)]
    for source in (("local", "--save-facts", str(facts)), ("--facts", str(facts))):
        command = [sys.executable, "-m", "beeyard.cli", "plan", *source, *data]
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert run.returncode == 3, run.stderr
        assert "no: this host does not reach http://127.0.0.1:9, where model honey comes from. Fix: " in run.stdout
