"""What is asked: the guide's prompts word for word, long prompts of a size, and one nonce for all variants."""

import hashlib
import json
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from beeyard.bench.client import BenchError
from beeyard.bench.workloads import filler, nonce_of, questions
from beeyard.catalog import PRESETS, Catalog, CatalogError, Prompt, load_catalog

# Of the texts between the fences of BeeLlama.cpp's README.md, v0.2.0 (commit c6dfa39e3): every word counts.
WORD_FOR_WORD = {
    "task-store": "8551af45567cf28e5bc37114ab3d7f4d8d18e0907fdda7ea4e3dd07c8ac6d43b",
    "kv-report": "501cc9effbcdd5c4df94359c8be3423eb1c3d3c934a413d641818154d0a26492",
    "linked-list": "5f1e76125ce0e3fec4afc00bc83f32b817004c34b3f29a16b91e022d9fc69bf4",
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog([PRESETS])


def no_tokens(text: str) -> int:
    raise AssertionError(f"nobody should count {text[:20]!r}")


def test_the_guides_prompts_are_word_for_word(catalog: Catalog) -> None:
    guide = catalog.workloads["guide"]
    texts = {name: prompt.messages[0].content for name, prompt in guide.prompts.items()}
    assert {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()} == WORD_FOR_WORD
    assert (guide.max_tokens, guide.temperature) == (1200, 0.7)


def test_every_workload_of_the_presets_can_be_asked(catalog: Catalog) -> None:
    found, notes = questions(catalog.workloads, catalog.workloads, lambda text: len(text) // 4, None)
    assert notes == []
    assert {one.workload for one in found} == {
        "guide", "page", "diagram", "essay", "editing", "long", "json", "language",
    }  # fmt: skip
    assert len({one.sha256 for one in found}) == len(found)
    assert all(one.messages[-1]["role"] == "user" for one in found)
    assert all(one.source for one in found)


def test_a_prompt_may_be_named_alone_and_is_asked_once(catalog: Catalog) -> None:
    found, _ = questions(catalog.workloads, ["guide/kv-report", "json", "guide/kv-report"], no_tokens, 4096)
    assert [(one.workload, one.prompt) for one in found] == [("guide", "kv-report"), ("json", "recipes")]
    schema = found[1].body("n", 1)["response_format"]["json_schema"]
    assert schema["schema"]["properties"]["recipes"]["minItems"] == 3
    with pytest.raises(CatalogError, match=r"no workload 'nope' .* Fix: use one of diagram, "):
        questions(catalog.workloads, ["nope"], no_tokens, None)
    with pytest.raises(CatalogError, match=r"no prompt 'nope' .* Fix: use one of kv-report, "):
        questions(catalog.workloads, ["guide/nope"], no_tokens, None)


@pytest.mark.parametrize("count", [len, lambda text: len(text) // 4, lambda text: len(text.split())])
@pytest.mark.parametrize("tokens", [4096, 24576])
def test_a_long_prompt_has_the_tokens_that_were_asked_for(count: Callable[[str], int], tokens: int) -> None:
    text = filler(tokens, count)
    assert tokens * 0.97 <= count(text) <= tokens
    assert filler(tokens, count) == text


def test_a_longer_prompt_begins_with_the_shorter_one() -> None:
    assert filler(8000, len).startswith(filler(4000, len))


def test_what_does_not_fit_the_context_is_left_out_and_said(catalog: Catalog) -> None:
    found, notes = questions(catalog.workloads, ["long", "essay"], lambda text: len(text) // 4, 9000)
    assert [one.prompt for one in found] == ["4k", "8k", "experts"]
    assert [note.partition(" ")[0] for note in notes] == ["long/16k", "long/24k"]
    with pytest.raises(BenchError, match=r"nothing is left to ask: long/4k was left out.* Fix: "):
        questions(catalog.workloads, ["long"], no_tokens, 2048)


def test_a_tokenizer_that_says_nonsense_is_refused() -> None:
    with pytest.raises(BenchError, match="no text of 4096 tokens"):
        filler(4096, lambda _: 10**9)


def test_all_variants_answer_the_very_same_and_no_round_twice(catalog: Catalog) -> None:
    one, other = questions(catalog.workloads, ["guide/kv-report", "essay"], no_tokens, None)[0]
    nonces = {nonce_of(run, question, number) for run in "ab" for question in (one, other) for number in (1, 2)}
    assert len(nonces) == 8
    body = one.body(nonce_of("a", one, 1), seed=5)
    assert json.dumps(body) == json.dumps(one.body(nonce_of("a", one, 1), seed=5))
    assert body["messages"][0]["content"].startswith(f"[{nonce_of('a', one, 1)}]\nWrite one complete Python 3 file")
    assert (body["seed"], body["max_tokens"], body["temperature"]) == (5, 1200, 0.7)


def test_a_conversation_must_end_with_the_user() -> None:
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    with pytest.raises(ValidationError, match="a prompt's last message must be the user's"):
        Prompt.model_validate({"messages": turns})
    assert Prompt.model_validate("hello").messages[0].content == "hello"
