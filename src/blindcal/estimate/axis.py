"""What the cells of the grid stand for in a fit.

With two answers, and wherever answers depend on the log-odds alone, a cell is a range of log-odds. With more
answers, the *margin* of the given answer over the strongest other one can be read sharply, by a shift alone,
but its log-odds against all others cannot (METHOD 8). Then a cell is a range of margins, each of which stands
for several possible log-odds, the *nodes*, which lie below the margin by the *excess*.

The excess is how far the log-sum-exp of the other answers exceeds the largest of them. It lies between 0 (one
rival) and log(k - 1) (all others alike). Its distribution at a margin is that of k - 1 normal logits, with a
spread for which two numbers are fitted: the level, and the slope over the margin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, log_expit, logit, logsumexp, ndtri

from blindcal.estimate.grid import CELLS, EDGES_S, HALF, MID_S
from blindcal.records import FloatArray, IntArray

_NODES = 8  # possible log-odds per margin and number of answers, equally likely
_DRAWS = 512  # normal logits per node
_SPREADS = np.exp(np.linspace(np.log(0.03), np.log(40.0), 40))
_ACROSS = np.sqrt(3.0)  # distance of the outer points, in standard deviations, and the share of each:
_SHARE = 1 / 6  # mean, variance and kurtosis along each axis are then those of the normal distribution


@dataclass(frozen=True, eq=False)
class Axis:
    """What the cells stand for."""

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
        """The same without the cells that no item can be in."""
        return replace(
            self, nodes=self.nodes[self.first :], calibrated=self.calibrated[self.first :], first=0
        )

    def averaged(self, log_responses: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The probability of answers in each cell for items of each label, from that at the nodes.

        The nodes are weighted as for a calibrated model: an item whose answer is wrong had lower log-odds.
        Shapes are (..., CELLS, nodes) and (..., CELLS).
        """
        response = np.exp(log_responses)
        if self.direct:
            return response[..., 0], response[..., 0]
        negative, positive = (
            np.einsum("...cn,cn->...c", response, weights) for weights in self._given_label(0.0)
        )
        return negative, positive

    def to_log_odds(self, tables: FloatArray) -> FloatArray:
        """Joint tables of (label, cell), of shape (..., 2 * CELLS), as tables of (label, log-odds)."""
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
        """Weights of the nodes given label 0 and 1, whose log-odds are those of the node plus a link."""
        by_label = []
        for sign in (-1.0, 1.0):
            weights = self.weights * np.exp(log_expit(sign * (self.nodes + link)))
            by_label.append(weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300))
        return by_label[0], by_label[1]

    @cached_property
    def _cells(self) -> csr_array:
        """1 where a node of a cell lies in a cell of log-odds, shape (CELLS * nodes, CELLS)."""
        cells = np.clip(np.searchsorted(EDGES_S, self.nodes.reshape(-1), side="right") - 1, 0, CELLS - 1)
        return csr_array((np.ones(cells.size), (np.arange(cells.size), cells)), shape=(cells.size, CELLS))


LOG_ODDS = Axis(MID_S[:, None], np.ones(1), MID_S)
"""The usual axis: a cell is a range of log-odds."""


def log_odds_from(choices: IntArray) -> Axis:
    """Log-odds of the likeliest of several answers, which have a smallest possible value."""
    first = int(np.searchsorted(EDGES_S, -np.log(choices.max() - 1), side="right")) - 1
    return Axis(LOG_ODDS.nodes, LOG_ODDS.weights, LOG_ODDS.calibrated, first)


@dataclass(frozen=True, slots=True)
class Excess:
    """The distribution of the excess: the log-odds of its mean as a share of log(k - 1), over the margin.

    They are ``level`` where margin / (1 + margin) is ``centre``, and rise by ``slope`` from 0 to 1 of that.
    """

    level: float
    slope: float
    centre: float = 0.5


@dataclass(frozen=True, eq=False)
class ExcessPosterior:
    """What the answers say about the excess: the mean of level and slope, and their covariance."""

    mean: FloatArray
    covariance: FloatArray
    centre: float

    @property
    def best(self) -> Excess:
        """The posterior mean."""
        return self._at(self.mean)

    @property
    def others(self) -> tuple[tuple[Excess, float], ...]:
        """Further points that stand for the posterior, with the share of each."""
        variance, axes = np.linalg.eigh(self.covariance)
        off = _ACROSS * np.sqrt(variance) * axes
        points = [self.mean + sign * off[:, k] for k in range(2) for sign in (-1, 1)]
        return tuple((self._at(point), _SHARE) for point in points)

    def _at(self, point: FloatArray) -> Excess:
        return Excess(float(point[0]), float(point[1]), self.centre)


def margin_axis(choices: IntArray, excess: Excess) -> Axis:
    """Margins of items with these numbers of answers."""
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
    """Equally likely values of the excess of ``k`` answers, for each mean; shape (means, nodes)."""
    if k == 2:
        return np.zeros((mean.size, 1))
    known, values = _family(k)
    above = np.clip(np.searchsorted(known, mean), 1, known.size - 1)
    part = np.clip((mean - known[above - 1]) / (known[above] - known[above - 1]), 0.0, 1.0)[:, None]
    return np.asarray((1 - part) * values[above - 1] + part * values[above])


@lru_cache(maxsize=32)
def _family(k: int) -> tuple[FloatArray, FloatArray]:
    """Means of the excess (as log-odds, ascending) and its quantiles, for normal logits of many spreads."""
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
