"""What goes wrong on real hosts: said in a sentence with its fix, nothing lost, other hosts unaffected."""

import contextlib
import json
import runpy
import select
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beeyard.catalog import PROJECT
from tests import nvidia_smi
from tests.testbed.conftest import HUB_THERE, PREFIX, STATE, Bed

pytestmark = [pytest.mark.hosts("light"), pytest.mark.usefixtures("light")]
ODD_KEY = """sk-"two" 'one' $HOME %p `id` \\ and spaces, 32 and more"""
Faults = dict[str, list[dict[str, object]]]
Faulty = Callable[[Faults], object]


@pytest.fixture
def faults(bed: Bed) -> Iterator[Faulty]:
    """Has the Hub answer the light host with faults, and nobody else: other hosts' tests run beside these."""
    file, client = STATE / "hub" / "faults.json", bed.sh("light", "hostname -i")

    def answer_with(faults: Faults) -> None:
        file.write_text(json.dumps({part: [{**one, "client": client} for one in faults[part]] for part in faults}))

    yield answer_with
    file.unlink(missing_ok=True)


@pytest.fixture
def served(bed: Bed) -> list[str]:
    """The light host serves `tiny`; returns the command that does."""
    run = bed.deploy("light")
    assert run.code == 0, run.output
    return bed.serving("light")


def test_files_of_a_hub_and_an_engine_of_a_tarball_come_over_a_bad_network(bed: Bed, faults: Faulty) -> None:
    bed.sh("light", "rm -rf /opt/beeyard/models /opt/beeyard/engines/good-*", check=False)
    faults({"tiny-qwen3.gguf": [{"cut": 100000}, {"cut": 300000}], "good.tar.gz": [{"cut": 5000}]})
    run = bed.deploy("light", llama_preset="from-hub")
    assert run.code == 0, run.output
    assert "draft-dflash" in bed.serving("light")
    assert bed.deploy("light", llama_preset="from-hub").changed == []


@pytest.mark.parametrize(
    ("queue", "complaint"),
    [
        # Once may be an accident of the way.
        ([{"corrupt": 5000}, {"corrupt": 5000}], "bytes with another content"),
        ([{"html": True}], "a web page"),
        ([{"status": 404}], "answers 404"),
    ],
    ids=["wrong-hash", "html", "404"],
)
def test_a_wrong_model_file_is_never_served(
    bed: Bed, served: list[str], faults: Faulty, queue: list[dict[str, object]], complaint: str
) -> None:
    bed.sh("light", "find /opt/beeyard/models -name 'tiny-qwen3*' -delete")
    faults({"tiny-qwen3.gguf": queue})
    run = bed.deploy("light", llama_preset="from-hub")
    assert run.code != 0
    assert complaint in run.stderr
    assert "Fix: " in run.stderr
    assert bed.serving("light") == served
    aside = "! -name '*.lock' ! -name '*.wrong-sha256'"
    assert bed.sh("light", f"find /opt/beeyard/models -name 'tiny-qwen3.gguf*' {aside}") == ""
    assert bed.deploy("light", llama_preset="from-hub").code == 0


def test_a_truncated_model_is_kept_to_be_resumed(bed: Bed, served: list[str], faults: Faulty) -> None:
    bed.sh("light", "find /opt/beeyard/models -name 'tiny-qwen3*' -delete")
    faults({"tiny-qwen3.gguf": [{"cut": 700000}, {"status": 404}]})
    run = bed.deploy("light", llama_preset="from-hub")
    assert run.code != 0
    assert bed.serving("light") == served
    assert int(bed.sh("light", "stat -c %s /opt/beeyard/models/*/tiny-qwen3.gguf.partial")) >= 700000
    faults({})
    assert bed.deploy("light", llama_preset="from-hub").code == 0
    log = [json.loads(row) for row in (STATE / "hub" / "access.log").read_text().splitlines()]
    assert any("tiny-qwen3.gguf" in row["path"] and row["range"] == "bytes=700000-" for row in log)


def test_a_port_that_another_program_holds_is_told_and_nothing_is_touched(bed: Bed, served: list[str]) -> None:
    bed.sh(
        "light", "nohup python3 -m http.server 8999 --bind 127.0.0.1 >/dev/null 2>&1 & sleep 1; echo $! >/tmp/foreign"
    )
    try:
        run = bed.deploy("light", llama_port=8999)
        assert run.code != 0
        assert "port 8999 is in use by process" in run.stderr
        assert "http.server" in run.stderr
        assert "Fix: " in run.stderr
        assert bed.serving("light") == served
    finally:
        bed.sh("light", "kill $(cat /tmp/foreign)")


