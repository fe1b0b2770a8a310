"""Operating points, and the choice of the threshold to deploy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.checks import fraction
from blindcal.estimate.findings import NOTHING, CostCurve, OperatingPoint, finite
from blindcal.estimate.grid import EDGES_P, EDGES_S, decided_positive, prevalence
from blindcal.estimate.uncertainty import Ends, draw_quantile, percentile_interval, unseen_share
from blindcal.records import BoolArray, Estimate, FloatArray, IntArray

_RARE = 1e-3  # the least recall of a threshold that is deployed

#: Answers that must lie beyond a threshold for a guarantee; with fewer, the smoothness of the fit decides.
TESTED = 30

#: Thresholds that can be deployed: the inner edges, each with a finite shift.
GRID_THRESHOLDS: FloatArray = EDGES_P[1:-1]
GRID_SHIFTS: FloatArray = -EDGES_S[1:-1]


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of deciding "positive iff f >= t", at each threshold (last axis) of each table."""

    true_positive: FloatArray
    false_positive: FloatArray
    positives: FloatArray

    @property
    def precision(self) -> FloatArray:
        """Share of positive decisions that are right."""
        return _share(self.true_positive, self.positive_rate)

    @property
    def recall(self) -> FloatArray:
        """Share of positives that are decided positive."""
        return _share(self.true_positive, self.positives)

    @property
    def accuracy(self) -> FloatArray:
        return self.true_positive + (1 - self.positives) - self.false_positive

    @property
    def positive_rate(self) -> FloatArray:
        return self.true_positive + self.false_positive

    @property
    def false_negative(self) -> FloatArray:
        """Missed positives, as a share of all items."""
        return self.positives - self.true_positive

    @property
    def negative_precision(self) -> FloatArray:
        """Share of negative decisions that are right."""
        right = np.maximum(1 - self.positives - self.false_positive, 0.0)
        return _share(right, right + self.false_negative)

    def cost(self, cost_fp: float, cost_fn: float) -> FloatArray:
        return cost_fp * self.false_positive + cost_fn * self.false_negative

    def estimates(self, quantity: RateFunction) -> tuple[Estimate, ...]:
        return tuple(Estimate(finite(value)) for value in quantity(self))

    def at(self, places: IntArray) -> Rates:
        return Rates(self.true_positive[..., places], self.false_positive[..., places], self.positives)

    def joined_each_way(self, share: float | FloatArray) -> list[Rates]:
        """The rates if a ``share`` of the population had one label and one decision, each of the four."""
        rest = 1 - share
        return [
            Rates(
                rest * self.true_positive + share * (positive and decided),
                rest * self.false_positive + share * (not positive and decided),
                rest * self.positives + share * positive,
            )
            for positive, decided in product((False, True), repeat=2)
        ]

    def without_unshown(self, shown: BoolArray) -> list[Rates]:
        """The rates without decisions of the kinds not ``shown``, singly and together."""
        true_positive, false_positive, false_negative, true_negative = shown
        fewer_right = np.where(true_positive, self.true_positive, 0.0)
        more_right = np.where(false_negative, self.true_positive, self.positives)
        fewer_wrong = np.where(false_positive, self.false_positive, 0.0)
        more_wrong = np.where(true_negative, self.false_positive, 1 - self.positives)
        return [
            Rates(right, wrong, self.positives)
            for right in (fewer_right, self.true_positive, more_right)
            for wrong in (fewer_wrong, self.false_positive, more_wrong)
        ]


#: Computes a quantity at each threshold, and its estimates.
RateFunction: TypeAlias = Callable[[Rates], FloatArray]
Estimator: TypeAlias = Callable[[RateFunction], tuple[Estimate, ...]]
#: The quantities of an operating point.
QUANTITIES = [field.name for field in fields(OperatingPoint) if hasattr(Rates, field.name)]


@dataclass(frozen=True, slots=True)
class ChosenThreshold:
    """A threshold to deploy and its operating point, whose ``shift`` makes a greedy endpoint decide by it.

    The interval of ``threshold`` is for the one that the population's true rates would choose. ``confidence``
    is the probability that the goal is met; ``None`` if only the estimate says so.
    """

    threshold: Estimate
    point: OperatingPoint
    confidence: float | None
    expected_cost: Estimate | None = None


