"""The paper's baselines that turn an item's own answers into a probability (METHOD 3)."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from blindcal.records import INVALID, NEGATIVE, POSITIVE, FloatArray, IntArray

EXTRACTION_REACH = 15.0


def sampled_shares(n: int, items: IntArray, answers: IntArray) -> FloatArray:
    """Sampling: each item's share of positive answers among its valid ones; NaN where it has none."""
    valid = answers != INVALID
    asked = np.bincount(items[valid], minlength=n)
    positive = np.bincount(items[answers == POSITIVE], minlength=n)
    return np.where(asked > 0, positive / np.maximum(asked, 1), np.nan)


def extracted(n: int, items: IntArray, shifts: FloatArray, answers: IntArray) -> FloatArray:
    """Extraction: p = sigmoid(-b*), b* the middle of what bisection leaves; NaN if never answered."""
    low, high = flip_bounds(n, items, shifts, answers)
    answered = np.bincount(items[answers != INVALID], minlength=n) > 0
    return np.where(answered, expit(-(low + high) / 2), np.nan)


def flip_bounds(
    n: int, items: IntArray, shifts: FloatArray, answers: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Where each item's flip shift can still be: at most where it said positive, at least where negative."""
    low, high = np.full(n, -EXTRACTION_REACH), np.full(n, EXTRACTION_REACH)
    positive, negative = answers == POSITIVE, answers == NEGATIVE
    np.minimum.at(high, items[positive], shifts[positive])
    np.maximum.at(low, items[negative], shifts[negative])
    return low, high