def test_a_host_that_is_not_there_does_not_stop_the_others(bed: Bed, served: list[str], tmp_path: Path) -> None:
    inventory = tmp_path / "two.py"
    common = (STATE / "ssh_config").resolve()
    gone = {"ssh_hostname": "127.0.0.1", "ssh_port": 1}
    there = {"ssh_config_file": str(common), "llama_preset": "tiny", "llama_variant": "baseline"}
    inventory.write_text(f"hosts = [('gone', {gone}), ('beeyard-light', {there})]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pyinfra", str(inventory), "deploy.py", "-y"],
        check=False, capture_output=True, text=True, cwd=PROJECT, env=bed.environment, timeout=300,
    )  # fmt: skip
    assert run.returncode != 0
    assert "[gone]" in run.stderr
    assert "Fix: " in run.stderr
    assert "draft-dflash" in served
    assert "draft-dflash" not in bed.serving("light")


def light_as(tmp_path: Path, **data: Any) -> list[str]:
    """A deploy of the light host by an inventory with other data of SSH."""
    known = (STATE / "known_hosts").resolve()
    host = {
        "ssh_hostname": "127.0.0.1", "ssh_port": 2203, "ssh_user": "root", "llama_preset": "tiny",
        "ssh_key": str((STATE / "id_ed25519").resolve()), "ssh_known_hosts_file": str(known), **data,
    }  # fmt: skip
    (tmp_path / "one.py").write_text(f"hosts = [('light', {host})]\n")
    return [sys.executable, "-m", "pyinfra", str(tmp_path / "one.py"), "deploy.py", "-y"]


@pytest.mark.case("PYI-05")
def test_a_host_key_that_changed_is_not_connected_to(bed: Bed, served: list[str], tmp_path: Path) -> None:
    other = (STATE / "id_ed25519.pub").read_text().split()[:2]
    (tmp_path / "known").write_text(f"[127.0.0.1]:2203 {' '.join(other)}\n")
    run = subprocess.run(
        light_as(tmp_path, ssh_known_hosts_file=str(tmp_path / "known"), llama_variant="baseline"),
        check=False, capture_output=True, text=True, cwd=PROJECT, env=bed.environment, timeout=60,
    )  # fmt: skip
    assert run.returncode != 0
    said = " ".join(run.stderr.split())
    assert "ssh-keygen -R [127.0.0.1]:2203" in said
    assert "Fix: if the machine was made anew" in said
    assert bed.serving("light") == served


