"""Run methods on known probabilities, asked and answered exactly as with an opaque endpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from blindcal.design import Design, answer_design
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.checks import ArrayLike, labels_array, probabilities, whole
from blindcal.estimate.truth import binned_ece
from blindcal.methods import Evidence, estimate, make_design, method_of
from blindcal.query_seeds import query_seeds, uniform_draws
from blindcal.records import AnswerTable, FloatArray, IntArray, Round


def log_odds(p: FloatArray) -> FloatArray:
    """Hidden log-odds; infinite for a probability of exactly 0 or 1."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p) - np.log1p(-p))


def respond(
    s: FloatArray,
    asked: Round,
    rng: np.random.Generator,
    jitter: float = 0.0,
    draws: FloatArray | None = None,
) -> IntArray:
    """Answers of an endpoint with hidden log-odds ``s`` (METHOD 2); ``draws`` decide sampled answers."""
    shifted = s[asked.items] + asked.shifts
    if jitter:
        shifted = shifted + jitter * rng.standard_normal(shifted.size)
    warm = asked.temperatures > 0
    answers = (shifted >= 0).astype(np.int64)
    if warm.any():
        chance = expit(shifted[warm] / asked.temperatures[warm])
        answers[warm] = (rng.random(chance.size) if draws is None else draws[warm]) < chance
    return answers


def ask(
    design: Design, p: ArrayLike, *, seed: int = 0, jitter: float = 0.0, logprobs: bool = False
) -> AnswerTable:
    """Run a design to its end on known probabilities; ``seed`` sets the randomness of the endpoint.

    With ``logprobs``, the endpoint shows each item's probability with its answer.
    """
    s = log_odds(probabilities(p))
    rng = np.random.default_rng([seed, 5])
    if logprobs:
        shown = s + jitter * rng.standard_normal(s.size) if jitter else s
        answered = answer_design(design, lambda asked, _: respond(shown, asked, rng))
        return replace(answered, bounds=np.repeat(shown[answered.items, None], 2, axis=1))

    def answer(asked: Round, first: int) -> IntArray:
        return respond(s, asked, rng, jitter, uniform_draws(query_seeds(seed, first, len(asked))))

    return answer_design(design, answer)


@dataclass(frozen=True, slots=True, repr=False)
class Simulation:
    """Repeated audits of one set of known probabilities."""

    n: int
    method: str
    estimator: str
    queries: float
    oracle: float
    estimates: tuple[float, ...]

    def __repr__(self) -> str:
        return (
            f"Simulation({self.method}, {self.n:,} items, {len(self.estimates)} audits, error {self.mae:.4f})"
        )

    @property
    def mae(self) -> float:
        """Mean absolute error against the oracle."""
        return float(np.mean(np.abs(np.array(self.estimates) - self.oracle)))


def simulate(
    method: str,
    labels: ArrayLike,
    p: ArrayLike,
    *,
    estimator: str = "own",
    queries: float = 1.0,
    bins: int = 5,
    repeats: int = 20,
    seed: int = 0,
    jitter: float = 0.0,
    on_repeat: Callable[[], object] = lambda: None,
) -> Simulation:
    """Audit known probabilities ``repeats`` times; repeat r uses seed ``seed + r``.

    ``estimator`` is ``own`` (that of the method) or ``latent``, which reads the answers of any method.
    ``jitter`` is the standard deviation of the noise that the endpoint adds to the log-odds of every answer;
    the estimators do not know it.
    """
    if not method_of(method).simulable:
        raise InputError("method: known probabilities do not tell what a model would say in words")
    y = labels_array(labels)
    known = probabilities(p, like=y.size)
    asked, estimates = 0, []
    for repeat in range(whole(repeats, "repeats")):
        design = make_design(method, y, queries=queries, bins=bins, seed=seed + repeat)
        logprobs = method_of(method).logprobs
        answers = ask(design, known, seed=seed + repeat, jitter=jitter, logprobs=logprobs)
        evidence = Evidence(method, design, y, answers, estimator=estimator, bins=bins, resamples=0)
        ece = estimate(evidence, brief=True).ece.value
        if ece is None:
            raise NotIdentifiedError(f"{method}: {y.size} items are too few for {bins} bins")
        asked += len(answers)
        estimates.append(ece)
        on_repeat()
    return Simulation(
        n=y.size,
        method=method,
        estimator=estimator,
        queries=asked / (repeats * y.size),
        oracle=float(binned_ece(y, known, bins).ece),
        estimates=tuple(estimates),
    )


def generate(n: int, seed: int = 0) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities of an overconfident model on ``n`` synthetic items."""
    rng = np.random.default_rng([seed, 6])
    s = np.where(rng.random(whole(n, "n")) < 0.5, -2.0, 2.5) + 1.8 * rng.standard_normal(n)
    return (rng.random(n) < expit(0.5 * s - 0.2)).astype(np.int64), expit(s)
