"""
The record of one run of the benchmark: who was measured, on what, and every single request. Pure but for its file.

A record holds what was seen. What follows from that (medians, speed-ups, acceptance, marks of heat) is computed from
its requests and samples, here as properties or in ``beeyard.bench.summary``, and is stored nowhere.

Units are in the names: ``_s`` seconds, ``_ms`` milliseconds, ``_us`` microseconds, ``_per_s`` tokens a second. Times
without a date count from the record's ``began``. None is what was not said; 0 was said to be 0.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from beeyard.bench.agreement import Agreement
from beeyard.bench.sandbox import Surroundings
from beeyard.bench.verdicts import Verdict
from beeyard.catalog import CatalogError, sentence

SCHEMA_VERSION: Literal[1] = 1

Name = Annotated[str, StringConstraints(min_length=1)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]


class RecordError(CatalogError):
    """A record that cannot be read, or not written. Its text is one sentence that ends in ``Fix: …``."""


class Part(BaseModel):
    """Frozen; a wrong key, NaN and infinity are errors; text is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


# --- who was measured -------------------------------------------------------------------------------


class Engine(Part):
    """The build of llama-server; what it says of itself is in ``build``, as ``b10068-571d0d5``."""

    name: str = ""
    title: str = ""
    commit: str | None = None
    dialect: str = ""
    build: str = ""


class Model(Part):
    """A model file as the lock has it; of a server that somebody else runs only what the server calls it."""

    name: str
    size: Count | None = None
    sha256: Digest | None = None
    revision: str | None = None


class Variant(Part):
    """
    A way of decoding that was measured, in full: two of these side by side show what differs.

    ``spec`` is the ServerSpec as JSON of the Beeyard that deployed it, ``decided`` what the plan decided for the host
    (its ``decided.json``), ``server`` the facts that the host keeps of it (``server.json``), ``props`` what the
    server itself says (of ``/props``: context, slots, model). All but ``name`` and ``props`` is empty where only an
    address was given.
    """

    name: Name
    preset: str = ""
    decoding: str = ""
    title: str = ""
    runtime: str = ""
    engine: Engine = Engine()
    model: Model | None = None
    draft: Model | None = None
    argv: tuple[str, ...] = ()
    spec: dict[str, Any] = {}
    decided: dict[str, Any] = {}
    server: dict[str, Any] = {}
    props: dict[str, Any] = {}


class Card(Part):
    """A GPU of the host."""

    index: Count
    name: str
    uuid: str = ""
    memory_total_mib: Count | None = None
    power_limit_w: Amount | None = None


class Host(Part):
    """
    The machine that the server ran on; empty text and None are what was not known.

    ``price_per_hour`` is what it costs, in ``currency``; None for a machine of one's own that nobody priced.
    """

    name: Name
    price_per_hour: Amount | None = None
    currency: str = "USD"
    cards: tuple[Card, ...] = ()
    driver: str = ""
    driver_cuda: str = ""
    cpu: str = ""
    cores: Count | None = None
    memory_mib: Count | None = None
    kernel: str = ""


# --- what was asked ----------------------------------------------------------------------------------


class Asked(Part):
    """
    A prompt of a workload, as far as all its requests share it.

    ``sha256`` is of its messages without the nonce, as JSON; the same digest means the same question. ``source`` says
    whose words they are.
    """

    workload: Name
    prompt: Name
    sha256: Digest
    max_tokens: Count
    temperature: Amount
    source: str = ""


class Protocol(Part):
    """How it was measured: rounds, warm-ups before each, the run's nonce, how many answers each prompt got."""

    rounds: Annotated[int, Field(ge=1)]
    warm_ups: Count
    nonce: Name
    seed: int
    # The variants as they took turns, one name a round, as baseline dflash baseline dflash.
    order: tuple[str, ...] = ()


# --- what came back ----------------------------------------------------------------------------------


class Latency(Part):
    """Of the gaps between the tokens of an answer as they reached us; ``count`` of them."""

    count: Count
    p50_ms: Amount
    p95_ms: Amount
    p99_ms: Amount
    max_ms: Amount


