"""
Search what makes a variant fast on a host: every trial is a deploy under the gate, and measured like any other.

Trials are drawn by Optuna's tree-structured Parzen estimator and kept in its journal, so that a search that was
stopped goes on. They all answer the same questions with the same seeds. The best of many is partly the luckiest: so
at the end it is measured anew, in turns with the variant as it was, and that alone is what is said of it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import exp, log
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from beeyard.bench.client import BenchError, Server
from beeyard.bench.record import Record, Request, Variant
from beeyard.bench.run import Session, measure
from beeyard.bench.turns import in_turns
from beeyard.bench.workloads import Question
from beeyard.catalog import CatalogError
from beeyard.comparing import Switching
from beeyard.contract import load_table
from beeyard.hosts import DeployFailed
from beeyard.measured import Measured, of_host
from beeyard.space import Knob, Value, as_it_is, changed, data_of, knobs, said
from beeyard.spec import ServerSpec
from beeyard.survey import Survey, planned, solved

TUNED = "-tuned"
NONCE = "tune"
SECONDS_AN_HOUR = 3600
# Trials of pure chance before the estimator has something to go by.
STARTUP_TRIALS = 8
# Refused, or tried before, so many one after the other: then hardly anything is left to try.
MOST_REFUSED = 40


@dataclass(frozen=True)
class Limits:
    """
    When a search ends: by time, by money, by trials, whichever comes first; the last comparison is within them.

    :raises CatalogError: a limit of money without a price.
    """

    seconds: float = SECONDS_AN_HOUR
    trials: int = 40
    cost: float | None = None
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if self.cost is not None and not self.price_per_hour:
            raise CatalogError("a limit of money wants a price an hour. Fix: add --price, as in --price 0.69")

    @property
    def until_s(self) -> float:
        """How long it may take in all, in seconds."""
        if self.cost is None or not self.price_per_hour:
            return self.seconds
        return min(self.seconds, self.cost / self.price_per_hour * SECONDS_AN_HOUR)

    def spent(self, seconds: float) -> str:
        """In words."""
        text = f"{seconds / 60:.1f} of {self.until_s / 60:.0f} min"
        if self.price_per_hour:
            text += f", {seconds / SECONDS_AN_HOUR * self.price_per_hour:.2f} USD"
        return text


@dataclass
class Tuning:
    """
    One search. ``questions`` are what every trial is asked; ``rounds`` those of the comparison at the end.

    ``server`` reaches the host's server while it is switched; ``who`` is as it was measured first.
    """

    switching: Switching
    host: Survey
    spec: ServerSpec
    questions: Sequence[Question]
    server: Server
    who: Measured
    journal: Path
    limits: Limits
    rounds: int = 5
    seed: int = 1
    tell: Callable[[str], None] = lambda _: None
    _began: float = field(default_factory=time.monotonic)
    _longest_s: float = 0

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """What is tried."""
        return knobs(self.spec, load_table(self.spec.engine.flags))

    def search(self) -> dict[str, Value]:
        """
        Try, until a limit is near, and return the best values.

        :raises CatalogError: the variant as it is cannot be measured.
        """
        study = self._study()
        while not self._is_over(study):
            trial = study.ask({knob.name: CategoricalDistribution(knob.choices) for knob in self.knobs})
            if trial.params in [one.params for one in study.get_trials(deepcopy=False) if one.number != trial.number]:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                continue
            began = time.monotonic()
            try:
                speed = self._try(trial.params, trial.number)
            except KeyboardInterrupt:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                if not self._done(study):
                    raise
                self.tell("stopped; what was tried is kept, and the best of it is what counts")
                break
            except CatalogError as error:
                reason = str(error).partition("\n")[0]
                if trial.params == as_it_is(self.knobs):
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                    raise
                trial.set_user_attr("why", reason)
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                self.tell(f"{self._name(trial.params)}: {reason}")
                continue
            self._longest_s = max(self._longest_s, time.monotonic() - began)
            study.tell(trial, speed)
            self.tell(
                f"trial {len(self._done(study))}: {speed:.1f} tokens/s with {self._name(trial.params)}; best "
                f"{study.best_value:.1f} with {self._name(study.best_params)} ({self._spent()})"
            )
        return dict(study.best_params)

    def prove(self, best: Mapping[str, Value]) -> Record:
        """
        The best against the variant as it is, in turns; its record calls it VARIANT-tuned.

        :raises BenchError: either cannot be served any more.
        """
        plain, tuned = self.spec.variant, self.spec.variant + TUNED

        def serve(name: str) -> Variant:
            more = self._data(best if name == tuned else as_it_is(self.knobs))
            try:
                host = self.switching.bring(plain, more)
            except DeployFailed as error:
                raise BenchError(str(error)) from error
            self.server.await_ready()
            seen = of_host(host, self.switching.catalog, self.server.url, None)
            found = seen.variant(name, self.server.props())
            return found.model_copy(update={"name": name})

        session = Session(self.server, self.questions, seed=self.seed)
        price = self.limits.price_per_hour
        return in_turns(session, (plain, tuned), self.rounds, serve, self.who.host(price), tell=self._told)

    def data(self, best: Mapping[str, Value]) -> dict[str, Any]:
        """What of a host's data, or of a preset, has the best in it: only what is not as it was."""
        return data_of(changed(best, self.knobs), {})

    # --- a trial ------------------------------------------------------------------------------------

    def _try(self, values: Mapping[str, Value], number: int) -> float:
        """
        Tokens a second of whole answers, prompts included: the geometric mean over the questions.

        :raises CatalogError: the plan refuses it, the gate does, or an answer is no good.
        """
        data = self._data(values)
        asked = self.host.model_copy(
            update={"data": {**self.host.data, "llama_variant": self.spec.variant, **data}}
        )  # fmt: skip
        solution = planned(asked, solved(asked, self.switching.catalog), self.switching.catalog, [])
        if solution.spec is None or solution.reasons:
            raise CatalogError(f"refused: {'; '.join(solution.reasons)}")
        self.switching.bring(self.spec.variant, data)
        self.server.await_ready()
        session = Session(self.server, self.questions, self.seed, NONCE, keeps_gaps=False)
        found = [one for one in measure(session, f"trial {number}", 1) if one.is_scored]
        faults = [one.fault for one in found if one.fault]
        if faults:
            raise BenchError(f"{len(faults)} of {len(found)} answers are no good: {faults[0]}")
        return exp(sum(log(_speed(one)) for one in found) / len(found))

    def _data(self, values: Mapping[str, Value]) -> dict[str, Any]:
        return data_of(values, self.host.data)

    def _told(self, request: Request) -> None:
        if request.is_scored and request.decode_per_s:
            self.tell(
                f"{request.variant} {request.workload}/{request.prompt}, round {request.round}: "
                f"{request.decode_per_s:.1f} tokens/s"
            )

    # --- the search ---------------------------------------------------------------------------------

    def _study(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        asked = [(one.sha256, one.max_tokens, one.temperature) for one in self.questions]
        what = (self.spec.engine_name, self.spec.variant, self.knobs, asked, self.seed, self.spec.settings.context)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self.journal))),
            study_name=sha256(repr(what).encode()).hexdigest()[:16], load_if_exists=True, direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=self.seed, n_startup_trials=STARTUP_TRIALS),
        )  # fmt: skip
        known = len(self._done(study))
        if known:
            self.tell(f"going on with {known} trials of before, in {self.journal}")
        elif not study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
            study.enqueue_trial(as_it_is(self.knobs))
        return study

    def _done(self, study: optuna.Study) -> list[Any]:
        return study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))

    def _is_over(self, study: optuna.Study) -> bool:
        ended = study.get_trials(deepcopy=False)
        done = self._done(study)
        refused = 0
        for one in reversed(ended):
            if one.state != optuna.trial.TrialState.PRUNED:
                break
            refused += 1
        if len(done) >= self.limits.trials or refused >= MOST_REFUSED:
            return True
        if not done:
            return False
        proof_s = 2 * self.rounds * self._longest_s
        return time.monotonic() - self._began + self._longest_s + proof_s > self.limits.until_s

    def _name(self, values: Mapping[str, Value]) -> str:
        return said(changed(values, self.knobs)) or "everything as it is"

    def _spent(self) -> str:
        return self.limits.spent(time.monotonic() - self._began)


def _speed(one: Request) -> float:
    """
    Tokens a second of the server's own time, prompt and answer.

    :raises BenchError: it does not say.
    """
    took_ms = (one.prompt_ms or 0) + (one.decode_ms or 0)
    if not one.completion_tokens or not took_ms:
        raise BenchError("an answer has no timings. Fix: take an engine that says them")
    return one.completion_tokens / took_ms * 1000
