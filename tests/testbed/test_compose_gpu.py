"""
Docker and a card on the Debian 13 host, as far as they can be had without a card.

Real are Docker, its reservations and CDI, apt and gpg. Stand-ins, which do what the documented ones do: nvidia-smi,
nvidia-ctk, the runtime and its hook, which puts nvidia-smi into a container as the real one does.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from beeyard.images import tag
from beeyard.operations import docker_engines
from tests import engine_image, nvidia_smi
from tests.operations import Failed, applied
from tests.testbed.conftest import STATE, Bed, Deploy
from tests.testbed.test_compose import HOST, container, here

pytestmark = pytest.mark.hosts(HOST)
SMI = nvidia_smi.script()
CTK = r"""#!/usr/bin/env python3
import json, pathlib, sys
assert sys.argv[1:] == ["runtime", "configure", "--runtime=docker"], sys.argv
file = pathlib.Path("/etc/docker/daemon.json")
conf = json.loads(file.read_text()) if file.exists() else {}
conf.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
file.parent.mkdir(exist_ok=True)
file.write_text(json.dumps(conf, indent=4))
"""
# Docker starts a reservation's hook by this name, with the container's state on its standard input.
HOOK = r"""#!/usr/bin/env python3
import json, pathlib, shutil, sys
bundle = pathlib.Path(json.load(sys.stdin)["bundle"])
root = pathlib.Path(json.loads((bundle / "config.json").read_text())["root"]["path"])
shutil.copy("/usr/bin/nvidia-smi", root / "usr/bin/nvidia-smi")
"""
SEES_NOTHING = "#!/bin/sh\nexit 0\n"
CDI = """\
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits:
      deviceNodes: [{path: /dev/nvidia0, hostPath: /dev/null}]
containerEdits:
  mounts: [{hostPath: /usr/bin/nvidia-smi, containerPath: /usr/bin/nvidia-smi, options: [ro, nosuid, bind]}]
