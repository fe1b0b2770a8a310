"""From a method's name and its answers to an estimate: the one place that knows which goes with which."""

from __future__ import annotations

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate.baselines import extraction, sampling
from blindcal.estimate.blind import BlindResult, blind
from blindcal.estimate.latent import latent
from blindcal.records import Answered, FloatArray, IntArray


def blind_result(labels: IntArray, answered: Answered, *, bins: int) -> BlindResult:
    """`blind` of a run's answers; items that were not asked are the subset of t = 0."""
    thresholds = np.zeros(labels.size)
    answers = np.ones(labels.size, np.int64)
    edge = np.rint(bins / (1 + np.exp(answered.shifts)))
    thresholds[answered.items] = edge / bins
    answers[answered.items] = answered.answers
    return blind(labels, thresholds, answers, bins)


def estimate_ece(method: str, labels: IntArray, answered: Answered, *, bins: int = 5, seed: int = 0) -> float:
    """The method's ECE from its own answers."""
    y = labels[answered.items]
    shifts: FloatArray = answered.shifts
    if method == "blind":
        return blind_result(labels, answered, bins=bins).ece
    if method in ("latent", "temperature"):
        fit = latent(y, shifts, answered.answers, answered.temperatures, answered.items, seed=seed)
        return fit.ece(bins)
    if method == "sampling":
        return sampling(y, answered.answers, answered.items, bins).ece
    if method == "extraction":
        return extraction(y, shifts, answered.answers, answered.items, bins).ece
    raise InputError(f"method: unknown method {method!r}")
