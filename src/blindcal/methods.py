"""From a method's answers to its estimate: the one place that knows which estimator reads which design."""

from __future__ import annotations

import numpy as np

from blindcal.design import METHODS, BlindDesign, Design, method_of, read_by
from blindcal.estimate.baselines import extracted, sampled_shares
from blindcal.estimate.blind import BlindResult, blind
from blindcal.estimate.latent import latent
from blindcal.estimate.truth import binned_ece
from blindcal.records import INVALID, Answered, FloatArray, IntArray

#: Methods whose answers are read by `latent`: these have a fit, with a curve, operating points and draws.
FITTED = tuple(name for name, method in METHODS.items() if method.reads == "latent")


def blind_result(
    plan: BlindDesign, labels: IntArray, answered: Answered, chosen: IntArray | None = None
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


def face_value(method: str, n: int, answered: Answered) -> FloatArray | None:
    """Each item's probability where the method takes its own answers for it; NaN where it has none."""
    reads = method_of(method).reads
    if reads == "shares":
        return sampled_shares(n, answered.items, answered.answers)
    if reads == "flips":
        return extracted(n, answered.items, answered.shifts, answered.answers)
    return None


def estimate_ece(
    method: str, plan: Design, labels: IntArray, answered: Answered, bins: int, estimator: str = "own"
) -> float:
    """The ECE from a method's answers, by its own estimator or by `latent`."""
    if read_by(method, estimator) != "latent":
        if isinstance(plan, BlindDesign):
            return blind_result(plan, labels, answered).ece
        p = face_value(method, labels.size, answered)
        assert p is not None
        known = np.isfinite(p)
        return binned_ece(labels[known], p[known], bins).ece
    fit = latent(
        labels[answered.items], answered.shifts, answered.answers, answered.temperatures, answered.items
    )
    return fit.ece(bins)
