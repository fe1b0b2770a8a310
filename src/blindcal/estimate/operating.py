"""The threshold to deploy, what it will do, and how sure that is.

A decision "positive iff f >= t" has a precision, a recall, an accuracy, a share of positive decisions and,
for given costs of the two errors, an expected cost. All follow from the population's table; their intervals
follow from its resampled refits, widened to what a part of the population that no item came from could do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import attrgetter

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.checks import fraction
from blindcal.estimate.findings import CostCurve, OperatingPoint, finite
from blindcal.estimate.functionals import decided_positive, prevalence
from blindcal.estimate.grid import EDGES_P, EDGES_S
from blindcal.estimate.uncertainty import percentile_interval
from blindcal.records import Estimate, FloatArray, IntArray

_RARE = 1e-3  # a threshold that finds fewer of the positives than this is not worth deploying

#: So many answers must lie beyond a threshold before anything is promised of it: with fewer, what happens
#: there is the smoothness of the fit.
TESTED = 30

#: Thresholds that can be deployed: the inner edges, each with a finite shift.
GRID_THRESHOLDS: FloatArray = EDGES_P[1:-1]
GRID_SHIFTS: FloatArray = -EDGES_S[1:-1]


@dataclass(frozen=True, slots=True)
class Rates:
    """What deciding "positive iff f >= t" does, at each threshold (last axis) of each table."""

    true_positive: FloatArray
    false_positive: FloatArray
    positives: FloatArray

    @property
    def precision(self) -> FloatArray:
        """Share of positive decisions that are right."""
        return _share(self.true_positive, self.positive_rate)

    @property
    def recall(self) -> FloatArray:
        """Share of positives that are found."""
        return _share(self.true_positive, self.positives)

    @property
    def accuracy(self) -> FloatArray:
        """Share of decisions that are right."""
        return self.true_positive + (1 - self.positives) - self.false_positive

    @property
    def positive_rate(self) -> FloatArray:
        """Share of decisions that are positive."""
        return self.true_positive + self.false_positive

    @property
    def false_negative(self) -> FloatArray:
        """Positives that are missed, as a share of all items."""
        return self.positives - self.true_positive

    @property
    def negative_precision(self) -> FloatArray:
        """Share of negative decisions that are right."""
        right = np.maximum(1 - self.positives - self.false_positive, 0.0)
        return _share(right, right + self.false_negative)

    def cost(self, cost_fp: float, cost_fn: float) -> FloatArray:
        """Expected cost of a decision."""
        return cost_fp * self.false_positive + cost_fn * self.false_negative

    def estimates(self, quantity: RateFunction) -> tuple[Estimate, ...]:
        """A quantity at each threshold, without intervals."""
        return tuple(Estimate(finite(value)) for value in quantity(self))

    def at(self, places: IntArray) -> Rates:
        """These rates at some of the thresholds."""
        return Rates(self.true_positive[..., places], self.false_positive[..., places], self.positives)

    def joined_by(self, share: float, *, positive: bool, decided: bool) -> Rates:
        """These rates if a ``share`` of the population had one label and got one decision, all of it."""
        rest = 1 - share
        return Rates(
            rest * self.true_positive + share * (positive and decided),
            rest * self.false_positive + share * (not positive and decided),
            rest * self.positives + share * positive,
        )


RateFunction = Callable[[Rates], FloatArray]
_ERRORS = ("false_positive", "false_negative")
QUANTITIES: dict[str, RateFunction] = {
    name: attrgetter(name)
    for name in ("precision", "recall", "accuracy", "positive_rate", *_ERRORS, "negative_precision")
}


@dataclass(frozen=True, slots=True)
class ChosenThreshold:
    """A threshold to deploy and what it does.

    ``threshold`` is the chosen one; its interval is where the threshold lies that the population's own rates
    would choose. ``point`` says what *this* threshold does. Its ``shift`` (b = -logit(threshold)), added to
    the positive answer, makes a greedy endpoint take this very decision in one query. ``confidence`` is how
    sure it is that the threshold does what was asked for; ``None`` where only the estimate says so.
    """

    threshold: Estimate
    point: OperatingPoint
    confidence: float | None
    expected_cost: Estimate | None = None


def operating_points(
    thresholds: FloatArray, shifts: FloatArray, estimates: Callable[[RateFunction], tuple[Estimate, ...]]
) -> tuple[OperatingPoint, ...]:
    """What some thresholds do; ``estimates`` gives a quantity at each of them."""
    columns = {name: estimates(quantity) for name, quantity in QUANTITIES.items()}
    return tuple(
        OperatingPoint(float(t), 0.0 + float(b), **{name: column[k] for name, column in columns.items()})
        for k, (t, b) in enumerate(zip(thresholds, shifts, strict=True))
    )


def cost_curve(
    cost_fp: float, cost_fn: float, estimates: Callable[[RateFunction], tuple[Estimate, ...]]
) -> CostCurve:
    """The expected cost at each threshold that ``estimates`` speaks of."""
    return CostCurve(cost_fp, cost_fn, estimates(lambda rates: rates.cost(cost_fp, cost_fn)))


def decision_rates(tables: FloatArray) -> Rates:
    """The rates of every threshold on the grid."""
    false_positive, true_positive = decided_positive(tables)
    return Rates(true_positive[..., 1:], false_positive[..., 1:], prevalence(tables)[..., None])


@dataclass(frozen=True, slots=True)
class Decisions:
    """The population's rates, those of its refits, and how much of a population may stay unseen.

    ``unseen(tail)`` is the largest share of a population from which no item comes with that probability.
    ``tested`` counts the answers that tell what lies beyond each threshold, on its side of 1/2.
    """

    rates: Rates
    drawn: Rates
    unseen: Callable[[float], float]
    tested: FloatArray

    def ends(self, quantity: RateFunction, tail: float) -> tuple[FloatArray, FloatArray]:
        """Bounds at each threshold; the quantity is below the first with probability ``tail`` at most."""
        drawn = np.quantile(quantity(self.drawn), [tail, 1 - tail], axis=0)
        return self._widened(quantity, tail, *drawn)

    def estimates(self, quantity: RateFunction, level: float) -> tuple[Estimate, ...]:
        """The quantity at each threshold with its interval."""
        ends = self.ends(quantity, (1 - level) / 2)
        return tuple(
            Estimate(finite(value), finite(low), finite(high), level)
            for value, low, high in zip(quantity(self.rates), *ends, strict=True)
        )

    def next_right(self, decisions: int, level: float) -> tuple[FloatArray, FloatArray]:
        """Bounds at each threshold for the share of so many positive decisions that will be right.

        Beside what the audit leaves open, so many decisions are themselves a draw: a binomial one, mixed
        over the refits.
        """
        tail = (1 - level) / 2
        precision = self.drawn.precision

        def quantile(share: float) -> FloatArray:
            low, high = np.full(precision.shape[1], -1), np.full(precision.shape[1], decisions)
            while (high - low > 1).any():  # for the smallest count with at least the share at or below it
                middle = (low + high) // 2
                enough = bdtr(middle, decisions, precision).mean(axis=0) >= share
                low, high = np.where(enough, low, middle), np.where(enough, middle, high)
            return high / decisions

        return self._widened(QUANTITIES["precision"], tail, quantile(tail), quantile(1 - tail))

    def at(self, places: IntArray) -> Decisions:
        """The same at some of the thresholds."""
        return Decisions(self.rates.at(places), self.drawn.at(places), self.unseen, self.tested[places])

    def _widened(
        self, quantity: RateFunction, tail: float, low: FloatArray, high: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds that hold what the quantity is if the unseen share is all of one label and one decision."""
        ways = product((False, True), repeat=2)
        joined = [self.rates.joined_by(self.unseen(tail), positive=p, decided=d) for p, d in ways]
        extremes = np.stack([quantity(rates) for rates in joined])
        return np.minimum(low, extremes.min(axis=0)), np.maximum(high, extremes.max(axis=0))


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
) -> ChosenThreshold:
    """The threshold for exactly one of: a precision, a recall, a pair of costs."""
    costs = _costs(cost_fp, cost_fn)
    if (precision is not None) + (recall is not None) + (costs is not None) != 1:
        raise InputError(
            "choose_threshold: give exactly one of precision, recall, or both cost_fp and cost_fn"
        )
    if confidence is not None and not 0.5 <= confidence < 1:
        raise InputError(f"confidence: must be at least 0.5 and below 1, got {confidence!r}")
    usable = np.abs(GRID_SHIFTS) <= max_shift
    if not usable.any():
        raise NotIdentifiedError(f"max_shift: no threshold can be deployed within {max_shift:g}")
    decisions = decisions.at(np.flatnonzero(usable))
    thresholds, shifts = GRID_THRESHOLDS[usable], GRID_SHIFTS[usable]
    tail = None if confidence is None or costs is not None else 1 - confidence

    def place(rates: Rates, reaches: npt.NDArray[np.bool_]) -> IntArray:
        """Index of the chosen threshold per table, -1 where none will do."""
        if costs is not None:
            return np.asarray(np.argmin(rates.cost(*costs), axis=-1))
        if precision is not None:
            reaches = reaches & (rates.recall > _RARE)
            return np.where(reaches.any(axis=-1), np.argmax(reaches, axis=-1), -1)
        last = reaches.shape[-1] - 1 - np.argmax(reaches[..., ::-1], axis=-1)
        return np.where(reaches.any(axis=-1), last, -1)

    name, wanted = ("precision", precision) if recall is None else ("recall", recall)
    quantity = QUANTITIES[name]
    goal = 0.0 if wanted is None else fraction(wanted, name)
    estimated, drawn = quantity(decisions.rates), quantity(decisions.drawn)
    shown = estimated
    if tail is not None:
        shown = np.where(decisions.tested >= TESTED, decisions.ends(quantity, tail)[0], 0.0)
    best = int(place(decisions.rates, shown >= goal))
    if best < 0:
        worth = decisions.rates.recall > (_RARE if name == "precision" else -1)
        raise NotIdentifiedError(_out_of_reach(name, goal, estimated[worth], shown[worth], confidence))
    repeated = place(decisions.drawn, drawn >= goal)
    found = np.where(repeated < 0, 1.0, thresholds[repeated])
    estimates = partial(decisions.at(np.array([best])).estimates, level=level)
    at = slice(best, best + 1)
    low, high = percentile_interval(found, level)
    return ChosenThreshold(
        threshold=Estimate(float(thresholds[best]), low, high, level),
        point=operating_points(thresholds[at], shifts[at], estimates)[0],
        confidence=None if tail is None else confidence,
        expected_cost=None if costs is None else cost_curve(*costs, estimates).expected[0],
    )


