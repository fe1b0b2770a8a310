"""Confidence sequences of gaps: intervals that hold at all times at once, however often one looks.

A gap is the mean confidence minus the share of positive labels in a range of confidence. A value is in the
interval as long as bets against it have not won 1/level (METHOD 11). Items within 0.1 of the edge of a range
count in part, because one answer per item can measure only continuous weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from blindcal.records import Estimate, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """A continuous function on [0, 1], given by its values at increasing knots from 0 to 1."""

    knots: FloatArray
    values: FloatArray

    def __call__(self, x: FloatArray) -> FloatArray:
        return np.interp(x, self.knots, self.values)

    def slope(self, x: FloatArray) -> FloatArray:
        """The slope at each x; at a knot, the slope to its right."""
        slopes = np.diff(self.values) / np.diff(self.knots)
        return np.asarray(slopes[np.clip(np.searchsorted(self.knots, x, "right") - 1, 0, slopes.size - 1)])


def _soft_step(place: float, *, above: bool) -> PiecewiseLinear:
    knots = np.unique(np.clip([0, place - _SOFT / 2, place + _SOFT / 2, 1], 0, 1))
    values = np.clip((knots - place) / _SOFT + 0.5, 0, 1)
    return PiecewiseLinear(knots, values if above else 1 - values)


_SOFT = 0.2  # width of the edge of a range
RANGES: dict[str, PiecewiseLinear] = {
    "all items": PiecewiseLinear(np.array([0.0, 1.0]), np.array([1.0, 1.0])),
    **{f"confidence below {edge:g}": _soft_step(edge, above=False) for edge in (0.1, 0.3, 0.5)},
    **{f"confidence above {edge:g}": _soft_step(edge, above=True) for edge in (0.5, 0.7, 0.9)},
}
"""Ranges of confidence, as weights of the items."""
_BINS = 240  # of the threshold, in which answers are counted
_MIDDLES = (np.arange(_BINS) + 0.5) / _BINS
_GRID = np.arange(-20, 21) / 20  # values of a gap that are tested first
_HALVINGS = 9
_BIAS = 1e-4  # the most by which counting in bins moves a gap
_LEAST_LOSS = 0.01  # a bet that could hardly lose would have no highest stake
_FRACTIONS = np.array([0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7])


@dataclass(frozen=True, slots=True)
class Gap:
    """Mean confidence minus the share of positive labels in a range; the interval holds at all times."""

    name: str
    gap: Estimate
    share: float | None


class GapCounts:
    """Labelled answers of a stream, counted by threshold, answer and label."""

    def __init__(self) -> None:
        self._counts = np.zeros((_BINS, 2, 2), np.int64)

    def add(self, labels: IntArray, thresholds: FloatArray, answers: IntArray) -> None:
        bins = np.minimum((thresholds * _BINS).astype(np.int64), _BINS - 1)
        np.add.at(self._counts, (bins, answers, labels), 1)

    def share(self, weight: PiecewiseLinear) -> float | None:
        """The estimated share of the items that a weight counts; ``None`` without answers."""
        if not (total := int(self._counts.sum())):
            return None
        counts, _, sizes = self._cells(weight)
        return float(np.clip(counts @ sizes / total, 0, 1))

    def gap(self, weight: PiecewiseLinear, level: float) -> Estimate:
        """The gap of the items that a weight counts, with a confidence sequence at this level."""
        counts, signed, sizes = self._cells(weight)
        bar = -np.log(1 - level)

        def refuted(values: FloatArray) -> npt.NDArray[np.bool_]:
            return np.asarray(_log_wealth(weight, values, counts, signed, sizes) >= bar)

        kept = _GRID[~refuted(_GRID)]
        value = None
        if (size := float(counts @ sizes)) >= 1:
            # gains add up to zero at this value, so no bet has won there: it is always in the interval
            value = float(np.clip(counts @ signed / size, -1, 1))
            kept = np.append(kept, value)
        if not kept.size:
            return Estimate(None, -1.0, 1.0, level)
        inner = np.array([kept.min(), kept.max()])
        outer = np.array([_GRID[inner[0] > _GRID].max(initial=-1), _GRID[inner[1] < _GRID].min(initial=1)])
        for _ in range(_HALVINGS):
            middle = (inner + outer) / 2
            out = refuted(middle)
            inner, outer = np.where(out, inner, middle), np.where(out, middle, outer)
        low, high = np.clip(outer + np.array([-_BIAS, _BIAS]), -1, 1).tolist()
        return Estimate(value, low, high, level)

    def _cells(self, weight: PiecewiseLinear) -> tuple[FloatArray, FloatArray, FloatArray]:
        cells = np.nonzero(self._counts)
        return self._counts[cells].astype(float), *_measured(weight, *cells)


def _measured(
    weight: PiecewiseLinear, bins: IntArray, answers: IntArray, labels: IntArray
) -> tuple[FloatArray, FloatArray]:
    """The signed gap and the weight of an item that one answer measures, each without bias."""
    t, first = _MIDDLES[bins], float(weight.values[0])
    signed = answers * (weight(t) + (t - labels) * weight.slope(t)) - labels * first
    return signed, first + answers * weight.slope(t)


def _log_wealth(
    weight: PiecewiseLinear, values: FloatArray, counts: FloatArray, signed: FloatArray, sizes: FloatArray
) -> FloatArray:
    anywhere, weights = _measured(weight, *np.indices((_BINS, 2, 2)).reshape(3, -1))
    # stakes are shares of the highest loss in any cell, also in those that do not occur
    possible = anywhere - values[:, None] * weights
    gains = signed - values[:, None] * sizes
    logs = []
    for sign in (1, -1):
        stakes = _FRACTIONS[:, None] / np.maximum(-(sign * possible).min(axis=1), _LEAST_LOSS)
        logs.append(np.log(np.maximum(1 + sign * stakes[:, :, None] * gains, 1e-300)) @ counts)
    return np.asarray(logsumexp(np.concatenate(logs), axis=0) - np.log(2 * _FRACTIONS.size))
