"""
Variants in turns on one host: A B A B. Whoever calls brings each to the host, since only HTTP is spoken here.

What drifts while a run lasts, as heat, then meets all of them alike. Where answers are to be held against each other,
each variant is asked once more at temperature 0 behind its first round, and the first of them twice: a server that
does not agree with itself cannot be agreed with.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime

from beeyard.bench.agreement import Agreement, AgreementError, GreedyServer, Replies, compare
from beeyard.bench.client import BenchError
from beeyard.bench.gpu import Sampler
from beeyard.bench.record import Host, Protocol, Record, Request, Variant
from beeyard.bench.run import Session, Tell, measure, tool_version

# Of an answer at temperature 0, at most so many tokens.
GREEDY_TOKENS = 256

# Brings a variant to the host under the gate, and says what serves then. BenchError: it does not.
Switch = Callable[[str], Variant]


@dataclass
class Agreeing:
    """Answers at temperature 0, kept as they come, and held against each other once all are there."""

    server: GreedyServer
    prompts: Mapping[str, Sequence[Mapping[str, str]]]
    max_tokens: int = GREEDY_TOKENS
    _replies: dict[str, list[Replies]] = field(default_factory=dict)

    # Why there is nothing to compare.
    fault: str = ""

    def ask(self, name: str) -> None:
        """Have the server that runs answer; the first variant twice. What cannot be asked is the ``fault``."""
        if self.fault:
            return
        times = 1 if self._replies else 2
        try:
            self._replies[name] = [self.server.replies(name, self.prompts, self.max_tokens) for _ in range(times)]
        except AgreementError as error:
            self.fault = f"whether answers agree was not seen: {error}"

    def found(self) -> tuple[Agreement, ...] | None:
        """Every variant with the first one, and that one with itself. The server that runs says what it thinks."""
        if self.fault or not self._replies:
            return None
        first, *others = self._replies.values()
        pairs = [(first[0], first[1]), *((first[0], other[0]) for other in others)]
        text_of, gap_of = self.server.text_of, self.server.gap_of(self.prompts)
        try:
            return tuple(compare(one, other, text_of, gap_of) for one, other in pairs)
        except AgreementError as error:
            self.fault = f"whether answers agree was not seen: {error}"
            return None


def in_turns(
    session: Session,
    names: Sequence[str],
    rounds: int,
    switch: Switch,
    host: Host,
    *,
    warm_ups: int = 1,
    pause_s: float = 0,
    agreeing: Agreeing | None = None,
    sampler: Sampler | None = None,
    tell: Tell = lambda _: None,
    notes: Sequence[str] = (),
) -> Record:
    """
    So many rounds, each of all variants in their order. The last variant still serves at the end.

    Stopped by the keyboard, or by a variant that cannot be served any more, it keeps the rounds that were whole.

    :param names: of variants; the first is the one that others are held against
    :param warm_ups: before each variant's questions, as its server was just started
    :param pause_s: how long a card may cool before each variant is measured
    :raises BenchError: not even one round was whole.
    """
    began = datetime.now(UTC)
    turns = _Turns(session, switch, warm_ups, pause_s, tell)
    requests: list[Request] = []
    said = list(notes)
    agreement: tuple[Agreement, ...] | None = None
    done = 0
    with sampler or nullcontext():
        try:
            for number in range(1, rounds + 1):
                found = []
                for name in names:
                    found += turns.take(name, number)
                    if agreeing is not None and number == 1:
                        agreeing.ask(name)
                requests += found
                done = number
                if agreeing is not None and number == 1:
                    agreement = agreeing.found()
        except (KeyboardInterrupt, BenchError) as error:
            if not done:
                if isinstance(error, BenchError):
                    raise
                raise BenchError("it was stopped before a round was whole. Fix: let it run, or ask less") from None
            why = str(error) or "it was stopped"
            said.append(f"{done} of {rounds} rounds were whole: {why}")
    said += [one.fault for one in (sampler, agreeing) if one is not None and one.fault]
    return Record(
        tool_version=tool_version(), began=began, ended=datetime.now(UTC), host=host,
        protocol=Protocol(
            rounds=done, warm_ups=warm_ups, nonce=session.nonce, seed=session.seed, order=tuple(names) * done
        ),
        variants=tuple(turns.variants[name] for name in names),
        prompts=tuple(question.asked for question in session.questions), requests=tuple(requests),
        gpu_samples=tuple(sampler.seen) if sampler is not None else (), agreement=agreement, notes=tuple(said),
    )  # fmt: skip


class _Turns:
    """One variant after the other."""

    def __init__(self, session: Session, switch: Switch, warm_ups: int, pause_s: float, tell: Tell) -> None:
        self._session, self._switch, self._warm_ups = session, switch, warm_ups
        self._pause_s, self._tell = pause_s, tell
        self.variants: dict[str, Variant] = {}

    def take(self, name: str, number: int) -> list[Request]:
        """Bring a variant and measure it once."""
        variant = self._switch(name)
        self.variants.setdefault(name, variant)
        self._session.server.await_ready()
        time.sleep(self._pause_s)
        return measure(self._session, name, number, self._warm_ups, self._tell)
