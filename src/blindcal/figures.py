"""The figures of a result, from the answers of a run, whatever method asked for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from blindcal.design import BlindDesign, Design, extraction_bounds
from blindcal.errors import NotIdentifiedError
from blindcal.estimate.blind import blind
from blindcal.estimate.truth import bin_edges, binned_ece
from blindcal.records import INVALID, POSITIVE, Answered, FloatArray, IntArray
from blindcal.result import Bin, Estimate, number

NOTHING = Estimate(None)


@dataclass(frozen=True, slots=True)
class Figures:
    """What answers say about calibration; an `Estimate` of ``None`` is what a method cannot tell."""

    ece: Estimate
    bins: tuple[Bin, ...]
    overconfidence: Estimate = NOTHING
    leaning: Estimate = NOTHING
    auroc: Estimate = NOTHING
    accuracy: Estimate = NOTHING
    brier: Estimate = NOTHING
    log_loss: Estimate = NOTHING
    tce: Estimate = NOTHING
    calibrated_pvalue: float | None = None


def figures(
    method: str,
    design: Design,
    labels: IntArray,
    groups: IntArray | None,
    answered: Answered,
    bins: int,
    level: float,
) -> Figures:
    """Estimate everything that the method's answers tell.

    Raises
    ------
    NotIdentifiedError
        If there is no valid answer to rest on.
    """
    if not (answered.answers != INVALID).any():
        raise NotIdentifiedError("no valid answer: nothing can be estimated")
    if isinstance(design, BlindDesign):
        return _blind(design, labels, answered)
    if method == "sampling":
        return _direct(labels, _shares(labels.size, answered), bins)
    if method == "extraction":
        return _direct(labels, _extracted(labels.size, answered), bins)
    return _latent(labels, groups, answered, bins, level)


def _blind(design: BlindDesign, labels: IntArray, answered: Answered) -> Figures:
    thresholds = design.thresholds()
    answers = np.full(labels.size, INVALID)
    answers[answered.items] = answered.answers
    reached = thresholds == 0  # these are not asked: their indicator is 1
    reached[answered.items] = True
    found = blind(labels[reached], thresholds[reached], answers[reached], design.bins)
    return Figures(Estimate(number(found.ece)), *_gaps(found.gaps))


def _direct(labels: IntArray, p: FloatArray, bins: int) -> Figures:
    """The figures of probabilities taken at face value."""
    known = np.isfinite(p)
    y, f = labels[known], p[known]
    found = binned_ece(y, f, bins)
    right = (f >= 0.5) == (y == POSITIVE)
    halves = binned_ece(y, f, 2).gaps
    return Figures(
        Estimate(found.ece),
        _gaps(found.gaps)[0],
        overconfidence=Estimate(float(halves[1] - halves[0])),
        leaning=Estimate(float((f - y).mean())),
        accuracy=Estimate(float(right.mean())),
        brier=Estimate(float(((f - y) ** 2).mean())),
    )


def _gaps(gaps: FloatArray) -> tuple[tuple[Bin, ...], Estimate, Estimate]:
    """The bins, and what their gaps say about over- and underconfidence and about leaning to one side."""
    edges = bin_edges(gaps.size)
    bins = tuple(Bin(float(a), float(b), float(g)) for a, b, g in zip(edges, edges[1:], gaps, strict=False))
    side = np.sign(np.round(edges[:-1] + edges[1:] - 1, 9))  # a bin around 1/2 says nothing about confidence
    return bins, Estimate(number(float(side @ gaps))), Estimate(number(float(gaps.sum())))


def _shares(n: int, answered: Answered) -> FloatArray:
    """Each item's share of positive answers among its valid ones."""
    valid = answered.answers != INVALID
    asked = np.bincount(answered.items[valid], minlength=n)
    positive = np.bincount(answered.items[answered.answers == POSITIVE], minlength=n)
    with np.errstate(invalid="ignore"):
        return positive / asked


def _extracted(n: int, answered: Answered) -> FloatArray:
    """Each item's probability at the middle of what bisection left of its flip (METHOD 3)."""
    low, high = extraction_bounds(n, answered)
    p = expit(-(low + high) / 2)
    p[np.setdiff1d(np.arange(n), answered.items[answered.answers != INVALID])] = np.nan
    return p


def _latent(
    labels: IntArray, groups: IntArray | None, answered: Answered, bins: int, level: float
) -> Figures:
    raise NotImplementedError
