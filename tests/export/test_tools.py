"""
Exports read by the tools that they are for. Each Python tool comes from the package index into an environment of
its own, once a machine: some of them cannot share one with pyinfra. What a machine has not (kubectl, quadlet) is left
out.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from beeyard import tiny
from beeyard.catalog import PROJECT, Catalog
from tests.exports import catalog, exported, put
from tests.plan.conftest import free_port
from tests.real_server import KEY, Running, serving, spec_of, unpack

TOOLS = PROJECT / ".beeyard" / "export-tools"
VERSIONS = {
    "kubernetes-validate": "1.37.0",
    "skypilot": "0.14.1",
    "dstack": "0.22.5",
    "litellm": "1.110.2",
    "aider-chat": "0.86.2",
}
# podman's generator, 4.4 or newer; BEEYARD_QUADLET names one that lies elsewhere.
QUADLET = os.environ.get("BEEYARD_QUADLET", "/usr/libexec/podman/quadlet")

SKYPILOT = """
import sys, json, sky
for file in sys.argv[1:]:
    task = sky.Task.from_yaml(file)
    (resources,) = task.resources
    print("FOUND", json.dumps([task.name, resources.accelerators, task.service is not None, task.file_mounts]))
"""
DSTACK = """
import sys, json, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
found = parse_apply_configuration(yaml.safe_load(open(sys.argv[1])))
found = getattr(found, "root", found)
print("FOUND", json.dumps([found.type, found.name, found.port.container_port, found.auth, found.resources.gpu.name]))
"""
LITELLM = """
import sys, json, yaml
from litellm import Router
found = yaml.safe_load(open(sys.argv[1]))
router = Router(model_list=found["model_list"], **found["router_settings"])
answer = router.completion(model="gemma-4-31b", messages=[{"role": "user", "content": "hello"}], max_tokens=4)
print("FOUND", json.dumps([answer.choices[0].message.content]))
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return catalog(tmp_path_factory.mktemp("presets"))


def tool(name: str) -> Path:
    """The folder with the commands of a tool, in the version that was tried."""
    folder = TOOLS / f"{name}-{VERSIONS[name]}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = str(Path(sys.executable).with_name("uv"))
        for words in (
            ["venv", "-q", "--python", sys.executable, str(folder)],
            ["pip", "install", "-q", "--python", str(folder / "bin" / "python"),
             f"{name}=={VERSIONS[name]}"],
        ):  # fmt: skip
            run = subprocess.run([uv, *words], check=False, capture_output=True, text=True)
            assert run.returncode == 0, f"{name} does not come: {run.stderr}. Fix: see that uv gets it"
        (folder / "complete").touch()
    return folder / "bin"


