"""A fit of the hidden log-odds, and the estimates that follow from it (METHOD 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from blindcal.estimate import grid
from blindcal.estimate.checks import ArrayLike, probabilities
from blindcal.estimate.findings import Curve, share_around
from blindcal.estimate.fit import Fit, Quantity
from blindcal.estimate.grid import CELLS, EDGES_S, GRID, MID_P, MID_S, cells_between, edge_of_threshold
from blindcal.estimate.latent.intervals import (
    Doubt,
    Resampling,
    answers_beyond,
    incidence,
    of_units,
    possible_log_odds,
    resampled_tables,
    shown_decisions,
)
from blindcal.estimate.latent.model import Ensemble, calibration_pvalue
from blindcal.estimate.latent.operating import GRID_THRESHOLDS, Decisions, Rates, decision_rates
from blindcal.estimate.patterns import Patterns
from blindcal.estimate.problem import Problem
from blindcal.estimate.uncertainty import Ends
from blindcal.records import BoolArray, Estimate, FloatArray, IntArray, Noise

_LITTLE = 0.005  # of probability that may be open if the p-value is to be trusted


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class LatentFit(Fit):
    """A fit of hidden log-odds, from which all estimates are computed.

    ``tce``, ``curve`` and operating points describe the population; the other estimates are for the *sample*,
    and combine the fit with each item's own answers. Intervals are for the population, and include those of
    ``others``, fits for other plausible noise; a fit with ``resamples=0`` has none.
    """

    patterns: Patterns
    ensemble: Ensemble
    resampling: Resampling
    problem: Problem
    noise: Noise
    others: tuple[LatentFit, ...] = ()
    by_margin: bool = False

    def at(self, *, bins: int | None = None, level: float | None = None) -> LatentFit:
        """The same fit with other bins or another level; nothing is fitted again."""
        others = tuple(other.at(bins=bins, level=level) for other in self.others)
        return replace(super().at(bins=bins, level=level), others=others)

    @property
    def deployable(self) -> LatentFit:
        """The fit whose thresholds one query decides by: of margins with more than two answers (METHOD 8)."""
        if self.patterns.axis.direct:
            return self
        return replace(self, by_margin=True, others=tuple(other.deployable for other in self.others))

    @property
    def smooth(self) -> LatentFit:
        """This fit itself."""
        return self

    @property
    def items(self) -> int:
        """Number of items."""
        return int(self.patterns.n)

    @property
    def queries(self) -> int:
        """Number of answers, invalid ones included."""
        return self.problem.queries

    @property
    def invalid(self) -> int:
        """Number of invalid answers."""
        return self.problem.invalid

    @property
    def resamples(self) -> int:
        """Number of refits behind each interval."""
        return self.resampling.size

    @cached_property
    def population(self) -> FloatArray:
        """The population's joint table over (label, log-odds), label 0 first."""
        return self._over_cells(self.ensemble.table)

    @cached_property
    def sample(self) -> FloatArray:
        """The sample's expected joint table, given each item's own answers."""
        return self.patterns.axis.to_log_odds(self.ensemble.expected_counts / self.patterns.n)

    @property
    def draws(self) -> FloatArray:
        """Joint tables of the population, refitted to resampled items with randomised priors."""
        return self.resampling.over_margins if self.by_margin else self.resampling.draws

    def redrawn(self, units: IntArray, count: int, size: int, seed: int, turn: int) -> FloatArray:
        """Refits to resampled units: ``count`` in all, of which ``units`` has that of each item."""
        resample = of_units(incidence(units, count, self.patterns))
        rng, stream = np.random.default_rng([seed, 12, turn]), np.random.default_rng([seed, 11])
        # units have their own random stream: it is the same for both fits and does not depend on chunks
        refitted = resampled_tables(
            self.patterns, self.ensemble, count, size, rng, lambda some, _: resample(some, stream)
        )
        return self.patterns.axis.to_log_odds(refitted)

    @property
    def tce(self) -> Estimate:
        """True calibration error E|E[Y|f] - f| of the population."""
        value = float(grid.tce(self.population))
        return self._absolute(value, grid.cell_gaps)

    @property
    def _half_gaps(self) -> FloatArray:
        return grid.gaps(self.population, 2)

    def curve_at(self, f: ArrayLike) -> Curve:
        """Reliability curve E[Y|f] with a pointwise band, at the confidences ``f``."""
        self._need_both_labels("curve")  # with one label alone it would be flat for any model
        at = probabilities(f, "f")
        columns = [grid.curve(self.population)]
        if self.resamples:
            columns += self._ends(lambda tables, _: grid.curve(tables))
        value, *band = (tuple(np.interp(at, MID_P, column).tolist()) for column in columns)
        low, high = band or (None, None)
        return Curve(tuple(at.tolist()), value, low, high, self.level if band else None)

    @property
    def calibrated_pvalue(self) -> float:
        """P-value of "perfectly calibrated", E[Y|f] = f for every f; the highest of all plausible readings.

        A score test against smooth departures of the link, with the variance of labels redrawn from the
        calibrated fit; groups increase it where their members agree more than by chance. NaN if what shown
        probabilities leave open could make the error.
        """
        readings = [self.patterns, *(other.patterns for other in self.resampling.alternatives)]
        if self._open > _LITTLE and not self.ece.low:
            return np.nan
        pvalues = [calibration_pvalue(patterns, self.resampling.incidence) for patterns in readings]
        return max([*pvalues, *(other.calibrated_pvalue for other in self.others)])

    @property
    def log_loss(self) -> Estimate:
        """Mean negative log-likelihood of the labels; log-odds beyond ±12 count as ±13.

        The interval allows for all that is possible beyond the outermost thresholds, where no answer tells.
        """
        value, most = float(grid.log_loss(self.sample)), float(np.logaddexp(0, MID_S[-1]))
        if not self.resamples:
            return Estimate(value)
        lowest, highest = possible_log_odds(self.patterns)
        low, _ = self._ends(lambda tables, _: grid.expected_loss(tables, lowest, highest), most=most)
        _, high = self._ends(lambda tables, _: grid.expected_loss(tables, highest, lowest), most=most)
        return self._within(value, float(low), float(high))

    # -- decisions -----------------------------------------------------------------------------

    def _deployed(self, thresholds: ArrayLike) -> FloatArray:
        return GRID_THRESHOLDS[_places(super()._deployed(thresholds))]  # rounded to the grid

    def _rates(self, thresholds: FloatArray) -> Rates:
        return decision_rates(self.population).at(_places(thresholds))

    def _decisions(self, thresholds: FloatArray) -> Decisions:
        return self._all_decisions.at(_places(thresholds))

    @property
    def _all_decisions(self) -> Decisions:
        return Decisions(
            rates=decision_rates(self.population),
            drawn=decision_rates(self.draws),
            units=self.resampling.answered,
            tested=self._tested,
            missed=self.resampling.missed,
            shown=self._shown,
            others=tuple(other._all_decisions for other in self.others),
        )

    @property
    def _tested(self) -> FloatArray:
        if not self.by_margin:
            return answers_beyond(self.patterns)
        shifts = self.problem.readings.shifts[self.problem.hard]
        asked = np.searchsorted(EDGES_S[1:-1], np.sort(-shifts) + 1e-9)  # inner edges at or below each
        return np.asarray(shifts.size - np.searchsorted(asked, np.arange(1, CELLS)), np.float64)

    @cached_property
    def _shown(self) -> BoolArray | None:
        direct = self.patterns.axis.direct
        return shown_decisions(self.patterns, self.ensemble.table) if direct else None

    def _over_cells(self, table: FloatArray) -> FloatArray:
        return table if self.by_margin else self.patterns.axis.to_log_odds(table)

    # -- uncertainty -----------------------------------------------------------------------------

    @property
    def _doubts(self) -> list[Doubt]:
        """The doubt of this fit and of those for other plausible noise."""
        return [
            Doubt(
                resampling=fit.resampling,
                population=fit.population,
                rougher=fit._over_cells(fit.resampling.rougher),
                draws=fit.draws,
                level=self.level,
            )
            for fit in (self, *self.others)
        ]

    def _absolute_ends(self, signed: Quantity, order: int) -> tuple[float, float]:
        on_grid = partial(_on_grid, signed)
        lows, highs = zip(*(doubt.absolute_ends(on_grid, order) for doubt in self._doubts), strict=True)
        return max(0.0, min(lows) - self._open), min(1.0, max(highs) + self._open)

    def _ends(
        self,
        quantity: Quantity,
        least: float | FloatArray = 0.0,
        most: float | FloatArray = 1.0,
        *,
        overfits: bool = False,  # noqa: ARG002 - the fitted tables are smooth
    ) -> Ends:
        on_grid = partial(_on_grid, quantity)
        lows, highs = zip(*(doubt.ends(on_grid, least, most) for doubt in self._doubts), strict=True)
        low, high = np.min(lows, axis=0) - self._open, np.max(highs, axis=0) + self._open
        return np.maximum(low, least), np.minimum(high, most)

    @cached_property
    def _open(self) -> float:
        """The mean width of bounds of shown probabilities, which may all err on one side."""
        bounds = self.problem.readings.bounds_or_nan
        first, last = cells_between(*np.where(np.isnan(bounds), 0.0, bounds).T)
        return float(np.average(MID_P[last - 1] - MID_P[first], weights=self.problem.stands_for))

    @property
    def invalid_bound(self) -> float:
        """The most by which ``ece`` could differ if every invalid answer had been valid."""
        # an item's expected contribution is off by at most its weight, in at most two bins
        return min(1.0, 2 * min(self.invalid, self.items) / self.items)

    @property
    def _ece_if_invalid(self) -> tuple[float, float]:
        return share_around(self._ece, self.invalid_bound)

    @property
    def contradictions(self) -> int:
        """Number of items whose threshold answers contradict each other, because of jitter."""
        return self.patterns.contradictions

    @property
    def _labels(self) -> IntArray:
        return self.patterns.labels


def _places(thresholds: FloatArray) -> IntArray:
    return edge_of_threshold(thresholds) - 1


def _on_grid(quantity: Quantity, tables: FloatArray) -> FloatArray:
    return quantity(tables, GRID)
