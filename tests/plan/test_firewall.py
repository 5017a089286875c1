"""nftables' rules in a network namespace of a test's own: real packets, a real clock."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from beeyard import onhost
from beeyard.catalog import CatalogError
from beeyard.firewall import rules
from tests.needs import program

SCRIPT = Path(onhost.__file__).parent / "firewall.sh"
SERVE = """
import socket, time
kept = [socket.create_server(("10.77.0.1", port)) for port in (22, 80, 8900)]
print("up", flush=True)
time.sleep(60)
"""
ASK = """
import socket, sys
try:
    socket.create_connection(("10.77.0.1", int(sys.argv[1])), 0.7).close()
except OSError:
    sys.exit(1)
"""


def run(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, check=False, capture_output=True, text=True, env={**os.environ, **env})


class Hosts:
    """Two network namespaces with a cable between them: a host, and somebody else."""

    def __init__(self, host: str, other: str, folder: Path) -> None:
        self.host, self.other, self.clock = host, other, folder / "clock"

    def nft(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """firewall.sh on the host."""
        environment = {"BEEYARD_FIREWALL_CLOCK": str(self.clock)}
        return run("ip", "netns", "exec", self.host, "sh", str(SCRIPT), *words, **environment)

    def reached(self) -> set[int]:
        """The ports that the other one reaches."""
        words = ("ip", "netns", "exec", self.other, sys.executable, "-c", ASK)
        return {port for port in (22, 80, 8900) if run(*words, str(port)).returncode == 0}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces are root's to make, as make test has it")
    program("nft", "nftables")
    program("ip", "iproute2")
    host, other = f"beeyard-h{os.getpid()}", f"beeyard-o{os.getpid()}"
    made = run("ip", "netns", "add", host)
    if made.returncode != 0:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    run("ip", "netns", "add", other)
    try:
        for words in (
            f"link add bh{os.getpid() % 9999} netns {host} type veth peer name bo{os.getpid() % 9999} netns {other}",
            f"-n {host} addr add 10.77.0.1/24 dev bh{os.getpid() % 9999}",
            f"-n {other} addr add 10.77.0.2/24 dev bo{os.getpid() % 9999}",
            f"-n {host} link set bh{os.getpid() % 9999} up",
            f"-n {other} link set bo{os.getpid() % 9999} up",
            f"-n {host} link set lo up",
        ):
            done = run("ip", *words.split())
            if done.returncode != 0:
                pytest.skip(f"no cable between namespaces here: {done.stderr.strip()}")
        served = subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True
        )
        assert served.stdout is not None
        assert served.stdout.readline() == "up\n"
        yield Hosts(host, other, tmp_path)
        served.kill()
        served.wait()
    finally:
        run("ip", "netns", "del", host)
        run("ip", "netns", "del", other)


def written(folder: Path, text: str) -> str:
    (folder / "rules.nft").write_text(text)
    return str(folder / "rules.nft")


def test_only_ssh_and_what_is_served_are_open(hosts: Hosts, tmp_path: Path) -> None:
    assert hosts.reached() == {22, 80, 8900}
    file = written(tmp_path, rules([22], [8900]))
    assert hosts.nft("try", file, "30").returncode == 0
    assert hosts.reached() == {22, 8900}
    kept = tmp_path / "kept" / "beeyard.nft"
    assert hosts.nft("keep", str(kept), file).returncode == 0
    assert kept.exists()
    assert hosts.nft("off", str(kept)).returncode == 0
    assert hosts.reached() == {22, 80, 8900}
    assert not kept.exists()


def test_networks_that_may_not_come_in_do_not(hosts: Hosts, tmp_path: Path) -> None:
    hosts.nft("try", written(tmp_path, rules([22], [8900], ["192.0.2.0/24", "2001:db8::/32"])), "30")
    assert hosts.reached() == {22}
    hosts.nft("try", written(tmp_path, rules([22], [8900], ["10.77.0.0/24"])), "30")
    assert hosts.reached() == {22, 8900}
    hosts.nft("off", str(tmp_path / "none"))


def test_rules_that_lock_out_are_taken_back_by_the_clock(hosts: Hosts, tmp_path: Path) -> None:
    file = written(tmp_path, rules([2222], [8900]))  # not where sshd listens
    assert hosts.nft("try", file, "3").returncode == 0
    assert hosts.reached() == {8900}
    deadline = time.monotonic() + 15
    while 22 not in hosts.reached() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert hosts.reached() == {22, 80, 8900}
    late = hosts.nft("keep", str(tmp_path / "kept"), file)
    assert late.returncode == 4
    assert "Fix: " in late.stderr


def test_the_clock_returns_to_the_rules_that_were_kept(hosts: Hosts, tmp_path: Path) -> None:
    kept = tmp_path / "kept.nft"
    kept.write_text(rules([22], [80]))
    hosts.nft("try", written(tmp_path, rules([2222], [])), "2", str(kept))
    assert hosts.reached() == set()
    time.sleep(3)
    assert hosts.reached() == {22, 80}


def test_rules_load_on_a_system_without_names_of_protocols(hosts: Hosts, tmp_path: Path) -> None:
    file = written(tmp_path, rules([22], [8900]))
    hide = "! test -e /etc/protocols || mount --bind /dev/null /etc/protocols; exec nft -c -f"
    words = ("unshare", "--mount", "ip", "netns", "exec", hosts.host, "sh", "-c", f"{hide} {file}")
    assert run(*words).stderr == ""


def test_rules_that_nft_refuses_change_nothing(hosts: Hosts, tmp_path: Path) -> None:
    refused = hosts.nft("try", written(tmp_path, rules([22], [8900]).replace("accept", "acept")), "30")
    assert refused.returncode == 4
    assert "nft refuses the rules" in refused.stderr
    assert hosts.reached() == {22, 80, 8900}


def test_there_is_no_firewall_without_a_port_of_ssh() -> None:
    with pytest.raises(CatalogError, match="lock everybody out"):
        rules([], [8900])
    with pytest.raises(CatalogError, match="is no network"):
        rules([22], [8900], ["10.0.0.1/8"])
