"""Intervals from resampled tables, and p-values.

A sum of absolute values is biased upwards by noise and cannot be negative, so an ordinary interval for a
calibration error always misses a calibrated model. :func:`absolute_sum_interval` inverts a test instead: it
contains every true error under which the observed one would not be unusual.

Of 20 intervals that each hold with 95% confidence, one misses the truth in most audits, and of 20 tests at 5%
one raises a false alarm in most. The intervals of all parts of an audit hold together with the confidence
asked for (Bonferroni), and all alarms together are false as rarely as one may be (Holm). Neither assumes that
the parts are independent, so groups of items may reach over several parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import betaincinv, gammaincc, ndtr, ndtri

from blindcal.estimate.findings import Findings
from blindcal.records import Estimate, FloatArray


def draw_quantile(draws: FloatArray, share: float) -> FloatArray:
    """The value that one more draw is below with probability ``share``, however few draws there are.

    The draws are along the first axis.
    """
    return np.asarray(np.quantile(draws, share, axis=0, method="weibull"))


def percentile_interval(draws: FloatArray, level: float) -> tuple[float, float]:
    """The range of the central share ``level`` of the draws."""
    tail = (1 - level) / 2
    return float(draw_quantile(draws, tail)), float(draw_quantile(draws, 1 - tail))


def share_bounds(hits: int, trials: int, tail: float) -> tuple[float, float]:
    """Clopper-Pearson bounds of a share; the truth is beyond each with probability at most ``tail``.

    Examples
    --------
    >>> [round(bound, 4) for bound in share_bounds(59, 59, 0.05)], share_bounds(0, 0, 0.05)
    ([0.9505, 1.0], (0.0, 1.0))
    """
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return low, high


def absolute_sum_interval(estimate: FloatArray, draws: FloatArray, level: float) -> tuple[float, float]:
    """Confidence interval for sum |delta|, given an estimate of delta and draws around it.

    Of the draws, shape (resamples, components), only the deviations from their mean are used.

    Notes
    -----
    The observed sum is compared with its distribution under candidate truths. Candidates below the estimate
    shrink every component by the same number of its standard errors, at most to zero: components within the
    noise vanish first. Candidates above the estimate increase every component by the same number of standard
    errors. Noise then adds least to the sum, and a smooth fit tends to underestimate the sum, so this end may
    be too low. The upper end is therefore the upper quantile of the draws, which contains all of the noise,
    if that is higher.
    """
    from scipy.optimize import brentq  # slow to import, and not needed to estimate

    noise = draws - draws.mean(axis=0)
    across = np.ascontiguousarray(noise.T)  # sums over components are many times faster in this layout
    scale = noise.std(axis=0)
    size, sign = np.abs(estimate), np.where(estimate < 0, -1.0, 1.0)
    observed = float(size.sum())
    tail = (1 - level) / 2

    def candidate(move: float) -> FloatArray:
        return np.asarray(np.maximum(size + move * scale, 0.0))

    def excess(move: float) -> FloatArray:
        return np.asarray(np.abs((sign * candidate(move))[:, None] + across).sum(axis=0))

    def down(move: float) -> float:
        return float((excess(-move) >= observed).mean()) - tail

    def up(move: float) -> float:
        return float((excess(move) <= observed).mean()) - tail

    positive = scale > 0
    if not positive.any():
        return observed, observed
    vanish = float((size[positive] / scale[positive]).max())
    low = 0.0 if down(vanish) >= 0 else float(candidate(-brentq(down, 0.0, vanish, xtol=1e-4)).sum())
    above = float(draw_quantile(np.abs(draws).sum(axis=1), 1 - tail))
    if up(0.0) <= 0:
        return low, max(observed, above)
    far = 4.0
    while up(far) > 0:
        far *= 2
    high = float(candidate(brentq(up, 0.0, far, xtol=1e-4)).sum())
    return low, max(high, above)


def unseen_share(units: float, level: float) -> float:
    """The largest share of a population that ``units`` draws miss with probability (1 - level) / 2."""
    return float(1 - ((1 - level) / 2) ** (1 / units))


def unseen_draws(units: float, size: int, rng: np.random.Generator) -> FloatArray:
    """Draw shares of a population that ``units`` draws miss; each exceeds q with probability (1 - q)^units.

    If every draw of a share of successes is joined by such a part, all failures or all successes, the
    quantiles are close to the interval of Clopper and Pearson, which holds for any number of units. The draws
    alone scatter too little if successes or failures are few.
    """
    return np.asarray(1 - rng.random(size) ** (1 / units))


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


def _pooled(
    values: Sequence[FloatArray], covariances: Sequence[FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The precision of each estimate, their sum, and the sum of the estimates weighted by it."""
    floor = 1e-9 * np.eye(values[0].size)  # a component without items has no noise and tells nothing
    precisions = np.array([np.linalg.inv(covariance + floor) for covariance in covariances])
    weighted = np.sum([p @ x for p, x in zip(precisions, values, strict=True)], axis=0)
    return precisions, precisions.sum(axis=0), weighted


