"""Intervals from resampled tables, and p-values.

A sum of absolute values is biased upwards by noise, so an ordinary interval for a calibration error always
misses a calibrated model; :func:`absolute_sum_interval` inverts a test instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.special import betaincinv, gammaincc, ndtr, ndtri

from blindcal.records import Estimate, FloatArray

#: Both ends of the interval of a quantity.
Ends: TypeAlias = tuple[FloatArray, FloatArray]

_ROUNDING = 1e-12  # a standard deviation below this is a rounding error


def draw_quantile(draws: FloatArray, share: float) -> FloatArray:
    """The value that one more draw (first axis) is below with probability ``share``."""
    return np.asarray(np.quantile(draws, share, axis=0, method="weibull"))


def percentile_interval(draws: FloatArray, level: float) -> tuple[float, float]:
    tail = (1 - level) / 2
    return float(draw_quantile(draws, tail)), float(draw_quantile(draws, 1 - tail))


def share_bounds(hits: int, trials: int, tail: float) -> tuple[float, float]:
    """Clopper-Pearson bounds of a share; the truth is beyond each with probability at most ``tail``.

    >>> [round(bound, 4) for bound in share_bounds(59, 59, 0.05)], share_bounds(0, 0, 0.05)
    ([0.9505, 1.0], (0.0, 1.0))
    """
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return low, high


def norm(values: FloatArray, order: int = 1, axis: int = -1) -> FloatArray:
    """The sum of absolute values or, with order 2, the root of the sum of squares."""
    size = np.abs(values)
    return np.asarray(size.sum(axis=axis) if order == 1 else np.sqrt((size**order).sum(axis=axis)))


def absolute_sum_interval(
    estimate: FloatArray, draws: FloatArray, level: float, order: int = 1
) -> tuple[float, float]:
    """Interval for sum |delta|, given an estimate and draws around it, shape (resamples, components).

    With another ``order`` it is for that `norm`.

    It holds every truth under which the observed sum is not unusual; these move every component by the same
    number of standard errors. As smooth fits underestimate the sum, it includes the upper quantile of the
    draws.
    """
    from scipy.optimize import brentq  # slow to import, and not needed to estimate

    noise = draws - draws.mean(axis=0)
    across = np.ascontiguousarray(noise.T)  # sums over components are many times faster in this layout
    scale = noise.std(axis=0)
    size, sign = np.abs(estimate), np.where(estimate < 0, -1.0, 1.0)
    observed = float(norm(size, order))
    tail = (1 - level) / 2

    def candidate(move: float) -> FloatArray:
        return np.asarray(np.maximum(size + move * scale, 0.0))

    def excess(move: float) -> FloatArray:
        return np.asarray(norm((sign * candidate(move))[:, None] + across, order, axis=0))

    def down(move: float) -> float:
        return float((excess(-move) >= observed).mean()) - tail

    def up(move: float) -> float:
        return float((excess(move) <= observed).mean()) - tail

    positive = scale > _ROUNDING
    if not positive.any():
        return observed, observed
    vanish = float((size[positive] / scale[positive]).max())
    low = 0.0 if down(vanish) >= 0 else float(norm(candidate(-brentq(down, 0.0, vanish, xtol=1e-4)), order))
    above = float(draw_quantile(norm(draws, order), 1 - tail))
    if up(0.0) <= 0:
        return low, max(observed, above)
    far = 4.0
    while up(far) > 0:
        far *= 2
    high = float(norm(candidate(brentq(up, 0.0, far, xtol=1e-4)), order))
    return low, max(high, above)


def unseen_share(units: float, level: float) -> float:
    """The largest share of a population that ``units`` draws miss with probability (1 - level) / 2."""
    return float(1 - ((1 - level) / 2) ** (1 / units))


def unseen_draws(units: float, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw shares of a population that ``units`` draws miss; each exceeds q with probability (1 - q)^units.

    Added to draws of a share of successes, they give nearly the interval of Clopper and Pearson.
    """
    return np.asarray(1 - rng.random(size) ** (1 / units))


