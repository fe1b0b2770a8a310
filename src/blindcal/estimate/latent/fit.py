"""A fit of the hidden log-odds, and the estimates that follow from it (METHOD 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import grid
from blindcal.estimate.checks import ArrayLike, fraction, probabilities, whole
from blindcal.estimate.findings import (
    COSTS,
    HISTOGRAM_BINS,
    LEANING,
    NOTHING,
    OVERCONFIDENCE,
    THRESHOLDS,
    Bin,
    ConfidenceHistogram,
    CostCurve,
    Curve,
    Findings,
    OperatingPoint,
    bare_bins,
    filled_bins,
    finite,
    gap_bins,
    histogram,
    share_around,
)
from blindcal.estimate.grid import CELLS, EDGES_S, MID_P, MID_S, edge_of_threshold, memberships
from blindcal.estimate.latent.intervals import (
    Doubt,
    Ends,
    Quantity,
    Resampling,
    answers_beyond,
    possible_log_odds,
    shown_decisions,
)
from blindcal.estimate.latent.model import Ensemble, calibration_pvalue
from blindcal.estimate.latent.operating import (
    GRID_SHIFTS,
    GRID_THRESHOLDS,
    ChosenThreshold,
    Decisions,
    Estimator,
    check_costs,
    choose_threshold,
    cost_curve,
    decision_rates,
    operating_points,
)
from blindcal.estimate.patterns import Patterns
from blindcal.estimate.problem import Problem
from blindcal.estimate.truth import bin_edges
from blindcal.records import NEGATIVE, POSITIVE, BoolArray, Estimate, FloatArray, IntArray, Noise

_CURVE_POINTS = np.concatenate([[1, 2, 5], np.arange(10, 991, 10), [995, 998, 999]]) / 1000


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class LatentFit:
    """A fit, from which all estimates are computed, with ``bin_count`` bins and intervals at ``level``.

    ``tce``, ``curve`` and operating points describe the population; the other estimates are for the *sample*,
    and combine the fit with each item's own answers. Intervals are for the population, and include those of
    ``others``, fits for other plausible noise; a fit with ``resamples=0`` has none.
    """

    patterns: Patterns
    ensemble: Ensemble
    resampling: Resampling
    problem: Problem
    noise: Noise
    bin_count: int = 5
    level: float = 0.95
    others: tuple[LatentFit, ...] = ()
    by_margin: bool = False

    def __repr__(self) -> str:
        return f"LatentFit({self.items:,} items, {self.queries:,} queries, ECE {self._ece:.4f})"

    def at(self, *, bins: int | None = None, level: float | None = None) -> LatentFit:
        """The same fit with other bins or another level; nothing is fitted again."""
        return replace(
            self,
            bin_count=self.bin_count if bins is None else whole(bins, "bins"),
            level=self.level if level is None else fraction(level, "level"),
            others=tuple(other.at(bins=bins, level=level) for other in self.others),
        )

    @property
    def deployable(self) -> LatentFit:
        """The fit whose thresholds one query decides by: of margins with more than two answers (METHOD 8)."""
        if self.patterns.axis.direct:
            return self
        return replace(self, by_margin=True, others=tuple(other.deployable for other in self.others))

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

    @cached_property
    def population(self) -> FloatArray:
        """The population's joint table over (label, log-odds), label 0 first."""
        table = self.ensemble.table
        return table if self.by_margin else self.patterns.axis.to_log_odds(table)

    @cached_property
    def sample(self) -> FloatArray:
        """The sample's expected joint table, given each item's own answers."""
        return self.patterns.axis.to_log_odds(self.ensemble.expected_counts / self.patterns.n)

    @property
    def draws(self) -> FloatArray:
        """Joint tables of the population, refitted to resampled items with randomised priors."""
        return self.resampling.over_margins if self.by_margin else self.resampling.draws

    def findings(self, *, brief: bool = False) -> Findings:
        """Everything that a result shows; ``brief`` gives only what the result of a part shows."""
        some = Findings(
            ece=self.ece,
            bins=self.bins,
            ece_if_invalid=share_around(self._ece, self.invalid_bound),
            overconfidence=self.overconfidence,
            leaning=NOTHING if self._given else self.leaning,  # then no answer is the positive one
            accuracy=self.accuracy,
        )
        if brief:
            return some
        some = replace(
            some,
            brier=self.brier,
            log_loss=self.log_loss,
            tce=self.tce,
            calibrated_pvalue=finite(self.calibrated_pvalue),
            confidence=self.confidence,
        )
        if not self._has_both_labels:
            return some
        return replace(some, auroc=self.auroc, curve=self.curve, operating=self.operating, costs=self.costs)

    # -- calibration ---------------------------------------------------------------------------

    @property
    def ece(self) -> Estimate:
        """Binned expected calibration error of the sample, an estimate of ``binned_ece`` of the hidden f.

        With many bins, ``binned_ece`` also contains label noise within bins, which this estimate does not.
        """
        return self._absolute_sum(self._ece, lambda table: grid.gaps(table, self.bin_count))

    @property
    def tce(self) -> Estimate:
        """True calibration error E|E[Y|f] - f| of the population."""
        return self._absolute_sum(float(grid.tce(self.population)), grid.cell_gaps)

    @property
    def gaps(self) -> FloatArray:
        """Signed gap of each bin, positive if the confidence is too high."""
        return grid.gaps(self.sample, self.bin_count)

    @property
    def bins(self) -> tuple[Bin, ...]:
        """The bins with signed gaps and intervals, and the sample's shares and means."""
        negative, positive = grid.by_label(self.sample)
        both, within = negative + positive, memberships(self.bin_count)
        bins = bare_bins(self.gaps)
        if self.resampling.size:
            edges = bin_edges(self.bin_count)
            ends = self._ends(lambda tables: grid.gaps(tables, self.bin_count), edges[:-1] - 1, edges[1:])
            columns = zip(self.gaps.tolist(), *(end.tolist() for end in ends), strict=True)
            bins = gap_bins([Estimate(gap, low, high, self.level) for gap, low, high in columns])
        return filled_bins(bins, both @ within, (both * MID_P) @ within, positive @ within)

    @property
    def overconfidence(self) -> Estimate:
        """Mean confidence in the given answer minus the share of correct answers."""
        if self._given:
            return self.leaning
        return self._scalar(lambda tables: grid.gaps(tables, 2) @ OVERCONFIDENCE, least=-0.5)

    @property
    def leaning(self) -> Estimate:
        """Mean probability of the positive answer minus the share of positive labels."""
        return self._scalar(lambda tables: grid.gaps(tables, 2) @ LEANING, least=-1.0)

    @property
    def half_gaps(self) -> tuple[FloatArray, FloatArray]:
        """The population's signed gaps below and above 1/2, and their covariance."""
        return grid.gaps(self.population, 2), np.asarray(np.cov(grid.gaps(self.draws, 2).T))

    @property
    def curve(self) -> Curve:
        """Reliability curve E[Y|f] with a pointwise band, in steps of 0.01, finer at the ends."""
        return self.curve_at(_CURVE_POINTS)

    def curve_at(self, f: ArrayLike) -> Curve:
        """Reliability curve E[Y|f] with a pointwise band, at the confidences ``f``."""
        self._need_both_labels("curve")  # with one label alone it would be flat for any model
        at = probabilities(f, "f")
        columns = [grid.curve(self.population)]
        if self.resampling.size:
            columns += self._ends(grid.curve)
        value, *band = (tuple(np.interp(at, MID_P, column).tolist()) for column in columns)
        low, high = band or (None, None)
        return Curve(tuple(at.tolist()), value, low, high, self.level if band else None)

    @property
    def calibrated_pvalue(self) -> float:
        """P-value of "perfectly calibrated", E[Y|f] = f for every f; the highest of all plausible readings.

        A score test against smooth departures of the link, with the variance of labels redrawn from the
        calibrated fit; groups increase it where their members agree more than by chance.
        """
        readings = [self.patterns, *(other.patterns for other in self.resampling.alternatives)]
        pvalues = [calibration_pvalue(patterns, self.resampling.incidence) for patterns in readings]
        return max([*pvalues, *(other.calibrated_pvalue for other in self.others)])

    # -- discrimination and scores ---------------------------------------------------------------

    def accuracy_of(self, tables: FloatArray) -> FloatArray:
        return grid.prevalence(tables) if self._given else grid.accuracy(tables)

    @property
    def accuracy(self) -> Estimate:
        """Share of items whose greedy answer without a shift is correct."""
        return self._scalar(self.accuracy_of)

    @property
    def auroc(self) -> Estimate:
        """Area under the ROC curve; needs items of both labels."""
        self._need_both_labels("auroc")
        return self._scalar(grid.auroc)

    @property
    def brier(self) -> Estimate:
        """Brier score."""
        return self._scalar(grid.brier)

    @property
    def log_loss(self) -> Estimate:
        """Mean negative log-likelihood of the labels; log-odds beyond ±12 count as ±13.

        The interval allows for all that is possible beyond the outermost thresholds, where no answer tells.
        """
        value, most = float(grid.log_loss(self.sample)), float(MID_S[-1])
        if not self.resampling.size:
            return Estimate(value)
        lowest, highest = possible_log_odds(self.patterns)
        low, _ = self._ends(partial(grid.log_loss, of_negatives=lowest, of_positives=highest), most=most)
        _, high = self._ends(partial(grid.log_loss, of_negatives=highest, of_positives=lowest), most=most)
        return Estimate(value, float(low), float(high), self.level)

    @property
    def mean_confidence(self) -> Estimate:
        """Mean probability of the positive answer."""
        return self._scalar(grid.mean_confidence)

    @property
    def confidence(self) -> ConfidenceHistogram:
        """Distribution of the confidence f for each label."""
        share = [half @ memberships(HISTOGRAM_BINS) for half in grid.by_label(self.sample)]
        # if no item has a label, the link still gives it a trace of mass, which is not a distribution
        there = [bool((self.patterns.labels == label).any()) for label in (NEGATIVE, POSITIVE)]
        negatives, positives = (s / s.sum() if has else 0 * s for s, has in zip(share, there, strict=True))
        return histogram(negatives, positives)

    # -- decisions -----------------------------------------------------------------------------

    @property
    def operating(self) -> tuple[OperatingPoint, ...]:
        """Results of deciding "positive iff f >= t" for t = 1/40, 2/40, ..., 39/40."""
        return self.operating_at(THRESHOLDS)

    @property
    def costs(self) -> tuple[CostCurve, ...]:
        """Expected costs of these decisions, for three pairs of costs."""
        return tuple(self.expected_cost(*costs) for costs in COSTS)

    def operating_at(self, thresholds: ArrayLike) -> tuple[OperatingPoint, ...]:
        """Results of deciding "positive iff f >= t" for any thresholds, rounded to the grid."""
        places = self._places(thresholds)
        return operating_points(
            GRID_THRESHOLDS[places], GRID_SHIFTS[places], self._rates_at(places, "operating")
        )

    def expected_cost(self, cost_fp: float, cost_fn: float, thresholds: ArrayLike = THRESHOLDS) -> CostCurve:
        """Expected cost per decision at each threshold, given the costs of the two errors."""
        costs = check_costs(cost_fp, cost_fn)
        return cost_curve(*costs, self._rates_at(self._places(thresholds), "expected_cost"))

    def choose_threshold(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        cost_fp: float | None = None,
        cost_fn: float | None = None,
        confidence: float | None = 0.95,
        max_shift: float = np.inf,
    ) -> ChosenThreshold:
        """Choose the threshold, and the shift that deploys it, for a precision, a recall or two costs.

        Parameters
        ----------
        precision, recall : float
            Choose the lowest threshold with this precision, or the highest with this recall.
        cost_fp, cost_fn : float
            Choose the threshold with the lowest expected cost of false positives and false negatives.
        confidence : float or None
            Probability that the threshold meets the goal, which needs answers beyond it. With ``None`` the
            estimate decides, and misses the goal about half the time. It does not apply to costs.
        max_shift : float
            The largest shift that the endpoint accepts.
        """
        return choose_threshold(
            self._decisions("choose_threshold"),
            precision=precision,
            recall=recall,
            cost_fp=cost_fp,
            cost_fn=cost_fn,
            confidence=confidence,
            level=self.level,
            max_shift=max_shift,
            least=0.5 if self.by_margin else 0.0,  # the answer given always leads
        )

    def _places(self, thresholds: ArrayLike) -> IntArray:
        t = np.asarray(thresholds, dtype=np.float64)
        if t.ndim != 1 or not ((t > 0) & (t < 1)).all():
            raise InputError(f"thresholds: must lie strictly between 0 and 1, got {thresholds!r}")
        return edge_of_threshold(t) - 1

    def _rates_at(self, places: IntArray, what: str) -> Estimator:
        self._need_both_labels(what)
        if not self.resampling.size:
            return decision_rates(self.population).at(places).estimates
        return partial(self._decisions(what).at(places).estimates, level=self.level)

    def _decisions(self, what: str) -> Decisions:
        self._need_both_labels(what)
        return Decisions(
            rates=decision_rates(self.population),
            drawn=decision_rates(self.draws),
            units=self.resampling.answered,
            tested=self._tested,
            missed=self.resampling.missed,
            shown=self._shown,
            others=tuple(other._decisions(what) for other in self.others),
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

    # -- uncertainty -----------------------------------------------------------------------------

    @property
    def _doubts(self) -> list[Doubt]:
        """The doubt of this fit and of those for other plausible noise."""
        return [
            Doubt(resampling=fit.resampling, population=fit.population, draws=fit.draws, level=self.level)
            for fit in (self, *self.others)
        ]

    def _absolute_sum(self, value: float, signed: Quantity) -> Estimate:
        if not self.resampling.size:
            return Estimate(value)
        lows, highs = zip(*(doubt.absolute_ends(signed) for doubt in self._doubts), strict=True)
        return Estimate(value, min(lows), max(highs), self.level)

    def _scalar(self, quantity: Quantity, *, least: float = 0.0) -> Estimate:
        value = float(quantity(self.sample))
        if not self.resampling.size:
            return Estimate(value)
        low, high = self._ends(quantity, least)
        return Estimate(value, float(low), float(high), self.level)

    def _ends(
        self, quantity: Quantity, least: float | FloatArray = 0.0, most: float | FloatArray = 1.0
    ) -> Ends:
        lows, highs = zip(*(doubt.ends(quantity, least, most) for doubt in self._doubts), strict=True)
        return np.min(lows, axis=0), np.max(highs, axis=0)

    @property
    def invalid_bound(self) -> float:
        """The most by which ``ece`` could differ if every invalid answer had been valid."""
        # an item's expected contribution is off by at most its weight, in at most two bins
        return min(1.0, 2 * min(self.invalid, self.items) / self.items)

    @property
    def contradictions(self) -> int:
        """Number of items whose threshold answers contradict each other, because of jitter."""
        return self.patterns.contradictions

    @property
    def _ece(self) -> float:
        return float(np.abs(self.gaps).sum())

    @property
    def _given(self) -> bool:
        """Whether the label says that the given answer is right, and f is the confidence in it."""
        return self.problem.given is not None

    @property
    def _has_both_labels(self) -> bool:
        return np.unique(self.patterns.labels).size == 2

    def _need_both_labels(self, what: str) -> None:
        if not self._has_both_labels:
            raise NotIdentifiedError(f"{what}: needs items of both labels, and all items here have one")