def heterogeneity_pvalue(values: Sequence[FloatArray], covariances: Sequence[FloatArray]) -> float:
    """P-value of "all estimates have the same mean": Cochran's Q around the precision-weighted mean."""
    precisions, total, weighted = _pooled(values, covariances)
    mean = np.linalg.solve(total, weighted)
    q = sum(float((x - mean) @ p @ (x - mean)) for p, x in zip(precisions, values, strict=True))
    return float(gammaincc(mean.size * (len(values) - 1) / 2, q / 2))  # chi-square


def level_of_each(level: float, count: int) -> float:
    """The level of each of ``count`` intervals with which all hold together at ``level`` (Bonferroni)."""
    return 1 - (1 - level) / max(count, 1)


def holm(pvalues: Sequence[float | None]) -> tuple[float | None, ...]:
    """Adjusted p-values; ``None`` stands for a test that was not made.

    If all tests with a value below alpha are rejected, any is wrongly so with probability alpha at most.

    Examples
    --------
    >>> holm([0.01, None, 0.04, 0.03])
    (0.03, None, 0.06, 0.06)
    """
    made = sorted((p, place) for place, p in enumerate(pvalues) if p is not None)
    adjusted: list[float | None] = [None] * len(pvalues)
    highest = 0.0
    for rank, (p, place) in enumerate(made):
        highest = max(highest, min(1.0, (len(made) - rank) * p))
        adjusted[place] = highest
    return tuple(adjusted)


def beyond(near: Estimate, far: Estimate, least: float = -1.0, most: float = 1.0) -> Estimate:
    """The interval at the high level of ``far``, of whose tails few refits say little.

    ``near`` is the same quantity at a level that the refits do show. Each side of its interval is widened as
    that of a normal distribution is. The result includes the interval ``far``, which has the most extreme of
    the refits and what an unseen share of the population allows at its level.
    """
    if not (near.has_interval and far.has_interval):
        return near
    low, high, lowest, highest = (float(x or 0.0) for x in (near.low, near.high, far.low, far.high))
    factor = float(ndtri((1 + (far.level or 0.0)) / 2) / ndtri((1 + (near.level or 0.0)) / 2))
    middle = min(max(float(near), low), high)
    low = min(lowest, middle - factor * (middle - low))
    high = max(highest, middle + factor * (high - middle))
    return Estimate(near.value, max(least, low), min(most, high), far.level)


def findings_beyond(near: Findings, far: Findings) -> Findings:
    """The findings of a part, with the intervals of ``far``, whose level is high."""
    return replace(
        near,
        ece=beyond(near.ece, far.ece, least=0.0),
        accuracy=beyond(near.accuracy, far.accuracy, least=0.0),
        leaning=beyond(near.leaning, far.leaning),
        overconfidence=beyond(near.overconfidence, far.overconfidence),
    )


def difference_pvalues(values: Sequence[FloatArray], covariances: Sequence[FloatArray]) -> list[float]:
    """For each of several estimates, the p-value of "its mean is that of all others" (chi-square)."""
    precisions, total, weighted = _pooled(values, covariances)
    floor = 1e-9 * np.eye(len(total))
    pvalues = []
    for x, covariance, p in zip(values, covariances, precisions, strict=True):
        others = np.linalg.inv(total - p)
        off = x - others @ (weighted - p @ x)
        statistic = float(off @ np.linalg.solve(covariance + others + floor, off))
        pvalues.append(float(gammaincc(x.size / 2, statistic / 2)))
    return pvalues


def outlier_pvalues(values: Sequence[FloatArray], covariances: Sequence[FloatArray]) -> tuple[float, ...]:
    """Adjusted p-values of "its mean is that of the others", for each of several estimates.

    They allow for the number of estimates as those of `holm` do. The one that differs most is set aside
    before the next is tested, so that it does not make all others look different.
    """
    pvalues = [1.0] * len(values)
    active, highest = list(range(len(values))), 0.0
    while len(active) > 1 and highest < 1:
        each = difference_pvalues([values[k] for k in active], [covariances[k] for k in active])
        highest = max(highest, min(1.0, len(active) * min(each)))
        # of the last two, neither is the one that differs
        first = [active[int(np.argmin(each))]] if len(active) > 2 else active
        for k in first:
            pvalues[k] = highest
        active = [k for k in active if k not in first]
    return tuple(pvalues)
