"""Run methods on known probabilities, asked and answered as with an opaque endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from blindcal.design import Design, answer_design
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.checks import ArrayLike, labels_array, probabilities, whole
from blindcal.estimate.findings import Findings
from blindcal.estimate.truth import binned_ece, drawn_answer_ece, given_confidence, top_label_ece
from blindcal.estimation import EstimationInput, estimate
from blindcal.methods import make_design, method_of
from blindcal.query_seeds import query_seeds, uniform_draws
from blindcal.records import AnswerTable, FloatArray, IntArray, Round, Targets
from blindcal.simulation.recording import Recording


def log_odds(p: FloatArray) -> FloatArray:
    """Hidden log-odds; infinite for probabilities of exactly 0 or 1."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p) - np.log1p(-p))


def respond(
    s: FloatArray,
    asked: Round,
    rng: np.random.Generator,
    jitter: float = 0.0,
    draws: FloatArray | None = None,
) -> IntArray:
    """Answers of an endpoint with hidden log-odds ``s`` (METHOD 2); ``draws`` decide sampled ones."""
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
    """Run a design on known probabilities, asked of an endpoint with this random ``seed``.

    With ``logprobs``, it shows each item's probability with its answer.
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


def ask_recording(
    design: Design, recording: Recording, targets: Targets, *, seed: int = 0, biased: bool = True
) -> AnswerTable:
    """Run a design on recorded logits, as over HTTP; ``biased`` if it biases the tokens of ``targets``."""

    def answer(asked: Round, first: int) -> IntArray:
        draws = uniform_draws(query_seeds(seed, first, len(asked)))
        return recording.answers(asked, targets, draws, biased=biased)

    return answer_design(design, answer)


def ask_choices(
    design: Design, logits: FloatArray, *, seed: int = 0, jitter: float = 0.0, logprobs: bool = False
) -> AnswerTable:
    """Like `ask`, for logits of several answers; minus infinity for an answer that an item lacks."""
    rng = np.random.default_rng([seed, 5])
    hidden = logits + jitter * rng.standard_normal(logits.shape) if jitter and logprobs else logits

    def answer(asked: Round, first: int) -> IntArray:  # noqa: ARG001 - draws need no seeds of their own
        assert asked.biases is not None
        z = hidden[asked.items] + asked.biases
        if jitter and not logprobs:
            z = z + jitter * rng.standard_normal(z.shape)
        warm = asked.temperatures > 0
        z[warm] += asked.temperatures[warm, None] * rng.gumbel(size=(int(warm.sum()), z.shape[1]))
        return np.asarray(z.argmax(axis=1), np.int64)

    answered = answer_design(design, answer)
    if not logprobs:
        return answered
    shown = log_odds(given_confidence(hidden)[1])
    return replace(answered, bounds=np.repeat(shown[answered.items, None], 2, axis=1))


def audit_known(
    method: str,
    labels: IntArray,
    answer: Callable[[Design, int], AnswerTable],
    *,
    budgets: Sequence[float],
    estimator: str = "own",
    bins: int = 5,
    seed: int = 0,
    choices: IntArray | None = None,
) -> Iterator[tuple[AnswerTable, Findings]]:
    """Audit with the largest budget, and yield the answers and estimates at each of the budgets."""
    design = make_design(method, labels, queries=max(budgets), bins=bins, seed=seed, choices=choices)
    answers = answer(design, seed)
    for queries in budgets:
        used = answers if queries == max(budgets) else answers.rows(slice(int(queries) * labels.size))
        inputs = EstimationInput(
            method=method,
            design=design,
            labels=labels,
            answers=used,
            estimator=estimator,
            bins=bins,
            resamples=0,
            choices=choices,
        )
        yield used, estimate(inputs, brief=True)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Simulation:
    """Repeated audits of one set of known probabilities; ``queries`` is per item."""

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
    queries: float | None = None,
    bins: int = 5,
    repeats: int = 20,
    seed: int = 0,
    jitter: float = 0.0,
    on_repeat: Callable[[], object] = lambda: None,
) -> Simulation:
    """Audit known probabilities ``repeats`` times; repeat r uses seed ``seed + r``.

    The oracle is the binned ECE of the probabilities; with more than two answers, that of the likeliest
    answer, or for `repeated` of a drawn one.

    Parameters
    ----------
    method : str
        One of `METHODS`, except those whose answers probabilities do not determine.
    labels : array of shape (n,)
        0 or 1, or the number of the right answer.
    p : array of shape (n,) or (n, answers)
        Probabilities of the positive answer, or logits of all answers, minus infinity if an item lacks one.
    estimator : str, optional
        ``own`` (that of the method) or ``latent``, which reads the answers of any method.
    queries : float, optional
        Queries per item; by default 1, or with more than two answers the method's usual number.
    jitter : float, optional
        Standard deviation of noise on the log-odds of every answer, unknown to the estimators.
    """
    used = method_of(method)
    if not used.simulable:
        raise InputError("method: known probabilities do not tell what a model would say in words")
    known = np.asarray(p, np.float64)
    if known.ndim == 2 and known.shape[1] == 2:
        known = expit(known[:, 1] - known[:, 0])
    choices: IntArray | None = None
    if known.ndim == 2:
        y, choices = np.asarray(labels), np.isfinite(known).sum(axis=1).astype(np.int64)
        oracle = float((top_label_ece if used.tempered else drawn_answer_ece)(y, known, bins).ece)
        queries = used.usual_queries(several=True) if queries is None else queries
    else:
        y = labels_array(labels)
        known = probabilities(known, like=y.size)
        oracle, queries = float(binned_ece(y, known, bins).ece), 1.0 if queries is None else queries

    def answer(design: Design, seed: int) -> AnswerTable:
        asking = ask if choices is None else ask_choices
        return asking(design, known, seed=seed, jitter=jitter, logprobs=used.shown)

    asked, estimates = 0, []
    for at in range(seed, seed + whole(repeats, "repeats")):
        ((answers, findings),) = audit_known(
            method, y, answer, budgets=(queries,), estimator=estimator, bins=bins, seed=at, choices=choices
        )
        if findings.ece.value is None:
            raise NotIdentifiedError(f"{method}: {y.size} items are too few for {bins} bins")
        asked += len(answers)
        estimates.append(findings.ece.value)
        on_repeat()
    return Simulation(
        n=y.size,
        method=method,
        estimator=estimator,
        queries=asked / (repeats * y.size),
        oracle=oracle,
        estimates=tuple(estimates),
    )


def generate(n: int, seed: int = 0) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities of an overconfident model on ``n`` synthetic items."""
    rng = np.random.default_rng([seed, 6])
    s = np.where(rng.random(whole(n, "n")) < 0.5, -2.0, 2.5) + 1.8 * rng.standard_normal(n)
    return (rng.random(n) < expit(0.5 * s - 0.2)).astype(np.int64), expit(s)
