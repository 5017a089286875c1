"""Exports: the spec's own arguments arrive everywhere, no secret does, and what is missing is said."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from beeyard.catalog import Catalog, CatalogError
from beeyard.cli import app
from beeyard.dialects import argv
from beeyard.exporting import DSTACK_CARDS, FORMATS, SKYPILOT_CARDS, Wish, export
from beeyard.spec import ANY_HOST, resolve
from tests.exports import FETCH_IMAGE, IMAGE, SIZES, catalog, exported

CLIENTS = ("litellm", "open-webui", "opencode", "aider", "continue", "cline", "claude-code")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return catalog(tmp_path_factory.mktemp("presets"))


def words_of(known: Catalog, variant: str = "dflash", **data: Any) -> list[str]:
    """What the preset's server is started with in a container."""
    given = {"llama_preset": "gemma-4-31b", "llama_variant": variant, "llama_runtime": "compose"}
    given |= {"llama_models_dir": "/models", "llama_image": IMAGE, "llama_image_variant": "cuda12", **data}
    return argv(resolve(given, known, ANY_HOST))


def documents(text: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(text) if found]


@pytest.mark.parametrize("name", FORMATS)
def test_every_file_reads_as_what_it_is(known: Catalog, name: str) -> None:
    files = exported(name, known)
    assert files
    for file, text in files.items():
        assert "{{ " not in text.replace("${{ secrets", ""), file
        if file.endswith((".yaml", ".yml")):
            assert documents(text)
        if file.endswith(".json"):
            assert json.loads(text)


def test_a_pod_runs_exactly_the_specs_arguments(known: Catalog) -> None:
    files = exported("kubernetes", known)
    (deployment,) = documents(files["base/deployment.yaml"])
    pod = deployment["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    # A pod may not lock memory.
    assert server["args"] == words_of(known, llama_mlock="off")[1:]
    assert server["image"] == IMAGE
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090"}
    (job,) = documents(files["base/models.yaml"])
    (fetch,) = job["spec"]["template"]["spec"]["containers"]
    assert fetch["image"] == FETCH_IMAGE
    assert fetch["args"][2::4] == [str(size) for size in SIZES.values()]
    # The server waits for the stamps of exactly the files that the job fetches.
    (waiting,) = pod["initContainers"]
    assert waiting["args"] == [f"/models/{place}.verified" for place in fetch["args"][1::4]]
    assert all(word in server["args"] for word in (place.removesuffix(".verified") for place in waiting["args"]))
    (claim,) = documents(files["base/pvc.yaml"])
    assert int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) * 2**30 > sum(SIZES.values())


def test_other_files_are_another_job_as_a_job_cannot_be_changed(known: Catalog) -> None:
    names = set()
    for variant in ("dflash", "baseline"):
        (job,) = documents(exported("kubernetes", known, variant=variant)["base/models.yaml"])
        names.add(job["metadata"]["name"])
    assert len(names) == 2


def test_the_secret_has_no_value_and_no_kustomization_takes_it(known: Catalog) -> None:
    files = exported("kubernetes", known)
    (secret,) = documents(files["secret.yaml"])
    assert not {"data", "stringData"} & set(secret)
    assert not any("secret.yaml" in text for name, text in files.items() if name.endswith("kustomization.yaml"))


# By hand from the documentation of prometheus-operator (ServiceMonitor, v1) and KEDA (ScaledObject, v1alpha1).
def test_custom_resources_have_the_fields_that_their_operators_know(known: Catalog) -> None:
    files = exported("kubernetes", known)
    (monitor,) = documents(files["overlays/watched/servicemonitor.yaml"])
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "ServiceMonitor")
    assert set(monitor["spec"]) == {"selector", "endpoints"}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert set(endpoint) == {"port", "path", "interval", "authorization"}
    assert set(endpoint["authorization"]) == {"type", "credentials"}
    assert endpoint["authorization"]["credentials"] == {"name": "llama-server", "key": "api-key"}
    (service,) = documents(files["base/service.yaml"])
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    (scaled,) = documents(files["overlays/scaled/scaledobject.yaml"])
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled["spec"]
    known_fields = {"scaleTargetRef", "pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount"}
    assert set(spec) == known_fields | {"advanced", "triggers"}
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "prometheus"
    # KEDA takes metadata as text alone.
    assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_quadlets_command_is_the_specs(known: Catalog) -> None:
    unit = exported("quadlet", known)["llama-server.container"]
    (line,) = re.findall(r"^Exec=(.*)$", unit, re.MULTILINE)
    assert shlex.split(line) == words_of(known)[1:]
    assert "PublishPort=127.0.0.1:8910:8910" in unit


@pytest.mark.parametrize(("name", "file"), [("skypilot", "task.yaml"), ("dstack", "llama-server.dstack.yml")])
def test_a_cloud_runs_the_specs_arguments_with_the_key_in_a_file(known: Catalog, name: str, file: str) -> None:
    files = exported(name, known)
    (task,) = documents(files[file])
    script = task["run"] if name == "skypilot" else task["commands"][0]
    command = shlex.split(script.splitlines()[-1])
    wanted = words_of(known, llama_mlock="off", llama_models_dir="/root/models")
    wanted[-1] = "/root/api-key"
    assert command == ["exec", "env", "-u", "LLAMA_API_KEY", *wanted]
    fetches = task["setup"] if name == "skypilot" else script
    assert fetches.count("fetch.sh get https://huggingface.co/") == 2
    assert files["fetch.sh"].startswith("#!/bin/sh\n# fetch.sh get URL DEST SIZE SHA256")