def found_by(name: str, script: str, *files: str, folder: Path, home: Path) -> list[object]:
    """What a script of ours, run with a tool, read of files."""
    environment = {**os.environ, "HOME": str(home), "LLAMA_API_KEY": KEY}
    run = subprocess.run(
        [str(tool(name) / "python"), "-c", script, *files], check=False, capture_output=True, text=True, cwd=folder,
        env=environment, timeout=180,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return [json.loads(line.removeprefix("FOUND ")) for line in run.stdout.splitlines() if line.startswith("FOUND ")]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
@pytest.mark.parametrize("overlay", ["base", "overlays/watched", "overlays/scaled"])
@pytest.mark.parametrize("variant", ["dflash", "baseline"])
def test_kustomize_builds_what_kubernetes_takes(known: Catalog, tmp_path: Path, overlay: str, variant: str) -> None:
    put(exported("kubernetes", known, variant=variant), tmp_path)
    built = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path / overlay)], check=False, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    (tmp_path / "all.yaml").write_text(built.stdout)
    validate = str(tool("kubernetes-validate") / "kubernetes-validate")
    run = subprocess.run(
        [validate, "--strict", str(tmp_path / "all.yaml"), str(tmp_path / "secret.yaml")], check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    kinds = {found["kind"]: found for found in yaml.safe_load_all(built.stdout)}
    wanted = {"Deployment", "Job", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget", "Service"}
    wanted |= {"base": set(), "overlays/watched": {"ServiceMonitor"}}.get(overlay, {"ServiceMonitor", "ScaledObject"})
    assert set(kinds) == wanted
    # It knows nothing of custom resources; the secret is one more.
    checked = wanted - {"ServiceMonitor", "ScaledObject"}
    assert (run.stdout + run.stderr).count(" passed for resource ") == len(checked) + 1
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"].items() <= labels.items()
    assert ("replicas" in kinds["Deployment"]["spec"]) is (overlay != "overlays/scaled")


@pytest.mark.skipif(not Path(QUADLET).exists(), reason="no quadlet here (podman 4.4); BEEYARD_QUADLET names one")
def test_quadlets_generator_makes_units_that_systemd_takes(known: Catalog, tmp_path: Path) -> None:
    put(exported("quadlet", known), tmp_path / "quadlet")
    units = tmp_path / "units"
    units.mkdir()
    run = subprocess.run(
        [QUADLET, str(units)], check=False, capture_output=True, text=True,
        env={**os.environ, "QUADLET_UNIT_DIRS": str(tmp_path / "quadlet")},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sorted(file.name for file in units.glob("*.service")) == [
        "llama-models-volume.service", "llama-models.service", "llama-server.service"
    ]  # fmt: skip
    server = (units / "llama-server.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", server, re.MULTILINE)
    assert "--spec-type draft-dflash" in line
    assert line.endswith("--api-key-file /run/secrets/api-key")
    assert "--read-only" in line
    # systemd asks for the command itself, too; here there may be no podman.
    for file in units.glob("*.service"):
        file.write_text(file.read_text().replace("/usr/bin/podman", "/bin/true"))
    if shutil.which("systemd-analyze"):
        names = [str(file) for file in units.glob("*.service")]
        check = subprocess.run(
            ["systemd-analyze", "verify", "--recursive-errors=no", *names],
            check=False,
            capture_output=True,
            text=True,
        )
        assert check.returncode == 0, check.stderr


def test_skypilot_loads_its_task_and_service(known: Catalog, tmp_path: Path) -> None:
    put(exported("skypilot", known), tmp_path)
    found = found_by("skypilot", SKYPILOT, "task.yaml", "service.yaml", folder=tmp_path, home=tmp_path)
    mounts = {"/root/beeyard/fetch.sh": "./fetch.sh"}
    assert found == [
        ["gemma-4-31b-dflash", {"RTX4090": 1}, False, mounts],
        ["gemma-4-31b-dflash", {"RTX4090": 1}, True, mounts],
    ]


def test_dstack_loads_its_service(known: Catalog, tmp_path: Path) -> None:
    put(exported("dstack", known), tmp_path)
    found = found_by("dstack", DSTACK, "llama-server.dstack.yml", folder=tmp_path, home=tmp_path)
    assert found == [["service", "gemma-4-31b-dflash", 8910, False, ["RTX4090"]]]


def test_aider_takes_its_configuration_and_knows_the_model(known: Catalog, tmp_path: Path) -> None:
    put(exported("aider", known), tmp_path)
    run = subprocess.run(
        [str(tool("aider-chat") / "aider"), "--config", ".aider.conf.yml", "--no-git", "--yes-always", "--exit"],
        check=False, capture_output=True, text=True, cwd=tmp_path, timeout=180, stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path), "OPENAI_API_KEY": "k" * 40},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Model: openai/gemma-4-31b with" in run.stdout
    assert "Unknown context window" not in run.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A real llama-server with real DFlash."""
    binary = unpack(tmp_path_factory.mktemp("engine"))
    files = {path.name: path for path in tiny.write_all(tmp_path_factory.mktemp("tiny"))}
    with serving(spec_of("tiny", "dflash"), binary, files, tmp_path_factory.mktemp("served"), free_port()) as running:
        yield running


def test_litellms_router_gets_an_answer_of_a_real_server(known: Catalog, tmp_path: Path, server: Running) -> None:
    put(exported("litellm", known, urls=(server.url,)), tmp_path)
    found = found_by("litellm", LITELLM, "litellm.yaml", folder=tmp_path, home=tmp_path)
    assert len(found) == 1
    assert found != [[""]]


def test_a_real_server_answers_as_claude_code_asks(known: Catalog, server: Running) -> None:
    settings = json.loads(exported("claude-code", known, urls=(server.url,))["settings.json"])
    helper = subprocess.run(
        ["sh", "-c", settings["apiKeyHelper"]], check=True, capture_output=True, text=True,
        env={**os.environ, "LLAMA_API_KEY": KEY},
    )  # fmt: skip
    body = {
        "model": settings["env"]["ANTHROPIC_MODEL"],
        "max_tokens": 8,
        "system": [{"type": "text", "text": "You are a helpful bee."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    }
    url = settings["env"]["ANTHROPIC_BASE_URL"]
    key = helper.stdout.strip()
    for headers in ({"x-api-key": key}, {"Authorization": f"Bearer {key}"}):
        answer = httpx.post(f"{url}/v1/messages", json=body, headers=headers, timeout=60).raise_for_status().json()
        assert (answer["type"], answer["role"]) == ("message", "assistant")
        assert answer["usage"]["output_tokens"] > 0
    counted = httpx.post(f"{url}/v1/messages/count_tokens", json=body, headers={"x-api-key": key}, timeout=60)
    assert counted.json()["input_tokens"] > 0
    assert httpx.post(f"{url}/v1/messages", json=body, timeout=60).status_code == 401
    streamed = httpx.post(f"{url}/v1/messages", json={**body, "stream": True}, headers={"x-api-key": key}, timeout=60)
    assert "event: message_start" in streamed.text
    assert "event: message_stop" in streamed.text
