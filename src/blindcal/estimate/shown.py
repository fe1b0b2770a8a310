"""Probabilities that were read exactly: estimates are those of the sample itself (METHOD 7).

Nothing is hidden, so the joint table of label and probability is that of the items, and intervals come from
resampled units, with the allowance of `Unseen` for what few of them miss. Only the reliability curve is
smooth: it is that of the latent fit of the same readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit

from blindcal.errors import NotIdentifiedError
from blindcal.estimate import grid
from blindcal.estimate.checks import ArrayLike
from blindcal.estimate.findings import Curve, share_around
from blindcal.estimate.fit import Fit, Quantity
from blindcal.estimate.grid import EDGES_P, Cells
from blindcal.estimate.latent.estimator import check_options, fit_problem
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.operating import Decisions, Rates
from blindcal.estimate.problem import Problem
from blindcal.estimate.truth import bin_index
from blindcal.estimate.uncertainty import Ends, Unseen, unseen_draws
from blindcal.records import INVALID, BoolArray, Estimate, FloatArray, IntArray

_DIGITS = 12  # of a decimal fraction that was turned into log-odds and back
_EXACT = 0.005  # bounds of a probability that are closer than this are read as their middle
_CELLS = 2048  # equal shares of the items, and cells of the grid, that draws tell apart at least
_CHUNK = 4_000_000  # number of (resample, item) pairs that are drawn at a time


def exact_probabilities(bounds: FloatArray) -> FloatArray:
    """The probabilities between bounds of log-odds (rows), NaN where these are not close together."""
    low, high = expit(bounds).T
    p = np.where(high - low < _EXACT, (low + high) / 2, np.nan)
    decimal = np.round(p, _DIGITS)  # what was written as 0.6 must not fall below an edge at 0.6
    return np.where(np.abs(p - decimal) < 1e-15, decimal, p)


def moved(p: ArrayLike, again: ArrayLike, same: ArrayLike) -> FloatArray:
    """How far probabilities have moved; if ``again`` is not of the ``same`` answer, at least so far."""
    second = np.asarray(again, np.float64)
    return np.asarray(np.where(same, second, np.minimum(second, 1 - second)) - np.asarray(p, np.float64))


def exact_readings(problem: Problem) -> FloatArray | None:
    """The probability that was read of each item, NaN if none was; ``None`` if any is only bounded."""
    rows = problem.readings.rows(problem.readings.answers != INVALID)
    read = exact_probabilities(rows.bounds_or_nan)
    if (
        not len(rows)
        or np.isnan(read).any()
        or np.unique(rows.items).size < len(rows)
        or problem.counts is not None
    ):
        return None
    p = np.full(problem.labels.size, np.nan)
    p[rows.items] = read
    return p


def _counted(labels: IntArray, cell: IntArray, cells: int) -> FloatArray:
    return np.bincount(labels * cells + cell, minlength=2 * cells).astype(np.float64)


def _weights(units: int, size: int, rng: np.random.Generator) -> Iterator[FloatArray]:
    """How often each unit (rows) is drawn in each of ``size`` resamples, a part of them at a time."""
    step = max(1, _CHUNK // units)
    for at in range(0, size, step):
        some = min(step, size - at)
        picked = rng.integers(units, size=(units, some)) * some + np.arange(some)
        yield np.bincount(picked.reshape(-1), minlength=units * some).reshape(units, some).astype(np.float64)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class ShownFit(Fit):
    """Estimates from the probabilities ``p`` that were read of items with these ``labels``.

    ``read`` says of which items asked, by default of all. Without a ``problem`` behind them there is no
    reliability curve, its test or true calibration error.
    """

    labels: IntArray
    p: FloatArray
    groups: IntArray | None = None
    resamples: int = 0
    seed: int = 0
    read: BoolArray | None = None

    def at(self, *, bins: int | None = None, level: float | None = None) -> ShownFit:
        """The same fit with other bins or another level; nothing is drawn again."""
        other, given = super().at(bins=bins, level=level), {each.name for each in fields(self)}
        drawn = vars(self).keys() & vars(ShownFit).keys() - given  # not the intervals of the other level
        vars(other).update({name: vars(self)[name] for name in drawn})
        return other

    @property
    def items(self) -> int:
        return self.p.size

    @property
    def queries(self) -> int:
        return self.items + self.invalid

    @property
    def invalid(self) -> int:
        return 0 if self.read is None else int((~self.read).sum())

    @cached_property
    def cells(self) -> Cells:
        """A cell for every probability."""
        return Cells.at(np.unique(self.p))

    @cached_property
    def sample(self) -> FloatArray:
        """The items' joint table over `cells`."""
        return _counted(self.labels, np.searchsorted(self.cells.p, self.p), self.cells.p.size) / self.p.size

    @cached_property
    def _cell_of_item(self) -> IntArray:
        """The cell of each item in the draws: nearly equal probabilities of many items share one."""
        values, where, counts = np.unique(self.p, return_inverse=True, return_counts=True)
        if values.size <= 2 * _CELLS:
            return np.asarray(where, np.int64)
        within = np.searchsorted(EDGES_P[1:-1], values, side="right")
        rank = (np.cumsum(counts) - counts) * _CELLS // self.p.size
        new = (np.diff(within, prepend=-1) > 0) | (np.diff(rank, prepend=-1) > 0)
        return np.asarray((np.cumsum(new) - 1)[where], np.int64)

    @cached_property
    def draw_cells(self) -> Cells:
        """The cells of `draws`."""
        cell = self._cell_of_item
        mean = np.bincount(cell, self.p) / np.bincount(cell)
        least = np.ones(mean.size)
        np.minimum.at(least, cell, self.p)
        return Cells.at(np.maximum(mean, least))  # the mean of equal numbers may be rounded below them

    @cached_property
    def draws(self) -> FloatArray:
        """Joint tables over `draw_cells` of resampled units."""
        if not self.resamples:
            raise NotIdentifiedError("this fit was made without resamples, so it has no intervals")
        rng = np.random.default_rng(self.seed)
        if self.groups is not None:
            units = np.unique(self.groups, return_inverse=True)[1]
            count = int(units.max()) + 1
            return self._redrawn(units, count, _weights(count, self.resamples, rng))
        counts = _counted(self.labels, self._cell_of_item, self.draw_cells.p.size)
        return np.asarray(rng.multinomial(self.p.size, counts / counts.sum(), self.resamples) / self.p.size)

    def redrawn(self, units: IntArray, count: int, size: int, seed: int, turn: int) -> FloatArray:  # noqa: ARG002 - nothing is refitted
        units = units if self.read is None else units[self.read]
        rng, shares = np.random.default_rng([seed, 11]), np.full(count, 1 / count)
        # the same draws as those of a latent fit of another run
        drawn = (rng.multinomial(count, shares, 1).T.astype(np.float64) for _ in range(size))
        return self._redrawn(units, count, drawn)

    def _redrawn(self, units: IntArray, count: int, drawn: Iterable[FloatArray]) -> FloatArray:
        """As `draws`, by how often each of ``count`` units (rows) is ``drawn``; ``units`` has each item's."""
        cells = self.draw_cells.p.size
        owned = csr_array(
            (np.ones(units.size), (units, self.labels * cells + self._cell_of_item)), shape=(count, 2 * cells)
        )
        tables = np.concatenate([owned.T @ weights for weights in drawn], axis=1).T
        return np.asarray(tables / np.maximum(tables.sum(axis=1, keepdims=True), 1.0))

    @cached_property
    def unseen(self) -> tuple[int, FloatArray]:
        """The number of units, and for each draw a share of the population that they miss."""
        units = self.p.size if self.groups is None else np.unique(self.groups).size
        return units, unseen_draws(units, self.resamples, np.random.default_rng([self.seed, 1]))

    @cached_property
    def _smooth(self) -> LatentFit:
        assert self.problem is not None
        return fit_problem(self.problem, resamples=self.resamples, seed=self.seed)

    @property
    def smooth(self) -> LatentFit:
        """The latent fit of the same readings."""
        return self._smooth.at(level=self.level)

    @property
    def tce(self) -> Estimate:
        return self.smooth.tce

    def curve_at(self, f: ArrayLike) -> Curve:
        self._need_both_labels("curve")
        return self.smooth.curve_at(f)

    @property
    def calibrated_pvalue(self) -> float:
        return self.smooth.calibrated_pvalue

    def _rates(self, thresholds: FloatArray) -> Rates:
        return _rates(self.sample, self.cells, thresholds)

    def _decisions(self, thresholds: FloatArray) -> Decisions:
        above = self.items - np.searchsorted(np.sort(self.p), thresholds)
        units, missed = self.unseen
        return Decisions(
            rates=self._rates(thresholds),
            drawn=_rates(self.draws, self.draw_cells, thresholds),
            units=units,
            tested=np.where(thresholds >= 0.5, above, self.items - above),
            missed=missed,
        )

    def _ends(
        self,
        quantity: Quantity,
        least: float | FloatArray = 0.0,
        most: float | FloatArray = 1.0,
        *,
        overfits: bool = False,
    ) -> Ends:
        drawn, value = quantity(self.draws, self.draw_cells), quantity(self.sample, self.cells)
        if overfits:  # a draw fits noise of the sample's labels, at most twice as much as of its own
            excess = drawn.mean(axis=0) - value
            drawn, value = drawn - 3 * excess, value - 2 * excess
        return Unseen(*self.unseen, self.level).ends(drawn, value, least, most)

    def _absolute_ends(self, signed: Quantity, order: int) -> tuple[float, float]:
        drawn, value = signed(self.draws, self.draw_cells), signed(self.sample, self.cells)
        return Unseen(*self.unseen, self.level).absolute_ends(drawn, value, order=order)

    @property
    def _ece_if_invalid(self) -> tuple[float, float]:
        invalid = self.invalid / self.queries  # each could change the sum of |gaps| by 1/n
        return share_around((1 - invalid) * self._ece, invalid)

    @property
    def _labels(self) -> IntArray:
        return self.labels


