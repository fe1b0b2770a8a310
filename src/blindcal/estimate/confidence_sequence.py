"""Confidence sequences of gaps: intervals that hold at all times at once, however often one looks.

A gap is the mean confidence minus the share of positive labels among items of a range of confidence, such as
those above about 0.9. A value is in the interval as long as bets against it have not won 1/level (METHOD 11).
The range has a soft edge: items within 0.1 of it count in part, because one answer per item can measure only
continuous weights.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from blindcal.estimate.piecewise import ONE, PiecewiseLinear, soft_step
from blindcal.records import Estimate, FloatArray, IntArray

_SOFT = 0.2  # width of the edge of a range
RANGES: dict[str, PiecewiseLinear] = {
    "all items": ONE,
    **{f"confidence below {edge:g}": soft_step(edge, _SOFT, above=False) for edge in (0.1, 0.3, 0.5)},
    **{f"confidence above {edge:g}": soft_step(edge, _SOFT) for edge in (0.5, 0.7, 0.9)},
}
"""Ranges of confidence, as weights of the items."""
_BINS = 480  # of the threshold, in which answers are counted
_MIDDLES = (np.arange(_BINS) + 0.5) / _BINS
_STEP = 0.01
_VALUES = np.arange(-100, 101) * _STEP
_LEAST_LOSS = 0.01  # a bet that could hardly lose would have no highest stake
_FRACTIONS = np.array([0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7])


class GapCounts:
    """Labelled answers of a stream, counted by threshold, answer and label."""

    def __init__(self) -> None:
        self._counts = np.zeros((_BINS, 2, 2), np.int64)

    def add(self, labels: IntArray, thresholds: FloatArray, answers: IntArray) -> None:
        """Count labelled answers; answers are 0 or 1."""
        bins = np.minimum((thresholds * _BINS).astype(np.int64), _BINS - 1)
        np.add.at(self._counts, (bins, answers, labels), 1)

    @property
    def total(self) -> int:
        """Labelled answers so far."""
        return int(self._counts.sum())

    def share(self, weight: PiecewiseLinear) -> float:
        """The estimated share of the items that a weight counts; NaN without answers."""
        if not self.total:
            return np.nan
        counts, _, sizes = self._cells(weight)
        return float(np.clip(counts @ sizes / self.total, 0, 1))

    def gap(self, weight: PiecewiseLinear, level: float) -> Estimate:
        """The gap of the items that a weight counts, with a confidence sequence at this level (0.95)."""
        counts, signed, sizes = self._cells(weight)
        size = counts @ sizes
        # gains of a candidate value: linear in it, so the least one is at the least or the highest value
        gains = signed - _VALUES[:, None] * sizes
        possible = self._possible(weight)
        logs = []
        for sign in (1, -1):
            stakes = _FRACTIONS[:, None] / np.maximum(-(sign * possible).min(axis=1), _LEAST_LOSS)
            factors = 1 + sign * stakes[:, :, None] * gains
            logs.append(np.log(np.maximum(factors, 1e-300)) @ counts)
        wealth = logsumexp(np.concatenate(logs), axis=0) - np.log(2 * _FRACTIONS.size)
        kept = _VALUES[wealth < -np.log(1 - level)]
        if not kept.size:  # cannot happen where the values are dense enough; then nothing is claimed
            kept = _VALUES
        low, high = max(-1.0, kept.min() - _STEP), min(1.0, kept.max() + _STEP)
        value = None
        if size >= 1:
            value = float(np.clip(counts @ signed / size, low, high))
        return Estimate(value, float(low), float(high), level)

    def _cells(self, weight: PiecewiseLinear) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Counts of the cells that occur, their signed gaps, and their weights."""
        bins, answers, labels = np.nonzero(self._counts)
        t = _MIDDLES[bins]
        signed = answers * (weight(t) + (t - labels) * weight.slope(t)) - labels * weight.first
        sizes = weight.first + answers * weight.slope(t)
        return self._counts[bins, answers, labels].astype(float), signed, sizes

    def _possible(self, weight: PiecewiseLinear) -> FloatArray:
        """Gains that each candidate value can have, at all thresholds, answers and labels."""
        t = np.concatenate([_MIDDLES] * 4)
        answers, labels = np.repeat([0, 0, 1, 1], _BINS), np.repeat([0, 1, 0, 1], _BINS)
        signed = answers * (weight(t) + (t - labels) * weight.slope(t)) - labels * weight.first
        return np.asarray(signed - _VALUES[:, None] * (weight.first + answers * weight.slope(t)))
