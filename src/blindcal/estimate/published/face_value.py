"""The baselines: each item's own answers as a probability, and findings at face value (METHOD 3)."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from blindcal.estimate.findings import (
    COSTS,
    HISTOGRAM_BINS,
    LEANING,
    OVERCONFIDENCE,
    STEPS,
    THRESHOLDS,
    Bin,
    ConfidenceHistogram,
    Findings,
    bare_bins,
    filled_bins,
    finite,
    histogram,
    share_around,
)
from blindcal.estimate.latent.operating import Rates, cost_curve, operating_points
from blindcal.estimate.truth import bin_index, binned_ece
from blindcal.records import INVALID, NEGATIVE, POSITIVE, AnswerTable, Estimate, FloatArray, IntArray

EXTRACTION_REACH = 15.0


def sampled_shares(n: int, answered: AnswerTable) -> FloatArray:
    """Sampling: the share of positive answers among each item's valid answers; NaN if it has none."""
    asked = np.bincount(answered.items[answered.answers != INVALID], minlength=n)
    positive = np.bincount(answered.items[answered.answers == POSITIVE], minlength=n)
    return np.where(asked > 0, positive / np.maximum(asked, 1), np.nan)


def extracted(n: int, answered: AnswerTable) -> FloatArray:
    """Extraction: p = sigmoid(-b*), b* the middle of the bisected range; NaN without a valid answer."""
    low, high = flip_bounds(n, answered)
    valid = np.bincount(answered.items[answered.answers != INVALID], minlength=n) > 0
    return np.where(valid, expit(-(low + high) / 2), np.nan)


def stated(n: int, answered: AnswerTable) -> FloatArray:
    """Verbalized: the probability that each item's answer states in words; NaN if it states none."""
    assert answered.stated is not None
    p = np.full(n, np.nan)
    p[answered.items] = answered.stated
    return p


def flip_bounds(n: int, answered: AnswerTable) -> tuple[FloatArray, FloatArray]:
    """Bounds of each item's flip: at most the shifts answered positive, at least those answered negative."""
    low, high = np.full(n, -EXTRACTION_REACH), np.full(n, EXTRACTION_REACH)
    positive, negative = (answered.rows(answered.answers == answer) for answer in (POSITIVE, NEGATIVE))
    np.minimum.at(high, positive.items, positive.shifts)
    np.maximum.at(low, negative.items, negative.shifts)
    return low, high


def findings_at_face_value(labels: IntArray, p: FloatArray, bins: int) -> Findings:
    """Findings if these probabilities are the model's own; NaN for items without one."""
    known = np.isfinite(p)
    y, f = labels[known], p[known]
    binned = binned_ece(y, f, bins)
    halves = binned_ece(y, f, 2).gaps
    with np.errstate(divide="ignore"):
        loss = -np.log(np.where(y == POSITIVE, f, 1 - f)).mean()
    estimates = _rates(y, f).estimates
    invalid = 1 - y.size / labels.size  # each such item could change the sum of |gaps| by at most 1/N
    both_labels = np.unique(y).size > 1
    return Findings(
        ece=binned.ece,
        bins=_bins(y, f, binned.gaps),
        ece_if_invalid=share_around((1 - invalid) * float(binned.ece), invalid),
        overconfidence=Estimate(float(halves @ OVERCONFIDENCE)),
        leaning=Estimate(float(halves @ LEANING)),
        auroc=Estimate(_rank_auroc(y, f)),
        accuracy=Estimate(float(((f >= 0.5) == (y == POSITIVE)).mean())),
        brier=Estimate(float(((f - y) ** 2).mean())),
        log_loss=Estimate(finite(loss)),
        confidence=_histogram(y, f),
        operating=operating_points(THRESHOLDS, -logit(THRESHOLDS), estimates) if both_labels else (),
        costs=tuple(cost_curve(*costs, estimates) for costs in COSTS) if both_labels else (),
    )


def half_gaps_at_face_value(labels: IntArray, p: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Signed gaps below and above 1/2, and their covariance; ``None`` for a single item."""
    known = np.isfinite(p)
    y, f = labels[known], p[known]
    each = (f - y)[:, None] * (bin_index(f, 2)[:, None] == np.arange(2))
    return (binned_ece(y, f, 2).gaps, np.asarray(np.cov(each.T) / y.size)) if y.size > 1 else None


def _bins(y: IntArray, f: FloatArray, gaps: FloatArray) -> tuple[Bin, ...]:
    where, n = bin_index(f, gaps.size), gaps.size
    sums = (np.bincount(where, column, minlength=n) / y.size for column in (None, f, y))
    return filled_bins(bare_bins(gaps), *sums)


def _rates(y: IntArray, f: FloatArray) -> Rates:
    where = bin_index(f, STEPS)
    shares = [np.bincount(where[y == label], minlength=STEPS) / y.size for label in (0, 1)]
    total = shares[1].sum()
    above = [np.cumsum(share[::-1])[::-1][1:] for share in shares]
    # a difference that is only a rounding error must not count as a rate
    fp, tp = (
        np.where(whole - part > 1e-12, part, whole)
        for part, whole in zip(above, (1 - total, total), strict=True)
    )
    return Rates(tp, fp, np.array([total]))


def _histogram(y: IntArray, f: FloatArray) -> ConfidenceHistogram:
    where = bin_index(f, HISTOGRAM_BINS)
    counts = [np.bincount(where[y == label], minlength=HISTOGRAM_BINS) for label in (0, 1)]
    negatives, positives = (count / max(count.sum(), 1) for count in counts)
    return histogram(negatives, positives)


def _rank_auroc(y: IntArray, f: FloatArray) -> float | None:
    values, rank = np.unique(f, return_inverse=True)
    negative = np.bincount(rank[y != POSITIVE], minlength=values.size)
    positive = np.bincount(rank[y == POSITIVE], minlength=values.size)
    pairs = float(negative.sum()) * float(positive.sum())
    below = np.cumsum(negative) - negative / 2
    return float(positive @ below) / pairs if pairs else None
