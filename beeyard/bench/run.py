"""
Measure: one round of one variant, and a whole run of the variant that is there.

``measure`` is what a comparison interleaves: it asks every question once and changes nothing on the host.
"""

import hashlib
import secrets
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest

from beeyard.bench.client import STARTED_ANEW, Answer, BenchError, Look, Server, fault_of, is_amount
from beeyard.bench.gpu import Sampler
from beeyard.bench.record import Host, Latency, Protocol, Record, Request, Variant
from beeyard.bench.statistics import percentiles
from beeyard.bench.workloads import Question, nonce_of
from beeyard.catalog import PROJECT

# Tokens of a warm-up's answer.
WARM_UP_TOKENS = 48
POLL_S = 0.5

Tell = Callable[[Request], None]


@dataclass(frozen=True)
class Session:
    """
    What all rounds of a run share.

    ``nonce`` and ``seed`` make every variant of a run answer the very same; ``began`` is the monotonic time from
    which the record counts. ``keeps_text`` and ``keeps_gaps`` say whether answers and every gap go into the record.
    """

    server: Server
    questions: Sequence[Question]
    seed: int = 1
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.monotonic)
    keeps_text: bool = True
    keeps_gaps: bool = True


def measure(
    session: Session,
    variant: str,
    round_number: int,
    warm_ups: int = 1,
    tell: Tell = lambda _: None,
    since: Look | None = None,
) -> list[Request]:
    """
    One round of the variant that serves now: warm-ups, which are not scored, then each question once.

    Whatever goes wrong is the fault of a request; a server that goes away and does not come back leaves the rest of
    the questions unasked, which their faults say.

    :param variant: its name, for the record
    :param round_number: from 1
    :param warm_ups: before the questions; a server that was just started needs one
    :param tell: is called with each request as soon as it is done
    :param since: how the server looked after the round before, where it should be the very same process still
    """
    return _Round(session, variant, round_number, tell, since).measure(warm_ups)


class _Round:
    """One round under way."""

    def __init__(self, session: Session, variant: str, number: int, tell: Tell, since: Look | None) -> None:
        self._session, self._server, self._variant, self._number = session, session.server, variant, number
        self._tell, self._last = tell, since
        self._found: list[Request] = []

    def measure(self, warm_ups: int) -> list[Request]:
        for number in range(warm_ups):
            self._warm_up(f"warm-up {number}")
        is_there = True
        for question in self._session.questions:
            if not is_there:
                self._keep(_unasked(self._session, self._variant, self._number, question))
                continue
            fault = self._ask(question).fault
            is_cold = fault == STARTED_ANEW
            if fault is not None and _look(self._server) is None:
                is_there = is_cold = _came_back(self._server)
                self._last = None
            if is_cold:
                self._warm_up(f"warm-up after {len(self._found)}")
        return self._found

    def _keep(self, request: Request) -> Request:
        self._found.append(request)
        self._tell(request)
        return request

    def _warm_up(self, name: str) -> None:
        """Ask one that is not scored, anew while the server says that it still loads, whatever /health says."""
        deadline = time.monotonic() + self._server.patience.load_s
        attempt = 0
        while True:
            request, is_loading = self._one(self._session.questions[0], f"{name}.{attempt}", WARM_UP_TOKENS)
            if not is_loading or time.monotonic() > deadline:
                self._keep(request)
                return
            attempt += 1
            time.sleep(POLL_S)

    def _ask(self, question: Question) -> Request:
        return self._keep(self._one(question, "", None)[0])

    def _one(self, question: Question, warm_up: str, max_tokens: int | None) -> tuple[Request, bool]:
        session = self._session
        seed = session.seed + self._number
        nonce = nonce_of(session.nonce, question, self._number, warm_up)
        before, last = _look(self._server), self._last
        began = time.monotonic()
        if before is None:
            answer = Answer(fault=f"{self._server.url} does not answer. Fix: look at its log for why it ended")
        else:
            answer = self._server.ask(question.body(nonce, seed, max_tokens))
        ended = time.monotonic()
        after = self._last = _look(self._server)
        request = _as_request(
            session, self._variant, question, answer, before or Look(), after,
            round=self._number, is_scored=not warm_up, seed=seed, nonce=nonce, began_s=began - session.began,
            ended_s=ended - session.began, max_tokens=max_tokens or question.max_tokens,
        )  # fmt: skip
        if last is not None and before is not None and not last.is_same_process_as(before):
            request = request.model_copy(update={"fault": STARTED_ANEW})
        return request, answer.is_loading


def _unasked(session: Session, variant: str, round_number: int, question: Question) -> Request:
    now = time.monotonic() - session.began
    return Request(
        variant=variant, workload=question.workload, prompt=question.prompt, round=round_number, is_scored=True,
        began_s=now, ended_s=now, seed=session.seed + round_number, temperature=question.temperature,
        max_tokens=question.max_tokens,
        fault="it was not asked: the server had gone and did not come back. Fix: look at its log for why it ended",
    )  # fmt: skip


def _look(server: Server) -> Look | None:
    try:
        return server.look()
    except BenchError:
        return None


def _came_back(server: Server) -> bool:
    deadline = time.monotonic() + server.patience.return_s
    while time.monotonic() < deadline:
        try:
            server.await_ready()
            return True
        except BenchError:
            time.sleep(POLL_S)
    return False


