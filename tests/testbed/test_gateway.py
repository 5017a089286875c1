"""A gateway and a monitor on a real host of the test bed, before servers on others: tunnels, a rolling switch."""

import json
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import httpx
import pytest

from beeyard.catalog import PROJECT
from beeyard.keys import GATEWAY
from beeyard.tunnel import Ssh, tunnel
from tests.testbed.conftest import Bed

pytestmark = pytest.mark.hosts("systemd", "light")
PORT = 8900
INVENTORY = """
    common = {
        "ssh_user": "root", "ssh_hostname": "127.0.0.1", "ssh_key": ".testbed/id_ed25519",
        "ssh_known_hosts_file": ".testbed/known_hosts", "ssh_strict_host_key_checking": "yes",
        "llama_preset": "tiny", "llama_memlock": 8388608,
    }
    # Its own server on loopback, and one on another host by a tunnel: both have one slot.
    gateway = [("systemd", {**common, "ssh_port": 2201, "gateway_serves": True,
        "monitor_retention": "2d", "gateway_users": {"alice": {}}})]
    monitor = ["systemd"]
    servers = [("light", {**common, "ssh_port": 2203, "llama_reached_at": "beeyard-light:22"})]
"""


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("inventory") / "office.py"
    file.write_text(textwrap.dedent(INVENTORY))
    return file


def deployed(bed: Bed, office: Path, **data: str) -> dict[str, int]:
    pairs = [word for key, value in data.items() for word in ("--data", f"{key}={value}")]
    words = [sys.executable, "-m", "pyinfra", *pairs, str(office), "deploy.py", "--yes", "--json"]
    run = subprocess.run(
        words, check=False, capture_output=True, text=True, cwd=PROJECT, env=bed.environment, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found: dict[str, int] = json.loads(run.stdout)["results"]["totals"]
    return found


def test_a_gateway_comes_with_its_servers_and_a_second_deploy_changes_nothing(bed: Bed, office: Path) -> None:
    deployed(bed, office)
    assert deployed(bed, office)["success"] == 0


def test_the_monitor_sees_all_of_them_with_their_keys(bed: Bed, office: Path) -> None:
    # By the rules, a quarter of a minute after the first question.
    wanted = {("light", "llama-server"), ("systemd", "llama-server"), ("systemd", "gateway")}
    deadline = time.monotonic() + 90
    while (up := {(one["host"], one["job"]) for one in series(bed, "up == 1")}) != wanted:
        assert time.monotonic() < deadline, f"up: {up}; all: {series(bed, 'up')}"
        time.sleep(1)
    # A rate wants two answers of each server, then a look of the rules: later than the first `up`.
    while {one["host"] for one in series(bed, "beeyard:tokens_per_second")} != {"light", "systemd"}:
        assert time.monotonic() < deadline, f"no rates: {series(bed, 'beeyard:tokens_per_second')}"
        time.sleep(1)
    assert bed.sh("systemd", "ss -Hltn 'sport = :9090' | awk '{print $4}'") == "127.0.0.1:9090"


def series(bed: Bed, query: str) -> list[dict[str, str]]:
    ask = f"curl --silent --data-urlencode 'query={query}' http://127.0.0.1:9090/api/v1/query"
    answer = bed.sh("systemd", ask, check=False)
    return [one["metric"] for one in json.loads(answer)["data"]["result"]] if answer else []


def test_no_key_is_where_others_could_read_it(bed: Bed, office: Path) -> None:
    folder = "/etc/beeyard-monitor"
    modes = bed.sh("systemd", f"stat -c '%a %U' {folder} {folder}/keys {folder}/keys/* {folder}/tunnel-key")
    assert modes.splitlines() == ["700 prometheus"] * 2 + ["600 prometheus"] * 3
    key = bed.sh("systemd", f"cat {folder}/keys/light")
    assert len(key) > 30
    look = f"cat {folder}/prometheus.yml /etc/systemd/system/beeyard-*; ps -eo args; journalctl -u 'beeyard-*'"
    assert key not in bed.sh("systemd", look)
    # The monitor's key opens the server's port there, and no shell.
    options = f"-o BatchMode=yes -o UserKnownHostsFile={folder}/known_hosts -o HostKeyAlias=light"
    assert bed.sh("systemd", f"ssh -F none {options} -i {folder}/tunnel-key root@beeyard-light id", check=False) == ""


def test_a_fault_of_the_monitor_is_repaired_and_nothing_else_is_touched(bed: Bed, office: Path) -> None:
    bed.sh("systemd", "echo '# more' >>/etc/beeyard-monitor/rules.yaml; systemctl stop beeyard-watch-light")
    assert deployed(bed, office)["success"] == 1
    assert bed.sh("systemd", "systemctl is-active beeyard-watch-light beeyard-prometheus").split() == ["active"] * 2
    assert deployed(bed, office)["success"] == 0


def test_a_rolling_switch_loses_no_request(bed: Bed, office: Path) -> None:
    deployed(bed, office, llama_variant="baseline")
    key = (GATEWAY / "users" / "alice").read_text().strip()
    codes: list[int] = []
    is_over = threading.Event()
    ssh = Ssh(hostname="127.0.0.1", user="root", port=2201, key=".testbed/id_ed25519",
              known_hosts=".testbed/known_hosts", checking="yes")  # fmt: skip

    def ask(url: str) -> None:
        body = {"messages": [{"role": "user", "content": "Bees?"}], "max_tokens": 32}
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not is_over.is_set():
                codes.append(client.post(f"{url}/v1/chat/completions", json=body, headers=headers).status_code)
                time.sleep(0.05)

    with tunnel(ssh, PORT) as url:
        asking = [threading.Thread(target=ask, args=(url,)) for _ in range(4)]
        for thread in asking:
            thread.start()
        deployed(bed, office, llama_variant="dflash")
        is_over.set()
        for thread in asking:
            thread.join()
    assert len(codes) > 20
    assert set(codes) == {200}


def test_down_stops_all_of_it(bed: Bed, office: Path) -> None:
    words = [sys.executable, "-m", "pyinfra", str(office), "down.py", "--yes"]
    run = subprocess.run(
        words, check=False, capture_output=True, text=True, cwd=PROJECT, env=bed.environment, timeout=120
    )
    assert run.returncode == 0, run.stdout + run.stderr
    units = ["prometheus", "watch-light", "gateway", "gateway-watch", "tunnel-light", "llama-server"]
    ask = f"systemctl is-active {' '.join(f'beeyard-{unit}' for unit in units)}"
    assert bed.sh("systemd", ask, check=False).split() == ["inactive"] * len(units)
    assert bed.serving("light") == []
