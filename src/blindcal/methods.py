"""From a method's answers to its estimate: the one place that knows which estimator reads which design."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from blindcal.design import METHODS, BlindDesign, Design, read_by
from blindcal.estimate.baselines import extracted, sampled_shares
from blindcal.estimate.blind import BlindResult, blind
from blindcal.estimate.latent import latent
from blindcal.estimate.truth import binned_ece
from blindcal.records import INVALID, AnswerTable, Estimator, FloatArray, IntArray

#: Methods that are read by `latent` unasked: these have a fit, with a curve, operating points and draws.
FITTED = tuple(name for name, method in METHODS.items() if method.reads == "latent")


def blind_result(
    plan: BlindDesign, labels: IntArray, answered: AnswerTable, chosen: IntArray | None = None
) -> BlindResult:
    """`blind` of a run's answers (or the ``chosen`` items'): those asked so far and those not to be asked."""
    thresholds = plan.thresholds()
    answers = np.full(labels.size, INVALID)
    answers[answered.items] = answered.answers
    reached = thresholds == 0  # these are not asked: their indicator is 1
    reached[answered.items] = True
    if chosen is not None:
        reached &= np.isin(np.arange(labels.size), chosen)
    return blind(labels[reached], thresholds[reached], answers[reached], plan.bins)


def face_value(reads: Estimator, n: int, answered: AnswerTable) -> FloatArray | None:
    """Each item's probability for an estimator that takes its answers for it; NaN where it has none."""
    if reads == "shares":
        return sampled_shares(n, answered.items, answered.answers)
    if reads == "flips":
        return extracted(n, answered.items, answered.shifts, answered.answers)
    if reads == "stated":
        assert answered.stated is not None
        p = np.full(n, np.nan)
        p[answered.items] = answered.stated
        return p
    return None


def estimate_ece(
    method: str, plan: Design, labels: IntArray, answered: AnswerTable, bins: int, estimator: str = "own"
) -> float:
    """The ECE from a method's answers, by its own estimator or by `latent`."""
    reads = read_by(method, estimator)
    if reads == "blind":
        assert isinstance(plan, BlindDesign)
        return blind_result(plan, labels, answered).ece
    p = face_value(reads, labels.size, answered)
    if p is not None:
        known = np.isfinite(p)
        return binned_ece(labels[known], p[known], bins).ece
    fit = latent(
        labels[answered.items], answered.shifts, answered.answers, answered.temperatures, answered.items
    )
    return fit.ece(bins)


_QUANTITIES = {
    "pair": "one spelling of the positive answer against one of the negative",
    "max": "the likeliest spelling of the positive answer against that of the negative",
    "sum": "all spellings of the positive answer against all of the negative",
    "stated": "the confidence that the model states in words, which need not be its probability",
}
_READINGS: Mapping[Estimator, str] = {
    "latent": "read by maximum likelihood, with intervals",
    "blind": "read as published: the gap of each bin, whose midpoint stands for the confidence in it; no "
    "intervals, no accuracy",
    "shares": "read as the share of positive ones: the noise of few draws adds to the error; no intervals",
    "flips": "read as the middle of what bisection leaves, coarse below five queries; no intervals",
    "stated": "taken at its word; no intervals, and no shift deploys a threshold on it",
}


def measures(method: str, semantics: str, reads: Estimator, queries: float) -> str:
    """What the figures of an audit are about, what they rest on, and what they cannot tell."""
    answers = METHODS[method].answers
    # The list of methods says K; of a run it is known.
    answers = re.sub(r"^K ((?:\w+ )?)answers", r"one \1answer", answers) if queries == 1 else answers
    answers = re.sub(r"^K ", f"{queries:.3g} ", answers)
    return f"{_QUANTITIES[semantics]}; from {answers}; {_READINGS[reads]}"
