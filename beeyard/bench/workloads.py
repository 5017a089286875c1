"""From workloads to questions, and from a question to a request. The prompts are in presets/workloads.yaml."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from beeyard.bench.client import BenchError
from beeyard.bench.record import Asked
from beeyard.catalog import Prompt, Workload, pick

Count = Callable[[str], int]
# Of a long prompt: how far below the wanted tokens it may stay, how often it is measured on the way there.
CLOSE, TRIES = 0.01, 8
# Tokens that the template, the nonce and the question take beside the filler.
ROOM = 256

SITES = ("Ashford", "Birkholm", "Castellar", "Dunmore", "Elverum", "Fontana", "Greifswald", "Holmsund", "Ilkley")
STATES = ("steady", "falling", "rising", "unclear", "as forecast", "above its limit", "below its limit")
VALUES = ("pressure", "humidity", "wind", "rainfall", "temperature", "visibility", "soil moisture", "water level")
PEOPLE = ("Amara", "Benedikt", "Chiara", "Dmitri", "Esther", "Farid", "Greta", "Hiroshi", "Ines", "Jonas", "Kaja")


@dataclass(frozen=True)
class Question:
    """A prompt, ready to be asked; the same ``sha256`` means the same words, sampling and schema."""

    workload: str
    prompt: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    temperature: float
    source: str = ""
    answer_schema: dict[str, Any] | None = None

    @property
    def sha256(self) -> str:
        """Of its messages and schema."""
        said = json.dumps([self.messages, self.answer_schema], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()

    @property
    def asked(self) -> Asked:
        """As a record has it."""
        return Asked(
            workload=self.workload, prompt=self.prompt, sha256=self.sha256, max_tokens=self.max_tokens,
            temperature=self.temperature, source=self.source,
        )  # fmt: skip

    def body(self, nonce: str, seed: int, max_tokens: int | None = None) -> dict[str, Any]:
        """The chat request. The nonce stands before the very first words: no cache of prompts can help after it."""
        first, *others = self.messages
        messages = [{**first, "content": f"[{nonce}]\n{first['content']}"}, *others]
        body: dict[str, Any] = {
            "messages": messages, "max_tokens": max_tokens or self.max_tokens, "temperature": self.temperature,
            "seed": seed,
        }  # fmt: skip
        if self.answer_schema is not None:
            schema = {"name": self.prompt, "strict": True, "schema": self.answer_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body


def nonce_of(run: str, question: Question, round_number: int, attempt: str = "") -> str:
    """
    Twelve hex digits before a prompt: the same for every variant of a run, so that all answer the very same.

    Other in every round and every run, so that neither meets what a server may still know.
    """
    said = f"{run}/{question.workload}/{question.prompt}/{round_number}/{attempt}"
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def questions(
    workloads: Mapping[str, Workload], names: Iterable[str], count: Count, context: int | None
) -> tuple[list[Question], list[str]]:
    """
    The questions of these workloads, ``NAME`` or ``NAME/PROMPT``, and a sentence for each that does not fit.

    :param count: the server's own count of a text's tokens; only long prompts need it
    :param context: of a slot, in tokens; None where it is not known
    :raises CatalogError: there is no such workload or prompt.
    :raises BenchError: none is left.
    """
    found: dict[tuple[str, str], Question] = {}
    notes = []
    for name in names:
        workload_name, _, prompt_name = name.partition("/")
        workload = pick(workloads, workload_name, "workload")
        prompts = {prompt_name: pick(workload.prompts, prompt_name, "prompt")} if prompt_name else workload.prompts
        for key, prompt in prompts.items():
            wanted = prompt.filler_tokens + ROOM + workload.max_tokens if prompt.filler_tokens else 0
            if context is not None and wanted > context:
                notes.append(
                    f"{workload_name}/{key} was left out: it wants a context of {wanted}, a slot has {context}"
                )
                continue
            found[workload_name, key] = _question(workload_name, workload, key, prompt, count)
    if not found:
        raise BenchError(
            f"nothing is left to ask: {'; '.join(notes) or 'no workload was named'}. "
            "Fix: name another --workload, or serve with a larger context"
        )
    return list(found.values()), notes


def _question(workload_name: str, workload: Workload, name: str, prompt: Prompt, count: Count) -> Question:
    messages = [message.model_dump() for message in prompt.messages]
    if prompt.filler_tokens:
        messages[0]["content"] = f"{filler(prompt.filler_tokens, count)}\n\n{messages[0]['content']}"
    return Question(
        workload=workload_name, prompt=name, messages=tuple(messages), max_tokens=workload.max_tokens,
        temperature=workload.temperature, source=workload.source, answer_schema=prompt.answer_schema,
    )  # fmt: skip


def filler(tokens: int, count: Count) -> str:
    """
    Made-up records of a weather service, at most so many tokens long and hardly shorter: the same ones every time.

    :raises BenchError: the tokenizer counts in a way that cannot be followed.
    """
    lines = max(1, tokens // 40)
    best = 0
    too_many = None
    for _ in range(TRIES):
        taken = count(_records(lines))
        if taken <= tokens:
            best = max(best, lines)
            if taken >= tokens * (1 - CLOSE):
                break
        else:
            too_many = lines if too_many is None else min(too_many, lines)
        step = max(1, lines * tokens // max(1, taken))
        if too_many is not None:
            step = min(step, too_many - 1)
        if step <= best:
            break
        lines = step
    if best == 0:
        raise BenchError(
            f"no text of {tokens} tokens can be made with this server's tokenizer. Fix: leave out the workload `long`"
        )
    return _records(best)


def _records(lines: int) -> str:
    """So many records; more begin with the very same."""
    drawn = np.random.PCG64(8910).random_raw(lines * 6).reshape(lines, 6).tolist()
    return "\n".join(_record(number, *draws) for number, draws in enumerate(drawn, 1))


def _record(number: int, site: int, value: int, state: int, who: int, amount: int, hour: int) -> str:
    return (
        f"Record {number}: at {hour % 24:02d}:{hour // 24 % 60:02d} the station in {SITES[site % len(SITES)]} "
        f"reported {VALUES[value % len(VALUES)]} {STATES[state % len(STATES)]}, {amount % 1000 / 10:.1f} on its "
        f"scale; {PEOPLE[who % len(PEOPLE)]} confirmed it."
    )