def _as_request(
    session: Session,
    variant: str,
    question: Question,
    answer: Answer,
    before: Look,
    after: Look | None,
    *,
    round: int,
    is_scored: bool,
    seed: int,
    nonce: str,
    began_s: float,
    ended_s: float,
    max_tokens: int,
) -> Request:
    timings, usage = answer.timings, answer.usage
    tokens = _count(timings.get("predicted_n")) or _count(usage.get("completion_tokens"))
    evaluated, cached = _count(timings.get("prompt_n")), _count(timings.get("cache_n"))
    prompt_tokens = _count(usage.get("prompt_tokens"))
    if prompt_tokens is None and evaluated is not None:
        prompt_tokens = evaluated + (cached or 0)
    own_s = answer.end_s - answer.first_s if answer.first_s is not None and answer.end_s is not None else None
    return Request(
        variant=variant, workload=question.workload, prompt=question.prompt, round=round, is_scored=is_scored,
        began_s=began_s, ended_s=ended_s, seed=seed, temperature=question.temperature, max_tokens=max_tokens,
        nonce=nonce, prompt_tokens=prompt_tokens, cached_tokens=cached, completion_tokens=tokens,
        prompt_per_s=_amount(timings.get("prompt_per_second")), prompt_ms=_amount(timings.get("prompt_ms")),
        decode_per_s=_amount(timings.get("predicted_per_second")), decode_ms=_amount(timings.get("predicted_ms")),
        first_token_ms=answer.first_s * 1000 if answer.first_s is not None else None, wall_ms=answer.wall_s * 1000,
        own_decode_ms=own_s * 1000 if own_s is not None else None,
        own_decode_per_s=(tokens - 1) / own_s if own_s and tokens and tokens > 1 else None,
        latency=latency(answer.gaps_s),
        gaps_us=tuple(round_to_us(gap) for gap in answer.gaps_s) if session.keeps_gaps else None,
        draft_n=_count(timings.get("draft_n")), draft_n_accepted=_count(timings.get("draft_n_accepted")),
        drafts=_more(before.drafts, after.drafts if after else None),
        accepted_per_position=_more_per_position(before.per_position, after.per_position if after else None),
        finish_reason=answer.finish_reason,
        text_sha256=hashlib.sha256(answer.text.encode()).hexdigest() if answer.text else None,
        text=answer.text if session.keeps_text else None, fault=fault_of(answer, before, after),
    )  # fmt: skip


def latency(gaps_s: Sequence[float]) -> Latency | None:
    """The gaps of an answer, summed up; None where it has no two pieces of text."""
    if not gaps_s:
        return None
    p50, p95, p99, most = (value * 1000 for value in percentiles(gaps_s, (0.5, 0.95, 0.99, 1)))
    return Latency(count=len(gaps_s), p50_ms=p50, p95_ms=p95, p99_ms=p99, max_ms=most)


def round_to_us(seconds: float) -> int:
    """Whole microseconds; a clock that stands still for a moment is not negative."""
    return max(0, round(seconds * 1e6))


def _amount(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and is_amount(value) else None


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and is_amount(value) else None


def _more(before: int | None, after: int | None) -> int | None:
    return after - before if before is not None and after is not None and after >= before else None


def _more_per_position(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if after is None:
        return None
    found = tuple(later - sooner for later, sooner in zip_longest(after, before or (), fillvalue=0))
    return found if all(count >= 0 for count in found) else None


# --- a whole run ------------------------------------------------------------------------------------


def tool_version() -> str:
    """Of this Beeyard, with its commit where it is a clone: 0.1.0+1a2b3c4, or 0.1.0+1a2b3c4-dirty."""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        number = str(tomllib.load(file)["project"]["version"])
    command = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return number
    return f"{number}+{found}"


def run(
    session: Session,
    variant: Variant,
    host: Host,
    rounds: int,
    warm_ups: int = 1,
    sampler: Sampler | None = None,
    tell: Tell = lambda _: None,
    notes: Iterable[str] = (),
) -> Record:
    """
    So many rounds of the variant that serves now; warm-ups come before the first.

    It changes nothing on the host. Stopped by the keyboard, it keeps what it has: those rounds that were whole.

    :raises BenchError: the server cannot be asked at all, or was stopped before a round was whole.
    """
    session.server.await_ready()
    began = datetime.now(UTC)
    said = list(notes)
    requests: list[Request] = []
    done = 0
    since = None
    with sampler or nullcontext():
        try:
            for number in range(1, rounds + 1):
                requests += measure(session, variant.name, number, warm_ups if number == 1 else 0, tell, since)
                done, since = number, _look(session.server)
        except KeyboardInterrupt:
            if not done:
                raise BenchError("it was stopped before a round was whole. Fix: let it run, or ask less") from None
            said.append(f"it was stopped after {done} of {rounds} rounds")
    if sampler is not None and sampler.fault:
        said.append(sampler.fault)
    return Record(
        tool_version=tool_version(), began=began, ended=datetime.now(UTC), host=host,
        protocol=Protocol(
            rounds=done, warm_ups=warm_ups, nonce=session.nonce, seed=session.seed, order=(variant.name,) * done
        ),
        variants=(variant,), prompts=tuple(question.asked for question in session.questions),
        requests=tuple(requests), gpu_samples=tuple(sampler.seen) if sampler is not None else (), notes=tuple(said),
    )  # fmt: skip
