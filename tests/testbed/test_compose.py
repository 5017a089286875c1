"""The life of a container on a Debian 13 host, in order: each test goes on where the one before ended."""

import json
import os
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from beeyard.catalog import PROJECT
from beeyard.images import tag
from tests import engine_image, nvidia_smi
from tests.testbed.conftest import HANGS, HUB_HERE, PREFIX, STATE, Bed, Deploy

HOST = "docker"
pytestmark = pytest.mark.hosts(HOST)
GUARD = f"{PREFIX[HOST]}/bin/guard.py"
DERIVED = """\
FROM {tag}
USER 0:0
RUN mv /opt/llama/llama-server /opt/llama/real-llama-server
COPY --chmod=0755 wrapper /opt/llama/llama-server
USER 8910:8910
"""
# Serves nothing and says that it loads: the image has no Python to do that with.
LOADS = HANGS.partition("exec python3")[0] + "echo loading, for ever\nexec sleep 1000\n"


def here(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A docker command on the machine that deploys."""
    run = subprocess.run(
        ["docker", *words], check=False, capture_output=True, text=True, env={**os.environ, **engine_image.DOCKER},
        timeout=300, **options,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run


@pytest.fixture(scope="module")
def docker(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The test bed with images on this machine: the engine's, one that hangs, one with another table of flags."""
    engine_image.build(bed.presets)
    folder = tmp_path_factory.mktemp("derived")
    (folder / "wrapper").write_text(LOADS)
    (folder / "Dockerfile").write_text(DERIVED.format(tag=engine_image.TAG))
    here("build", "--tag", tag("image-hangs", "cpu"), str(folder))
    flags = json.loads(here("image", "inspect", engine_image.TAG).stdout)[0]["Config"]["Labels"]["beeyard.flags"]
    (folder / "Dockerfile").write_text(f"FROM {engine_image.TAG}\n")
    label = f"beeyard.flags={flags.replace('--jinja --no-jinja', '--ninja --no-ninja')}"
    here("build", "--tag", tag("image-old-help", "cpu"), "--label", label, str(folder))
    yield bed
    for name in ("image-hangs", "image-old-help"):
        here("image", "rm", "--force", tag(name, "cpu"))


def deploy(bed: Bed, *options: str, **data: Any) -> Deploy:
    return bed.deploy(HOST, *options, **data)


def container(bed: Bed) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bed.sh(HOST, "docker container inspect llama-server"))[0]
    return found


def test_a_bare_host_gets_docker_the_image_and_a_server_that_drafts(docker: Bed) -> None:
    docker.recreate(HOST)
    assert docker.sh(HOST, "command -v docker; true") == ""
    run = deploy(docker)
    assert run.code == 0, run.output
    assert "docker serves tiny, variant dflash, on llama.cpp b11434 (compose)" in run.stderr
    assert "drafted tokens accepted" in run.stderr
    assert "draft-dflash" in docker.serving(HOST)


def test_a_second_deploy_changes_nothing(docker: Bed) -> None:
    before = container(docker)
    run = deploy(docker)
    assert run.code == 0, run.output
    assert run.changed == []
    assert container(docker)["State"]["StartedAt"] == before["State"]["StartedAt"]


def test_what_runs_is_what_the_spec_says(docker: Bed) -> None:
    said = docker.verify(HOST)
    assert "11 passed" in said, said
    assert "failed" not in said


def test_it_switches_to_another_variant_and_back(docker: Bed) -> None:
    for variant, drafts in (("baseline", False), ("dflash", True)):
        run = deploy(docker, llama_variant=variant)
        assert run.code == 0, run.output
        assert ("draft-dflash" in docker.serving(HOST)) is drafts
        assert deploy(docker, llama_variant=variant).changed == []


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"llama_preset": "broken", "llama_variant": "dies"}, "its process died while it loaded"),
        ({"llama_preset": "stuck"}, "its answer is one token over and over"),
        ({"llama_engine": "image-hangs", "llama_load_timeout": 4}, "it was not ready after 4 s"),
    ],
    ids=["dies", "garbage", "hangs"],
)
def test_a_switch_that_fails_the_gate_ends_in_the_server_before_it(
    docker: Bed, data: dict[str, Any], complaint: str
) -> None:
    before = docker.serving(HOST)
    run = deploy(docker, **data)
    assert run.code != 0
    assert complaint in run.stderr
    assert "did not pass the gate; the previous server serves again" in run.stderr
    assert "log lines:" in run.stderr
    assert docker.serving(HOST) == before
    assert deploy(docker).totals["success"] <= 1  # at most the pruned definition is written again


