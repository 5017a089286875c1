"""What preflight sees in a host, as a pure function of what the host said."""

from typing import Any

import pytest

from beeyard.catalog import load_catalog
from beeyard.facts.host import HostProbe
from beeyard.machine import Gpu, Machine, Nvcc
from beeyard.preflight import build_obstacles, machine_notes, machine_obstacles, obstacles
from beeyard.probes import Probe
from beeyard.spec import HostKind, ServerSpec, resolve

CATALOG = load_catalog()
OUTPUT = """\
apt=/usr/bin/apt-get
python=/usr/bin/python3
curl=/usr/bin/curl
prefix_parent=/opt
prefix_writable=yes
held_engine=
first_free_port=1024
"""


def probe(**changes: str) -> Probe:
    lines = dict(line.split("=", 1) for line in OUTPUT.splitlines()) | changes
    return HostProbe().process([f"{key}={value}" for key, value in lines.items()])


def spec(**data: Any) -> ServerSpec:
    return resolve({"llama_preset": "smol", **data}, CATALOG, HostKind(has_systemd=True, is_root=True))


def machine(**changes: Any) -> Machine:
    facts: dict[str, Any] = {
        "is_root": True, "cpu_flags": ("fpu", "sse4_2", "avx", "avx2"), "memory_mib": 64000,
        "memory_available_mib": 60000, "free_bytes": {"/opt/beeyard/models": 100 * 2**30}, **changes,
    }  # fmt: skip
    return Machine(**facts)


def found(
    a_probe: Probe, a_spec: ServerSpec | None = None, a_machine: Machine | None = None, **more: Any
) -> list[str]:
    known = {"is_here": False, "own_pids": [], "not_locked": [], **more}
    return obstacles(a_spec or spec(), a_machine or machine(), a_probe, **known)


def test_a_good_host_has_none() -> None:
    assert found(probe()) == []


@pytest.mark.parametrize(
    ("changes", "more", "complaint"),
    [
        ({}, {"a_machine": machine(cpu_flags=("fpu", "sse4_2"))}, "its CPU lacks avx2, which llama.cpp b10068"),
        ({"python": "", "apt": ""}, {}, "python3 is missing, and this user cannot install it"),
        ({"curl": ""}, {"a_machine": machine(is_root=False)}, "curl is missing, and this user cannot install it"),
        ({"prefix_writable": ""}, {}, "/opt/beeyard cannot be written: /opt does not let this user"),
        ({"listener_pid": "7", "listener": "nginx"}, {}, "port 8910 is in use by process 7 (nginx)"),
        ({"listener_pid": "0", "listener": ""}, {}, "port 8910 is in use by another user's program"),
        ({"listener_pid": "7", "listener": "nginx"}, {"own_pids": [8]}, "port 8910 is in use by process 7"),
    ],
)
def test_each_obstacle_is_a_sentence_with_its_fix(
    changes: dict[str, str], more: dict[str, Any], complaint: str
) -> None:
    (text,) = found(probe(**changes), **more)
    assert complaint in text
    assert "Fix: " in text


def test_all_obstacles_are_told_at_once() -> None:
    without = machine(cpu_flags=())
    assert len(found(probe(prefix_writable="", listener_pid="7", listener="x"), a_machine=without)) == 3


def test_our_own_server_may_hold_the_port() -> None:
    assert found(probe(listener_pid="8", listener="llama-server"), own_pids=[8]) == []


def test_a_cpu_without_avx2_may_take_debians_engine() -> None:
    assert found(probe(), spec(llama_engine="llama.cpp-debian"), machine(cpu_flags=("fpu",))) == []


def test_a_port_of_roots_is_refused_where_the_server_is_not_root() -> None:
    (text,) = found(probe(), spec(llama_port=80))
    assert "port 80 is root's alone, and the server runs as beeyard. Fix: set llama_port to 1024 or higher" in text
    assert found(probe(first_free_port="0"), spec(llama_port=80)) == []
    assert found(probe(), spec(llama_port=80, llama_user="self")) == []


@pytest.mark.parametrize(
    ("tools", "is_root", "complaint"),
    [
        (
            {"git": "x", "cmake": "x", "ninja": "", "c++": ""},
            False,
            "and ninja, c++ is missing, which this user cannot",
        ),
        ({"git": "x", "cmake": "x", "ninja": "x", "c++": "x"}, True, "for CUDA, and there is no nvcc"),
    ],
)
def test_a_host_that_cannot_compile_its_engine_is_told_so(
    tools: dict[str, str], is_root: bool, complaint: str
) -> None:
    of = spec(llama_engine="beellama-v0.4.3")
    nvccs = () if is_root else (Nvcc(path="/opt/cuda/bin/nvcc", version="12.8"),)
    (said,) = build_obstacles(of, machine(is_root=is_root, nvccs=nvccs), probe(), tools)
    assert complaint in said
    assert "Fix: install " in said


