"""The grid for the distribution of the hidden log-odds, and the quantities of a joint table on it (METHOD 4).

Cells are 1/480 wide in probability in the middle and piecewise evenly spaced in log-odds in the tails, out to
±12; the two outermost extend to infinity. Edges of the usual bins are edges of cells, as 480 has many
divisors. Thresholds are asked at edges too, so that answers aggregate without loss.

A joint table of (label, cell) has the shape (..., 2 * cells), label 0 first, and sums to one. All quantities
are computed for stacks of tables at once, on this grid or on other `Cells`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from blindcal.estimate.truth import bin_index
from blindcal.records import FloatArray, IntArray

LEVELS = 480
_CENTRE = 12  # cells have equal width in probability between 12/480 and 468/480
REACH = 12.0

_tail = np.concatenate([np.arange(-REACH, -8, 0.25), np.linspace(-8, logit(_CENTRE / LEVELS), 44)[:-1]])
_inner_p = np.concatenate(
    [expit(_tail), np.arange(_CENTRE, LEVELS - _CENTRE + 1) / LEVELS, expit(-_tail[::-1])]
)

#: Edges of the cells in probability (0 and 1 included) and in log-odds (infinite at both ends).
EDGES_P: FloatArray = np.concatenate([[0.0], _inner_p, [1.0]])
EDGES_S: FloatArray = logit(EDGES_P)
CELLS: int = EDGES_P.size - 1

_finite = np.concatenate([[-REACH - 2], EDGES_S[1:-1], [REACH + 2]])
#: A representative log-odds and probability of each cell, and the cell's width in log-odds.
MID_S: FloatArray = (_finite[1:] + _finite[:-1]) / 2
MID_P: FloatArray = (EDGES_P[1:] + EDGES_P[:-1]) / 2
WIDTH_S: FloatArray = np.diff(_finite)
#: First cell whose log-odds is at least zero: from here on the greedy answer is positive.
HALF: int = int(np.searchsorted(EDGES_P, 0.5))


@dataclass(frozen=True, eq=False)
class Cells:
    """What stands for the items of each cell: a probability and a log-odds, in rising order."""

    p: FloatArray
    s: FloatArray
    ranges: bool = (
        False  # the cells are the ranges of the grid; if not, all items of a cell have its probability
    )

    @classmethod
    def at(cls, p: FloatArray) -> Cells:
        """Cells of single probabilities; log-odds beyond those of the grid count as its outermost."""
        return cls(p, np.clip(logit(p), MID_S[0], MID_S[-1]))

    def memberships(self, bins: int) -> FloatArray:
        """Share of each cell in each of ``bins`` equal-width bins, shape (cells, bins)."""
        if not self.ranges:
            return np.asarray(bin_index(self.p, bins)[:, None] == np.arange(bins), np.float64)
        places = positions(np.arange(bins + 1) / bins)
        below = np.clip(places[None, :] - np.arange(CELLS)[:, None], 0, 1)
        return np.diff(below, axis=1)


GRID = Cells(MID_P, MID_S, ranges=True)


def edge_of_threshold(t: FloatArray) -> IntArray:
    """Index of the inner edge nearest in probability to each threshold."""
    return _nearest(t, EDGES_P)


def edge_of_shift(b: FloatArray) -> IntArray:
    """Index of the inner edge nearest to the log-odds -b that shift ``b`` tests; ±inf gives the outermost."""
    return _nearest(-b, EDGES_S)


def cells_between(low: FloatArray, high: FloatArray) -> tuple[IntArray, IntArray]:
    """First cell, and one past the last, from ``low`` to ``high``: at least the cell of ``low``."""
    first = np.clip(np.searchsorted(EDGES_S, low, side="right") - 1, 0, CELLS - 1)
    return first, np.clip(np.searchsorted(EDGES_S, high), first + 1, CELLS)


def _nearest(x: FloatArray, edges: FloatArray) -> IntArray:
    inner = edges[1:-1]
    above = np.clip(np.searchsorted(inner, x), 1, inner.size - 1)
    nearer_below = (x - inner[above - 1]) <= (inner[above] - x)
    return (above - nearer_below + 1).astype(np.int64)


def positions(t: FloatArray) -> FloatArray:
    """Probabilities in units of cells, linear within a cell: 0 at p = 0, CELLS at p = 1."""
    return np.asarray(np.interp(t, EDGES_P, np.arange(CELLS + 1.0)))


def by_label(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    cells = table.shape[-1] // 2
    return table[..., :cells], table[..., cells:]


def cell_gaps(table: FloatArray, cells: Cells = GRID) -> FloatArray:
    """Signed gap of each cell: its share of items times (confidence - mean label)."""
    negative, positive = by_label(table)
    return np.asarray(negative * cells.p - positive * (1 - cells.p))


def gaps(table: FloatArray, bins: int, cells: Cells = GRID) -> FloatArray:
    """Signed gap of each equal-width bin; their absolute sum is the binned ECE."""
    return np.asarray(cell_gaps(table, cells) @ cells.memberships(bins))


def ece(table: FloatArray, bins: int, cells: Cells = GRID) -> FloatArray:
    return np.asarray(np.abs(gaps(table, bins, cells)).sum(axis=-1))


def tce(table: FloatArray) -> FloatArray:
    """True calibration error E|E[Y|f] - f|."""
    return np.asarray(np.abs(cell_gaps(table)).sum(axis=-1))


def accuracy(table: FloatArray, cells: Cells = GRID) -> FloatArray:
    """Share of items whose greedy answer (positive iff f >= 1/2) equals the label."""
    negative, positive = by_label(table)
    half = int(np.searchsorted(cells.p, 0.5))
    return np.asarray(negative[..., :half].sum(axis=-1) + positive[..., half:].sum(axis=-1))


def brier(table: FloatArray, cells: Cells = GRID) -> FloatArray:
    """Mean squared difference between f and the label."""
    negative, positive = by_label(table)
    return np.asarray((negative * cells.p**2 + positive * (1 - cells.p) ** 2).sum(axis=-1))


def log_loss(table: FloatArray, cells: Cells = GRID) -> FloatArray:
    """Mean negative log-likelihood of the labels; by default log-odds beyond ±12 count as ±13."""
    return expected_loss(table, cells.s, cells.s)


def expected_loss(table: FloatArray, of_negatives: FloatArray, of_positives: FloatArray) -> FloatArray:
    """The log loss if the items of each label have these log-odds."""
    negative, positive = by_label(table)
    losses = np.logaddexp(0, of_negatives), np.logaddexp(0, -of_positives)
    return np.asarray((negative * losses[0] + positive * losses[1]).sum(axis=-1))


def auroc(table: FloatArray) -> FloatArray:
    """P(f of a positive > f of a negative), ties counting one half; NaN if a label is missing."""
    negative, positive = by_label(table)
    below = np.cumsum(negative, axis=-1) - negative / 2
    pairs = negative.sum(axis=-1) * positive.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((positive * below).sum(axis=-1) / np.where(pairs > 0, pairs, np.nan))


def prevalence(table: FloatArray) -> FloatArray:
    return np.asarray(by_label(table)[1].sum(axis=-1))


def mean_confidence(table: FloatArray, cells: Cells = GRID) -> FloatArray:
    negative, positive = by_label(table)
    return np.asarray(((negative + positive) * cells.p).sum(axis=-1))


def curve(table: FloatArray) -> FloatArray:
    """Reliability curve E[Y|f] at the probabilities of the cells."""
    negative, positive = by_label(table)
    return np.asarray(positive / np.maximum(negative + positive, 1e-300))


def decided_positive(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Shares of false and true positives of the decisions ``f >= EDGES_P[j]``."""
    negative, positive = by_label(table)
    return (
        np.asarray(np.cumsum(negative[..., ::-1], axis=-1)[..., ::-1]),
        np.asarray(np.cumsum(positive[..., ::-1], axis=-1)[..., ::-1]),
    )