def test_arguments_that_the_images_table_does_not_have_stop_nothing(docker: Bed) -> None:
    before = container(docker)
    run = deploy(docker, llama_engine="image-old-help")
    assert run.code != 0
    assert "does not know --jinja; it offers --ninja" in run.stderr
    assert "Nothing was stopped" in run.stderr
    assert container(docker)["State"]["StartedAt"] == before["State"]["StartedAt"]


def test_a_new_image_sends_only_what_is_new_and_can_be_taken_back(docker: Bed, tmp_path: Path) -> None:
    first = here("image", "inspect", engine_image.TAG, "--format", "{{.Id}}").stdout.strip()
    (tmp_path / "more").write_text("more\n")
    (tmp_path / "Dockerfile").write_text(f"FROM {engine_image.TAG}\nCOPY more /opt/llama/\n")
    here("build", "--tag", engine_image.TAG, str(tmp_path))
    try:
        run = deploy(docker)
        assert run.code == 0, run.output
        assert "has 4 of the 5 layers" in run.stderr
        second = here("image", "inspect", engine_image.TAG, "--format", "{{.Id}}").stdout.strip()
        assert container(docker)["Image"] == second
    finally:
        here("image", "tag", first, engine_image.TAG)
    run = deploy(docker)
    assert run.code == 0, run.output
    assert container(docker)["Image"] == first


def test_a_crash_is_healed_without_a_deploy(docker: Bed) -> None:
    before = docker.state(HOST)["pid"]
    docker.sh(HOST, f"kill -9 {before}")
    deadline = time.monotonic() + 30
    while not docker.serving(HOST) or docker.state(HOST)["pid"] == before:
        assert time.monotonic() < deadline, "it did not come back"
        time.sleep(0.2)
    assert deploy(docker).changed == []


def test_it_is_back_after_a_reboot(docker: Bed) -> None:
    boot = docker.boot(HOST)
    docker.sh(HOST, "systemctl reboot", check=False)
    deadline = time.monotonic() + 90
    while docker.boot(HOST) in ("", boot) or not docker.serving(HOST):
        assert time.monotonic() < deadline, "the container did not start at boot"
        time.sleep(0.3)
    # It serves while the boot, and Docker itself, are still under way.
    docker.sh(HOST, "systemctl is-system-running --wait", check=False)
    while container(docker)["State"]["Health"]["Status"] != "healthy":
        assert time.monotonic() < deadline, "Docker does not call it healthy"
        time.sleep(0.3)
    run = deploy(docker)
    assert run.changed == []


def test_another_runtime_takes_over_and_gives_back(docker: Bed) -> None:
    run = deploy(docker, llama_runtime="systemd", llama_engine="llama.cpp-wheel")
    assert run.code == 0, run.output
    assert docker.sh(HOST, "systemctl is-enabled beeyard-llama-server") == "enabled"
    assert docker.sh(HOST, "docker ps --all --quiet") == ""
    run = deploy(docker)
    assert run.code == 0, run.output
    assert docker.sh(HOST, "systemctl is-enabled beeyard-llama-server; true") == "disabled"
    assert container(docker)["State"]["Running"]
    assert deploy(docker).changed == []


