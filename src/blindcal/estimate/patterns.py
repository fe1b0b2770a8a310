"""Patterns of answers and their counts, which the likelihood needs.

Items with the same label and the same answers to the same queries are equivalent, so the likelihood needs
only the distinct *patterns* and how often each occurs. A pattern of threshold answers is an interval of
cells: the log-odds lies at or above every threshold answered positive and below every threshold answered
negative. So is a reading of shown probabilities, which bound the log-odds directly. A pattern with sampled
answers is a curve over the cells (METHOD 2). After this step the cost does not grow with the number of items.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.special import log_expit, log_ndtr

from blindcal.estimate.grid import CELLS, EDGES_S, MID_S, cells_between, edge_of_shift
from blindcal.records import INVALID, POSITIVE, AnswerTable, FloatArray, IntArray

_NARROW = 8  # cells of an interval that are summed one by one


def _none() -> IntArray:
    return np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """Distinct patterns: first those that are intervals of cells, then those that are curves.

    A joint table of (label, cell) is flattened to ``2 * CELLS`` entries, label 0 first.

    Attributes
    ----------
    start, stop : arrays of shape (intervals,)
        Half-open intervals of the flattened table.
    curve_labels : array of shape (curves,)
    curves : array of shape (curves, CELLS)
        P(answers | cell).
    counts : array of shape (intervals + curves,)
    of_item : array of shape (items,)
        The pattern of each item; empty if only counts are known.
    contradictions : int
        Number of items whose threshold answers contradict each other; each is read as "between the two".
    """

    start: IntArray = field(default_factory=_none)
    stop: IntArray = field(default_factory=_none)
    curve_labels: IntArray = field(default_factory=_none)
    curves: FloatArray = field(default_factory=lambda: np.empty((0, CELLS)))
    counts: FloatArray
    of_item: IntArray = field(default_factory=_none)
    contradictions: int = 0

    def __len__(self) -> int:
        return self.counts.size

    @property
    def n(self) -> float:
        """Number of items."""
        return float(self.counts.sum())

    @cached_property
    def labels(self) -> IntArray:
        """Label of each pattern."""
        return np.concatenate([(self.start >= CELLS).astype(np.int64), self.curve_labels])

    @cached_property
    def _rows(self) -> tuple[tuple[int, IntArray, FloatArray], ...]:
        """Curves by label: the label, the indices of its patterns, and their curves."""
        first = self.start.size
        by_label = [(y, np.flatnonzero(self.curve_labels == y)) for y in (0, 1)]
        return tuple((y, where + first, self.curves[where]) for y, where in by_label if where.size)

    @cached_property
    def _narrow(self) -> tuple[IntArray, csr_array]:
        """The intervals of few cells, and 1 where each of them contains a cell, shape (narrow, 2 * CELLS).

        Their probability may be far below the rounding error of a running sum over all cells.
        """
        where = np.flatnonzero(self.stop - self.start <= _NARROW)
        width = (self.stop - self.start)[where]
        rows = np.repeat(np.arange(where.size), width)
        cells = self.start[where][rows] + np.arange(rows.size) - np.repeat(np.cumsum(width) - width, width)
        return where, csr_array((np.ones(rows.size), (rows, cells)), shape=(where.size, 2 * CELLS))

    @cached_property
    def _ends(self) -> tuple[IntArray, csr_array]:
        """The other intervals; +1 where each starts, -1 where it stops: the running sum spreads a value."""
        where = np.flatnonzero(self.stop - self.start > _NARROW)
        k = where.size
        rows = np.concatenate([self.start[where], self.stop[where]])
        columns = np.tile(np.arange(k), 2)
        return where, csr_array((np.repeat([1.0, -1.0], k), (rows, columns)), shape=(2 * CELLS + 1, k))

    def relabelled(self) -> Patterns:
        """The same answers from items with the other label."""
        start = (self.start + CELLS) % (2 * CELLS)
        stop = start + self.stop - self.start
        return replace(self, start=start, stop=stop, curve_labels=1 - self.curve_labels)

    def mass(self, table: FloatArray) -> FloatArray:
        """Probability of each pattern under joint tables of shape (..., 2 * CELLS)."""
        total = np.zeros((*table.shape[:-1], table.shape[-1] + 1))
        np.cumsum(table, axis=-1, out=total[..., 1:])
        out = np.empty((*table.shape[:-1], len(self)))
        out[..., : self.start.size] = total[..., self.stop] - total[..., self.start]
        narrow, cells = self._narrow
        if narrow.size:
            flat = table.reshape(-1, 2 * CELLS)
            out[..., narrow] = (cells @ flat.T).T.reshape(*table.shape[:-1], narrow.size)
        for y, where, rows in self._rows:
            out[..., where] = table[..., y * CELLS : (y + 1) * CELLS] @ rows.T
        return np.maximum(out, 1e-300)

    def sums(self, values: FloatArray) -> FloatArray:
        """Sum of per-cell vectors over each pattern: (2 * CELLS, k) to (patterns, k)."""
        total = np.zeros((values.shape[0] + 1, values.shape[1]))
        np.cumsum(values, axis=0, out=total[1:])
        out = np.empty((len(self), values.shape[1]))
        out[: self.start.size] = total[self.stop] - total[self.start]
        narrow, cells = self._narrow
        out[narrow] = cells @ values
        for y, where, rows in self._rows:
            out[where] = rows @ values[y * CELLS : (y + 1) * CELLS]
        return out

    def tested_beyond(self) -> FloatArray:
        """Number of answers at or beyond each inner edge: above it for edges from 1/2 up, else below it.

        Noisy answers tell a little everywhere, so they count at every edge.
        """
        counts = self.counts[: self.start.size]
        low, high = self.start % CELLS, (self.stop - 1) % CELLS + 1
        at = np.bincount(low, counts, CELLS + 1) + np.bincount(high, counts, CELLS + 1)
        inner = at[1:CELLS]
        above, below = np.cumsum(inner[::-1])[::-1], np.cumsum(inner)
        return np.asarray(np.where(EDGES_S[1:-1] >= 0, above, below) + self.counts[self.start.size :].sum())

    def posterior(self, table: FloatArray, part: slice) -> FloatArray:
        """Distribution over the cells given each pattern in ``part``, shape (patterns in ``part``, CELLS)."""
        where = np.arange(len(self))[part]
        out = table.reshape(2, CELLS)[self.labels[where]]
        interval = where < self.start.size
        which = where[interval, None]
        cell = self.labels[which] * CELLS + np.arange(CELLS)
        out[interval] *= (cell >= self.start[which]) & (cell < self.stop[which])
        out[~interval] *= self.curves[where[~interval] - self.start.size]
        total = out.sum(axis=1, keepdims=True)
        return np.asarray(out / np.maximum(total, 1e-300))

    def spread(self, weights: FloatArray) -> FloatArray:
        """Adjoint of :meth:`mass`: spread weights of shape (..., patterns) over the cells."""
        flat = weights.reshape(-1, len(self))
        wide, ends = self._ends
        out = np.cumsum((ends @ flat[:, wide].T)[:-1], axis=0).T
        narrow, cells = self._narrow
        out += (cells.T @ flat[:, narrow].T).T
        for y, where, rows in self._rows:
            out[:, y * CELLS : (y + 1) * CELLS] += flat[:, where] @ rows
        return np.asarray(np.maximum(out, 0.0).reshape(*weights.shape[:-1], 2 * CELLS))


def count_patterns(
    labels: IntArray,
    answered: AnswerTable,
    weights: IntArray | None = None,
    *,
    jitter: float = 0.0,
    flip_rate: float = 0.0,
) -> Patterns:
    """Count answers by pattern; labels and weights are per item.

    With jitter or random flips a threshold answer is noisy, and its pattern is a curve. An answer with bounds
    is read by these alone: neither its query nor such noise matters.
    """
    n = labels.size
    weights = np.ones(n, np.int64) if weights is None else weights
    # an infinite shift forces its answer, which then tells nothing
    use = answered.rows((answered.answers != INVALID) & np.isfinite(answered.shifts))
    items, shifts, temperatures, answers = use.items, use.shifts, use.temperatures, use.answers
    edges = edge_of_shift(shifts)
    positive = answers == POSITIVE
    shown = np.zeros(len(use), bool) if use.bounds is None else ~np.isnan(use.bounds).any(axis=1)
    hard = (temperatures == 0) & (jitter == 0) & (flip_rate == 0) & ~shown
    up, down = hard & positive, hard & ~positive

    low, high = np.zeros(n, np.int64), np.full(n, CELLS)
    if use.bounds is not None:
        first, last = cells_between(*use.bounds[shown].T)
        np.maximum.at(low, items[shown], first)
        np.minimum.at(high, items[shown], last)
    np.maximum.at(low, items[up], edges[up])
    np.minimum.at(high, items[down], edges[down])
    at_least, below = np.full(n, -np.inf), np.full(n, np.inf)  # the same before rounding to edges
    np.maximum.at(at_least, items[up], -shifts[up])
    np.minimum.at(below, items[down], -shifts[down])
    low, high = np.minimum(low, high), np.maximum(low, high)
    touching = low == high  # two thresholds were rounded to one edge and answered differently
    low, high = low - touching, high + touching

    soft = ~hard & ~shown
    snapped = np.where(temperatures == 0, edges, shifts)  # rounds noisy thresholds to edges
    asked = np.column_stack([snapped[soft], temperatures[soft], answers[soft]])
    kinds, rows = _signatures(asked, items[soft], n, jitter, flip_rate)
    # one integer per pattern, intervals before curves: much faster to compare than rows of numbers
    key = (((rows + 1) * 2 + labels) * (CELLS + 1) + low) * (CELLS + 1) + high
    unique, of_item = np.unique(key, return_inverse=True)
    rest, last = np.divmod(unique, CELLS + 1)
    rest, first = np.divmod(rest, CELLS + 1)
    row, label = rest // 2 - 1, rest % 2
    interval = row < 0
    inside = (np.arange(CELLS) >= first[~interval, None]) & (np.arange(CELLS) < last[~interval, None])
    return Patterns(
        start=(label * CELLS + first)[interval],
        stop=(label * CELLS + last)[interval],
        curve_labels=label[~interval],
        curves=np.where(inside, kinds[row[~interval]], 0.0),
        counts=np.bincount(of_item.reshape(-1), weights=weights).astype(np.float64),
        of_item=of_item.astype(np.int64),
        contradictions=int(weights[at_least >= below].sum()),
    )


def _signatures(
    asked: FloatArray, items: IntArray, n: int, jitter: float, flip_rate: float
) -> tuple[FloatArray, IntArray]:
    """Distinct sets of noisy answers as curves, and the index of each item's set (-1 if none).

    The columns of ``asked`` are shift (the edge, if the temperature is 0), temperature and answer.
    """
    of_item = np.full(n, -1)
    if items.size == 0:
        return np.empty((0, CELLS)), of_item
    types, code = np.unique(asked, axis=0, return_inverse=True)
    code = code.reshape(-1)
    order = np.lexsort((code, items))
    code, owner = code[order], items[order]
    who, begin, size = np.unique(owner, return_index=True, return_counts=True)
    padded = np.full((who.size, size.max()), -1)
    padded[np.repeat(np.arange(who.size), size), np.arange(owner.size) - np.repeat(begin, size)] = code
    sets, which = np.unique(padded, axis=0, return_inverse=True)
    of_item[who] = which.reshape(-1)

    sign = np.where(types[:, 2:] == POSITIVE, 1.0, -1.0)
    cold, warm = types[:, 1] == 0, types[:, 1] > 0
    edge = EDGES_S[types[cold, :1].astype(np.int64)]
    log_curve = np.zeros((types.shape[0] + 1, CELLS))  # the last row is for the padding
    away = sign[cold] * (MID_S - edge)
    log_seen = log_ndtr(away / jitter) if jitter else np.where(away > 0, 0.0, -np.inf)
    if flip_rate:
        log_seen = np.logaddexp(np.log(flip_rate), np.log1p(-2 * flip_rate) + log_seen)
    log_curve[:-1][cold] = log_seen
    log_curve[:-1][warm] = log_expit(sign[warm] * (MID_S + types[warm, :1]) / types[warm, 1:2])
    curves = np.empty((sets.shape[0], CELLS))
    for first in range(0, sets.shape[0], 4096):
        curves[first : first + 4096] = np.exp(log_curve[sets[first : first + 4096]].sum(axis=1))
    return curves, of_item