def operating_points(
    thresholds: FloatArray, shifts: FloatArray, estimates: Estimator
) -> tuple[OperatingPoint, ...]:
    columns = [estimates(attrgetter(name)) for name in QUANTITIES]
    odds = thresholds / (1 - thresholds)
    columns.append(estimates(lambda rates: rates.true_positive - odds * rates.false_positive))
    columns.append(estimates(lambda rates: rates.positives - odds * (1 - rates.positives)))
    return tuple(
        OperatingPoint(float(t), 0.0 + float(b), *row)
        for t, b, *row in zip(thresholds, shifts, *columns, strict=True)
    )


def cost_curve(cost_fp: float, cost_fn: float, estimates: Estimator) -> CostCurve:
    return CostCurve(cost_fp, cost_fn, estimates(lambda rates: rates.cost(cost_fp, cost_fn)))


def decision_rates(tables: FloatArray) -> Rates:
    false_positive, true_positive = decided_positive(tables)
    return Rates(true_positive[..., 1:], false_positive[..., 1:], prevalence(tables)[..., None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The population's rates, those of its refits, and what the answers do not show.

    ``units`` is the number of units in the sample, ``missed`` a share of the population per refit that it
    misses. ``tested`` counts answers beyond each threshold. ``shown`` says whether they show true and false
    positives, false and true negatives (rows). Bounds include those of ``others``, for other noise.
    """

    rates: Rates
    drawn: Rates
    units: float
    tested: FloatArray
    missed: FloatArray
    shown: BoolArray | None = None
    others: tuple[Decisions, ...] = ()

    def ends(self, quantity: RateFunction, tail: float) -> Ends:
        """Bounds at each threshold; the quantity is outside each with probability ``tail`` at most.

        A share of no decisions, in a draw without any, counts as 0 and as 1.
        """
        drawn = self.drawn.joined_each_way(self.missed[:, None])
        each = [quantity(rates) for rates in drawn]
        low = np.min([draw_quantile(np.nan_to_num(x, nan=0.0), tail) for x in each], axis=0)
        high = np.max([draw_quantile(np.nan_to_num(x, nan=1.0), 1 - tail) for x in each], axis=0)
        ends = self._widened(quantity, tail, low, high)
        return _outer(ends, [other.ends(quantity, tail) for other in self.others])

    def estimates(self, quantity: RateFunction, level: float) -> tuple[Estimate, ...]:
        ends = self.ends(quantity, (1 - level) / 2)
        return tuple(
            Estimate(float(value), float(low), float(high), level) if np.isfinite(value) else NOTHING
            for value, low, high in zip(quantity(self.rates), *ends, strict=True)
        )

    def at(self, places: IntArray) -> Decisions:
        rates, drawn = self.rates.at(places), self.drawn.at(places)
        shown = None if self.shown is None else self.shown[:, places]
        others = tuple(other.at(places) for other in self.others)
        return replace(self, rates=rates, drawn=drawn, tested=self.tested[places], shown=shown, others=others)

    def _widened(self, quantity: RateFunction, tail: float, low: FloatArray, high: FloatArray) -> Ends:
        """Widen bounds to the extremes over the unseen share and decisions that no answer shows."""
        possible = self.rates.joined_each_way(unseen_share(self.units, 1 - 2 * tail))
        if self.shown is not None:
            possible += self.rates.without_unshown(self.shown)
        extremes = np.stack([quantity(rates) for rates in possible])
        return np.minimum(low, np.nanmin(extremes, axis=0)), np.maximum(high, np.nanmax(extremes, axis=0))


def _outer(ends: Ends, others: Sequence[Ends]) -> Ends:
    """The outermost ends of several intervals at each threshold, of those that are known."""
    low, high = ends
    for lowest, highest in others:
        known = np.isfinite(lowest) & np.isfinite(highest)
        low = np.where(known, np.minimum(low, lowest), low)
        high = np.where(known, np.maximum(high, highest), high)
    return low, high


def choose_threshold(
    decisions: Decisions,
    *,
    precision: float | None = None,
    recall: float | None = None,
    cost_fp: float | None = None,
    cost_fn: float | None = None,
    confidence: float | None = 0.95,
    level: float = 0.95,
    max_shift: float = np.inf,
    least: float = 0.0,
) -> ChosenThreshold:
    """Choose the threshold, from ``least`` up, for one of: a precision, a recall, a pair of costs."""
    if (cost_fp is None) != (cost_fn is None):
        raise InputError("cost_fp, cost_fn: give both or none")
    costs = None if cost_fp is None or cost_fn is None else check_costs(cost_fp, cost_fn)
    if (precision is not None) + (recall is not None) + (costs is not None) != 1:
        raise InputError(
            "choose_threshold: give exactly one of precision, recall, or both cost_fp and cost_fn"
        )
    if confidence is not None and not 0.5 <= confidence < 1:
        raise InputError(f"confidence: must be at least 0.5 and below 1, got {confidence!r}")
    usable = (np.abs(GRID_SHIFTS) <= max_shift) & (least <= GRID_THRESHOLDS)
    if not usable.any():
        raise NotIdentifiedError(f"max_shift: no threshold can be deployed within {max_shift:g}")
    decisions = decisions.at(np.flatnonzero(usable))
    thresholds, shifts = GRID_THRESHOLDS[usable], GRID_SHIFTS[usable]
    tail = None if confidence is None or costs is not None else 1 - confidence

    def place(rates: Rates, reaches: BoolArray) -> IntArray:
        if costs is not None:
            return np.asarray(np.argmin(rates.cost(*costs), axis=-1))
        if precision is not None:
            reaches = reaches & (rates.recall > _RARE)
            return np.where(reaches.any(axis=-1), np.argmax(reaches, axis=-1), -1)
        last = reaches.shape[-1] - 1 - np.argmax(reaches[..., ::-1], axis=-1)
        return np.where(reaches.any(axis=-1), last, -1)

    name, wanted = ("precision", precision) if recall is None else ("recall", recall)
    quantity: RateFunction = attrgetter(name)
    goal = 0.0 if wanted is None else fraction(wanted, name)
    shown = estimated = quantity(decisions.rates)
    if tail is not None:
        # half the tail: the chosen threshold is the first of many that seem to reach the goal
        shown = np.where(decisions.tested >= TESTED, decisions.ends(quantity, tail / 2)[0], 0.0)
    best = int(place(decisions.rates, shown >= goal))
    if best < 0:
        useful = decisions.rates.recall > (_RARE if name == "precision" else -1)
        raise NotIdentifiedError(_no_threshold(name, goal, estimated[useful], shown[useful], confidence))
    ends = []
    for each in (decisions, *decisions.others):
        repeated = place(each.drawn, quantity(each.drawn) >= goal)
        ends.append(percentile_interval(np.where(repeated < 0, 1.0, thresholds[repeated]), level))
    estimates = partial(decisions.at(np.array([best])).estimates, level=level)
    at = slice(best, best + 1)
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    value = float(thresholds[best])  # a promise chooses a safer one than the true rates would
    return ChosenThreshold(
        threshold=Estimate(value, min(low, value), max(high, value), level),
        point=operating_points(thresholds[at], shifts[at], estimates)[0],
        confidence=None if tail is None else confidence,
        expected_cost=None if costs is None else cost_curve(*costs, estimates).expected[0],
    )


def _no_threshold(
    name: str, goal: float, estimated: FloatArray, shown: FloatArray, confidence: float | None
) -> str:
    most, surely = (int(1000 * x.max(initial=0.0)) / 1000 for x in (estimated, shown))  # rounded down
    if confidence is None or most < goal:
        return f"{name}: no threshold reaches {goal}; the highest within reach is {most:.3f}"
    return (
        f"{name}: no threshold reaches {goal} with {confidence:.0%} confidence, although the estimate does; "
        f"among thresholds that at least {TESTED} answers test, the highest is {surely:.3f}. Audit more "
        "items, lower the goal or the confidence, or go by the estimate alone"
    )


def check_costs(cost_fp: float, cost_fn: float) -> tuple[float, float]:
    if not (0 < cost_fp < np.inf and 0 < cost_fn < np.inf):
        raise InputError(f"cost_fp, cost_fn: must be positive, got {cost_fp!r} and {cost_fn!r}")
    return cost_fp, cost_fn


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 1e-12, part / whole, np.nan)
