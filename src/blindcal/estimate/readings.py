"""Readings as patterns and their counts, which are all that the likelihood needs.

A *pattern* of threshold answers, or of shown probabilities, is an interval of cells: at or above every
threshold answered positive, below every one answered negative. A pattern with sampled answers is a curve over
the cells (METHOD 2). The cost does not grow with the number of items.

With two answers, a cell is a range of log-odds. With more, a shift alone reads only the *margin* of the given
answer over the strongest other one (METHOD 8). A cell is then a range of margins, and stands for several
log-odds, the *nodes*, which lie below it by the *excess*, the log-sum-exp of the other answers minus their
maximum: that of k - 1 normal logits, whose spread follows from two fitted numbers, a level and a slope over
the margin.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, log_expit, log_ndtr, logit, logsumexp, ndtri

from blindcal.estimate.grid import CELLS, EDGES_S, HALF, MID_S, cells_between, edge_of_shift
from blindcal.estimate.problem import Excess, Problem
from blindcal.records import INVALID, POSITIVE, AnswerTable, BoolArray, FloatArray, IntArray, Noise

_NARROW = 8  # cells of an interval that are summed one by one
_NODES = 8  # possible log-odds per margin and number of answers, equally likely
_DRAWS = 512  # normal logits per node
_SPREADS = np.exp(np.linspace(np.log(0.03), np.log(40.0), 40))
_LEAST = np.log(1e-6)  # of the probability of an answer to a query with Gumbel numbers: none is impossible


@dataclass(frozen=True, eq=False)
class Axis:
    """The log-odds that each cell may stand for."""

    nodes: FloatArray  # (CELLS, nodes): the log-odds that a cell may stand for
    weights: FloatArray  # (nodes,): how likely each is, before the label and the answers are known
    calibrated: FloatArray  # (CELLS,): the log-odds of the label if the model is perfectly calibrated
    first: int = 0  # the first cell that any item can be in

    @property
    def direct(self) -> bool:
        """Whether a cell is a range of log-odds."""
        return self.weights.size == 1

    @cached_property
    def from_first(self) -> Axis:
        """The same axis without the cells that no item can be in."""
        return replace(
            self, nodes=self.nodes[self.first :], calibrated=self.calibrated[self.first :], first=0
        )

    def averaged(self, log_responses: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Probability of the answers in each cell for labels 0 and 1, from that at the nodes."""
        # nodes are weighted as in a calibrated model: an item whose answer is wrong had lower log-odds
        response = np.exp(log_responses)
        if self.direct:
            return response[..., 0], response[..., 0]
        negative, positive = (
            np.einsum("...cn,cn->...c", response, weights) for weights in self._given_label(0.0)
        )
        return negative, positive

    def to_log_odds(self, tables: FloatArray) -> FloatArray:
        """Convert joint tables of (label, cell), shape (..., 2 * CELLS), to tables of (label, log-odds)."""
        if self.direct:
            return tables
        halves = tables.reshape(-1, 2, CELLS)
        total = np.maximum(halves.sum(axis=1), 1e-300)
        link = logit(np.clip(halves[:, 1] / total, 1e-9, 1 - 1e-9)) - self.calibrated
        moved = [
            (halves[:, y, :, None] * weights).reshape(len(halves), -1) @ self._cells
            for y, weights in enumerate(self._given_label(link[..., None]))
        ]
        return np.asarray(np.concatenate(moved, axis=1).reshape(tables.shape))

    def _given_label(self, link: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        by_label = []
        for sign in (-1.0, 1.0):
            weights = self.weights * np.exp(log_expit(sign * (self.nodes + link)))
            by_label.append(weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300))
        return by_label[0], by_label[1]

    @cached_property
    def _cells(self) -> csr_array:
        """The cell of log-odds of each node, as an indicator matrix of shape (CELLS * nodes, CELLS)."""
        cells = np.clip(np.searchsorted(EDGES_S, self.nodes.reshape(-1), side="right") - 1, 0, CELLS - 1)
        return csr_array((np.ones(cells.size), (np.arange(cells.size), cells)), shape=(cells.size, CELLS))


LOG_ODDS = Axis(MID_S[:, None], np.ones(1), MID_S)
"""The usual axis: a cell is a range of log-odds."""


def log_odds_from(choices: IntArray) -> Axis:
    """The axis of the likeliest of several answers, whose log-odds are at least -log(k - 1)."""
    first = int(np.searchsorted(EDGES_S, -np.log(choices.max() - 1), side="right")) - 1
    return Axis(LOG_ODDS.nodes, LOG_ODDS.weights, LOG_ODDS.calibrated, first)


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


@dataclass(frozen=True)
class Packed:
    """Items numbered by the kinds of their answers; ``example`` is an item of each number.

    The sorted kinds of item i are ``kinds[begin[i] : begin[i] + size[i]]``.
    """

    number: IntArray
    example: IntArray
    kinds: IntArray
    begin: IntArray
    size: IntArray


def packed(kind: IntArray, owner: IntArray, start: IntArray) -> Packed:
    """Number items by ``start`` and the kinds of their answers; one integer per item is fast to compare."""
    kinds = kind[np.lexsort((kind, owner))]
    size = np.bincount(owner, minlength=start.size)
    begin = np.cumsum(size) - size
    number, base = start, int(kinds.max(initial=0)) + 2
    for nth in range(int(size.max(initial=0))):
        has = size > nth
        following = np.zeros(start.size, np.int64)
        following[has] = kinds[begin[has] + nth] + 1
        number = np.unique(number * base + following, return_inverse=True)[1]
    return Packed(number, np.unique(number, return_index=True)[1], kinds, begin, size)


