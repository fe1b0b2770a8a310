"""Bounds on the calibration error if every item was asked the same noisy question once.

Such answers contain only two numbers: the share of positive answers for each label. They cannot distinguish a
model that wavers from one that is sure and often wrong. With ``r(f)`` the probability of a positive answer,

    |E f - E Y|  <=  ECE  <=  E|f - E[Y|f]|  <=  E[f (1 - Y) + (1 - f) Y],

and E[f | Y = y] lies between the lower and the upper hull of the curve (r(f), f) at the share of positive
answers. At T = 1 without a shift, r(f) = f. The error is then at least the absolute difference between the
shares of positive answers and positive labels, and at most the share of answers that differ from their label,
which plain sampling takes for the error itself.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from blindcal.estimate.grid import CELLS, MID_P
from blindcal.estimate.readings import Patterns
from blindcal.records import FloatArray


def error_bounds(patterns: Patterns, level: float, units: float) -> tuple[float, float] | None:
    """Bounds on the population's ECE, for any bins; ``None`` if the answers contain more than two shares.

    Parameters
    ----------
    patterns : Patterns
    level : float
        Confidence level of the shares of positive answers.
    units : float
        Number of independent units: the number of groups if the items come in groups.
    """
    curve = _only_curve(patterns)
    if curve is None:
        return None
    positive = patterns.curves @ MID_P > (1 - patterns.curves) @ MID_P
    counts = patterns.counts[patterns.start.size :]
    total = np.array([counts[patterns.curve_labels == y].sum() for y in (0, 1)])
    said = np.array([counts[positive & (patterns.curve_labels == y)].sum() for y in (0, 1)])
    share = said / np.maximum(total, 1.0)
    weight = total / total.sum()
    independent = np.maximum(total * units / total.sum(), 1.0)
    chance = ndtri((1 + level) / 2) * np.sqrt(np.maximum(share * (1 - share), 1 / independent) / independent)
    low = [_hull(curve, max(0.0, q), upper=False) for q in share - chance]
    high = [_hull(curve, min(1.0, q), upper=True) for q in share + chance]
    mean = float(weight @ low), float(weight @ high)
    least = max(0.0, mean[0] - weight[1], weight[1] - mean[1])
    return float(least), float(weight[0] * high[0] + weight[1] * (1 - low[1]))


def _only_curve(patterns: Patterns) -> FloatArray | None:
    """P(positive answer | cell), if every answered item was asked the same noisy question once."""
    if not len(patterns.curves) or not patterns.unread.all():
        return None
    first: FloatArray = patterns.curves[0]
    if not all(np.allclose(row, first) or np.allclose(row, 1 - first) for row in patterns.curves):
        return None
    return np.asarray(first if first[-1] > first[0] else 1 - first)


def _hull(curve: FloatArray, share: float, *, upper: bool) -> float:
    """The highest (or lowest) mean of f over mixtures of cells whose mean of ``curve`` is ``share``."""
    at = float(np.clip(share, curve[0], curve[-1]))
    left, right = curve[curve <= at], curve[curve >= at]
    f_left, f_right = MID_P[: left.size], MID_P[CELLS - right.size :]
    span = right[None, :] - left[:, None]
    part = np.divide(at - left[:, None], span, out=np.zeros_like(span), where=span > 0)
    mean = f_left[:, None] + part * (f_right[None, :] - f_left[:, None])
    return float(mean.max() if upper else mean.min())