class Request(Part):
    """
    One request and what came of it. With a ``fault`` it counts for nothing but the number of faults.

    Server's figures (``timings`` of its last chunk): ``prompt_tokens``, ``cached_tokens`` among them,
    ``completion_tokens``, ``prompt_per_s``, ``prompt_ms``, ``decode_per_s``, ``decode_ms``, ``draft_n`` and
    ``draft_n_accepted`` (None where it does not draft or does not say). Its rate divides all tokens by the time from
    the first one to the last.

    Our clock: ``first_token_ms`` from sending (the connection's making included) to the first text, ``wall_ms`` to
    the end, ``own_decode_ms`` from the first text to the answer's end, ``own_decode_per_s`` = (tokens - 1) / that,
    ``latency`` and the gaps themselves. A gap is between two chunks of the stream that bring text: nearly always
    tokens, but a character of several tokens comes as one.

    From ``/metrics`` before and after: ``drafts``, how many times the drafter was asked, and
    ``accepted_per_position``, how many of its first, second, … tokens were right.
    """

    variant: Name
    workload: Name
    prompt: Name
    round: Annotated[int, Field(ge=1)]
    is_scored: bool
    # Since the record's beginning.
    began_s: Amount
    ended_s: Amount
    seed: int
    temperature: Amount
    max_tokens: Count
    nonce: str = ""
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_per_s: Amount | None = None
    prompt_ms: Amount | None = None
    decode_per_s: Amount | None = None
    decode_ms: Amount | None = None
    first_token_ms: Amount | None = None
    wall_ms: Amount | None = None
    own_decode_ms: Amount | None = None
    own_decode_per_s: Amount | None = None
    latency: Latency | None = None
    gaps_us: tuple[Count, ...] | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None
    drafts: Count | None = None
    accepted_per_position: tuple[Count, ...] | None = None
    finish_reason: str | None = None
    text_sha256: Digest | None = None
    text: str | None = None
    token_ids: tuple[Count, ...] | None = None
    # What is wrong with it, as a sentence with its Fix.
    fault: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it may go into a figure: not a warm-up, and nothing is wrong with it."""
        return self.is_scored and self.fault is None

    @property
    def acceptance(self) -> float | None:
        """Accepted of proposed draft tokens, 0 to 1; None where nothing was drafted."""
        return (self.draft_n_accepted or 0) / self.draft_n if self.draft_n else None

    @property
    def drafted_share(self) -> float | None:
        """Accepted draft tokens of all tokens of the answer, 0 to 1, as BeeLlama's tables have it second."""
        if not self.draft_n or not self.completion_tokens:
            return None
        return (self.draft_n_accepted or 0) / self.completion_tokens

    @property
    def tokens_per_step(self) -> float | None:
        """
        Tokens that a step of the target brings on average: all tokens by those that no draft brought.

        None where nothing was drafted. The timings alone say it, so that it is there for every engine that drafts.
        """
        if not self.draft_n or self.completion_tokens is None:
            return None
        own = self.completion_tokens - (self.draft_n_accepted or 0)
        return self.completion_tokens / own if own > 0 else None

    @property
    def mean_accepted_length(self) -> float | None:
        """
        Tokens that a step of the target brings on average where it verified a draft: its own one and those accepted.

        None where the number of drafts is not known.
        """
        if not self.drafts or self.draft_n_accepted is None:
            return None
        return 1 + self.draft_n_accepted / self.drafts


class Foreign(Part):
    """A process that is not the server's and has memory of its card."""

    pid: Count
    name: str
    used_mib: Count | None = None


class GpuSample(Part):
    """One look at one card; None is what nvidia-smi answers with ``[N/A]``. ``throttle`` are its reasons."""

    at_s: Amount
    index: Count
    variant: str = ""
    temperature_c: int | None = None
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    sm_clock_mhz: Count | None = None
    memory_used_mib: Count | None = None
    utilisation_percent: Count | None = None
    throttle: tuple[str, ...] | None = None
    foreign: tuple[Foreign, ...] = ()


# --- is it still right? ------------------------------------------------------------------------------
# How far answers agree is an Agreement of beeyard.bench.agreement.


