"""
Does a variant still say what the baseline says? Answers at temperature 0 from one slot, compared token by token.

Tokens are asked of ``/completion``, with the chat put into the model's words by ``/apply-template``: it alone gives
the very tokens (``return_tokens``). Log-probabilities would give them, too, but with them some engines leave the path
that is to be compared (BeeLlama v0.2 then verifies drafts without its reduced verifier). Nothing is streamed: a
stream leaves out the tokens inside of a character of several bytes.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import Field

from beeyard.bench.client import http_client, root_of
from beeyard.catalog import CatalogError, Strict

# What makes an answer the model's first choice at each place, whatever a server's own defaults are.
GREEDY: dict[str, float] = {
    "temperature": 0, "dynatemp_range": 0, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0,
    "dry_multiplier": 0, "xtc_probability": 0, "mirostat": 0, "top_n_sigma": -1,
}  # fmt: skip
# Tokens around a divergence that are shown of either answer.
AROUND = 12
# Of a model's first choices, how many are asked for both of two tokens.
CHOICES = 40
CONNECT_S, SHORT_S = 10.0, 60.0
NO_SERVER = "Fix: name the address of a llama-server with one model, not of a gateway or router"

WHY = (
    "At temperature 0 a draft is kept only where it is the model's own first choice, so with exact arithmetic both "
    "variants would say the same. Floating-point sums depend on their order, and a server that checks several "
    "drafted tokens in one batch adds in another order than one that computes a token at a time: other kernels, "
    "other tiles, other splits. The scores then differ in their last digits. Where two tokens are almost equally "
    "likely, that decides which one comes first; from there on the two answers go their own ways, and neither is the "
    "wrong one. So the tokens after a first divergence are not compared. It looks otherwise when drafting is broken: "
    "divergences in the first few tokens of most answers, between tokens that are far apart for the model, into text "
    "that makes no sense."
)

Messages = Sequence[Mapping[str, str]]
TextOf = Callable[[Sequence[int]], str]
# Of a prompt by its name, the tokens agreed so far, the baseline's token and the variant's: see ``GreedyServer.gap``.
GapOf = Callable[[str, Sequence[int], int, int], float | None]
T = TypeVar("T")


class AgreementError(CatalogError):
    """Why answers cannot be compared. Its text is one sentence that ends in ``Fix: …``."""


class Reply(Strict):
    """
    What a server answered: token ids, without the one that ends an answer.

    ``stop`` is the server's word for why it ended: ``eos`` by itself, ``limit`` at ``max_tokens``, ``word``.
    ``prompt_sha256`` is of the prompt in the model's own words. ``drafted`` and ``accepted`` count draft tokens.
    """

    prompt: str
    prompt_sha256: str
    tokens: tuple[int, ...]
    text: str
    stop: str
    drafted: int = Field(default=0, ge=0)
    accepted: int = Field(default=0, ge=0)

    @property
    def is_cut(self) -> bool:
        """Whether it ended because its tokens ran out."""
        return self.stop == "limit"


class Replies(Strict):
    """All answers of one variant; ``model`` is the file's name, ``build`` the engine's word for its version."""

    variant: str
    model: str
    build: str
    max_tokens: int
    replies: tuple[Reply, ...]


class Divergence(Strict):
    """
    Where two answers part, ``position`` tokens into them.

    A token is None where that answer ends. The texts are some tokens before, and of either answer from there on.
    ``gap_nats`` is how much likelier the baseline's token is than the variant's, as ln(p/q), for the model that was
    asked: near 0, rounding decides between them. It is None where it was not asked, or is not known.
    """

    position: int
    baseline_token: int | None
    variant_token: int | None
    baseline_token_text: str
    variant_token_text: str
    before: str
    baseline_after: str
    variant_after: str
    gap_nats: float | None = None


class Comparison(Strict):
    """Two answers to one prompt: their tokens, how many agree from the first on, where they part."""

    prompt: str
    baseline_tokens: int
    variant_tokens: int
    common_tokens: int
    is_identical: bool
    # Of the longer answer, 0 to 1.
    agreed_share: float
    divergence: Divergence | None


class Agreement(Strict):
    """
    How far a variant says what the baseline says.

    ``identical_share`` is of the prompts; ``agreed_share`` the tokens before the first divergences, of all tokens of
    the longer answers. ``drafted`` and ``accepted`` are the variant's draft tokens: with 0 nothing was tested.
    """

    baseline: str
    variant: str
    baseline_model: str
    variant_model: str
    max_tokens: int
    comparisons: tuple[Comparison, ...]
    identical: int
    identical_share: float
    agreed_share: float
    drafted: int
    accepted: int


def compare(baseline: Replies, variant: Replies, text_of: TextOf, gap_of: GapOf | None = None) -> Agreement:
    """
    Two variants' answers, token by token. Pure but for what the two functions ask.

    :param text_of: the text of some tokens, as ``GreedyServer.text_of``
    :param gap_of: how far apart two tokens are for the model; asked once for each divergence between two tokens
    :raises AgreementError: they did not answer the same prompts with the same number of tokens allowed, or none.
    """
    if baseline.max_tokens != variant.max_tokens:
        raise AgreementError(
            f"{baseline.variant} was allowed {baseline.max_tokens} tokens, {variant.variant} {variant.max_tokens}. "
            "Fix: ask both for the same number"
        )
    asked, answered = ([(one.prompt, one.prompt_sha256) for one in side.replies] for side in (baseline, variant))
    if asked != answered or not asked:
        other = next((name for name, _ in {*asked} ^ {*answered}), "in another order" if asked else "none at all")
        raise AgreementError(
            f"{baseline.variant} and {variant.variant} did not answer the same prompts ({other}). "
            "Fix: ask both the same, with the same chat template"
        )
    pairs = zip(baseline.replies, variant.replies, strict=True)
    found = tuple(_compared(one, other, text_of, gap_of) for one, other in pairs)
    longest = sum(max(one.baseline_tokens, one.variant_tokens) for one in found)
    identical = sum(one.is_identical for one in found)
    return Agreement(
        baseline=baseline.variant,
        variant=variant.variant,
        baseline_model=baseline.model,
        variant_model=variant.model,
        max_tokens=baseline.max_tokens,
        comparisons=found,
        identical=identical,
        identical_share=identical / len(found),
        agreed_share=sum(one.common_tokens for one in found) / longest if longest else 1.0,
        drafted=sum(one.drafted for one in variant.replies),
        accepted=sum(one.accepted for one in variant.replies),
    )


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are the same from the first on."""
    return next(
        (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
        min(len(one), len(other)),
    )


def _compared(baseline: Reply, variant: Reply, text_of: TextOf, gap_of: GapOf | None) -> Comparison:
    common = common_prefix(baseline.tokens, variant.tokens)
    longer = max(len(baseline.tokens), len(variant.tokens))
    is_identical = common == longer
    return Comparison(
        prompt=baseline.prompt,
        baseline_tokens=len(baseline.tokens),
        variant_tokens=len(variant.tokens),
        common_tokens=common,
        is_identical=is_identical,
        agreed_share=common / longer if longer else 1.0,
        divergence=None if is_identical else _divergence(baseline, variant, common, text_of, gap_of),
    )


def _divergence(baseline: Reply, variant: Reply, position: int, text_of: TextOf, gap_of: GapOf | None) -> Divergence:
    agreed = baseline.tokens[:position]
    rests = baseline.tokens[position:], variant.tokens[position:]
    tokens = [rest[0] if rest else None for rest in rests]
    first, second = tokens
    gap = None
    if gap_of is not None and first is not None and second is not None:
        gap = gap_of(baseline.prompt, agreed, first, second)
    return Divergence(
        position=position,
        baseline_token=first,
        variant_token=second,
        baseline_token_text=text_of(rests[0][:1]),
        variant_token_text=text_of(rests[1][:1]),
        before=text_of(agreed[-AROUND:]),
        baseline_after=text_of(rests[0][:AROUND]),
        variant_after=text_of(rests[1][:AROUND]),
        gap_nats=gap,
    )


def explain(found: Agreement) -> str:
    """What was found in a paragraph or two: the figures, and where answers part, why that need not be a fault."""
    count = len(found.comparisons)
    text = (
        f"{found.variant} gave the same answer as {found.baseline} to {found.identical} of {count} prompts at "
        f"temperature 0; {100 * found.agreed_share:.1f} % of all tokens stand before a first divergence."
    )
    if found.drafted == 0:
        text += f" {found.variant} drafted nothing, so this says nothing about drafting."
    else:
        text += f" {found.accepted} of {found.drafted} drafted tokens were accepted."
    if found.baseline_model != found.variant_model:
        text += f" They are of two files, {found.baseline_model} and {found.variant_model}."
    if found.identical == count:
        return text
    lines = [_told(one.prompt, one.divergence) for one in found.comparisons if one.divergence is not None]
    return "\n".join([text, *lines, "", WHY])


def _told(prompt: str, found: Divergence) -> str:
    first, second = (
        "the end" if token is None else repr(text)
        for token, text in (
            (found.baseline_token, found.baseline_token_text),
            (found.variant_token, found.variant_token_text),
        )
    )
    gap = "" if found.gap_nats is None else f", {found.gap_nats:+.3f} nats apart"
    return f"{prompt}: after {found.position} tokens, {first} against {second}{gap}, behind {found.before!r}"


# --- asking ----------------------------------------------------------------------------------------


class GreedyServer:
    """
    A llama-server that is asked at temperature 0, by its address; the key goes into no text of ours.

    :param key: the server's; None for a server without one
    :param answer_s: how long an answer may take, in seconds; nothing of it is seen before it has ended
    """

    def __init__(self, url: str, key: str | None = None, answer_s: float = 3600) -> None:
        self.url = root_of(url)
        try:
            self._http = http_client(self.url, key, answer_s, CONNECT_S)
        except (httpx.InvalidURL, ValueError) as error:
            raise AgreementError(f"{url!r} is no address. Fix: write it as http://127.0.0.1:8910") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def replies(self, variant: str, prompts: Mapping[str, Messages], max_tokens: int) -> Replies:
        """
        Ask for an answer to each prompt, one after the other, at temperature 0.

        :param variant: what to call the server in the result
        :param prompts: chats by name; each ends with the user's words
        :param max_tokens: of an answer, at most
        :raises AgreementError: the server has more than one slot, does not answer, gives no tokens, or did not sample
            at temperature 0.
        """
        props = self._get("/props")
        self._refuse_company(props)
        return Replies(
            variant=variant,
            model=str(props.get("model_path", "")).replace("\\", "/").rpartition("/")[2],
            build=str(props.get("build_info", "")),
            max_tokens=max_tokens,
            replies=tuple(self._reply(name, chat, max_tokens) for name, chat in prompts.items()),
        )

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of some tokens; a character that is not whole becomes U+FFFD."""
        if not tokens:
            return ""
        return _field(self._post("/detokenize", {"tokens": list(tokens)}, SHORT_S), "content", str, self.url)

    def gap(self, messages: Messages, agreed: Sequence[int], first: int, second: int) -> float | None:
        """
        How much likelier the model holds one token than another behind a prompt and some tokens: ln(p/q), in nats.

        None if either is not among its first choices. What is asked is the server's model, in one batch: where the
        rounding of that batch decides, too, the gap can come out on either side of 0.
        """
        body = {
            **GREEDY, "prompt": [self._worded(messages), *agreed], "n_predict": 1, "n_probs": CHOICES,
            "cache_prompt": False,
        }  # fmt: skip
        answer = self._post("/completion", body)
        places = answer.get("completion_probabilities")
        if not isinstance(places, list) or not places or not isinstance(places[0], dict):
            return None
        chances = {
            one["id"]: one["logprob"]
            for one in places[0].get("top_logprobs") or []
            if isinstance(one, dict) and isinstance(one.get("logprob"), float | int) and "id" in one
        }
        if first not in chances or second not in chances:
            return None
        return float(chances[first] - chances[second])

    def gap_of(self, prompts: Mapping[str, Messages]) -> GapOf:
        """``gap`` by a prompt's name, as ``compare`` asks it."""
        return lambda name, agreed, first, second: self.gap(prompts[name], agreed, first, second)

    # --- one request --------------------------------------------------------------------------------

    def _refuse_company(self, props: Mapping[str, Any]) -> None:
        slots = _field(props, "total_slots", int, self.url)
        if slots != 1:
            raise AgreementError(
                f"{self.url} has {slots} slots, and answers of several at a time are computed in one batch, whose "
                "rounding depends on the company. Fix: serve with one slot (slots: 1, --parallel 1)"
            )

    def _worded(self, messages: Messages) -> str:
        body = {"messages": [dict(one) for one in messages]}
        return _field(self._post("/apply-template", body, SHORT_S), "prompt", str, self.url)

    def _reply(self, name: str, messages: Messages, max_tokens: int) -> Reply:
        worded = self._worded(messages)
        body = {**GREEDY, "prompt": worded, "n_predict": max_tokens, "return_tokens": True, "cache_prompt": False}
        answer = self._post("/completion", body)
        self._refuse_chance(name, _field(answer, "generation_settings", dict, self.url))
        tokens = _field(answer, "tokens", list, self.url)
        if not tokens or not all(isinstance(token, int) for token in tokens):
            raise AgreementError(
                f"{self.url} gives no tokens for prompt {name!r}. Fix: see why the model ends at once, or take an "
                "engine that knows return_tokens"
            )
        if answer.get("truncated"):
            raise AgreementError(
                f"the context of {self.url} is too small for prompt {name!r} and {max_tokens} tokens. "
                "Fix: serve with a larger context, or ask for fewer tokens"
            )
        timings = answer.get("timings") or {}
        return Reply(
            prompt=name,
            prompt_sha256=hashlib.sha256(worded.encode()).hexdigest(),
            tokens=tuple(tokens),
            text=_field(answer, "content", str, self.url),
            stop=str(answer.get("stop_type", "")),
            drafted=timings.get("draft_n", 0),
            accepted=timings.get("draft_n_accepted", 0),
        )

    def _refuse_chance(self, name: str, used: Mapping[str, Any]) -> None:
        wrong = {key: used.get(key) for key, value in GREEDY.items() if key in used and used[key] != value}
        if used.get("temperature") != 0 or wrong:
            said = ", ".join(f"{key} {value}" for key, value in (wrong or {"temperature": "unknown"}).items())
            raise AgreementError(
                f"{self.url} answered prompt {name!r} with {said}, not at temperature 0. "
                "Fix: see that nothing in front of the server changes requests"
            )
        if "temperature" not in used.get("samplers", ["temperature"]):
            raise AgreementError(
                f"{self.url} was started with samplers that heed no temperature ({', '.join(used['samplers'])}). "
                "Fix: serve without --samplers"
            )

    def _get(self, path: str) -> dict[str, Any]:
        return self._read(path, lambda: self._http.get(path, timeout=SHORT_S))

    def _post(self, path: str, body: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
        patience = self._http.timeout if seconds is None else httpx.Timeout(seconds)
        return self._read(path, lambda: self._http.post(path, json=dict(body), timeout=patience))

    def _read(self, path: str, ask: Callable[[], httpx.Response]) -> dict[str, Any]:
        """
        A JSON table from the server.

        :raises AgreementError: it does not answer, refuses, or answers something else.
        """
        try:
            answer = ask()
        except httpx.TimeoutException as error:
            raise AgreementError(
                f"{self.url}{path} does not answer in time. Fix: see whether the server still computes, "
                "or allow more time"
            ) from error
        except httpx.HTTPError as error:
            raise AgreementError(
                f"{self.url}{path} does not answer ({str(error) or type(error).__name__}). "
                "Fix: deploy, or look at the server's log for why it ended"
            ) from error
        if answer.status_code in (401, 403):
            raise AgreementError(f"{self.url} wants another API key. Fix: name its key's file with --key-file")
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code != 200:
            said = found.get("error") if isinstance(found, dict) else None
            why = said.get("message", "") if isinstance(said, dict) else ""
            raise AgreementError(
                f"{self.url}{path} answers {answer.status_code}{f' ({why})' if why else ''}. "
                f"{'Fix: wait until its model is loaded' if answer.status_code == 503 else NO_SERVER}"
            )
        if not isinstance(found, dict):
            raise AgreementError(f"{self.url}{path} answers what is no JSON table. {NO_SERVER}")
        return found


def _field(table: Mapping[str, Any], name: str, kind: type[T], url: str) -> T:
    found = table.get(name)
    if not isinstance(found, kind):
        raise AgreementError(f"{url} does not say its {name}. {NO_SERVER}")
    return found