@dataclass(frozen=True)
class Responses:
    """Distinct sets of noisy answers, and the sharp answers that come with them."""

    types: FloatArray  # (types, 4): shift (or edge), temperature, answer, with Gumbel numbers or not
    noise: Noise  # of threshold answers
    sets: Packed  # the sets of answers of all items
    which: IntArray  # for each pattern the number of its set,
    first: IntArray  # and the half-open interval of cells that sharp answers leave
    last: IntArray

    def curves(self, axis: Axis, labels: IntArray) -> FloatArray:
        """P(answers | cell) for the patterns, which have these labels; shape (curves, CELLS)."""
        cell = np.arange(CELLS)
        inside = (cell >= self.first[:, None]) & (cell < self.last[:, None])
        return np.where(inside, self._of_sets(axis)[labels, self.which], 0.0)

    def _of_sets(self, axis: Axis) -> FloatArray:
        sets = self.sets
        curves = np.zeros((2, sets.example.size, CELLS))
        axis = axis.from_first
        log_seen, there = self._log_responses(axis), curves[..., CELLS - len(axis.nodes) :]
        answered = np.flatnonzero(sets.size[sets.example])
        step = max(1, 4096 // axis.weights.size)
        for at in range(0, answered.size, step):
            some = answered[at : at + step]
            begin, size = sets.begin[sets.example[some]], sets.size[sets.example[some]]
            total = log_seen[sets.kinds[begin]]
            for nth in range(1, int(size.max())):
                more = size > nth
                total[more] += log_seen[sets.kinds[begin[more] + nth]]
            there[0, some], there[1, some] = axis.averaged(total)
        return curves

    def _log_responses(self, axis: Axis) -> FloatArray:
        types, noise = self.types, self.noise
        sign = np.where(types[:, 2] == POSITIVE, 1.0, -1.0)[:, None, None]
        gumbel = types[:, 3] > 0
        cold, warm = (types[:, 1] == 0) & ~gumbel, (types[:, 1] > 0) & ~gumbel
        shift, temperature = types[:, :1, None], types[:, 1:2, None]
        log_seen = np.zeros((types.shape[0], *axis.nodes.shape))
        middle = MID_S[CELLS - len(axis.nodes) :, None]
        away = sign[cold] * (middle - EDGES_S[types[cold, 0].astype(np.int64)][:, None, None])
        flips = log_ndtr(away / noise.jitter) if noise.jitter else np.where(away > 0, 0.0, -np.inf)
        if noise.flip_rate:
            flips = np.logaddexp(np.log(noise.flip_rate), np.log1p(-2 * noise.flip_rate) + flips)
        log_seen[cold] = flips
        log_seen[warm] = log_expit(sign[warm] * (axis.nodes + shift[warm]) / temperature[warm])
        none = -np.exp(np.minimum(-(axis.nodes + shift[gumbel]), 700.0))  # log P(no other answer wins)
        with np.errstate(divide="ignore"):
            seen = np.where(sign[gumbel] > 0, none, np.log(-np.expm1(none)))
        log_seen[gumbel] = np.maximum(seen, _LEAST)
        return log_seen


def margin_axis(choices: IntArray, excess: Excess) -> Axis:
    """The axis of margins, for items with these numbers of answers."""
    margin = np.maximum(MID_S, 0.0)
    mean = excess.level + excess.slope * (margin / (1 + margin) - excess.centre)
    numbers, counts = np.unique(choices, return_counts=True)
    below = [_excesses(int(k), mean) for k in numbers]
    nodes = MID_S[:, None] - np.concatenate(below, axis=1)
    shares = [
        np.full(nodes_of_k.shape[1], count / nodes_of_k.shape[1])
        for nodes_of_k, count in zip(below, counts, strict=True)
    ]
    weights = np.concatenate(shares) / choices.size
    mean_confidence = np.clip(expit(nodes) @ weights, 1e-12, 1 - 1e-12)
    return Axis(nodes, weights, logit(mean_confidence), HALF)


def _excesses(k: int, mean: FloatArray) -> FloatArray:
    """Equally likely values of the excess of ``k`` answers, shape (means, nodes)."""
    if k == 2:
        return np.zeros((mean.size, 1))
    known, values = _family(k)
    above = np.clip(np.searchsorted(known, mean), 1, known.size - 1)
    part = np.clip((mean - known[above - 1]) / (known[above] - known[above - 1]), 0.0, 1.0)[:, None]
    return np.asarray((1 - part) * values[above - 1] + part * values[above])


@lru_cache(maxsize=32)
def _family(k: int) -> tuple[FloatArray, FloatArray]:
    from scipy.stats import qmc  # slow to import, and needed only for more than two answers

    points = qmc.Sobol(k - 1, rng=np.random.default_rng(0)).random(_NODES * _DRAWS)
    normal = ndtri(np.clip(points, 1e-6, 1 - 1e-6))
    means, values = [], []
    for spread in _SPREADS[::-1]:
        logits = spread * normal
        excess = np.sort(logsumexp(logits, axis=1) - logits.max(axis=1))
        means.append(excess.mean() / np.log(k - 1))
        values.append(excess.reshape(_NODES, _DRAWS).mean(axis=1))
    return logit(np.clip(means, 1e-6, 1 - 1e-6)), np.array(values)
