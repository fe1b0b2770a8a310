"""Confidence intervals of a fit: quantiles of refits to resampled items, and every reason to widen them.

An interval is between quantiles of refits, each with other items, excess and smoothness; that of a sum of
absolute values inverts a test (`uncertainty`). These widen it, as docs/decisions/doubt.md explains:

- n items miss a share q of the population with probability (1 - q)^n: each refit is joined by such a share,
  `Resampling.missed`, and no interval is narrower than what a share of fixed size, `unseen_share`, allows;
- a link may be rougher than the fit's in places: an interval includes what a rougher one changes;
- other noise may be as plausible: an interval includes those of ``LatentFit.others``;
- items may lie anywhere in a wide range without a threshold (`unasked`), and beyond the outermost thresholds
  (`possible_log_odds`);
- one noisy question asked once leaves much open, whatever the model (`error_bounds`);
- some decisions are shown by no answer (`shown_decisions`), or tested by few (`answers_beyond`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array
from scipy.special import ndtri

from blindcal.errors import NotIdentifiedError
from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, MID_P, MID_S
from blindcal.estimate.latent.model import Ensemble, refit, roughened
from blindcal.estimate.patterns import Patterns
from blindcal.estimate.readings import Axis
from blindcal.estimate.uncertainty import Ends, Unseen, norm, unseen_draws
from blindcal.records import NEGATIVE, POSITIVE, BoolArray, FloatArray, IntArray

#: Draws a given number of resamples, as counts of each pattern.
Resample: TypeAlias = Callable[[int, np.random.Generator], FloatArray]
#: Computes a quantity of each joint table of a stack.
Quantity: TypeAlias = Callable[[FloatArray], FloatArray]

_CHUNK = 2_000_000  # number of (resample, pattern) pairs that are refitted at a time
# Items of a label beyond a threshold are shown if the answers would be less likely without them, by this many
# units of log-likelihood: half the 95% point of chi-square with one degree of freedom.
_CLEARLY_THERE = 1.92
_WIDE = 0.25  # widest range of probability without a threshold that the smooth density is trusted to bridge
_MANY, _LARGE_SHARE = 30, 0.02  # answers at one edge, and their share of all, if it is one of few


@dataclass(frozen=True, eq=False)
class Alternative:
    """Another plausible reading of the same answers."""

    patterns: Patterns
    ensemble: Ensemble


@dataclass(frozen=True, eq=False)
class Resampling:
    """Refits to resampled items or ``groups`` of items, computed on first use; none with ``size`` 0."""

    patterns: Patterns
    ensemble: Ensemble
    size: int
    seed: int
    groups: IntArray | None = None
    alternatives: tuple[Alternative, ...] = ()

    @cached_property
    def draws(self) -> FloatArray:
        """Joint tables of the population over (label, log-odds), one per refit."""
        return np.concatenate([axis.to_log_odds(tables) for axis, tables in self._by_axis])

    @cached_property
    def rougher(self) -> FloatArray:
        """The joint table over (label, cell of the fit) with a rougher link."""
        return roughened(self.patterns, self.ensemble).table

    @property
    def over_margins(self) -> FloatArray:
        """The same over (label, cell of the fit)."""
        return np.concatenate([tables for _, tables in self._by_axis])

    @cached_property
    def _by_axis(self) -> tuple[tuple[Axis, FloatArray], ...]:
        if not self.size:
            raise NotIdentifiedError("this fit was made without resamples, so it has no intervals")
        resample = of_items(self.patterns) if self.incidence is None else of_units(self.incidence)
        rng = np.random.default_rng(self.seed)
        readings: Sequence[Resampling | Alternative] = self.alternatives or (self,)
        sizes = [part.size for part in np.array_split(np.arange(self.size), len(readings))]
        return tuple(
            (
                each.patterns.axis,
                resampled_tables(each.patterns, each.ensemble, self.units, size, rng, resample),
            )
            for each, size in zip(readings, sizes, strict=True)
            if size
        )

    @cached_property
    def incidence(self) -> csr_array | None:
        """Number of items per group (rows) and pattern (columns); ``None`` without groups."""
        if self.groups is None:
            return None
        return incidence(self.groups, int(self.groups.max()) + 1, self.patterns)

    @cached_property
    def units(self) -> int:
        """Number of independent units: groups, or items if there are no groups."""
        return int(self.patterns.n) if self.groups is None else np.unique(self.groups).size

    @cached_property
    def answered(self) -> int:
        """Number of units; without groups, of items with a valid answer."""
        return self.units if self.groups is not None else int(self.patterns.n) - self.patterns.unanswered

    @cached_property
    def missed(self) -> FloatArray:
        """For each refit, a share of the population that the sample misses."""
        return unseen_draws(self.answered, self.size, np.random.default_rng([self.seed, 1]))


def resampled_tables(
    patterns: Patterns,
    ensemble: Ensemble,
    units: int,
    size: int,
    rng: np.random.Generator,
    resample: Resample,
) -> FloatArray:
    """Refit to resamples of units: a weighted-likelihood bootstrap with randomised priors.

    Each draw resamples items or groups, the prior's centre (from the prior) and the smoothness (by its
    evidence). In the Gaussian limit the draws have exactly the posterior's spread. Their density, and
    with many units their link, is rougher than the fit's: answers do not show how smooth the population is.
    """
    ensemble = roughened(patterns, ensemble, units)
    tables = np.empty((size, 2 * CELLS))
    which = rng.choice(ensemble.weights.size, size=size, p=ensemble.weights)
    scale = 1 / np.sqrt([mode.precision for mode in ensemble.modes])
    step = max(1, _CHUNK // len(patterns))
    for begin in range(0, size, step):
        part = which[begin : begin + step]
        centres = rng.standard_normal((part.size, scale.shape[1])) * scale[part]
        counts = resample(part.size, rng)
        tables[begin : begin + part.size] = refit(patterns, ensemble.modes, part, counts, centres)
    return tables


def of_items(patterns: Patterns) -> Resample:
    """Draw items with replacement."""
    shares = patterns.counts / patterns.counts.sum()
    return lambda size, rng: rng.multinomial(int(patterns.n), shares, size=size).astype(np.float64)


def of_units(incidence: csr_array) -> Resample:
    """Draw units (rows of the incidence) with replacement."""
    units = incidence.shape[0]

    def resample(size: int, rng: np.random.Generator) -> FloatArray:
        picked = rng.multinomial(units, np.full(units, 1 / units), size=size)
        return np.asarray((incidence.T @ picked.T).T, dtype=np.float64)

    return resample


def incidence(units: IntArray, count: int, patterns: Patterns) -> csr_array:
    """Number of items per unit (rows) and pattern (columns); ``units`` has one entry per item."""
    return csr_array((np.ones(units.size), (units, patterns.of_item)), shape=(count, len(patterns)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Doubt:
    """The ``population`` of a fit, that with a ``rougher`` link, the refits (``draws``), and the level."""

    resampling: Resampling
    population: FloatArray
    rougher: FloatArray
    draws: FloatArray
    level: float

    def ends(
        self, quantity: Quantity, least: float | FloatArray = 0.0, most: float | FloatArray = 1.0
    ) -> Ends:
        """Interval of each component of a quantity to which an item adds from ``least`` to ``most``."""
        low, high = self._unseen.ends(quantity(self.draws), quantity(self.population), least, most)
        change = quantity(self.rougher) - quantity(self.population)
        return np.maximum(low + np.minimum(change, 0), least), np.minimum(high + np.maximum(change, 0), most)

    def absolute_ends(self, signed: Quantity, order: int) -> tuple[float, float]:
        """Interval of the sum of absolute values of a quantity, or another `norm`."""
        patterns, off = self.resampling.patterns, unasked(self.resampling.patterns, self.population)
        value = signed(self.population)
        low, high = self._unseen.absolute_ends(signed(self.draws), value, off=off, order=order)
        change = float(norm(signed(self.rougher), order) - norm(value, order))
        low, high = low + min(change, 0.0), high + max(change, 0.0)
        if (limits := error_bounds(patterns, self.level, self.resampling.units)) is not None:
            low, high = min(low, limits[0]), max(high, limits[1])
        return max(0.0, low), min(1.0, high)

    @property
    def _unseen(self) -> Unseen:
        return Unseen(self.resampling.answered, self.resampling.missed, self.level)


def error_bounds(patterns: Patterns, level: float, units: float) -> tuple[float, float] | None:
    """Bounds on the population's ECE for any bins, from one noisy question asked once; else ``None``.

    Its answers cannot distinguish a model that wavers from one that is sure and often wrong. With ``r(f)``
    the probability of a positive answer,

        |E f - E Y|  <=  ECE  <=  E|f - E[Y|f]|  <=  E[f (1 - Y) + (1 - f) Y],

    where E[f | Y = y] lies between the hulls of the curve (r(f), f) at the share of positive answers.
    """
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


def possible_log_odds(patterns: Patterns) -> Ends:
    """The lowest and highest log-odds that the items of each cell may have, as far as the answers tell."""
    first, last = _told_apart(patterns)
    cells = np.arange(CELLS)
    lowest = MID_S[np.where(cells < first, 0, np.minimum(cells, last))]
    return lowest, MID_S[np.where(cells > last, CELLS - 1, np.maximum(cells, first))]


def _told_apart(patterns: Patterns) -> tuple[int, int]:
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
