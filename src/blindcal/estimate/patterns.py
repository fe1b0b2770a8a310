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
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import log_expit, log_ndtr

from blindcal.estimate.axis import LOG_ODDS, Axis
from blindcal.estimate.clipped import ClippedCurves
from blindcal.estimate.grid import CELLS, EDGES_S, MID_S, cells_between, edge_of_shift
from blindcal.records import INVALID, POSITIVE, AnswerTable, FloatArray, IntArray, Noise

_NARROW = 8  # cells of an interval that are summed one by one
_MANY, _LARGE_SHARE = (
    30,
    0.02,
)  # answers at one edge, and their share of all, if it is one of few
_LEAST = np.log(1e-6)  # of the probability of an answer to a query with Gumbel numbers: none is impossible


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
    axis : Axis
        What the cells stand for.
    clipped : ClippedCurves, optional
        The curves, if many patterns share them; ``curves`` is empty then.
    responses : Responses, optional
        The noisy answers behind the curves, to read them on another axis.
    """

    start: IntArray = field(default_factory=_none)
    stop: IntArray = field(default_factory=_none)
    curve_labels: IntArray = field(default_factory=_none)
    curves: FloatArray = field(default_factory=lambda: np.empty((0, CELLS)))
    counts: FloatArray
    of_item: IntArray = field(default_factory=_none)
    contradictions: int = 0
    axis: Axis = LOG_ODDS
    clipped: ClippedCurves | None = None
    responses: Responses | None = None

    def __len__(self) -> int:
        return self.counts.size

    @property
    def unread(self) -> npt.NDArray[np.bool_]:
        """Whether an interval is the whole axis: nothing was read."""
        return np.asarray(self.stop - self.start == CELLS - self.axis.first)

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
        if self.clipped is not None:
            return ()
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
        clipped = None if self.clipped is None else self.clipped.relabelled()
        return replace(self, start=start, stop=stop, curve_labels=1 - self.curve_labels, clipped=clipped)

    def on(self, axis: Axis) -> Patterns:
        """The same answers on another axis, whose cells stand for other log-odds."""
        if self.clipped is None or self.responses is None:
            return replace(self, axis=axis)
        return replace(self, axis=axis, clipped=replace(self.clipped, curves=self.responses.curves(axis)))

    def mass(self, table: FloatArray) -> FloatArray:
        """Probability of each pattern under joint tables of shape (..., 2 * CELLS)."""
        columns = table.reshape(-1, 2 * CELLS).T
        out = np.empty((len(self), columns.shape[1]))  # in columns: sums run over whole rows of memory
        if self.start.size:
            total = np.zeros((2 * CELLS + 1, columns.shape[1]))
            np.cumsum(columns, axis=0, out=total[1:])
            np.subtract(total[self.stop], total[self.start], out=out[: self.start.size])
            narrow, cells = self._narrow
            if narrow.size:
                out[narrow] = cells @ columns
        for y, where, rows in self._rows:
            out[where] = rows @ columns[y * CELLS : (y + 1) * CELLS]
        if self.clipped is not None:
            out[self.start.size :] = self.clipped.mass(np.ascontiguousarray(columns.T)).T
        return np.maximum(out, 1e-300).T.reshape(*table.shape[:-1], len(self))

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
        if self.clipped is not None:
            out[self.start.size :] = self.clipped.sums(values)
        return out

    def tested_beyond(self) -> FloatArray:
        """Number of answers at or beyond each inner edge: above it for edges from 1/2 up, else below it.

        If most items were asked once, many of them at the same edge, as by `blind`, only the answers at each
        edge count: the smoothness of the fit decides what happens between them. Noisy answers tell a little
        everywhere, so they count at every edge.
        """
        counts = self.counts[: self.start.size]
        low, high = self.start % CELLS, (self.stop - 1) % CELLS + 1
        at = np.bincount(low, counts, CELLS + 1) + np.bincount(high, counts, CELLS + 1)
        inner = at[1:CELLS]
        once = (low == self.axis.first) ^ (high == CELLS)
        first = np.bincount(np.where(low == self.axis.first, high, low)[once], counts[once], CELLS + 1)
        if 2 * first.sum() > counts.sum() and first.max() >= max(_MANY, _LARGE_SHARE * counts.sum()):
            return np.asarray(inner + self.counts[self.start.size :].sum())
        above, below = np.cumsum(inner[::-1])[::-1], np.cumsum(inner)
        return np.asarray(np.where(EDGES_S[1:-1] >= 0, above, below) + self.counts[self.start.size :].sum())

    def told_apart(self) -> tuple[int, int]:
        """The first and the last cell that the answers can tell from the outermost ones, roughly.

        A noisy answer tells cells apart if it would differ between them once in all items.
        """
        if self.clipped is not None:
            return 0, CELLS - 1
        edges = np.concatenate([self.start % CELLS, self.stop % CELLS])
        edges = edges[edges > 0]
        first, last = (int(edges.min()) - 1, int(edges.max())) if edges.size else (CELLS - 1, 0)
        for outermost in (0, CELLS - 1) if self.curves.size else ():
            differs = (np.abs(self.curves - self.curves[:, [outermost]]) > 1 / self.n).any(axis=0)
            cells = np.flatnonzero(differs)
            if cells.size and outermost == 0:
                first = min(first, int(cells[0]) - 1)
            elif cells.size:
                last = max(last, int(cells[-1]) + 1)
        return first, last

    def posterior(self, table: FloatArray, part: slice) -> FloatArray:
        """Distribution over the cells given each pattern in ``part``, shape (patterns in ``part``, CELLS)."""
        where = np.arange(len(self))[part]
        out = table.reshape(2, CELLS)[self.labels[where]]
        interval = where < self.start.size
        which = where[interval, None]
        cell = self.labels[which] * CELLS + np.arange(CELLS)
        out[interval] *= (cell >= self.start[which]) & (cell < self.stop[which])
        curve = where[~interval] - self.start.size
        out[~interval] *= self.curves[curve] if self.clipped is None else self.clipped.rows(curve)
        total = out.sum(axis=1, keepdims=True)
        return np.asarray(out / np.maximum(total, 1e-300))

    def spread(self, weights: FloatArray) -> FloatArray:
        """Adjoint of :meth:`mass`: spread weights of shape (..., patterns) over the cells."""
        columns = weights.reshape(-1, len(self)).T
        out = np.zeros((2 * CELLS, columns.shape[1]))
        wide, ends = self._ends
        if wide.size:
            np.cumsum((ends @ columns[wide])[:-1], axis=0, out=out)
        narrow, cells = self._narrow
        if narrow.size:
            out += cells.T @ columns[narrow]
        for y, where, rows in self._rows:
            out[y * CELLS : (y + 1) * CELLS] += rows.T @ columns[where]
        if self.clipped is not None:
            out += self.clipped.spread(np.ascontiguousarray(columns[self.start.size :].T)).T
        return np.asarray(np.maximum(out, 0.0).T.reshape(*weights.shape[:-1], 2 * CELLS))


def count_patterns(
    labels: IntArray,
    answered: AnswerTable,
    weights: IntArray | None = None,
    *,
    jitter: float = 0.0,
    flip_rate: float = 0.0,
    axis: Axis = LOG_ODDS,
) -> Patterns:
    """Count answers by pattern; labels and weights are per item.

    With jitter or random flips a threshold answer is noisy, and its pattern is a curve. An answer with bounds
    is read by these alone: neither its query nor such noise matters. Thresholds are on the ``axis``, and
    sampled answers depend on the log-odds that it stands for.
    """
    n = labels.size
    weights = np.ones(n, np.int64) if weights is None else weights
    # an infinite shift forces its answer, which then tells nothing
    use = answered.rows((answered.answers != INVALID) & np.isfinite(answered.shifts))
    items, shifts, temperatures, answers = use.items, use.shifts, use.temperatures, use.answers
    edges = edge_of_shift(shifts)
    positive = answers == POSITIVE
    shown = np.zeros(len(use), bool) if use.bounds is None else ~np.isnan(use.bounds).any(axis=1)
    gumbel = np.zeros(len(use), bool) if use.gumbel is None else use.gumbel
    hard = (temperatures == 0) & (jitter == 0) & (flip_rate == 0) & ~shown & ~gumbel
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
    responses, rows = _responses(asked, items[soft], n, Noise(jitter, flip_rate))
    # one integer per pattern, intervals before curves: much faster to compare than rows of numbers
    key = (((rows + 1) * 2 + labels) * (CELLS + 1) + low) * (CELLS + 1) + high
    unique, of_item = np.unique(key, return_inverse=True)
    rest, last = np.divmod(unique, CELLS + 1)
    rest, first = np.divmod(rest, CELLS + 1)
    row, label = rest // 2 - 1, rest % 2
    interval = row < 0
    label_of, row = label[~interval], row[~interval]
    start, stop = (label * CELLS + first)[interval], (label * CELLS + last)[interval]
    first, last = first[~interval], last[~interval]
    curves, clipped = np.empty((0, CELLS)), None
    if axis.direct:
        inside = (np.arange(CELLS) >= first[:, None]) & (np.arange(CELLS) < last[:, None])
        curves = np.where(inside, responses.curves(axis)[label_of, row], 0.0)
    elif row.size:
        clipped = ClippedCurves(label_of, row, first, last, responses.curves(axis))
    return Patterns(
        start=start,
        stop=stop,
        curve_labels=label_of,
        curves=curves,
        counts=np.bincount(of_item.reshape(-1), weights=weights).astype(np.float64),
        of_item=of_item.astype(np.int64),
        contradictions=int(weights[at_least >= below].sum()),
        axis=axis,
        clipped=clipped,
        responses=responses,
    )


@dataclass(frozen=True)
class Responses:
    """Distinct sets of noisy answers, and the noise of threshold answers.

    Attributes
    ----------
    types : array of shape (types, 4)
        The distinct answers: shift (the edge, for a threshold), temperature, answer, and whether the other
        answers had Gumbel numbers.
    sets : array of shape (sets, most answers)
        The types in each set, padded by -1.
    """

    types: FloatArray
    sets: IntArray
    noise: Noise

    def curves(self, axis: Axis) -> FloatArray:
        """P(set of answers | cell) for each label, shape (2, sets, CELLS); without the cells below the first
        one if a cell stands for several log-odds.
        """
        axis = axis if axis.direct else axis.from_first
        found = np.empty((2, len(self.sets), len(axis.nodes)))
        if not len(self.sets):
            return found
        log_seen = self._log_responses(axis)
        step = max(1, 4096 // axis.weights.size)
        for first in range(0, len(self.sets), step):
            part = slice(first, first + step)
            found[0, part], found[1, part] = axis.averaged(log_seen[self.sets[part]].sum(axis=1))
        return found

    def _log_responses(self, axis: Axis) -> FloatArray:
        """Log-probability of each type at the nodes of the axis; the last row is for the padding."""
        types, noise = self.types, self.noise
        sign = np.where(types[:, 2] == POSITIVE, 1.0, -1.0)[:, None, None]
        gumbel = types[:, 3] > 0
        cold, warm = (types[:, 1] == 0) & ~gumbel, (types[:, 1] > 0) & ~gumbel
        shift, temperature = types[:, :1, None], types[:, 1:2, None]
        log_seen = np.zeros((types.shape[0] + 1, *axis.nodes.shape))
        middle = MID_S[CELLS - len(axis.nodes) :, None]
        away = sign[cold] * (middle - EDGES_S[types[cold, 0].astype(np.int64)][:, None, None])
        flips = log_ndtr(away / noise.jitter) if noise.jitter else np.where(away > 0, 0.0, -np.inf)
        if noise.flip_rate:
            flips = np.logaddexp(np.log(noise.flip_rate), np.log1p(-2 * noise.flip_rate) + flips)
        log_seen[:-1][cold] = flips
        log_seen[:-1][warm] = log_expit(sign[warm] * (axis.nodes + shift[warm]) / temperature[warm])
        none = -np.exp(np.minimum(-(axis.nodes + shift[gumbel]), 700.0))  # log P(no other answer wins)
        with np.errstate(divide="ignore"):
            seen = np.where(sign[gumbel] > 0, none, np.log(-np.expm1(none)))
        log_seen[:-1][gumbel] = np.maximum(seen, _LEAST)
        return log_seen


def _responses(asked: FloatArray, items: IntArray, n: int, noise: Noise) -> tuple[Responses, IntArray]:
    """Distinct sets of noisy answers, and the number of each item's set (-1 if none).

    The columns of ``asked`` are those of `Responses.types`.
    """
    of_item = np.full(n, -1)
    if items.size == 0:
        return Responses(np.empty((0, 4)), np.empty((0, 0), np.int64), noise), of_item
    types, code = np.unique(asked, axis=0, return_inverse=True)
    code = code.reshape(-1)
    order = np.lexsort((code, items))
    code, owner = code[order], items[order]
    who, begin, size = np.unique(owner, return_index=True, return_counts=True)
    padded = np.full((who.size, size.max()), -1)
    padded[np.repeat(np.arange(who.size), size), np.arange(owner.size) - np.repeat(begin, size)] = code
    sets, which = np.unique(padded, axis=0, return_inverse=True)
    of_item[who] = which.reshape(-1)
    return Responses(types, sets, noise), of_item
