"""Two variants' answers, token by token; and servers that are no llama-server of one slot at temperature 0."""

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beeyard.bench.agreement import (
    GREEDY,
    WHY,
    Agreement,
    AgreementError,
    GreedyServer,
    Replies,
    Reply,
    common_prefix,
    compare,
    explain,
)

TOKENS = st.lists(st.integers(0, 3), max_size=12)


def text_of(tokens: Sequence[int]) -> str:
    return "".join(f" {token}" for token in tokens)


def replies(variant: str, *answers: Sequence[int], drafted: int = 0, **more: Any) -> Replies:
    given = tuple(
        Reply(
            prompt=f"p{number}", prompt_sha256="0", tokens=tuple(tokens), text=text_of(tokens), stop="limit",
            drafted=drafted, accepted=drafted // 2,
        )
        for number, tokens in enumerate(answers)
    )  # fmt: skip
    settings: dict[str, Any] = {"model": "m.gguf", "build": "b1", "max_tokens": 9, **more}
    return Replies(variant=variant, replies=given, **settings)


def test_the_first_divergence_is_shown_with_what_stands_around_it() -> None:
    before = list(range(20))
    found = compare(
        replies("baseline", [*before, 50, 51], [1, 2]),
        replies("dflash", [*before, 60, 51], [1, 2], drafted=4),
        text_of,
        lambda name, agreed, first, second: len(agreed) + (first - second) / 10,
    )
    one, other = found.comparisons
    assert one.divergence is not None
    assert (one.divergence.position, one.divergence.gap_nats) == (20, 19.0)
    assert (one.divergence.baseline_token, one.divergence.variant_token) == (50, 60)
    assert (one.divergence.baseline_token_text, one.divergence.variant_token_text) == (" 50", " 60")
    assert one.divergence.before == text_of(range(8, 20))
    assert (one.divergence.baseline_after, one.divergence.variant_after) == (" 50 51", " 60 51")
    # What is the same again behind the divergence is not counted as agreed.
    assert (one.common_tokens, one.agreed_share) == (20, 20 / 22)
    assert (other.is_identical, other.divergence, other.agreed_share) == (True, None, 1.0)
    assert (found.identical, found.identical_share, found.agreed_share) == (1, 0.5, 22 / 24)
    assert (found.drafted, found.accepted) == (8, 4)
    assert Agreement.model_validate_json(found.model_dump_json()) == found


def test_an_answer_that_ends_where_the_other_goes_on_diverges_at_its_end() -> None:
    found = compare(replies("a", [1, 2]), replies("b", [1, 2, 3]), text_of, lambda *_: pytest.fail("no two tokens"))
    divergence = found.comparisons[0].divergence
    assert divergence is not None
    assert (divergence.position, divergence.baseline_token, divergence.variant_token) == (2, None, 3)
    assert divergence.gap_nats is None
    assert "the end against ' 3'" in explain(found)


def test_divergences_are_explained_and_agreement_needs_no_excuse() -> None:
    parted = explain(compare(replies("baseline", [1, 2]), replies("dflash", [1, 3], drafted=2), text_of))
    assert parted.startswith("dflash gave the same answer as baseline to 0 of 1 prompts at temperature 0; 50.0 % of")
    assert "1 of 2 drafted tokens were accepted" in parted
    assert "p0: after 1 tokens, ' 2' against ' 3', behind ' 1'" in parted
    assert parted.endswith(WHY)
    same = explain(compare(replies("baseline", [1, 2]), replies("dflash", [1, 2], drafted=2), text_of))
    assert WHY not in same


def test_agreement_of_a_variant_that_drafted_nothing_is_said_to_mean_little() -> None:
    assert "drafted nothing" in explain(compare(replies("a", [1]), replies("b", [1]), text_of))


def test_answers_of_two_files_are_named_so() -> None:
    found = compare(replies("a", [1]), replies("b", [1], model="other.gguf"), text_of)
    assert "two files, m.gguf and other.gguf" in explain(found)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (replies("b", [1], max_tokens=8), "9 tokens, b 8"),
        (replies("b", [1], [2]), r"the same prompts \(p1\)"),
        (replies("b"), r"the same prompts \(p0\)"),
    ],
)
def test_what_is_no_pair_is_refused(other: Replies, reason: str) -> None:
    with pytest.raises(AgreementError, match=rf"{reason}.* Fix: "):
        compare(replies("a", [1]), other, text_of)


def test_another_chat_template_is_refused() -> None:
    one = replies("a", [1])
    worded = one.replies[0].model_copy(update={"prompt_sha256": "1"})
    with pytest.raises(AgreementError, match="same chat template"):
        compare(one, one.model_copy(update={"replies": (worded,)}), text_of)
    with pytest.raises(AgreementError, match="none at all"):
        compare(replies("a"), replies("b"), text_of)


@given(TOKENS, TOKENS)
def test_what_is_common_is_common_and_what_follows_is_not(one: list[int], other: list[int]) -> None:
    length = common_prefix(one, other)
    assert one[:length] == other[:length]
    assert length in (len(one), len(other)) or one[length] != other[length]
    assert common_prefix(other, one) == length
    found = compare(replies("a", one), replies("b", other), text_of).comparisons[0]
    assert found.is_identical == (one == other) == (found.divergence is None)
    assert 0 <= found.agreed_share <= 1
    assert (found.agreed_share == 1) == (one == other)


# --- what is no llama-server of one slot at temperature 0 ------------------------------------------

