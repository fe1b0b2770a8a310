"""The grid for the distribution of the hidden log-odds.

Cells are 1/480 wide in probability in the middle and piecewise evenly spaced in log-odds in the tails, out to
±12; the two outermost extend to infinity. Edges of the usual bins are edges of cells, as 480 has many
divisors. Thresholds are asked at edges too, so that answers aggregate without loss.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

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


def memberships(bins: int) -> FloatArray:
    """Share of each cell in each of ``bins`` equal-width bins, shape (CELLS, bins)."""
    places = positions(np.arange(bins + 1) / bins)
    cells = np.arange(CELLS)[:, None]
    below = np.clip(places[None, :] - cells, 0, 1)
    return np.diff(below, axis=1)
