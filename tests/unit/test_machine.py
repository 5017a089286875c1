"""A host from the lines that it says, and as a text."""

import json
from collections.abc import Mapping

import pytest

from beeyard.machine import DockerState, Machine
from beeyard.machine_lines import docker, machine, target
from beeyard.machine_lines import reached as reached_by

LEAST = {
    "uid": "1000",
    "memory": "65536000 kB",
    "available": "61440000 kB",
    "memlock": "unlimited",
    "capabilities": "0000000000000000",
    "cores": "16",
}
INFO = {"ServerVersion": "28.5.2", "Runtimes": {"runc": {}, "nvidia": {}}, "DockerRootDir": "/var/lib/docker"}
ENGINE = {
    "command": "/usr/bin/docker", "toolkit": "/usr/bin/nvidia-ctk", "path": "/usr/bin/docker", "compose": "2.40.3",
    "info": json.dumps(INFO),
}  # fmt: skip


def read(*more: str, **changes: str) -> Machine:
    return machine([*more, *(f"{key}={value}" for key, value in {**LEAST, **changes}.items())])


def test_a_host_that_has_nothing() -> None:
    assert read() == Machine(
        memory_mib=64000, memory_available_mib=60000, memlock_kib=None, cores=16, virtualisation="none"
    )


@pytest.mark.parametrize("key", LEAST)
def test_what_every_host_says_must_be_there(key: str) -> None:
    with pytest.raises(ValueError, match=f"no line {key}="):
        machine(f"{name}={value}" for name, value in LEAST.items() if name != key)


@pytest.mark.parametrize(
    "line",
    ["memory_limit=lots", "quota=max", "disk=7|x|9|/dev/sda1|/opt", "listening=0100007F:", "nvcc=13.0", "uid=root"],
)
def test_a_line_that_is_not_understood_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=line):
        read(line)


@pytest.mark.parametrize(
    ("limits", "mib"),
    [
        ([], None),
        (["max"], None),
        (["9223372036854771712"], None),
        (["max", "8589934592", "17179869184"], 8192),
        (["9223372036854771712", "2147483648"], 2048),
    ],
)
def test_the_smallest_memory_limit_up_the_tree_counts(limits: list[str], mib: int | None) -> None:
    assert read(*(f"memory_limit= {limit}" for limit in limits)).memory_limit_mib == mib


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [
        ([], 16),
        (["max 100000"], 16),
        (["-1 100000"], 16),
        (["650000 100000"], 6),
        (["max 100000", "400000 100000", "800000 100000"], 4),
        (["50000 100000"], 1),
        (["6400000 100000"], 16),
    ],
)
def test_cores_are_what_the_quota_lets_run(quotas: list[str], cores: int) -> None:
    assert read(*(f"quota={quota}" for quota in quotas)).cores == cores


@pytest.mark.parametrize(
    ("said", "version"),
    [("4:14.2.0-1", "14.2.0"), ("4:13.2.0-7ubuntu1", "13.2.0"), ("15.1", "15.1"), ("(none)", ""), ("", "")],
)
def test_the_version_of_a_compiler_that_apt_would_install(said: str, version: str) -> None:
    assert read(cxx_candidate=said).cxx_candidate == version


def test_what_a_process_may_have() -> None:
    found = read(memlock="8192", capabilities="00000000a80465fb", uid="0")
    assert (found.memlock_kib, found.has_ipc_lock, found.is_root) == (8192, True, True)
    usual = read(capabilities="00000000a80425fb")  # Docker's
    assert not usual.has_ipc_lock
    assert not usual.has_sys_resource
    assert read(capabilities="000001ffffffffff").has_sys_resource


def test_ports_are_read_from_both_tables_once() -> None:
    lines = ["0100007F:22CE", "00000000:0016", "00000000000000000000000000000000:0016"]
    assert read(*(f"listening={line}" for line in lines)).listening == (22, 8910)


def test_free_space_of_a_path_with_blanks() -> None:
    found = read("disk=65024|1048576|2097152|//nas/my share|/mnt/my models")
    assert found.free_bytes == {"/mnt/my models": 2**30}


@pytest.mark.parametrize(
    ("one", "other", "is_one"),
    [
        ("7|500|900|/dev/sda1|/a", "7|500|900|/dev/sda1|/b", True),
        ("7|500|900|/dev/sda1|/a", "8|500|900|/dev/sdb1|/b", False),  # two disks of one kind, both new
        ("41|500|900|/dev/sda1|/a", "42|500|900|/dev/sda1|/b", True),  # subvolumes of btrfs
        ("41|500|900|overlay|/a", "8|499|900|/dev/sda1|/b", True),  # a container's root, and a volume beside it
        ("41|500000|900000|overlay|/a", "8|200000|900000|/dev/sda1|/b", False),
        ("41|500|900|overlay|/a", "8|500|800|/dev/sda1|/b", False),
        ("41|500|900|tank/a|/a", "42|500|700|tank/b|/b", True),  # datasets of one ZFS pool
        ("41|500|900|tank/a|/a", "42|500|700|pool/b|/b", False),
        ("41|500|900|tmpfs|/a", "42|500|900|tmpfs|/b", False),
        ("41|500|900|nas:/a|/a", "42|500|900|nas:/b|/b", True),
    ],
)
def test_two_paths_on_one_file_system_are_known(one: str, other: str, is_one: bool) -> None:
    found = read(f"disk={one}", f"disk={other}")
    assert found.file_systems == {"/a": "/a", "/b": "/a" if is_one else "/b"}


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("yes", True),
        ("no", False),
        ("Normal", True),
        ("Insert second", True),
        ("Not synchronised", False),
        ("", None),
        ("506 Cannot talk to daemon", None),
    ],
)
def test_whether_the_clock_is_right(said: str, known: bool | None) -> None:
    assert read(synchronised=said).time_synchronised is known


