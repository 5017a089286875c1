"""A gateway on a real host of the test bed, before servers on others: deploys, a tunnel, a rolling switch."""

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
    gateway = [("systemd", {**common, "ssh_port": 2201, "gateway_serves": True, "gateway_users": {"alice": {}}})]
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
