"""Statements about many parts at once.

Of 20 intervals that each hold with 95% confidence, one misses the truth in most audits, and of 20 tests at 5%
one raises a false alarm in most. Here the intervals of all parts hold together with the confidence asked for
(Bonferroni), and all alarms together are false as rarely as one may be (Holm). Neither assumes that the parts
are independent, so groups of items may reach over several parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import gammaincc, ndtri

from blindcal.estimate.findings import Findings
from blindcal.records import Estimate, FloatArray


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
    found: list[float | None] = [None] * len(pvalues)
    highest = 0.0
    for rank, (p, place) in enumerate(made):
        highest = max(highest, min(1.0, (len(made) - rank) * p))
        found[place] = highest
    return tuple(found)


def beyond(near: Estimate, far: Estimate, least: float = -1.0, most: float = 1.0) -> Estimate:
    """The interval at the high level of ``far``, of whose tails few refits say little.

    ``near`` is the same quantity at a level that the refits do show. Each side of its interval is widened as
    that of a normal distribution is. The result includes the interval ``far``, which has the most extreme of
    the refits and what an unseen share of the population allows at its level.
    """
    if near.low is None or near.high is None or far.low is None or far.high is None:
        return near
    assert near.level is not None
    assert far.level is not None
    assert near.value is not None
    factor = float(ndtri((1 + far.level) / 2) / ndtri((1 + near.level) / 2))
    middle = min(max(near.value, near.low), near.high)
    low = min(far.low, middle - factor * (middle - near.low))
    high = max(far.high, middle + factor * (near.high - middle))
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
    """For each of several estimates, the p-value of "its mean is that of all others".

    It is compared with the precision-weighted mean of the others, by a chi-square test.
    """
    size = values[0].size
    floor = 1e-9 * np.eye(size)  # a component without items has no noise and tells nothing
    precisions = [np.linalg.inv(covariance + floor) for covariance in covariances]
    total = np.sum(precisions, axis=0)
    weighted = np.sum([p @ x for p, x in zip(precisions, values, strict=True)], axis=0)
    found = []
    for x, covariance, p in zip(values, covariances, precisions, strict=True):
        others = np.linalg.inv(total - p)
        off = x - others @ (weighted - p @ x)
        statistic = float(off @ np.linalg.solve(covariance + others + floor, off))
        found.append(float(gammaincc(size / 2, statistic / 2)))
    return found


def outlier_pvalues(values: Sequence[FloatArray], covariances: Sequence[FloatArray]) -> tuple[float, ...]:
    """Adjusted p-values of "its mean is that of the others", for each of several estimates.

    They allow for the number of estimates as those of `holm` do. The one that differs most is set aside
    before the next is tested, so that it does not make all others look different.
    """
    found = [1.0] * len(values)
    active, highest = list(range(len(values))), 0.0
    while len(active) > 1 and highest < 1:
        each = difference_pvalues([values[k] for k in active], [covariances[k] for k in active])
        highest = max(highest, min(1.0, len(active) * min(each)))
        # of the last two, neither is the one that differs
        first = [active[int(np.argmin(each))]] if len(active) > 2 else active
        for k in first:
            found[k] = highest
        active = [k for k in active if k not in first]
    return tuple(found)