def test_every_card_that_we_know_has_a_name_at_the_clouds(known: Catalog) -> None:
    assert set(SKYPILOT_CARDS) == set(DSTACK_CARDS) == set(known.gpus)


def test_llama_swap_has_every_variant_on_a_port_of_its_choice_with_the_same_key(known: Catalog) -> None:
    (found,) = documents(exported("llama-swap", known)["llama-swap.yaml"])
    assert set(found["models"]) == {
        f"gemma-4-31b-{variant}" for variant in ("guide-baseline", "guide-dflash", "baseline", "dflash")
    }
    assert found["apiKeys"] == ["${env.LLAMA_API_KEY}"]
    data = {"llama_preset": "gemma-4-31b", "llama_variant": "dflash", "llama_runtime": "supervisor"}
    wanted = argv(resolve(data, known, ANY_HOST))
    wanted[wanted.index("--port") + 1] = "${PORT}"
    assert shlex.split(found["models"]["gemma-4-31b-dflash"]["cmd"]) == wanted
    (one,) = documents(exported("llama-swap", known, variant="dflash")["llama-swap.yaml"])
    assert list(one["models"]) == ["gemma-4-31b-dflash"]


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_have_the_address_and_never_a_key(known: Catalog, name: str) -> None:
    text = "\n".join(exported(name, known, urls=("http://192.0.2.7:8910/v1/",)).values())
    assert "http://192.0.2.7:8910" in text
    assert "/v1/v1" not in text
    assert "gemma-4-31b" in text
    with pytest.raises(CatalogError, match="is no address"):
        exported(name, known, urls=("192.0.2.7:8910",))


def test_several_servers_are_one_model_of_litellm_and_open_webui(known: Catalog) -> None:
    urls = ("http://a:8910", "http://b:8910")
    (found,) = documents(exported("litellm", known, urls=urls)["litellm.yaml"])
    assert [one["litellm_params"]["api_base"] for one in found["model_list"]] == [
        "http://a:8910/v1",
        "http://b:8910/v1",
    ]
    assert len({one["model_name"] for one in found["model_list"]}) == 1
    assert (
        "OPENAI_API_BASE_URLS=http://a:8910/v1;http://b:8910/v1\n"
        in exported("open-webui", known, urls=urls)["open-webui.env"]
    )


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("kubernetes", {"image": None}, "no image is named"),
        ("kubernetes", {"image": "ghcr.io/me/x:latest"}, "names no digest"),
        ("kubernetes", {"fetch_image": None}, "--fetch-image"),
        ("skypilot", {"card": None}, "a card by name"),
        ("dstack", {"card": "rtx-1"}, "rtx-1"),
        ("quadlet", {"variant": "mtp"}, "mtp"),
        ("llama-swap", {"variant": "mtp"}, "mtp"),
        ("nomad", {}, "nomad"),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(known: Catalog, name: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(CatalogError) as error:
        exported(name, known, **more)
    assert said in str(error.value)
    assert "Fix: " in str(error.value)


def test_models_that_are_not_locked_or_that_nobody_can_fetch_are_refused(known: Catalog) -> None:
    with pytest.raises(CatalogError, match=r"is not in presets/lock\.yaml"):
        export("quadlet", Wish("qwen3.6-27b", image=IMAGE, fetch_image=FETCH_IMAGE), known)
    with pytest.raises(CatalogError, match="comes from a path, which nobody else can fetch"):
        export("quadlet", Wish("tiny", image=IMAGE, fetch_image=FETCH_IMAGE), known)


def test_the_command_prints_one_file_and_wants_a_folder_for_several(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["export", "opencode", "--preset", "smol"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["model"] == "beeyard/smol"
    run = CliRunner().invoke(app, ["export", "aider", "--preset", "smol"])
    assert isinstance(run.exception, CatalogError)
    assert "aider is 2 files. Fix: " in str(run.exception)
    run = CliRunner().invoke(app, ["export", "aider", "--preset", "smol", "--out", str(tmp_path / "new")])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "new" / ".aider.conf.yml").is_file()


@pytest.mark.parametrize(("name", "file"), [("skypilot", "task.yaml"), ("dstack", "llama-server.dstack.yml")])
def test_a_clouds_script_writes_the_key_and_hides_it_from_the_server(
    known: Catalog, tmp_path: Path, name: str, file: str
) -> None:
    (task,) = documents(exported(name, known)[file])
    script = task["run"] if name == "skypilot" else task["commands"][0]
    (tmp_path / "fetch.sh").write_text(f'echo "$@" >>{tmp_path}/fetched; [ -z "$(cat)" ]\n')
    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\nenv >{tmp_path}/environment\nprintf "%s\\n" "$@" >{tmp_path}/arguments\n')
    server.chmod(0o755)
    here = {"/root/api-key": f"{tmp_path}/key", "/opt/llama/llama-server": str(server)}
    here |= {"/root/beeyard/fetch.sh": f"{tmp_path}/fetch.sh"}
    for there, place in here.items():
        script = script.replace(there, place)
    given = {"PATH": "/usr/bin:/bin", "LLAMA_API_KEY": "s3cret key"}
    run = subprocess.run(["bash", "-c", script], check=False, env=given)
    assert run.returncode == 0
    assert (tmp_path / "key").read_text() == "s3cret key\n"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    for seen in ("environment", "arguments"):
        assert "s3cret" not in (tmp_path / seen).read_text()
    assert (tmp_path / "arguments").read_text().splitlines()[-2:] == ["--api-key-file", f"{tmp_path}/key"]
    run = subprocess.run(["bash", "-c", script], check=False, capture_output=True, env={"PATH": "/usr/bin:/bin"})
    assert run.returncode != 0