AnswersFit: TypeAlias = LatentFit | ShownFit


def fit_answers(
    problem: Problem, *, bins: int = 5, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> AnswersFit:
    """The fit of a problem: of the probabilities themselves if all were read exactly, else a latent one."""
    p = exact_readings(problem)
    if p is None:
        return fit_problem(problem, bins=bins, level=level, resamples=resamples, seed=seed)
    check_options(bins, level, resamples)
    items, read = problem.items, np.flatnonzero(np.isfinite(p))
    return ShownFit(
        labels=problem.labels[read],
        p=p[read],
        groups=None if problem.units is None else problem.units[read],
        resamples=resamples,
        seed=seed,
        problem=problem,
        read=np.isfinite(p[items]),
        bin_count=bins,
        level=level,
    )


def _rates(tables: FloatArray, cells: Cells, thresholds: FloatArray) -> Rates:
    first = np.searchsorted(cells.p, thresholds)
    padding = [(0, 0)] * (tables.ndim - 1) + [(0, 1)]
    fp, tp = (np.pad(each, padding) for each in grid.decided_positive(tables))
    return Rates(tp[..., first], fp[..., first], tp[..., :1])


def classwise(
    labels: IntArray,
    p: FloatArray,
    units: IntArray | None = None,
    *,
    bins: int = 5,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Estimate, tuple[Estimate, ...]]:
    """The mean of the ECEs of each answer's probability ``p`` (columns), as a yes/no question, and each ECE.

    ``labels`` are the numbers of the right answers; intervals resample ``units``, by default the items.
    """
    n, answers = p.shape
    units = np.arange(n) if units is None else np.unique(units, return_inverse=True)[1]
    count = int(units.max()) + 1
    wrong = np.clip(p, 0, 1) - (labels[:, None] == np.arange(answers))
    where = bin_index(p, bins) + bins * np.arange(answers)
    row = np.repeat(units, answers)
    gaps = csr_array((wrong.reshape(-1), (row, where.reshape(-1))), shape=(count, answers * bins))
    sizes, rng = np.bincount(units), np.random.default_rng(seed)
    drawn = [(gaps.T @ weights / (sizes @ weights)).T for weights in _weights(count, resamples, rng)]
    unseen = Unseen(count, unseen_draws(count, resamples, rng), level)

    def estimate(some: slice, most: float) -> Estimate:
        values = np.asarray(gaps.sum(axis=0))[some] / n
        value = float(np.abs(values).sum())
        if not drawn:
            return Estimate(value)
        return Estimate(value, *unseen.absolute_ends(np.concatenate(drawn)[:, some], values, most), level)

    each = tuple(estimate(slice(bins * k, bins * (k + 1)), 1.0) for k in range(answers))
    return estimate(slice(None), 2.0).times(1 / answers), each