@dataclass(frozen=True, eq=False)
class Unseen:
    """What ``units`` leave unseen of a population: a share per draw, ``missed``, and one of fixed size."""

    units: float
    missed: FloatArray
    level: float

    def ends(
        self,
        drawn: FloatArray,
        value: FloatArray,
        least: float | FloatArray = 0.0,
        most: float | FloatArray = 1.0,
    ) -> Ends:
        """Interval of each component of a ``value`` to which an item adds from ``least`` to ``most``.

        A draw without the items that the quantity needs is NaN, and counts as either extreme.
        """
        tail = (1 - self.level) / 2
        share = self.missed.reshape(-1, *[1] * (drawn.ndim - 1))
        fewest, most_drawn = (np.where(np.isnan(drawn), end, drawn) for end in (least, most))
        low = draw_quantile((1 - share) * fewest + share * least, tail)
        high = draw_quantile((1 - share) * most_drawn + share * most, 1 - tail)
        return self._widened(low, high, value, least, most)

    def absolute_ends(
        self, drawn: FloatArray, values: FloatArray, most: float = 1.0, *, off: float = 0.0, order: int = 1
    ) -> tuple[float, float]:
        """Interval of the sum of absolute ``values`` or another `norm`, which may be ``off`` by some more."""
        low, high = absolute_sum_interval(values, drawn, self.level, order)
        ends = self._widened(np.asarray(low), np.asarray(high), norm(values, order), 0.0, most)
        return float(ends[0]) - off, float(ends[1]) + off

    def _widened(
        self,
        low: FloatArray,
        high: FloatArray,
        value: FloatArray,
        least: float | FloatArray,
        most: float | FloatArray,
    ) -> Ends:
        unseen = unseen_share(self.units, self.level)
        low = np.minimum(low, (1 - unseen) * value + unseen * least)
        high = np.maximum(high, (1 - unseen) * value + unseen * most)
        return np.maximum(low, least), np.minimum(high, most)


def quadratic_pvalue(statistic: float, weights: FloatArray) -> float:
    """P(sum of weights * chi-square_1 > statistic), by Kuonen's saddlepoint approximation."""
    from scipy.optimize import brentq  # slow to import, and not needed to estimate

    w = weights[weights > 1e-12 * weights.max()] if weights.size and weights.max() > 0 else weights[:0]
    if w.size == 0:
        return 1.0
    q = statistic / w.max()
    w = w / w.max()
    mean = float(w.sum())
    if q < 1e-9 * mean:  # no departure; the approximation fails for values this small
        return 1.0

    def slope(z: float) -> float:
        return float((w / (1 - 2 * z * w)).sum() - q)

    if abs(q - mean) < 1e-3 * mean:  # the approximation is singular at the mean
        q = mean * (1 + 1e-3)
    low = -1.0
    while slope(low) > 0:
        low *= 2
    z = brentq(slope, low, 0.5 * (1 - 1e-12), xtol=1e-14)
    cumulant = -0.5 * float(np.log1p(-2 * z * w).sum())
    root = np.sign(z) * np.sqrt(max(2 * (z * q - cumulant), 0.0))
    spread = z * np.sqrt(2 * float((w**2 / (1 - 2 * z * w) ** 2).sum()))
    if root == 0 or spread == 0:
        return 0.5
    return float(np.clip(ndtr(-(root + np.log(spread / root) / root)), 0.0, 1.0))


def heterogeneity_pvalue(values: Sequence[FloatArray], covariances: Sequence[FloatArray]) -> float:
    """P-value of "all estimates have the same mean" (Cochran's Q, precision-weighted)."""
    floor = 1e-9 * np.eye(values[0].size)  # a component without items has no noise and tells nothing
    precisions = np.array([np.linalg.inv(covariance + floor) for covariance in covariances])
    weighted = np.sum([p @ x for p, x in zip(precisions, values, strict=True)], axis=0)
    mean = np.linalg.solve(precisions.sum(axis=0), weighted)
    q = sum(float((x - mean) @ p @ (x - mean)) for p, x in zip(precisions, values, strict=True))
    return float(gammaincc(mean.size * (len(values) - 1) / 2, q / 2))  # chi-square


def beyond(near: Estimate, far: Estimate) -> Estimate:
    """The interval of a share at the high level of ``far``, whose tails few refits show.

    Each side of ``near`` is widened as for a normal distribution, and the result includes that of ``far``.
    """
    if not (near.has_interval and far.has_interval):
        return near
    low, high, lowest, highest = (float(x or 0.0) for x in (near.low, near.high, far.low, far.high))
    factor = float(ndtri((1 + (far.level or 0.0)) / 2) / ndtri((1 + (near.level or 0.0)) / 2))
    middle = min(max(float(near), low), high)
    low = min(lowest, middle - factor * (middle - low))
    high = max(highest, middle + factor * (high - middle))
    return Estimate(near.value, max(0.0, low), min(1.0, high), far.level)
