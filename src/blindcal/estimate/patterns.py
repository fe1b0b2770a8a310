"""Readings as patterns and their counts, which are all that the likelihood needs.

A *pattern* of threshold answers, or of shown probabilities, is an interval of cells: at or above every
threshold answered positive, below every one answered negative. A pattern with sampled answers is a curve over
the cells (METHOD 2). The cost does not grow with the number of items.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from blindcal.estimate.grid import CELLS, cells_between, edge_of_shift
from blindcal.estimate.problem import Excess, Problem
from blindcal.estimate.readings import LOG_ODDS, Axis, Responses, log_odds_from, margin_axis, packed
from blindcal.records import INVALID, POSITIVE, AnswerTable, BoolArray, FloatArray, IntArray, Noise

_NARROW = 8  # cells of an interval that are summed one by one


def _none() -> IntArray:
    return np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Patterns:
    """Distinct patterns, intervals of cells before curves.

    A joint table of (label, cell) is flattened to ``2 * CELLS`` entries, label 0 first. Contradictory
    threshold answers are read as "between the two".
    """

    start: IntArray = field(default_factory=_none)  # half-open intervals of the flattened table
    stop: IntArray = field(default_factory=_none)
    curve_labels: IntArray = field(default_factory=_none)
    curves: FloatArray = field(default_factory=lambda: np.empty((0, CELLS)))  # P(answers | cell)
    counts: FloatArray  # (intervals + curves,)
    of_item: IntArray = field(default_factory=_none)  # the pattern of each item, unless only counts are known
    contradictions: int = 0  # number of items with contradictory threshold answers
    axis: Axis = LOG_ODDS  # what the cells stand for
    responses: Responses | None = None  # the answers behind the curves, to read them on another axis

    def __len__(self) -> int:
        return self.counts.size

    @property
    def unread(self) -> BoolArray:
        # an interval that is the whole axis
        return np.asarray(self.stop - self.start == CELLS - self.axis.first)

    @property
    def unanswered(self) -> int:
        """Number of items without a valid answer."""
        return int(self.counts[: self.start.size][self.unread].sum())

    @property
    def n(self) -> float:
        return float(self.counts.sum())

    @cached_property
    def labels(self) -> IntArray:
        return np.concatenate([(self.start >= CELLS).astype(np.int64), self.curve_labels])

    @cached_property
    def _rows(self) -> tuple[tuple[slice, IntArray, FloatArray], ...]:
        first = self.axis.first
        by_label = [(y, np.flatnonzero(self.curve_labels == y)) for y in (0, 1)]
        return tuple(
            (
                slice(y * CELLS + first, (y + 1) * CELLS),
                where + self.start.size,
                np.ascontiguousarray(self.curves[where, first:]),
            )
            for y, where in by_label
            if where.size
        )

    @cached_property
    def _narrow(self) -> tuple[IntArray, csr_array]:
        """Intervals of few cells, as indicators: a running sum would round their probability away."""
        where = np.flatnonzero(self.stop - self.start <= _NARROW)
        width = (self.stop - self.start)[where]
        rows = np.repeat(np.arange(where.size), width)
        cells = self.start[where][rows] + np.arange(rows.size) - np.repeat(np.cumsum(width) - width, width)
        return where, csr_array((np.ones(rows.size), (rows, cells)), shape=(where.size, 2 * CELLS))

    @cached_property
    def _ends(self) -> tuple[IntArray, csr_array]:
        """The other intervals: +1 where each starts, -1 where it stops."""
        where = np.flatnonzero(self.stop - self.start > _NARROW)
        k = where.size
        rows = np.concatenate([self.start[where], self.stop[where]])
        columns = np.tile(np.arange(k), 2)
        return where, csr_array((np.repeat([1.0, -1.0], k), (rows, columns)), shape=(2 * CELLS + 1, k))

    def relabelled(self) -> Patterns:
        """The same answers from items with the other label."""
        start = (self.start + CELLS) % (2 * CELLS)
        stop = start + self.stop - self.start
        other = replace(self, start=start, stop=stop, curve_labels=1 - self.curve_labels)
        return other if self.axis.direct else other.on(self.axis)

    def on(self, axis: Axis) -> Patterns:
        """The same answers on another axis."""
        assert self.responses is not None
        return replace(self, axis=axis, curves=self.responses.curves(axis, self.curve_labels))

    def mass(self, table: FloatArray) -> FloatArray:
        """Probability of each pattern under joint tables of shape (..., 2 * CELLS)."""
        sums = self.sums(table.reshape(-1, 2 * CELLS).T)
        return np.maximum(sums, 1e-300).T.reshape(*table.shape[:-1], len(self))

    def sums(self, values: FloatArray) -> FloatArray:
        """Sum of per-cell vectors over each pattern: (2 * CELLS, k) to (patterns, k)."""
        out = np.empty((len(self), values.shape[1]))  # in columns: sums run over whole rows of memory
        if self.start.size:
            total = np.zeros((2 * CELLS + 1, values.shape[1]))
            np.cumsum(values, axis=0, out=total[1:])
            np.subtract(total[self.stop], total[self.start], out=out[: self.start.size])
            narrow, inside = self._narrow
            if narrow.size:
                out[narrow] = inside @ values
        for cells, where, rows in self._rows:
            out[where] = rows @ values[cells]
        return out

    def posterior(self, table: FloatArray, part: slice) -> FloatArray:
        """Distribution over the cells given each pattern in ``part``, shape (patterns, CELLS)."""
        where = np.arange(len(self))[part]
        out = table.reshape(2, CELLS)[self.labels[where]]
        interval = where < self.start.size
        which = where[interval, None]
        cell = self.labels[which] * CELLS + np.arange(CELLS)
        out[interval] *= (cell >= self.start[which]) & (cell < self.stop[which])
        curve = where[~interval] - self.start.size
        out[~interval] *= self.curves[curve]
        total = out.sum(axis=1, keepdims=True)
        return np.asarray(out / np.maximum(total, 1e-300))

    def spread(self, weights: FloatArray) -> FloatArray:
        """Adjoint of :meth:`mass`: spread weights of shape (..., patterns) over the cells."""
        columns = weights.reshape(-1, len(self)).T
        out = np.zeros((2 * CELLS, columns.shape[1]))
        wide, ends = self._ends
        if wide.size:
            np.cumsum((ends @ columns[wide])[:-1], axis=0, out=out)
        narrow, inside = self._narrow
        if narrow.size:
            out += inside.T @ columns[narrow]
        for cells, where, rows in self._rows:
            out[cells] += rows.T @ columns[where]
        return np.asarray(np.maximum(out, 0.0).T.reshape(*weights.shape[:-1], 2 * CELLS))


def read(problem: Problem, noise: Noise, axis: Axis | None = None) -> Patterns:
    """Count the readings of the problem's items by pattern."""
    items = problem.items
    rows = problem.readings.of(items)
    rows = replace(rows, items=np.searchsorted(items, rows.items))
    return count_patterns(
        problem.labels[items],
        rows,
        None if problem.counts is None else problem.counts[items],
        noise=noise,
        axis=axis_of(problem, None) if axis is None else axis,
    )


