"""Baselines that turn each item's own answers into a probability (METHOD 3)."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from blindcal.records import INVALID, NEGATIVE, POSITIVE, AnswerTable, FloatArray

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
    positive, negative = (answered.rows(answered.answers == one) for one in (POSITIVE, NEGATIVE))
    np.minimum.at(high, positive.items, positive.shifts)
    np.maximum.at(low, negative.items, negative.shifts)
    return low, high
