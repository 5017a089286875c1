"""What deploy.py refuses before it touches a host: each reason in a sentence, and the other hosts go on."""

import os
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
    assert "GiB free; the missing model files want 977888.70 GiB" in run.stderr.replace("\n", " ")
    assert not (tmp_path / "p").exists()