PROPS: dict[str, Any] = {"total_slots": 1, "model_path": "/models/m.gguf", "build_info": "b1"}
ANSWER: dict[str, Any] = {
    "content": "hi", "tokens": [1, 2], "stop_type": "eos", "timings": {"draft_n": 3, "draft_n_accepted": 2},
    "generation_settings": {**GREEDY, "samplers": ["top_k", "temperature"]},
}  # fmt: skip
PROMPTS = {"bees": [{"role": "user", "content": "Bees?"}]}
KEY = "a-key-of-this-test-and-of-nothing-else"


class Misbehaving(ThreadingHTTPServer):
    """Answers what it is told to, by path: a status and a body."""

    answers: dict[str, tuple[int, object]]
    asked: list[tuple[str, dict[str, Any]]]
    keys: set[str]


class Handler(BaseHTTPRequestHandler):
    server: Misbehaving

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        self.server.asked.append((self.path, body))
        self.server.keys.add(self.headers.get("Authorization", ""))
        status, said = self.server.answers[self.path]
        content = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    made = Misbehaving(("127.0.0.1", 0), Handler)
    made.asked, made.keys = [], set()
    made.answers = {
        "/props": (200, PROPS), "/apply-template": (200, {"prompt": "<user>Bees?"}), "/completion": (200, ANSWER),
        "/detokenize": (200, {"content": " text"}),
    }  # fmt: skip
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def ask(server: Misbehaving, key: str | None = None) -> Replies:
    with GreedyServer(f"http://127.0.0.1:{server.server_port}/v1/", key) as asked:
        return asked.replies("baseline", PROMPTS, 7)


def test_it_asks_for_first_choices_and_tokens_and_no_log_probabilities(server: Misbehaving) -> None:
    found = ask(server, KEY)
    assert found.model == "m.gguf"
    assert found.replies[0].tokens == (1, 2)
    assert (found.replies[0].drafted, found.replies[0].accepted, found.replies[0].is_cut) == (3, 2, False)
    (body,) = (body for path, body in server.asked if path == "/completion")
    assert body == {
        **GREEDY, "prompt": "<user>Bees?", "n_predict": 7, "return_tokens": True, "cache_prompt": False,
    }  # fmt: skip
    assert server.keys == {f"Bearer {KEY}"}
    assert KEY not in found.model_dump_json()


def test_a_wrong_key_is_not_shown(server: Misbehaving) -> None:
    server.answers["/props"] = (401, {"error": {"message": "Invalid API Key"}})
    with pytest.raises(AgreementError, match=r"wants another API key\. Fix: ") as refused:
        ask(server, KEY)
    assert KEY not in str(refused.value)


def used(**fresh: object) -> dict[str, object]:
    return {**ANSWER, "generation_settings": {**ANSWER["generation_settings"], **fresh}}


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        ("/props", (200, {**PROPS, "total_slots": 4}), "has 4 slots"),
        ("/props", (200, {}), "does not say its total_slots"),
        ("/props", (200, []), "is no JSON table"),
        ("/props", (200, b"<html>"), "is no JSON table"),
        ("/props", (404, b""), "answers 404"),
        ("/props", (503, {"error": {"message": "Loading model"}}), r"answers 503 \(Loading model\)\. Fix: wait"),
        ("/apply-template", (200, {}), "does not say its prompt"),
        ("/completion", (200, used(temperature=0.7)), "with temperature 0.7, not at temperature 0"),
        ("/completion", (200, used(repeat_penalty=1.1)), "with repeat_penalty 1.1"),
        ("/completion", (200, used(samplers=["top_k"])), r"heed no temperature \(top_k\)"),
        ("/completion", (200, {**ANSWER, "generation_settings": {}}), "with temperature unknown"),
        ("/completion", (200, {**ANSWER, "generation_settings": None}), "does not say its generation_settings"),
        ("/completion", (200, {**ANSWER, "tokens": []}), "gives no tokens for prompt 'bees'"),
        ("/completion", (200, {**ANSWER, "tokens": ["a"]}), "gives no tokens"),
        ("/completion", (200, {**ANSWER, "tokens": None}), "does not say its tokens"),
        ("/completion", (200, {**ANSWER, "truncated": True}), "too small for prompt 'bees' and 7 tokens"),
        ("/completion", (500, {"error": "x"}), "answers 500"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    server: Misbehaving, path: str, answer: tuple[int, object], reason: str
) -> None:
    server.answers[path] = answer
    with pytest.raises(AgreementError, match=rf"{reason}.*Fix: |{reason}"):
        ask(server)


@pytest.mark.parametrize(
    ("places", "gap"),
    [
        (None, None),
        ([], None),
        ([{"top_logprobs": [{"id": 1, "logprob": -0.5}, {"id": 2, "logprob": -2.0}]}], 1.5),
        ([{"top_logprobs": [{"id": 1, "logprob": -0.5}]}], None),
        ([{"top_logprobs": [{"id": 1}, {"id": 2, "logprob": "x"}]}], None),
    ],
)
def test_a_gap_is_known_or_none(server: Misbehaving, places: object, gap: float | None) -> None:
    server.answers["/completion"] = (200, {**ANSWER, "completion_probabilities": places})
    with GreedyServer(f"http://127.0.0.1:{server.server_port}") as asked:
        assert asked.gap(PROMPTS["bees"], [7, 8], 1, 2) == gap
        assert asked.text_of([]) == ""
    assert server.asked[-1][1]["prompt"] == ["<user>Bees?", 7, 8]


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(AgreementError, match=r"http://127\.0\.0\.1:9/props does not answer .*Fix: "):
        GreedyServer("http://127.0.0.1:9").replies("a", PROMPTS, 1)
    with pytest.raises(AgreementError, match="Fix: "):
        GreedyServer("not an address").replies("a", PROMPTS, 1)