def axis_of(problem: Problem, excess: Excess | None) -> Axis:
    """The axis to read a problem on; that of margins if the excess is given."""
    if problem.choices is None:
        return LOG_ODDS
    choices = problem.choices[problem.items]
    if excess is not None:
        return margin_axis(choices, excess)
    return log_odds_from(choices) if problem.greedy else LOG_ODDS


def count_patterns(
    labels: IntArray,
    answered: AnswerTable,
    weights: IntArray | None = None,
    *,
    noise: Noise | None = None,
    axis: Axis = LOG_ODDS,
) -> Patterns:
    """Count answers by pattern; ``labels`` and ``weights`` are per item.

    With noise, the pattern of a threshold answer is a curve. An answer with bounds is read by these alone.
    """
    n, noise = labels.size, Noise() if noise is None else noise
    weights = np.ones(n, np.int64) if weights is None else weights
    # an infinite shift forces its answer, which then tells nothing
    use = answered.rows((answered.answers != INVALID) & np.isfinite(answered.shifts))
    items, shifts, temperatures, answers = use.items, use.shifts, use.temperatures, use.answers
    edges = edge_of_shift(shifts)
    positive = answers == POSITIVE
    shown = np.zeros(len(use), bool) if use.bounds is None else ~np.isnan(use.bounds).any(axis=1)
    gumbel = np.zeros(len(use), bool) if use.gumbel is None else use.gumbel
    hard = (temperatures == 0) & (noise == Noise()) & ~shown & ~gumbel
    up, down = hard & positive, hard & ~positive

    low, high = np.full(n, axis.first), np.full(n, CELLS)
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
    low, high = np.maximum(low - touching, axis.first), high + touching

    soft = ~hard & ~shown
    snapped = np.where((temperatures == 0) & ~gumbel, edges, shifts)  # rounds noisy thresholds to edges
    asked = np.column_stack([snapped[soft], temperatures[soft], answers[soft], gumbel[soft]])
    types, kind = np.unique(asked, axis=0, return_inverse=True)
    sets = packed(kind.reshape(-1), items[soft], np.zeros(n, np.int64))
    # one integer per pattern, intervals before curves
    key = ((sets.number * 2 + labels) * (CELLS + 1) + low) * (CELLS + 1) + high
    _, example, of_item = np.unique(key, return_index=True, return_inverse=True)
    curved = sets.size[example] > 0
    sharp, noisy = example[~curved], example[curved]
    responses = Responses(types, noise, sets, sets.number[noisy], low[noisy], high[noisy])
    return Patterns(
        start=labels[sharp] * CELLS + low[sharp],
        stop=labels[sharp] * CELLS + high[sharp],
        curve_labels=labels[noisy],
        curves=responses.curves(axis, labels[noisy]),
        counts=np.bincount(of_item.reshape(-1), weights=weights).astype(np.float64),
        of_item=of_item.reshape(-1).astype(np.int64),
        contradictions=int(weights[at_least >= below].sum()),
        axis=axis,
        responses=responses,
    )
