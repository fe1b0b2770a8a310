"""How likely an answer is, given the hidden log-odds: the response curve of every kind of query (METHOD 2).

A fit divides the log-odds into the cells of a grid. With two answers, a cell is a range of log-odds. With
more, a shift alone reads only the *margin* of the given answer over the strongest other one (METHOD 8). A
cell is then a range of margins, and stands for several log-odds, the *nodes*, which lie below it by the
*excess*, the log-sum-exp of the other answers minus their maximum: that of k - 1 normal logits, whose spread
follows from two fitted numbers, a level and a slope over the margin. A third says what the excess tells about
being right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, log_expit, log_ndtr, logit, logsumexp, ndtri

from blindcal.estimate.grid import CELLS, EDGES_S, HALF, MID_S
from blindcal.estimate.problem import Excess
from blindcal.records import POSITIVE, FloatArray, IntArray, Noise

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
    telling: float = 1.0  # by how much the log-odds of the label rise with those of the node, at one cell

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
        middle = self.calibrated[:, None]
        of_label = middle + self.telling * (self.nodes - middle) + link
        for sign in (-1.0, 1.0):
            weights = self.weights * np.exp(log_expit(sign * of_label))
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
    return Axis(nodes, weights, logit(mean_confidence), HALF, excess.telling)


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