class TriedAnswer(Part):
    """What came of the module in an answer: its own tests and ours, run in a sandbox."""

    variant: Name
    workload: Name
    prompt: Name
    round: Annotated[int, Field(ge=1)]
    verdict: Verdict


# --- the record --------------------------------------------------------------------------------------


class Record(Part):
    """One run. ``notes`` are what the run wants said beside any figure, a sentence each."""

    schema_version: Literal[1] = SCHEMA_VERSION
    tool_version: Name
    began: AwareDatetime
    ended: AwareDatetime
    host: Host
    protocol: Protocol
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]
    prompts: tuple[Asked, ...]
    requests: tuple[Request, ...]
    gpu_samples: tuple[GpuSample, ...] = ()
    # At temperature 0, of each variant with the first one, and of that one with itself; None: it was not looked at.
    agreement: tuple[Agreement, ...] | None = None
    tests_passed: tuple[TriedAnswer, ...] | None = None
    sandbox: Surroundings | None = None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_are_known(self) -> "Record":
        names = [variant.name for variant in self.variants]
        if len(set(names)) != len(names):
            raise ValueError("two of its variants have one name")
        asked = {(one.workload, one.prompt) for one in self.prompts}
        for request in self.requests:
            if request.variant not in names:
                raise ValueError(f"a request is of variant {request.variant!r}, which is none of {', '.join(names)}")
            if request.is_scored and (request.workload, request.prompt) not in asked:
                raise ValueError(f"a request is of {request.workload}/{request.prompt}, which is none of its prompts")
        told = [name for one in self.agreement or () for name in (one.baseline, one.variant)]
        told += [one.variant for one in self.tests_passed or ()]
        strange = next((name for name in told if name not in names), None)
        if strange is not None:
            raise ValueError(f"it says of {strange!r} whether it is right, which is none of {', '.join(names)}")
        return self

    def scored(self, variant: str, workload: str | None = None, prompt: str | None = None) -> Iterator[Request]:
        """The requests that go into figures: of a variant, and of one workload or prompt where those are named."""
        for request in self.requests:
            is_of = request.variant == variant and workload in (None, request.workload)
            if is_of and prompt in (None, request.prompt) and request.counts:
                yield request

    @property
    def faulty(self) -> tuple[Request, ...]:
        """The scored requests that went wrong: to be named and counted, never averaged in."""
        return tuple(request for request in self.requests if request.is_scored and request.fault is not None)


def dump(record: Record) -> str:
    """As JSON that people can look through: a line a request."""
    fields = record.model_dump(mode="json")
    lines = []
    for name, value in fields.items():
        if isinstance(value, list) and value and name in ("requests", "gpu_samples", "prompts"):
            rows = ",\n".join(f"  {_compact(row)}" for row in value)
            lines.append(f" {json.dumps(name)}: [\n{rows}\n ]")
        else:
            text = json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\n ")
            lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(row: object) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse(text: str, name: str) -> Record:
    """
    Read a record.

    :param name: the file's, for messages
    :raises RecordError: it is no JSON, no record, one of another version, or broken; each says what it is.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{name} is not JSON ({error}). Fix: measure again, or find an unbroken copy") from error
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version is None:
        raise RecordError(f"{name} is no record of a benchmark. Fix: name a file that `beeyard bench` wrote")
    if version != SCHEMA_VERSION:
        writer = found.get("tool_version", "another version")
        raise RecordError(
            f"{name} is a record of schema {version}, written by Beeyard {writer}; this one reads schema "
            f"{SCHEMA_VERSION}. Fix: use that version, or measure again"
        )
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        raise RecordError(
            f"{name} is a broken record ({sentence(error).partition('. Fix:')[0]}). "
            "Fix: measure again, or find an unbroken copy"
        ) from error


def load(file: Path) -> Record:
    """
    Read a record from its file.

    :raises RecordError: as ``parse``, or the file cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{file}: {error}. Fix: name a file that `beeyard bench` wrote") from error
    return parse(text, str(file))


def save(record: Record, file: Path) -> None:
    """
    Write a record, whole or not at all.

    :raises RecordError: the file cannot be written.
    """
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(dump(record), encoding="utf-8")
        fresh.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise RecordError(f"{file}: {error.strerror or error}. Fix: name a file that can be written") from error
