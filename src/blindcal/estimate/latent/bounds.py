"""What the answers of a fit do not show, by which its intervals are widened.

If every item was asked the same noisy question once, answers cannot distinguish a model that wavers from one
that is sure and often wrong. With ``r(f)`` the probability of a positive answer,

    |E f - E Y|  <=  ECE  <=  E|f - E[Y|f]|  <=  E[f (1 - Y) + (1 - f) Y],

where E[f | Y = y] lies between the hulls of the curve (r(f), f) at the share of positive answers.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, MID_P
from blindcal.estimate.latent.operating import BoolArray
from blindcal.estimate.readings import Patterns
from blindcal.records import NEGATIVE, POSITIVE, FloatArray

# Items of a label beyond a threshold are shown if the answers would be less likely without them, by this many
# units of log-likelihood: half the 95% point of chi-square with one degree of freedom.
_CLEARLY_THERE = 1.92
_WIDE = 0.25  # widest range of probability without a threshold that the smooth density is trusted to bridge
_MANY, _LARGE_SHARE = 30, 0.02  # answers at one edge, and their share of all, if it is one of few


def error_bounds(patterns: Patterns, level: float, units: float) -> tuple[float, float] | None:
    """Bounds on the population's ECE for any bins, from one noisy question asked once; else ``None``."""
    curve = _only_curve(patterns)
    if curve is None:
        return None
    positive = patterns.curves @ MID_P > (1 - patterns.curves) @ MID_P
    counts = patterns.counts[patterns.start.size :]
    total = np.array([counts[patterns.curve_labels == y].sum() for y in (0, 1)])
    positive_answers = np.array([counts[positive & (patterns.curve_labels == y)].sum() for y in (0, 1)])
    share = positive_answers / np.maximum(total, 1.0)
    weight = total / total.sum()
    independent = np.maximum(total * units / total.sum(), 1.0)
    chance = ndtri((1 + level) / 2) * np.sqrt(np.maximum(share * (1 - share), 1 / independent) / independent)
    low = [_hull(curve, max(0.0, q), upper=False) for q in share - chance]
    high = [_hull(curve, min(1.0, q), upper=True) for q in share + chance]
    mean = float(weight @ low), float(weight @ high)
    least = max(0.0, mean[0] - weight[1], weight[1] - mean[1])
    return float(least), float(weight[0] * high[0] + weight[1] * (1 - low[1]))


def _only_curve(patterns: Patterns) -> FloatArray | None:
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


def unasked(patterns: Patterns, population: FloatArray) -> float:
    """The most that items in wide ranges without a threshold could change the sum of absolute gaps."""
    if patterns.curve_labels.size:  # a sampled or noisy answer depends on the whole range
        return 0.0
    asked = np.unique(np.concatenate([patterns.start, patterns.stop]) % CELLS)
    edges = np.unique(np.concatenate([[0], asked, [CELLS]]))
    width = np.diff(EDGES_P[edges])
    mass = np.add.reduceat(population.reshape(2, CELLS).sum(axis=0), edges[:-1])
    return float((mass * width)[width > _WIDE].sum())


def answers_beyond(patterns: Patterns) -> FloatArray:
    """Number of answers at or beyond each inner edge: above it for edges from 1/2 up, else below it."""
    counts, noisy = np.split(patterns.counts, [patterns.start.size])
    low, high = patterns.start % CELLS, (patterns.stop - 1) % CELLS + 1
    inner = (np.bincount(low, counts, CELLS + 1) + np.bincount(high, counts, CELLS + 1))[1:CELLS]
    once = (low == patterns.axis.first) ^ (high == CELLS)
    at = np.bincount(np.where(low == patterns.axis.first, high, low)[once], counts[once], CELLS + 1)
    # most items were asked once at a few edges, as by `blind`: smoothness decides what is between
    if 2 * at.sum() > counts.sum() and at.max() >= max(_MANY, _LARGE_SHARE * counts.sum()):
        return np.asarray(inner + noisy.sum())
    above, below = np.cumsum(inner[::-1])[::-1], np.cumsum(inner)
    return np.asarray(np.where(EDGES_S[1:-1] >= 0, above, below) + noisy.sum())


def told_apart(patterns: Patterns) -> tuple[int, int]:
    """The first and last cell that the answers roughly distinguish from the outermost ones."""
    if not patterns.axis.direct:
        return 0, CELLS - 1
    edges = np.concatenate([patterns.start % CELLS, patterns.stop % CELLS])
    edges = edges[edges > 0]
    first, last = (int(edges.min()) - 1, int(edges.max())) if edges.size else (CELLS - 1, 0)
    for outermost in (0, CELLS - 1) if patterns.curves.size else ():
        # an answer tells cells apart if it would differ between them once in all items
        differs = (np.abs(patterns.curves - patterns.curves[:, [outermost]]) > 1 / patterns.n).any(axis=0)
        cells = np.flatnonzero(differs)
        if cells.size and outermost == 0:
            first = min(first, int(cells[0]) - 1)
        elif cells.size:
            last = max(last, int(cells[-1]) + 1)
    return first, last


def shown_decisions(patterns: Patterns, table: FloatArray) -> BoolArray:
    """Whether answers show true and false positives, false and true negatives (rows) at inner edges."""
    edges = np.arange(1, CELLS)
    return np.array(
        [
            edges <= _outermost(patterns, table, POSITIVE, above=True),
            edges <= _outermost(patterns, table, NEGATIVE, above=True),
            edges >= _outermost(patterns, table, POSITIVE, above=False),
            edges >= _outermost(patterns, table, NEGATIVE, above=False),
        ]
    )


def _outermost(patterns: Patterns, table: FloatArray, label: int, *, above: bool) -> int:
    """The outermost edge beyond which answers would be much less likely without items of a label."""

    def likelihood(joint: FloatArray) -> float:
        return float(patterns.counts @ np.log(patterns.mass(joint)))

    best = likelihood(table)
    shown, other = (0, CELLS) if above else (CELLS, 0)
    while abs(other - shown) > 1:
        edge = (shown + other) // 2
        clipped = table.copy()
        cells = clipped[label * CELLS : (label + 1) * CELLS]
        beyond, nearest = (slice(edge, None), edge - 1) if above else (slice(edge), edge)
        cells[nearest] += cells[beyond].sum()
        cells[beyond] = 0.0
        if best - likelihood(clipped) > _CLEARLY_THERE:
            shown = edge
        else:
            other = edge
    return shown
