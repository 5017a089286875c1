"""Agreement of real servers: the tiny models, without and with a real DFlash drafter, on the CPU."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from beeyard import tiny
from beeyard.bench.agreement import AgreementError, GreedyServer, compare, explain
from tests.image.conftest import wait_for
from tests.plan.conftest import free_port
from tests.real_server import unpack

KEY = "a-key-of-these-tests-and-of-nothing-else"
PROMPTS = {
    name: [{"role": "user", "content": text}]
    for name, text in {"bees": "Tell me of bees.", "long": "Say it. " * 60, "umlaut": "Grüße von den Bienen?"}.items()
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real llama-server, the tiny models, and a key."""
    made = tmp_path_factory.mktemp("agreement")
    unpack(made)
    tiny.write_all(made)
    (made / "key").write_text(KEY + "\n")
    return made


@contextlib.contextmanager
def serving(folder: Path, model: str, *options: str) -> Iterator[GreedyServer]:
    port = free_port()
    command = [str(folder / "llama-server"), "-m", str(folder / f"{model}.gguf"), "--port", str(port)]
    command += [
        "--ctx-size",
        "4096",
        "--parallel",
        "1",
        "--no-webui",
        "--api-key-file",
        str(folder / "key"),
        *options,
    ]
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health", trust_env=False).status_code == 200
        return False

    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            assert wait_for(60, is_ready), (folder / "log").read_text()[-2000:]
            with GreedyServer(url, KEY, answer_s=120) as asked:
                yield asked
        finally:
            server.terminate()


@pytest.mark.parametrize("family", ["gemma4", "qwen3"])
def test_with_real_drafts_the_answers_are_the_same_token_by_token(folder: Path, family: str) -> None:
    target = f"tiny-{family}"
    with serving(folder, target) as server:
        baseline = server.replies("baseline", PROMPTS, 60)
        again = server.replies("baseline again", PROMPTS, 60)
        itself = compare(baseline, again, server.text_of)
    drafter = ["--spec-type", "draft-dflash", "--spec-draft-model", str(folder / f"{target}-dflash.gguf")]
    with serving(folder, target, *drafter) as server:
        dflash = server.replies("dflash", PROMPTS, 60)
        found = compare(baseline, dflash, server.text_of, server.gap_of(PROMPTS))
    assert (itself.identical_share, itself.drafted) == (1.0, 0)
    # Some of its drafts are wrong on purpose: agreement with no draft refused would show little.
    assert 0 < found.accepted < found.drafted
    assert (found.identical_share, found.agreed_share) == (1.0, 1.0), explain(found)
    assert min(one.baseline_tokens for one in found.comparisons) > 30
    assert {reply.text for reply in baseline.replies} == {reply.text for reply in dflash.replies}


def test_another_model_diverges_where_it_does_and_the_gap_is_the_models_own(folder: Path) -> None:
    with serving(folder, "tiny-gemma4") as server:
        good = server.replies("good", PROMPTS, 20)
    with serving(folder, "tiny-stuck") as server:
        stuck = server.replies("stuck", PROMPTS, 20)
        found = compare(good, stuck, server.text_of, server.gap_of(PROMPTS))
    assert found.identical == 0
    for one, reply, other in zip(found.comparisons, good.replies, stuck.replies, strict=True):
        assert one.divergence is not None
        place = one.divergence.position
        assert (one.divergence.baseline_token, one.divergence.variant_token) == (
            reply.tokens[place],
            other.tokens[place],
        )
        assert one.divergence.variant_after.startswith(one.divergence.variant_token_text)
        # The stuck model answered its own first choice: for it the other token is far less likely, or out of sight.
        assert one.divergence.gap_nats is None or one.divergence.gap_nats < -1
    assert "tiny-gemma4.gguf and tiny-stuck.gguf" in explain(found)


def test_the_text_of_all_tokens_is_the_answers_text(folder: Path) -> None:
    with serving(folder, "tiny-gemma4") as server:
        found = server.replies("baseline", PROMPTS, 20)
        for reply in found.replies:
            assert server.text_of(reply.tokens) == reply.text
            assert (len(reply.tokens), reply.is_cut) == (20, True)
        first, second = found.replies[0].tokens[:2]
        gap = server.gap(PROMPTS["bees"], [], first, second)
        assert gap is None or gap > 1


def test_two_slots_and_a_wrong_key_are_refused(folder: Path) -> None:
    with serving(folder, "tiny-qwen3", "--parallel", "2") as server:
        with pytest.raises(AgreementError, match=r"has 2 slots.* Fix: serve with one slot"):
            server.replies("baseline", PROMPTS, 5)
        with GreedyServer(server.url, "another-key") as stranger, pytest.raises(AgreementError, match="API key"):
            stranger.text_of([1])


def test_a_context_that_is_too_small_is_said(folder: Path) -> None:
    chat = {"long": [{"role": "user", "content": "bees " * 3000}]}
    with (
        serving(folder, "tiny-qwen3", "--ctx-size", "512") as server,
        pytest.raises(AgreementError, match=r"answers 400 .*Fix: "),
    ):
        server.replies("baseline", chat, 5)
