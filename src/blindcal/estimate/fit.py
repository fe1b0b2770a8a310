"""What every fit offers: estimates that follow from joint tables of label and confidence (METHOD 4 and 7)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self, TypeAlias

import numpy as np
from scipy.special import logit

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import grid, measures
from blindcal.estimate.checks import ArrayLike, fraction, whole
from blindcal.estimate.findings import (
    ACCEPTED_ERROR,
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
    RiskPoint,
    bare_bins,
    filled_bins,
    finite,
    gap_bins,
    histogram,
)
from blindcal.estimate.grid import Cells
from blindcal.estimate.latent.operating import (
    GRID_THRESHOLDS,
    ChosenThreshold,
    Decisions,
    Estimator,
    Rates,
    check_costs,
    choose_threshold,
    cost_curve,
    operating_points,
)
from blindcal.estimate.problem import Problem
from blindcal.estimate.truth import bin_edges
from blindcal.estimate.uncertainty import Ends
from blindcal.records import NEGATIVE, POSITIVE, Estimate, FloatArray, IntArray, Noise

#: Computes a quantity of each joint table of a stack, over these cells.
Quantity: TypeAlias = Callable[[FloatArray, Cells], FloatArray]

_COVERAGES = np.arange(1, 201) / 200
_SHOWN_COVERAGES = slice(4, None, 5)  # 1/40, 2/40, ..., 1
_CURVE_POINTS = np.concatenate([[1, 2, 5], np.arange(10, 991, 10), [995, 998, 999]]) / 1000


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Fit(ABC):
    """Estimates from a joint table of (label, cell), with ``bin_count`` bins and intervals at ``level``.

    ``sample`` is the table of the items, over ``cells``; ``draws`` are tables of the population, over
    ``draw_cells``, around which intervals are made. A fit without draws has no intervals.
    """

    bin_count: int = 5
    level: float = 0.95
    problem: Problem | None = None

    by_margin = False  # thresholds are on margins (METHOD 8)
    noise = Noise()  # of threshold answers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.items:,} items, {self.queries:,} queries, ECE {self._ece:.4f})"

    def at(self, *, bins: int | None = None, level: float | None = None) -> Self:
        """The same fit with other bins or another level; nothing is fitted again."""
        return replace(
            self,
            bin_count=self.bin_count if bins is None else whole(bins, "bins"),
            level=self.level if level is None else fraction(level, "level"),
        )

    @property
    def deployable(self) -> Self:
        """The fit whose thresholds one query decides by: of margins with more than two answers (METHOD 8)."""
        return self

    @property
    def curved(self) -> bool:  # has a reliability curve, its test and the true calibration error
        return self.problem is not None

    @property
    def several(self) -> bool:
        """Whether there are more than two answers: f and the label are then about the one given."""
        return self.problem is not None and self.problem.given is not None

    @property
    @abstractmethod
    def items(self) -> int: ...

    @property
    @abstractmethod
    def queries(self) -> int: ...

    @property
    @abstractmethod
    def invalid(self) -> int: ...

    @property
    @abstractmethod
    def resamples(self) -> int: ...

    @property
    @abstractmethod
    def sample(self) -> FloatArray: ...

    @property
    @abstractmethod
    def draws(self) -> FloatArray: ...

    @property
    def cells(self) -> Cells:
        return grid.GRID

    @property
    def draw_cells(self) -> Cells:
        return grid.GRID

    @abstractmethod
    def redrawn(self, units: IntArray, count: int, size: int, seed: int, turn: int) -> FloatArray:
        """Draws in which another fit may have the same units: ``count`` in all, one per item in ``units``."""

    def findings(self, *, brief: bool = False) -> Findings:
        """Everything that a result shows; ``brief`` gives only what the result of a part shows."""
        some = Findings(
            ece=self.ece,
            bins=self.bins,
            ece_if_invalid=self._ece_if_invalid,
            overconfidence=self.overconfidence,
            leaning=NOTHING if self.several else self.leaning,  # then no answer is the positive one
            accuracy=self.accuracy,
        )
        if brief:
            return some
        some = replace(
            some,
            brier=self.brier,
            log_loss=self.log_loss,
            confidence=self.confidence,
            smece=self.smece,
            atb=self.atb,
            miscalibration=self.miscalibration,
            discrimination=self.discrimination,
            uncertainty=self.uncertainty,
            aurc=self.aurc,
            coverage=self.coverage,
            risk=self.risk,
        )
        if self.curved:
            some = replace(some, tce=self.tce, calibrated_pvalue=finite(self.calibrated_pvalue))
        if not self._has_both_labels:
            return some
        curve = self.curve if self.curved else None
        return replace(some, auroc=self.auroc, curve=curve, operating=self.operating, costs=self.costs)

    # -- calibration ---------------------------------------------------------------------------

    @property
    def ece(self) -> Estimate:
        """Binned expected calibration error of the sample, an estimate of ``binned_ece`` of its items.

        With many bins, ``binned_ece`` also contains label noise within bins, which an estimate for hidden f
        does not.
        """
        return self._absolute(self._ece, lambda tables, cells: grid.gaps(tables, self.bin_count, cells))

    @property
    @abstractmethod
    def tce(self) -> Estimate: ...

    @property
    def smece(self) -> Estimate:
        """Smooth ECE: gaps smoothed by a normal kernel whose width is the error itself."""
        width = float(measures.smooth_ece(self.sample, self.cells))
        # the error falls with the width, so an interval at this one holds where they are equal
        return self._absolute(width, lambda tables, cells: measures.smoothed_gaps(tables, cells, width))

    @property
    def atb(self) -> Estimate:
        """Averaged two-bin calibration error: squared gaps below and above a boundary, over all of them."""
        value = measures.atb(self.sample, self.cells)
        root = self._absolute(np.sqrt(value), measures.two_bin_gaps, order=2)
        low, high = (None if end is None else end**2 for end in (root.low, root.high))
        return Estimate(value, low, high, root.level)

    @property
    def gaps(self) -> FloatArray:
        """Signed gap of each bin, positive if the confidence is too high."""
        return grid.gaps(self.sample, self.bin_count, self.cells)

    @property
    def bins(self) -> tuple[Bin, ...]:
        """The bins with signed gaps and intervals, and the sample's shares and means."""
        negative, positive = grid.by_label(self.sample)
        both, within = negative + positive, self.cells.memberships(self.bin_count)
        bins = bare_bins(self.gaps)
        if self.resamples:
            edges = bin_edges(self.bin_count)
            ends = self._ends(
                lambda tables, cells: grid.gaps(tables, self.bin_count, cells), edges[:-1] - 1, edges[1:]
            )
            bins = gap_bins(self._each_within(self.gaps, *ends))
        return filled_bins(bins, both @ within, (both * self.cells.p) @ within, positive @ within)

    @property
    def overconfidence(self) -> Estimate:
        """Mean confidence in the given answer minus the share of correct answers."""
        if self.several:
            return self.leaning
        return self._scalar(lambda tables, cells: grid.gaps(tables, 2, cells) @ OVERCONFIDENCE, least=-0.5)

    @property
    def leaning(self) -> Estimate:
        """Mean probability of the positive answer minus the share of positive labels."""
        return self._scalar(lambda tables, cells: grid.gaps(tables, 2, cells) @ LEANING, least=-1.0)

    @property
    def half_gaps(self) -> tuple[FloatArray, FloatArray]:
        """The signed gaps below and above 1/2, and their covariance."""
        return self._half_gaps, np.asarray(np.cov(grid.gaps(self.draws, 2, self.draw_cells).T))

    @property
    def _half_gaps(self) -> FloatArray:
        return grid.gaps(self.sample, 2, self.cells)

    @property
    def curve(self) -> Curve:
        """Reliability curve E[Y|f] with a pointwise band, in steps of 0.01, finer at the ends."""
        return self.curve_at(_CURVE_POINTS)

    @abstractmethod
    def curve_at(self, f: ArrayLike) -> Curve: ...

    @property
    @abstractmethod
    def calibrated_pvalue(self) -> float: ...

    # -- discrimination and scores ---------------------------------------------------------------

    def accuracy_of(self, tables: FloatArray, cells: Cells) -> FloatArray:
        return grid.prevalence(tables) if self.several else grid.accuracy(tables, cells)

    @property
    def accuracy(self) -> Estimate:
        """Share of items whose greedy answer without a shift is correct."""
        return self._scalar(self.accuracy_of)

    @property
    def auroc(self) -> Estimate:
        """Area under the ROC curve; needs items of both labels."""
        self._need_both_labels("auroc")
        return self._scalar(lambda tables, _: grid.auroc(tables))

    @property
    def brier(self) -> Estimate:
        """Brier score."""
        return self._scalar(grid.brier)

    @property
    def miscalibration(self) -> Estimate:
        """What the Brier score would lose if every confidence f became the isotonic E[Y|f]."""
        return self._brier_parts[0]

    @property
    def discrimination(self) -> Estimate:
        """What the isotonic E[Y|f] gains in Brier score over the share of positive labels."""
        return self._brier_parts[1]

    @property
    def uncertainty(self) -> Estimate:
        """Brier score of the share of positive labels as the confidence in every item."""
        return self._brier_parts[2]

    @cached_property
    def _brier_parts(self) -> list[Estimate]:
        values = measures.brier_parts(self.sample, self.cells)
        if not self.resamples:
            return list(map(Estimate, values.tolist()))
        lows, highs = self._ends(measures.brier_parts, overfits=True)
        base = np.array(self._ends(lambda tables, _: grid.prevalence(tables)))
        lows[2], highs[2] = (base * (1 - base)).min(), 0.25 - (np.clip(0.5, *base) - 0.5) ** 2
        return self._each_within(values, lows, highs)

    @property
    def log_loss(self) -> Estimate:
        """Mean negative log-likelihood of the labels; log-odds beyond ±12 count as ±13."""
        return self._scalar(grid.log_loss, most=float(np.logaddexp(0, grid.MID_S[-1])))

    @property
    def mean_confidence(self) -> Estimate:
        """Mean probability of the positive answer."""
        return self._scalar(grid.mean_confidence)

    @property
    def confidence(self) -> ConfidenceHistogram:
        """Distribution of the confidence f for each label."""
        share = [half @ self.cells.memberships(HISTOGRAM_BINS) for half in grid.by_label(self.sample)]
        # if no item has a label, the link still gives it a trace of mass, which is not a distribution
        there = [label in self._labels for label in (NEGATIVE, POSITIVE)]
        negatives, positives = (s / s.sum() if has else 0 * s for s, has in zip(share, there, strict=True))
        return histogram(negatives, positives)

    # -- selective prediction ------------------------------------------------------------------

    @property
    def aurc(self) -> Estimate:
        """Area under the risk-coverage curve: the mean ``error`` of `risk` over all coverages."""
        return self._risk[-1]

    @property
    def coverage(self) -> Estimate:
        """Largest share of items that can be accepted, the surest first, with at most 5% errors."""
        return self.coverage_at(ACCEPTED_ERROR)

    def coverage_at(self, error: float) -> Estimate:
        """Largest share of items that can be accepted, the surest first, with at most this ``error``."""
        value = measures.coverage_at(self.sample, self.cells, fraction(error, "error"))
        if not self.resamples:
            return Estimate(value)
        low, high = np.array([(each.low, each.high) for each in self._risk[:-1]], float).T
        surely, possibly = (_COVERAGES[end <= error].max(initial=0.0) for end in (high, low))
        next_one = min(possibly + _COVERAGES[0], 1.0)  # from here on the error is too high
        return self._within(value, float(surely), float(next_one))

    @property
    def risk(self) -> tuple[RiskPoint, ...]:
        """Error of the surest 1/40, 2/40, ... of the items: the risk-coverage curve."""
        return tuple(map(RiskPoint, _COVERAGES.tolist(), self._risk))[_SHOWN_COVERAGES]

    @cached_property
    def _risk(self) -> list[Estimate]:
        def quantity(tables: FloatArray, cells: Cells) -> FloatArray:
            return measures.risk(tables, cells, _COVERAGES)

        values = quantity(self.sample, self.cells)
        if not self.resamples:
            return list(map(Estimate, values.tolist()))
        low, high = self._ends(quantity, most=np.append(1 / _COVERAGES, 1.0))
        return self._each_within(values, low, np.minimum(high, 1.0))

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
        """Results of deciding "positive iff f >= t" for any thresholds that can be deployed."""
        t = self._deployed(thresholds)
        return operating_points(t, -logit(t), self._estimator(t, "operating"))

    def expected_cost(self, cost_fp: float, cost_fn: float, thresholds: ArrayLike = THRESHOLDS) -> CostCurve:
        """Expected cost per decision at each threshold, given the costs of the two errors."""
        costs = check_costs(cost_fp, cost_fn)
        return cost_curve(*costs, self._estimator(self._deployed(thresholds), "expected_cost"))

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
        self._need_both_labels("choose_threshold")
        return choose_threshold(
            self._decisions(GRID_THRESHOLDS),
            precision=precision,
            recall=recall,
            cost_fp=cost_fp,
            cost_fn=cost_fn,
            confidence=confidence,
            level=self.level,
            max_shift=max_shift,
            least=0.5 if self.by_margin else 0.0,  # the answer given always leads
        )

    def _deployed(self, thresholds: ArrayLike) -> FloatArray:
        t = np.asarray(thresholds, dtype=np.float64)
        if t.ndim != 1 or not ((t > 0) & (t < 1)).all():
            raise InputError(f"thresholds: must lie strictly between 0 and 1, got {thresholds!r}")
        return t

    def _estimator(self, thresholds: FloatArray, what: str) -> Estimator:
        self._need_both_labels(what)
        if not self.resamples:
            return self._rates(thresholds).estimates
        return partial(self._decisions(thresholds).estimates, level=self.level)

    @abstractmethod
    def _rates(self, thresholds: FloatArray) -> Rates: ...

    @abstractmethod
    def _decisions(self, thresholds: FloatArray) -> Decisions: ...

    # -- uncertainty -----------------------------------------------------------------------------

    @abstractmethod
    def _ends(
        self,
        quantity: Quantity,
        least: float | FloatArray = 0.0,
        most: float | FloatArray = 1.0,
        *,
        overfits: bool = False,
    ) -> Ends:
        """Interval of each component of a quantity to which an item adds from ``least`` to ``most``.

        A quantity that ``overfits`` is larger in a sample than in the population, by noise of the labels.
        """

    @abstractmethod
    def _absolute_ends(self, signed: Quantity, order: int) -> tuple[float, float]:
        """Interval of the sum of absolute values of a quantity, or another `norm`."""

    def _absolute(self, value: float, signed: Quantity, order: int = 1) -> Estimate:
        if not self.resamples:
            return Estimate(value)
        return self._within(value, *self._absolute_ends(signed, order))

    def _scalar(self, quantity: Quantity, *, least: float = 0.0, most: float = 1.0) -> Estimate:
        value = float(np.clip(quantity(self.sample, self.cells), least, most))
        if not self.resamples:
            return Estimate(value)
        low, high = self._ends(quantity, least, most)
        return self._within(value, float(low), float(high))

    def _within(self, value: float, low: float, high: float) -> Estimate:
        # the estimate is about the sample, the interval about the population
        return Estimate(value, min(low, value), max(high, value), self.level)

    def _each_within(self, *columns: FloatArray) -> list[Estimate]:
        return list(map(self._within, *(column.tolist() for column in columns)))

    @property
    @abstractmethod
    def _ece_if_invalid(self) -> tuple[float, float]: ...

    @property
    @abstractmethod
    def _labels(self) -> IntArray: ...

    @property
    def _ece(self) -> float:
        return float(np.abs(self.gaps).sum())

    @property
    def _has_both_labels(self) -> bool:
        return np.unique(self._labels).size == 2

    def _need_both_labels(self, what: str) -> None:
        if not self._has_both_labels:
            raise NotIdentifiedError(f"{what}: needs items of both labels, and all items here have one")