def test_another_runtime_that_fails_leaves_nothing_that_would_start_at_boot(docker: Bed) -> None:
    run = deploy(docker, llama_runtime="systemd", llama_engine="llama.cpp-wheel", llama_preset="stuck")
    assert run.code != 0
    assert "the previous server serves again" in run.stderr
    assert docker.sh(HOST, "systemctl is-enabled beeyard-llama-server; true") == "disabled"
    assert container(docker)["State"]["Running"]


def test_an_image_of_a_registry_is_pulled_by_its_digest(docker: Bed) -> None:
    docker.sh(
        HOST, "apt-get install -y -qq --no-install-recommends docker-registry && systemctl stop docker-registry; true"
    )
    config = (
        'version: 0.1\\nstorage: {filesystem: {rootdirectory: /srv/registry}}\\nhttp: {addr: "127.0.0.1:5000"}\\n'
    )
    docker.sh(
        HOST,
        f"printf '{config}' >/tmp/registry.yml; "
        "systemd-run --unit test-registry docker-registry serve /tmp/registry.yml",
    )
    try:
        running = container(docker)["Config"]["Image"]
        docker.sh(
            HOST, f"docker tag {running} 127.0.0.1:5000/beeyard:1 && docker push --quiet 127.0.0.1:5000/beeyard:1"
        )
        shown = docker.sh(HOST, "docker image inspect 127.0.0.1:5000/beeyard:1 --format '{{index .RepoDigests 0}}'")
        docker.sh(HOST, "docker image rm 127.0.0.1:5000/beeyard:1")
        run = deploy(docker, llama_image=shown)
        assert run.code == 0, run.output
        assert container(docker)["Config"]["Image"] == shown
        assert deploy(docker, llama_image=shown).changed == []
        wrong = f"{shown.partition('@')[0]}@sha256:{'0' * 64}"
        run = deploy(docker, llama_image=wrong)
        assert run.code != 0
        assert "manifest unknown" in run.stderr or "not found" in run.stderr
        assert container(docker)["State"]["Running"]
    finally:
        docker.sh(HOST, "systemctl stop test-registry")
    assert deploy(docker).code == 0


PLUGIN = "/usr/libexec/docker/cli-plugins/docker-compose"
FAULTS = {
    "silent": (
        "systemctl stop docker.socket docker",
        "systemctl start docker",
        {"llama_docker": "present"},
        "the Docker Engine does not answer: ",
    ),
    "snap": (
        "mkdir -p /snap/bin && cp /usr/bin/docker /snap/bin && ln -s /snap/bin/docker /usr/local/bin/docker",
        "rm -r /usr/local/bin/docker /snap",
        {},
        "Docker is installed from snap, which NVIDIA's container toolkit",
    ),
    "no-compose": (
        f"mv {PLUGIN} /root",
        f"mv /root/docker-compose {PLUGIN}",
        {"llama_docker": "present"},
        "docker compose is missing; version 2 or newer is wanted",
    ),
    "no-gpu-runtime": (
        f"cat >/usr/bin/nvidia-smi <<'EOF'\n{nvidia_smi.script()}EOF\nchmod +x /usr/bin/nvidia-smi",
        "rm /usr/bin/nvidia-smi",
        {"llama_preset": "gpu", "llama_engine": "image-cuda", "llama_image_variant": "cpu"},
        "Docker has no access to the NVIDIA card: docker info lists no nvidia runtime",
    ),
}


@pytest.mark.case("GPU-02")
@pytest.mark.parametrize(("break_it", "mend_it", "data", "complaint"), FAULTS.values(), ids=FAULTS)
def test_a_docker_that_will_not_do_is_told_apart_and_nothing_is_changed(
    docker: Bed, break_it: str, mend_it: str, data: dict[str, str], complaint: str
) -> None:
    if "llama_engine" in data:
        here("image", "tag", engine_image.TAG, tag("image-cuda", "cpu"))
    docker.sh(HOST, break_it)
    try:
        run = deploy(docker, **data)
    finally:
        docker.sh(HOST, mend_it)
    assert run.code != 0
    assert complaint in run.stderr
    assert "Fix: " in run.stderr
    assert "Starting operation" not in run.stderr


