"""The paper's baselines that turn an item's own answers into a probability (METHOD 3)."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from blindcal.estimate.checks import ArrayLike, answers_array, codes, labels_array, reals
from blindcal.estimate.truth import BinnedCalibration, binned_ece
from blindcal.records import INVALID, POSITIVE, FloatArray, IntArray

EXTRACTION_REACH = 15.0


def sampling(labels: ArrayLike, answers: ArrayLike, items: ArrayLike, bins: int = 5) -> BinnedCalibration:
    """ECE of p = share of positive answers, from K answers an item at T = 1 (one row a query).

    Items without a valid answer are left out.
    """
    y, a, owner = _rows(labels, answers, items)
    valid = a != INVALID
    asked = np.bincount(owner[valid], minlength=int(owner.max()) + 1)
    positive = np.bincount(owner[valid & (a == POSITIVE)], minlength=asked.size)
    have = asked > 0
    label = np.empty(asked.size, np.int64)
    label[owner] = y
    return binned_ece(label[have], positive[have] / asked[have], bins)


def extraction(
    labels: ArrayLike, shifts: ArrayLike, answers: ArrayLike, items: ArrayLike, bins: int = 5
) -> BinnedCalibration:
    """ECE of p = sigmoid(-b*), b* the middle of what bisection on [-15, 15] leaves of the flip."""
    y, a, owner = _rows(labels, answers, items)
    b = reals(shifts, "shifts", y.size)
    low, high = flip_bounds(int(owner.max()) + 1, owner, b, a)
    label = np.empty(low.size, np.int64)
    label[owner] = y
    return binned_ece(label, expit(-(low + high) / 2), bins)


def flip_bounds(
    n: int, items: IntArray, shifts: FloatArray, answers: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Where each item's flip shift can still be: at most where it said positive, at least where negative."""
    low, high = np.full(n, -EXTRACTION_REACH), np.full(n, EXTRACTION_REACH)
    positive, negative = answers == POSITIVE, answers == 0
    np.minimum.at(high, items[positive], shifts[positive])
    np.maximum.at(low, items[negative], shifts[negative])
    return low, high


def _rows(labels: ArrayLike, answers: ArrayLike, items: ArrayLike) -> tuple[IntArray, IntArray, IntArray]:
    y = labels_array(labels)
    return y, answers_array(answers, y.size), codes(items, "items", y.size)