@pytest.mark.parametrize(
    ("said", "reached"),
    [
        ("0 1 000", True),
        ("22 1 000", True),
        ("52 1 000", True),  # it speaks no HTTP
        ("60 1 000", True),  # a certificate that is not known
        ("28 1 000", True),  # it took the connection, and is slow
        ("6 0 000", False),
        ("7 0 000", False),
        ("28 0 000", False),
        ("5 0 000", False),
        ("56 1 403", False),  # a proxy refuses
        ("0 1 200", True),
        ("60 1 200", True),
        ("124 - -", False),
        ("0 - -", True),  # python3
        ("1 - -", False),
    ],
)
def test_who_takes_the_connection_is_reached(said: str, reached: bool) -> None:
    assert reached_by([f"reach={said} huggingface.co:443"]) == {"huggingface.co:443": reached}


def test_an_answer_about_the_network_that_is_not_understood_is_named() -> None:
    with pytest.raises(ValueError, match="reach=7 /"):
        reached_by(["reach=7 /"])


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("huggingface.co", ("huggingface.co", "https://huggingface.co:443/", "huggingface.co", "443")),
        ("github.com:443", ("github.com:443", "https://github.com:443/", "github.com", "443")),
        ("10.0.0.7:5000", ("10.0.0.7:5000", "http://10.0.0.7:5000/", "10.0.0.7", "5000")),
        ("[::1]:8910", ("[::1]:8910", "http://[::1]:8910/", "::1", "8910")),
        ("http://mirror/x", ("http://mirror/x", "http://mirror:80/", "mirror", "80")),
        ("https://hub.lan:8443/v2/", ("https://hub.lan:8443/v2/", "https://hub.lan:8443/", "hub.lan", "8443")),
        ("https://me:secret@hub.lan/x", ("https://hub.lan/x", "https://hub.lan:443/", "hub.lan", "443")),
        ("me:secret@hub.lan", ("hub.lan", "https://hub.lan:443/", "hub.lan", "443")),
    ],
)
def test_what_is_tried_of_an_address(address: str, wanted: tuple[str, str, str, str]) -> None:
    assert target(address) == wanted


def test_a_docker_engine() -> None:
    assert docker(ENGINE) == DockerState(
        command="/usr/bin/docker", version="28.5.2", compose="2.40.3", runtimes=("nvidia", "runc"), has_toolkit=True,
        root="/var/lib/docker",
    )  # fmt: skip
    assert docker({"command": "", "toolkit": "", "candidate": "(none)"}) == DockerState()
    assert docker({"command": "", "candidate": "26.1.5+dfsg1-9"}).candidate == "26.1.5+dfsg1-9"
    assert read().docker == DockerState()


@pytest.mark.parametrize(
    ("changes", "silent"),
    [
        ({"info": "", "silent": "permission denied"}, "permission denied"),
        ({"info": '{"ServerErrors": ["Cannot connect"]}'}, "Cannot connect"),
        ({"info": ""}, "docker info did not answer"),
        ({"info": '{"ServerVersion": ""}', "silent": "no"}, "no"),
    ],
)
def test_a_docker_engine_that_does_not_answer_has_no_version(changes: Mapping[str, str], silent: str) -> None:
    found = docker({**ENGINE, **changes})
    assert (found.version, found.silent) == ("", silent)


@pytest.mark.parametrize(
    "paths",
    [
        {"command": "/snap/bin/docker", "path": "/usr/bin/snap"},
        {"command": "/usr/local/bin/docker", "path": "/snap/bin/docker"},
        {"command": "/usr/local/bin/docker", "path": "/usr/bin/snap"},
    ],
)
def test_dockers_snap_is_known_by_its_command_and_by_where_that_leads(paths: Mapping[str, str]) -> None:
    found = docker({**ENGINE, **paths})
    assert found.is_snap


def test_cdi_counts_where_the_engine_looks_for_it() -> None:
    looks = json.dumps({**INFO, "CDISpecDirs": ["/etc/cdi"]})
    found = docker({**ENGINE, "info": looks, "cdi": "/etc/cdi/nvidia.yaml"})
    assert found.has_cdi
    blind = docker({**ENGINE, "cdi": "/etc/cdi/nvidia.yaml"})
    assert not blind.has_cdi