def test_down_stops_it_for_good(docker: Bed) -> None:
    docker.sh(HOST, f"python3 {GUARD} stop {PREFIX[HOST]}")
    assert docker.serving(HOST) == []
    assert docker.sh(HOST, "docker ps --all --quiet") == ""
    run = deploy(docker)
    assert run.code == 0, run.output


# ------------------------------------------------------------------------------ an image that the host builds itself

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(engine C)
add_library(part STATIC part.c)
# The real server was compiled elsewhere: to compile it here would take ten minutes.
add_custom_target(llama-server COMMAND ${CMAKE_COMMAND} -E copy_directory ${CMAKE_SOURCE_DIR}/ready bin)
add_dependencies(llama-server part)
"""


def commit(folder: Path, part: str) -> str:
    """The engine's source with this C file, as a commit."""
    (folder / "part.c").write_text(part)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(folder)]
    for words in (["add", "."], ["commit", "--quiet", "--message", "x"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def sources(docker: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A git server with an engine's source, for the host's builds; each engine's commit by its name."""
    folder, presets = tmp_path_factory.mktemp("git"), tmp_path_factory.mktemp("more")
    tree = folder / "tree"
    tree.mkdir()
    with tarfile.open(STATE / "hub" / "releases" / "good.tar.gz") as archive:
        archive.extractall(tree / "ready", filter="data")
    (tree / "CMakeLists.txt").write_text(CMAKE)
    subprocess.run(["git", "-C", str(tree), "init", "--quiet"], check=True)
    commits = {"built": commit(tree, "int part;\n"), "broken": commit(tree, "int part\n"), "gone": "1" * 40}
    subprocess.run(["git", "clone", "--quiet", "--bare", str(tree), str(folder / "engine.git")], check=True)
    subprocess.run(
        ["git", "-C", str(folder / "engine.git"), "config", "uploadpack.allowAnySHA1InWant", "true"], check=True
    )
    # Where this machine is, as its test hosts see it.
    address = here("network", "inspect", "beeyard-testbed", "--format", "{{(index .IPAM.Config 0).Gateway}}")
    listen = address.stdout.strip()
    with socket.socket() as found:
        found.bind((listen, 0))
        port = found.getsockname()[1]
    engine = {
        "repository": f"git://{listen}:{port}/engine", "dialect": "llama.cpp", "flags": "llama.cpp-b10068",
        "accelerator": "cpu", "artefact": {"kind": "release"},
    }  # fmt: skip
    engines = {name: {**engine, "title": f"test engine {name}", "commit": sha} for name, sha in commits.items()}
    (presets / "engines.yaml").write_text(yaml.safe_dump(engines))
    save = ["docker", "image", "save", engine_image.BASE]
    load = ["ssh", "-F", str(STATE / "ssh_config"), f"beeyard-{HOST}", "docker image load"]
    with subprocess.Popen(save, stdout=subprocess.PIPE, env={**os.environ, **engine_image.DOCKER}) as saving:
        subprocess.run(load, stdin=saving.stdout, check=True, timeout=120)
    command = ["git", "daemon", "--reuseaddr", "--export-all", f"--base-path={folder}", f"--listen={listen}"]
    with subprocess.Popen([*command, f"--port={port}"], stderr=subprocess.DEVNULL) as server:
        yield {**commits, "presets": f"{docker.presets}{os.pathsep}{presets}"}
        server.terminate()


def build_there(bed: Bed, sources: dict[str, str], engine: str) -> Deploy:
    data = {"llama_engine": engine, "llama_image_from": "build"}
    return bed.deploy(HOST, env={"BEEYARD_PRESETS": sources["presets"]}, **data)


def test_a_host_without_buildx_cannot_build_and_says_so(docker: Bed, sources: dict[str, str]) -> None:
    before = container(docker)
    plugin = PLUGIN.replace("compose", "buildx")
    docker.sh(HOST, f"mv {plugin} /root")
    try:
        run = build_there(docker, sources, "built")
    finally:
        docker.sh(HOST, f"mv /root/docker-buildx {plugin}")
    assert run.code != 0
    assert "docker buildx is missing, which builds the image. Fix: " in run.stderr
    assert container(docker)["State"]["StartedAt"] == before["State"]["StartedAt"]


def test_a_host_builds_its_image_itself_and_only_once(docker: Bed, sources: dict[str, str]) -> None:
    run = build_there(docker, sources, "built")
    assert run.code == 0, run.output
    assert "follow it with: tail -f /opt/beeyard/log/build.log" in run.stderr
    made = container(docker)["Config"]
    assert made["Image"].startswith("beeyard:built-cpu-")
    assert made["Labels"]["org.opencontainers.image.revision"] == sources["built"]
    assert "draft-dflash" in docker.serving(HOST)
    assert "compiling with " in docker.sh(HOST, "cat /opt/beeyard/log/build.log")
    assert build_there(docker, sources, "built").changed == []


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [("broken", "the engine does not compile"), ("gone", "1" * 40)],
    ids=["does-not-compile", "no-such-commit"],
)
def test_a_build_that_fails_says_why_and_the_server_stays(
    docker: Bed, sources: dict[str, str], engine: str, complaint: str
) -> None:
    before = container(docker)
    run = build_there(docker, sources, engine)
    assert run.code != 0
    assert complaint in run.stderr
    assert "the image was not built. Fix: read /opt/beeyard/log/build.log on the host" in run.stderr
    assert container(docker)["State"]["StartedAt"] == before["State"]["StartedAt"]
    assert f"beeyard:{engine}-cpu" not in docker.sh(HOST, "docker image ls --format '{{.Repository}}:{{.Tag}}'")


# ---------------------------------------------------------------------------------------------- this very machine


def make(bed: Bed, prefix: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A target of the Makefile for this machine, with runtime compose."""
    data = {
        "llama_preset": "from-hub", "llama_engine": engine_image.ENGINE, "llama_runtime": "compose",
        "llama_prefix": prefix, "llama_port": 18910, "llama_memlock": 8388608,
    }  # fmt: skip
    pairs = " ".join(f"{key}={value}" for key, value in data.items())
    return subprocess.run(
        ["make", *words, "TARGET=local", f"DATA={pairs}"],
        check=False, capture_output=True, text=True, cwd=PROJECT, env={**bed.environment, "HF_ENDPOINT": HUB_HERE},
        timeout=120,
    )  # fmt: skip


@pytest.fixture
def neighbour(docker: Bed, tmp_path: Path) -> Iterator[str]:
    """A container of a clone's compose.yaml, whose project has the same name as ours."""
    file = tmp_path / "compose.yaml"
    service = {"image": engine_image.BASE, "command": ["sleep", "1000"], "init": True}
    file.write_text(yaml.safe_dump({"name": "beeyard", "services": {"baseline": service}}))
    here("compose", "--file", str(file), "up", "--detach")
    yield here("compose", "--file", str(file), "ps", "--quiet").stdout.strip()
    here("compose", "--file", str(file), "down")


def test_this_machine_switches_variants_under_the_gate_and_goes_down(
    docker: Bed, neighbour: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prefix = tmp_path_factory.mktemp("local")
    ours = ("container", "ls", "--all", "--quiet", "--filter", "name=^llama-server$")
    assert here(*ours).stdout == "", "this machine has a server of its own. Fix: make down"
    try:
        for variant, drafts in (("baseline", False), ("dflash", True)):
            run = make(docker, prefix, "switch", f"VARIANT={variant}")
            assert run.returncode == 0, run.stdout + run.stderr
            assert f"serves from-hub, variant {variant}, on llama.cpp b11434 (compose)" in run.stderr
            assert ("drafted tokens accepted" in run.stderr) is drafts
    finally:
        run = make(docker, prefix, "down")
        assert run.returncode == 0, run.stderr
    assert here(*ours).stdout == ""
    assert here("container", "inspect", neighbour, "--format", "{{.State.Running}}").stdout.strip() == "true"
