"""The binned ECE of known probabilities (METHOD 1), and the number of bins of `blind` (METHOD 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from blindcal.estimate.checks import ArrayLike, labels_array, probabilities, whole
from blindcal.records import Estimate, FloatArray, IntArray


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class BinnedCalibration:
    """Signed gaps of the bins, and the ECE.

    Attributes
    ----------
    edges : array of shape (bins + 1,)
    gaps : array of shape (bins,)
        Mean over all items of (confidence - outcome) in the bin; positive if the confidence is too high.
    counts : array of shape (bins,)
        Number of items in each bin.
    """

    edges: FloatArray
    gaps: FloatArray
    counts: FloatArray

    def __repr__(self) -> str:
        items = int(self.counts.sum())
        return f"BinnedCalibration({items:,} items, {self.gaps.size} bins, ECE {float(self.ece):.4f})"

    @property
    def ece(self) -> Estimate:
        """Expected calibration error, the sum of absolute gaps; exact, without an interval."""
        return Estimate(float(np.abs(self.gaps).sum()))


def bin_edges(bins: int) -> FloatArray:
    return np.arange(whole(bins, "bins") + 1) / bins


def bin_index(p: FloatArray, bins: int) -> IntArray:
    """The bin of each probability; an edge belongs to the bin above it, consistent with ``f >= t``."""
    return np.searchsorted(bin_edges(bins)[1:-1], p, side="right").astype(np.int64)


def binned_ece(
    labels: ArrayLike, p: ArrayLike, bins: int = 5, *, top_label: bool = False
) -> BinnedCalibration:
    """Compute the binned calibration error of known probabilities, the oracle of the paper.

    Parameters
    ----------
    labels : array_like of 0/1, shape (n,)
    p : array_like, shape (n,)
        Probability of the positive answer.
    bins : int
        Number of equal-width bins on [0, 1].
    top_label : bool
        Compare the confidence in the *given* answer, which is at least 1/2, with its correctness.

    Examples
    --------
    >>> round(binned_ece([1, 0, 1, 1], [0.9, 0.2, 0.7, 0.95], bins=5).ece.value, 4)
    0.1625
    """
    y = labels_array(labels)
    f = probabilities(p, like=y.size)
    outcome = y.astype(np.float64)
    if top_label:
        predicted = f >= 0.5
        outcome = (predicted == (y == 1)).astype(np.float64)
        f = np.where(predicted, f, 1 - f)
    return _binned(f, f - outcome, np.ones(y.size), bins, y.size)


def top_label_ece(labels: IntArray, logits: FloatArray, bins: int = 5) -> BinnedCalibration:
    """The binned calibration error of the likeliest answer; the logit of a missing answer is -inf.

    >>> import numpy as np
    >>> result = top_label_ece(np.array([0, 2]), np.log([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]]), bins=10)
    >>> round(result.ece.value, 3)
    0.4
    """
    given, f = given_confidence(logits)
    return _binned(f, f - (given == labels), np.ones(labels.size), bins, labels.size)


def drawn_answer_ece(labels: IntArray, logits: FloatArray, bins: int = 5) -> BinnedCalibration:
    """The binned calibration error of a drawn answer: each counts by its own probability."""
    p = softmax(logits, axis=1)
    right = labels[:, None] == np.arange(p.shape[1])
    return _binned(p.reshape(-1), (p * (p - right)).reshape(-1), p.reshape(-1), bins, labels.size)


def _binned(f: FloatArray, gap: FloatArray, weight: FloatArray, bins: int, items: int) -> BinnedCalibration:
    where = bin_index(f, bins)
    return BinnedCalibration(
        edges=bin_edges(bins),
        gaps=np.bincount(where, gap, minlength=bins) / items,
        counts=np.bincount(where, weight, minlength=bins).astype(np.float64),
    )


def given_confidence(logits: FloatArray) -> tuple[IntArray, FloatArray]:
    """The likeliest answer of each row, and its probability."""
    best = logits.max(axis=1, keepdims=True)
    return logits.argmax(axis=1), 1 / np.exp(logits - best).sum(axis=1)


def bins_blind(n: int) -> int:
    """Number of bins of `blind`: round(n^(1/5)), 5 for BoolQ's 3,270 items and 9 for MMLU's 56,168."""
    return max(1, int(np.rint(np.power(whole(n, "n"), 0.2))))