@pytest.mark.case("PYI-05")
@pytest.mark.parametrize("opens", [True, False])
def test_a_host_that_just_boots_is_waited_for_and_not_for_ever(
    bed: Bed, served: list[str], tmp_path: Path, opens: bool
) -> None:
    values = runpy.run_path(str(PROJECT / "inventories" / "group_data" / "homelab.py"))
    retries = {key: value for key, value in values.items() if key.startswith("ssh_connect_retr")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (tmp_path / "known").open("w") as known:  # the light host's keys, under the other port
        for line in (STATE / "known_hosts").read_text().splitlines():
            if line.startswith("[127.0.0.1]:2203 "):
                known.write(line.replace(":2203 ", f":{port} ") + "\n")
    run = subprocess.Popen(
        light_as(tmp_path, ssh_port=port, ssh_known_hosts_file=str(tmp_path / "known"), **retries),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT, env=bed.environment,
    )  # fmt: skip
    began = time.monotonic()
    with contextlib.ExitStack() as later:
        if opens:
            time.sleep(5)
            later.enter_context(forwarded(port, 2203))
        _, said = run.communicate(timeout=120)
    assert (run.returncode == 0) is opens, said
    if not opens:
        assert time.monotonic() - began < 60
        assert "Could not connect" in said
        assert "Fix: check that it is up" in said


@contextlib.contextmanager
def forwarded(port: int, to: int) -> Iterator[None]:
    """A port of this machine that leads to another one."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", to)) as there:
                pairs = {self.request: there, there: self.request}
                while True:
                    for ready in select.select(list(pairs), [], [])[0]:
                        some = ready.recv(65536)
                        if not some:
                            return
                        pairs[ready].sendall(some)

    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Forward) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def test_a_host_with_a_wrong_wish_does_not_stop_the_others(bed: Bed, tmp_path: Path) -> None:
    inventory = tmp_path / "two.py"
    host = {"ssh_config_file": str((STATE / "ssh_config").resolve()), "llama_preset": "tiny"}
    inventory.write_text(
        f"hosts = [('beeyard-light', {host}), ('beeyard-systemd', {host | {'llama_preset': 'nope'}})]\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pyinfra", str(inventory), "deploy.py", "-y"],
        check=False, capture_output=True, text=True, cwd=PROJECT, env=bed.environment, timeout=300,
    )  # fmt: skip
    assert run.returncode != 0
    assert "no preset 'nope'" in run.stderr
    assert "beeyard-light serves tiny" in run.stderr


def test_two_first_deploys_at_the_same_moment_both_end_well(bed: Bed) -> None:
    bed.wipe("light")
    command = bed.command("light", llama_variant="baseline")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": PROJECT, "env": bed.environment}
    runs = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    ends = [(run.communicate(timeout=120), run.returncode) for run in runs]
    assert [code for _, code in ends] == [0, 0], ends
    assert sum(b"another deploy of this host is under way" in said[1] for said, _ in ends) == 1
    assert bed.serving("light") != []
    assert bed.deploy("light", llama_variant="baseline").changed == []


def test_a_killed_deploy_does_not_lock_the_host(bed: Bed) -> None:
    bed.wipe("light")
    run = subprocess.Popen(bed.command("light"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=bed.environment)
    deadline = time.monotonic() + 30
    while not bed.sh("light", "pgrep -f '[k]ill -0' || true"):
        assert time.monotonic() < deadline, "the lock was never taken"
        time.sleep(0.1)
    run.kill()
    run.communicate()
    after = bed.deploy("light")
    assert after.code == 0, after.output


@pytest.mark.case("PYI-02")
def test_a_user_who_may_not_sudo_is_told_so(bed: Bed) -> None:
    run = bed.deploy("light", ssh_user="nosudo", _sudo="true")
    assert run.code != 0
    assert "sudo is missing, or asks for a password" in run.stderr
    assert "Fix: " in run.stderr


def test_an_ordinary_user_cannot_take_a_prefix_that_is_not_his(bed: Bed) -> None:
    run = bed.deploy("light", ssh_user="nosudo", llama_prefix="/opt/mine", llama_port=8915)
    assert run.code != 0
    assert "/opt/mine cannot be written: /opt does not let this user" in run.stderr


def test_a_user_who_may_sudo_deploys_like_root(bed: Bed, served: list[str]) -> None:
    run = bed.deploy("light", ssh_user="deploy", _sudo="true")
    assert run.code == 0, run.output
    assert run.changed == []
    assert bed.serving("light") == served


def test_a_key_with_anything_in_it_is_seen_by_nobody(bed: Bed) -> None:
    bed.wipe("light")
    run = bed.deploy("light", "-vvv", env={"BEEYARD_API_KEY": ODD_KEY})
    try:
        assert run.code == 0, run.output
        assert bed.sh("light", "cat /opt/beeyard/etc/api-key") == ODD_KEY
        assert bed.deploy("light", env={"BEEYARD_API_KEY": ODD_KEY}).changed == []
        # At full verbosity nothing of it was shown, and no process, unit or log has it.
        assert 'sk-"two"' not in run.output
        seen = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /opt/beeyard/log/* /opt/beeyard/current/* 2>/dev/null"
        assert bed.sh("light", f"({seen}) | tr '\\0' '\\n' | grep -a '[s]k-\"two\"' || true") == ""
    finally:
        bed.wipe("light")
        (PROJECT / ".beeyard" / "keys" / "light").unlink(missing_ok=True)


@pytest.mark.parametrize("key", ["", "# a comment", " spaces around "])
def test_what_cannot_be_a_key_is_refused(bed: Bed, key: str) -> None:
    run = bed.deploy("light", env={"BEEYARD_API_KEY": key})
    assert run.code != 0
    assert "BEEYARD_API_KEY cannot be a key" in run.stderr
    assert "Fix: " in run.stderr
    assert "Traceback" not in run.stderr


def test_a_short_key_is_refused_where_others_can_reach_the_server(bed: Bed) -> None:
    run = bed.deploy("light", env={"BEEYARD_API_KEY": "changeme"}, llama_bind="0.0.0.0")
    assert run.code != 0
    assert "BEEYARD_API_KEY has 8 characters; a server on 0.0.0.0 wants at least 32. Fix: " in run.stderr
    assert "changeme" not in run.output


@pytest.mark.case("POD-02")
def test_a_token_reaches_the_hub_and_nothing_else(bed: Bed, served: list[str]) -> None:
    token = "hf_CANARY5678'\"$x%"
    bed.sh("light", "find /opt/beeyard/models -name 'tiny-qwen3*' -delete")
    run = bed.deploy("light", "-vvv", env={"HF_TOKEN": token, "HF_ENDPOINT": HUB_THERE}, llama_preset="from-hub")
    assert run.code == 0, run.output
    assert "CANARY" not in run.output
    found = bed.sh("light", "grep -ralF CANARY5678 /opt/beeyard /tmp /root /var/log 2>/dev/null || true")
    assert found == ""
    log = [json.loads(row) for row in (STATE / "hub" / "access.log").read_text().splitlines()[-60:]]
    assert any(row["path"].endswith("tiny-qwen3.gguf") and row["authorization"] for row in log)


def test_a_deploy_whose_connection_breaks_in_mid_switch_leaves_a_server(bed: Bed, served: list[str]) -> None:
    command = bed.command("light", llama_preset="broken", llama_variant="hangs")
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=PROJECT, env=bed.environment)
    deadline = time.monotonic() + 60
    while not bed.sh("light", "pgrep -f '[c]lass Loading' || true"):
        assert time.monotonic() < deadline, "the switch never began"
        time.sleep(0.1)
    run.kill()
    run.communicate()
    deadline = time.monotonic() + 30
    while bed.serving("light") != served:
        assert time.monotonic() < deadline, "the previous server did not come back"
        time.sleep(0.2)
    assert PREFIX["light"] in served[0]


def test_an_ordinary_user_has_a_server_of_his_own(bed: Bed, served: list[str]) -> None:
    prefix = "/home/nosudo/bees"
    data: dict[str, Any] = {"ssh_user": "nosudo", "llama_prefix": prefix, "llama_port": 8916}
    try:
        run = bed.deploy("light", **data)
        assert run.code == 0, run.output
        script = f"python3 {prefix}/bin/guard.py state {prefix}"
        pid = json.loads(bed.sh("light", f"su nosudo -c '{script}'"))["pid"]
        assert bed.sh("light", f"stat -c %U /proc/{pid} {prefix}/etc/api-key") == "nosudo\nnosudo"
        assert bed.deploy("light", **data).changed == []
        assert bed.serving("light") == served
    finally:
        bed.sh("light", f"su nosudo -c 'python3 {prefix}/bin/guard.py stop {prefix}'; rm -rf {prefix}")
        (PROJECT / ".beeyard" / "keys" / "light").unlink(missing_ok=True)


@pytest.mark.parametrize("holder", ["nobody", "server"])
def test_a_gpu_server_that_runs_on_the_cpu_does_not_pass(bed: Bed, served: list[str], holder: str) -> None:
    smi = nvidia_smi.script(used_mib=18000, pids="" if holder == "nobody" else "$(pgrep llama-server | head -n 1)")
    bed.sh("light", f"cat >/usr/bin/nvidia-smi <<'EOF'\n{smi}EOF\nchmod +x /usr/bin/nvidia-smi")
    try:
        run = bed.deploy("light", llama_preset="gpu")
        if holder == "nobody":
            assert run.code != 0
            assert "it is running on CPU: it holds 0 MiB of GPU memory, at least 1 MiB are wanted" in run.stderr
            assert bed.serving("light") == served
        else:
            assert run.code == 0, run.output
            assert "18000 MiB of GPU memory" in run.stderr
    finally:
        bed.sh("light", "rm /usr/bin/nvidia-smi")


def test_a_gpu_preset_is_refused_where_there_is_no_card(bed: Bed) -> None:
    run = bed.deploy("light", llama_preset="gpu")
    assert run.code != 0
    assert "there is no nvidia-smi here, and the engine wants an NVIDIA card. Fix: " in run.stderr