"""
CARD: dict[str, Any] = {"llama_preset": "gpu", "llama_engine": "image-cuda", "llama_image_variant": "cpu"}


def put(bed: Bed, path: str, text: str, mode: str = "755") -> None:
    command = ["ssh", "-F", str(STATE / "ssh_config"), f"beeyard-{HOST}"]
    script = f"mkdir -p $(dirname {path}) && cat >{path} && chmod {mode} {path}"
    subprocess.run([*command, script], input=text, text=True, check=True, timeout=60)


def apply(operation: Any, **arguments: Any) -> int:
    """Apply an operation to the host; how many commands it needed."""
    data = {
        "ssh_hostname": "127.0.0.1", "ssh_port": 2204, "ssh_user": "root", "ssh_key": str(STATE / "id_ed25519"),
        "ssh_known_hosts_file": str(STATE / "known_hosts"), "ssh_strict_host_key_checking": "yes",
    }  # fmt: skip
    return applied(HOST, data, operation, **arguments)


@pytest.fixture(scope="module")
def docker(bed: Bed) -> Iterator[Bed]:
    """The host with a Docker that serves, a stand-in of a card, and an image that says that it has code for it."""
    engine_image.build(bed.presets)
    run = bed.deploy(HOST)
    assert run.code == 0, run.output
    label = ["--label", "beeyard.cuda-architectures=86;89", "--label", "beeyard.accelerator=cuda"]
    here("build", "--tag", tag("image-cuda", "cpu"), *label, "-", input=f"FROM {engine_image.TAG}\n")
    put(bed, "/usr/bin/nvidia-smi", SMI)
    yield bed
    bed.sh(
        HOST,
        "rm -rf /usr/bin/nvidia-smi /usr/local/bin/nvidia-ctk /usr/local/bin/nvidia-container-runtime* /etc/cdi "
        "/etc/docker/daemon.json; systemctl reset-failed docker; systemctl restart docker",
    )
    here("image", "rm", "--force", tag("image-cuda", "cpu"))
    assert bed.deploy(HOST).code == 0


def deploy(bed: Bed, **data: Any) -> Deploy:
    return bed.deploy(HOST, **{**CARD, **data})


@pytest.mark.case("GPU-02")
def test_the_toolkit_makes_docker_know_the_card_once(docker: Bed) -> None:
    put(docker, "/usr/local/bin/nvidia-ctk", CTK)
    put(docker, "/usr/local/bin/nvidia-container-runtime", '#!/bin/sh\nexec runc "$@"\n')
    put(docker, "/usr/local/bin/nvidia-container-runtime-hook", HOOK)
    put(docker, "/etc/docker/daemon.json", '{"log-level": "warn"}\n', "644")
    assert apply(docker_engines.sees_nvidia) == 1
    assert "nvidia" in docker.sh(HOST, "docker info --format '{{json .Runtimes}}'")
    assert '"log-level": "warn"' in docker.sh(HOST, "cat /etc/docker/daemon.json")
    started = docker.sh(HOST, "systemctl show docker --property=MainPID")
    assert apply(docker_engines.sees_nvidia) == 0
    assert docker.sh(HOST, "systemctl show docker --property=MainPID") == started


@pytest.mark.case("GPU-02")
def test_a_docker_that_was_configured_and_not_restarted_is_restarted(docker: Bed) -> None:
    docker.sh(
        HOST,
        "cd /etc/docker && mv daemon.json /root && systemctl reset-failed docker; systemctl restart docker && "
        "mv /root/daemon.json .",
    )
    assert "nvidia" not in docker.sh(HOST, "docker info --format '{{json .Runtimes}}'")
    assert apply(docker_engines.sees_nvidia) == 1
    assert "nvidia" in docker.sh(HOST, "docker info --format '{{json .Runtimes}}'")


def test_a_container_with_a_reserved_card_passes_the_gate(docker: Bed) -> None:
    run = deploy(docker)
    assert run.code == 0, run.output
    assert "512 MiB of GPU memory" in run.stderr
    (request,) = container(docker)["HostConfig"]["DeviceRequests"]
    assert (request["Driver"], request["Count"]) == ("nvidia", 1)
    assert deploy(docker).changed == []
    said = docker.verify(HOST, **CARD)
    assert "failed" not in said, said
    assert "12 passed" in said, said


@pytest.mark.case("GPU-05")
def test_verification_tells_a_card_that_a_container_lost_since(docker: Bed) -> None:
    root = container(docker)["GraphDriver"]["Data"]["MergedDir"]
    docker.sh(HOST, "systemctl daemon-reload")
    assert "1 passed" in docker.verify(HOST, "-k", "sees_the_card", **CARD)
    # What a reload does to containers of some machines.
    docker.sh(HOST, f"rm {root}/usr/bin/nvidia-smi")
    assert "1 failed" in docker.verify(HOST, "-k", "sees_the_card", **CARD)


@pytest.mark.case("GPU-05")
def test_a_container_that_lost_its_card_does_not_pass_the_gate(docker: Bed) -> None:
    put(docker, "/usr/local/bin/nvidia-container-runtime-hook", SEES_NOTHING)
    docker.sh(HOST, "python3 /opt/beeyard/bin/guard.py stop /opt/beeyard")
    run = deploy(docker)
    put(docker, "/usr/local/bin/nvidia-container-runtime-hook", HOOK)
    assert run.code != 0
    assert "it is running on CPU: the container sees no GPU (" in run.stderr
    assert "Fix: " in run.stderr
    run = deploy(docker)
    assert run.code == 0, run.output


@pytest.mark.case("BLD-03")
def test_a_card_that_the_image_has_no_code_for_stops_nothing(docker: Bed) -> None:
    put(
        docker,
        "/usr/bin/nvidia-smi",
        nvidia_smi.script(capability="12.0", name="NVIDIA GeForce RTX 5090", total_mib=32607),
    )
    before = container(docker)
    run = deploy(docker)
    put(docker, "/usr/bin/nvidia-smi", SMI)
    assert run.code != 0
    assert "holds code for architectures 86, 89; the card there is 120. Fix: " in run.stderr
    assert container(docker)["State"]["StartedAt"] == before["State"]["StartedAt"]


def test_a_cdi_file_is_nothing_to_an_engine_that_does_not_look_for_it(docker: Bed) -> None:
    put(docker, "/etc/cdi/nvidia.yaml", CDI, "644")
    run = deploy(docker)
    assert run.code == 0, run.output
    assert container(docker)["HostConfig"]["DeviceRequests"][0]["Driver"] == "nvidia"


def test_with_cdi_the_card_comes_by_its_description(docker: Bed) -> None:
    put(docker, "/etc/docker/daemon.json", '{"features": {"cdi": true}}\n', "644")
    docker.sh(HOST, "systemctl reset-failed docker; systemctl restart docker")
    run = deploy(docker)
    assert run.code == 0, run.output
    (request,) = container(docker)["HostConfig"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=0"])
    assert docker.sh(HOST, "docker exec llama-server stat -c %F /dev/nvidia0") == "character special file"
    assert deploy(docker).changed == []
    said = docker.verify(HOST, **CARD)
    assert "failed" not in said, said


def test_a_daemon_configuration_that_is_no_json_is_told(
    docker: Bed, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    docker.sh(HOST, "cp /etc/docker/daemon.json /root/good.json; mv /etc/cdi /root")
    put(docker, "/etc/docker/daemon.json", "{oops\n", "644")
    try:
        with pytest.raises(Failed):
            apply(docker_engines.sees_nvidia)
        said = capfd.readouterr().err + caplog.text
        assert "nvidia-ctk did not configure Docker: " in said
        assert "Fix: see that /etc/docker/daemon.json is JSON" in said
        assert docker.sh(HOST, "systemctl is-active docker") == "active"
    finally:
        docker.sh(HOST, "mv /root/good.json /etc/docker/daemon.json; mv /root/cdi /etc")


# ------------------------------------------------------------------------------------- apt repositories

# Packages that are there below /srv/packages, in a repository on the host's loopback that a throw-away key signs.
REPOSITORY = r"""
set -eu
systemctl stop test-apt 2>/dev/null || true
rm -rf /srv/apt && mkdir -p /srv/apt && cd /srv/apt
export GNUPGHOME=/root/test-keys
[ -d "$GNUPGHOME" ] || { mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-generate-key test@example.com rsa2048 sign never; }
for package in /srv/packages/*; do
    file=$(basename "$package").deb
    dpkg-deb --build "$package" "$file" >/dev/null
    { cat "$package/DEBIAN/control"; echo "Filename: ./$file"; echo "Size: $(stat -c %s "$file")"
    echo "SHA256: $(sha256sum "$file" | cut -d' ' -f1)"; echo; } >>Packages
done
{ echo "Date: $(LC_ALL=C date -Ru)"; echo SHA256:
echo " $(sha256sum Packages | cut -d' ' -f1) $(stat -c %s Packages) Packages"; } >Release
gpg --batch --yes --quiet --clearsign --output InRelease Release
gpg --armor --export >key.asc
systemd-run --quiet --unit test-apt python3 -m http.server --bind 127.0.0.1 --directory /srv/apt 8098
for _ in 1 2 3 4 5 6 7 8 9; do curl -fs http://127.0.0.1:8098/key.asc >/dev/null && break; sleep 0.3; done
gpg --list-keys --with-colons | awk -F: '/^fpr/ { print $10; exit }'
"""
SERVED = "http://127.0.0.1:8098"
LINE = f"deb [signed-by=/usr/share/keyrings/beeyard-bees.gpg] {SERVED} ./"


def package(bed: Bed, name: str, depends: str = "", **files: str) -> None:
    """A package of nothing but what it depends on, and programs in /usr/bin."""
    lines = [f"Package: {name}", "Version: 1", "Architecture: all", "Maintainer: t <t@example.com>", "Description: t"]
    control = "\n".join([*lines, *([f"Depends: {depends}"] if depends else [])]) + "\n"
    put(bed, f"/srv/packages/{name}/DEBIAN/control", control, "644")
    for file, text in files.items():
        put(bed, f"/srv/packages/{name}/usr/bin/{file.replace('_', '-')}", text)


def serve_packages(bed: Bed) -> str:
    """Serve them, and return the fingerprint of the key that signs them."""
    bed.sh(HOST, "command -v gpg >/dev/null || { apt-get -qq update; apt-get install -y -qq gpg gpg-agent; }")
    return bed.sh(HOST, REPOSITORY).splitlines()[-1]


@pytest.fixture
def served(docker: Bed) -> Iterator[Bed]:
    """The host, where packages may be put and served; nothing of it stays."""
    docker.sh(HOST, "rm -rf /srv/packages")
    yield docker
    docker.sh(
        HOST,
        "systemctl stop test-apt; rm -rf /root/test-keys /srv/apt /srv/packages /etc/apt/sources.list.d/beeyard-* "
        "/usr/share/keyrings/beeyard-*",
    )


def where(folder: Path, name: str, fingerprint: str, packages: list[str]) -> str:
    """BEEYARD_PRESETS with a repository's place taken by the one on the host."""
    folder.mkdir(exist_ok=True)
    line = f"deb [signed-by=/usr/share/keyrings/{{keyring}}] {SERVED} ./"
    table = {"key_url": f"{SERVED}/key.asc", "fingerprint": fingerprint, "line": line, "packages": packages}
    (folder / "repositories.yaml").write_text(yaml.safe_dump({name: table}))
    return str(folder)


def test_a_repository_is_added_once_if_its_key_is_the_one_we_know(
    served: Bed, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    package(served, "beeyard-test-package")
    fingerprint = serve_packages(served)
    words = {"repository": "bees", "key_url": f"{SERVED}/key.asc", "line": LINE}
    with pytest.raises(Failed):
        apply(docker_engines.repository, fingerprint="0" * 40, **words)
    with pytest.raises(Failed):
        apply(docker_engines.repository, fingerprint=fingerprint, **{**words, "key_url": "http://127.0.0.1:9/key"})
    said = capfd.readouterr().err + caplog.text
    assert f"the key of bees is {fingerprint}, {'0' * 40} is wanted. Fix: ask who changed it" in said
    assert "the key of bees cannot be fetched from http://127.0.0.1:9/key. Fix: " in said
    assert served.sh(HOST, "ls /etc/apt/sources.list.d /usr/share/keyrings | grep bees; true") == ""
    assert apply(docker_engines.repository, fingerprint=fingerprint, **words) == 1
    served.sh(HOST, "apt-get -qq update -o Dir::Etc::SourceList=- -o APT::Get::List-Cleanup=0")
    assert "Candidate: 1" in served.sh(HOST, "apt-cache policy beeyard-test-package")
    assert apply(docker_engines.repository, fingerprint=fingerprint, **words) == 0
    served.sh(HOST, "rm /usr/share/keyrings/beeyard-bees.gpg")
    assert apply(docker_engines.repository, fingerprint=fingerprint, **words) == 1


def test_a_deploy_installs_the_toolkit_where_it_may(served: Bed, tmp_path: Path) -> None:
    served.sh(
        HOST,
        "rm -rf /usr/local/bin/nvidia-ctk /usr/local/bin/nvidia-container-runtime* /etc/cdi /etc/docker/daemon.json; "
        "systemctl reset-failed docker; systemctl restart docker",
    )
    runtime = '#!/bin/sh\nexec runc "$@"\n'
    hook = {"nvidia_container_runtime": runtime, "nvidia_container_runtime_hook": HOOK}
    package(served, "nvidia-container-toolkit", nvidia_ctk=CTK, **hook)
    presets = where(tmp_path, "nvidia", serve_packages(served), ["nvidia-container-toolkit"])
    env = {"BEEYARD_PRESETS": f"{served.presets}:{presets}"}
    run = served.deploy(HOST, env=env, **CARD, llama_nvidia_toolkit="install")
    assert run.code == 0, run.output
    assert "512 MiB of GPU memory" in run.stderr
    assert served.deploy(HOST, env=env, **CARD, llama_nvidia_toolkit="install").changed == []
    served.sh(HOST, "apt-get remove -y -qq nvidia-container-toolkit")


def test_a_bare_host_gets_dockers_own_packages_where_it_may(served: Bed, tmp_path: Path) -> None:
    served.recreate(HOST)
    package(served, "test-docker", depends="docker.io, docker-cli, docker-compose")
    presets = where(tmp_path, "docker", serve_packages(served), ["test-docker"])
    env = {"BEEYARD_PRESETS": f"{served.presets}:{presets}"}
    run = served.deploy(HOST, env=env, llama_docker="docker.com")
    assert run.code == 0, run.output
    assert served.sh(HOST, "dpkg-query -W -f '${db:Status-Abbrev}' test-docker") == "ii"
    assert served.deploy(HOST, env=env, llama_docker="docker.com").changed == []