def _out_of_reach(
    name: str, goal: float, estimated: FloatArray, shown: FloatArray, confidence: float | None
) -> str:
    most, surely = (int(1000 * one.max(initial=0.0)) / 1000 for one in (estimated, shown))  # rounded down
    if confidence is None or most < goal:
        return f"{name}: no threshold reaches {goal}; the highest within reach is {most:.3f}"
    return (
        f"{name}: no threshold reaches {goal} with {confidence:.0%} confidence, although the estimate does; "
        f"among thresholds that at least {TESTED} answers test, the highest is {surely:.3f}. Audit more "
        "items, lower the goal or the confidence, or go by the estimate alone"
    )


def _costs(cost_fp: float | None, cost_fn: float | None) -> tuple[float, float] | None:
    if cost_fp is None and cost_fn is None:
        return None
    if cost_fp is None or cost_fn is None:
        raise InputError("cost_fp, cost_fn: give both or none")
    return check_costs(cost_fp, cost_fn)


def check_costs(cost_fp: float, cost_fn: float) -> tuple[float, float]:
    """The two costs, if they are positive numbers."""
    if not (0 < cost_fp < np.inf and 0 < cost_fn < np.inf):
        raise InputError(f"cost_fp, cost_fn: must be positive, got {cost_fp!r} and {cost_fn!r}")
    return cost_fp, cost_fn


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    """A part of a whole; NaN where there is no whole to speak of."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 1e-12, part / whole, np.nan)