@pytest.mark.parametrize(
    ("data", "facts", "complaint"),
    [
        (
            {"llama_sysctl": {"vm.swappiness": 10}},
            {"is_root": False},
            "llama_sysctl changes the machine, and this user",
        ),
        (
            {"llama_gpu_at_boot": True},
            {"init": "systemd", "virtualisation": "docker"},
            "llama_gpu_at_boot is set, but this host is a",
        ),
        ({"llama_hold_driver": True}, {"provider": "runpod"}, "llama_hold_driver is set, but this host is a"),
        ({"llama_gpu_at_boot": True}, {}, "is a systemd unit, and systemd does not run this host"),
        ({"llama_limits": {"nofile": 4096}}, {}, "llama_limits is for logins, which runtime systemd has none of"),
        (
            {"llama_limits": {"memlock": "unlimited"}, "llama_runtime": "supervisor"},
            {"virtualisation": "docker", "memlock_kib": 8192},
            "llama_limits asks for a memlock of unlimited, and this host's root may have 8192",
        ),
    ],
)
def test_what_is_asked_of_the_machine_and_cannot_be_is_a_sentence(
    data: dict[str, Any], facts: dict[str, Any], complaint: str
) -> None:
    (text,) = machine_obstacles(spec(llama_preset="gemma-4-31b", **data), machine(**facts))
    assert complaint in text
    assert "Fix: " in text


def test_nothing_is_asked_of_the_machine_by_default() -> None:
    in_a_container = machine(is_root=False, virtualisation="docker")
    assert machine_obstacles(spec(llama_preset="gemma-4-31b"), in_a_container) == []


def test_a_host_that_is_older_than_its_engine_is_told_before_anything_comes() -> None:
    (text,) = found(probe(), a_machine=machine(glibc="2.31"))
    assert text.startswith("its glibc is 2.31, and llama.cpp b10068 (llama.cpp-wheel) wants 2.35 or newer. Fix: ")
    assert found(probe(), a_machine=machine(glibc="2.36")) == []
    assert found(probe(), spec(llama_engine="llama.cpp-debian"), machine(glibc="2.31", cpu_flags=("fpu",))) == []


CARD = Gpu(
    index=0, uuid="GPU-1", name="NVIDIA GeForce RTX 4090", compute_capability="8.9", memory_total_mib=24564,
    memory_free_mib=24200,
)  # fmt: skip
ON_CARD = {"gpus": (CARD,), "has_nvidia_smi": True}


@pytest.mark.parametrize(
    ("data", "facts", "note"),
    [
        ({}, {**ON_CARD, "devices": ("/dev/nvidia0",)}, "Fix: set llama_gpu_at_boot to true"),
        (
            {},
            {**ON_CARD, "devices": ("/dev/nvidia0",), "virtualisation": "lxc"},
            "Fix: give the container that device",
        ),
        ({}, {**ON_CARD, "devices": ("/dev/nvidia0", "/dev/nvidia-uvm")}, ""),
        ({}, {**ON_CARD, "devices": ("/dev/dxg",)}, ""),
        ({"llama_gpu_at_boot": True}, {**ON_CARD, "devices": ()}, ""),
        ({"llama_preset": "smol"}, {**ON_CARD, "devices": ()}, ""),
        (
            {"llama_preset": "smol"},
            {"provider": "runpod", "volume": "/workspace"},
            "/opt/beeyard is gone once this pod is stopped; its volume is /workspace. Fix: set llama_prefix to",
        ),
        (
            {"llama_preset": "smol", "llama_prefix": "/workspace/b"},
            {"provider": "runpod", "volume": "/workspace"},
            "",
        ),
        ({"llama_preset": "smol"}, {"provider": "runpod"}, ""),
        ({"llama_preset": "smol"}, {"time_synchronised": False}, "its clock is not synchronised"),
        ({"llama_preset": "smol"}, {"time_synchronised": None}, ""),
    ],
)
def test_what_had_better_be_known_is_a_note(data: dict[str, Any], facts: dict[str, Any], note: str) -> None:
    notes = machine_notes(spec(**{"llama_preset": "gemma-4-31b", **data}), machine(**facts))
    assert bool(notes) == bool(note)
    assert all(note in text and "Fix: " in text for text in notes)
