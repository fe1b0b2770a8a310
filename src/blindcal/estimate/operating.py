"""The threshold to deploy, what it will do, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logit

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.checks import fraction
from blindcal.estimate.functionals import DECISION_THRESHOLDS, decided_positive, prevalence
from blindcal.estimate.uncertainty import Interval, percentile_interval
from blindcal.records import FloatArray


@dataclass(frozen=True, slots=True)
class Rates:
    """What deciding "positive iff f >= t" does, at each threshold t (last axis) of each table."""

    precision: FloatArray
    recall: FloatArray
    accuracy: FloatArray
    false_positive: FloatArray
    false_negative: FloatArray


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A threshold to deploy.

    ``shift`` is what to add to the positive answer so that a greedy endpoint takes this very decision in
    one query: b = -logit(threshold). ``threshold_interval`` is where the threshold itself lies when the
    audit is repeated; the other intervals say what *this* threshold does.
    """

    threshold: float
    shift: float
    precision: float
    recall: float
    accuracy: float
    threshold_interval: Interval
    precision_interval: Interval
    recall_interval: Interval
    accuracy_interval: Interval
    expected_cost: float | None = None
    expected_cost_interval: Interval | None = None


def decision_rates(tables: FloatArray) -> Rates:
    """Precision, recall and errors of every threshold on the grid."""
    false_positive, true_positive = decided_positive(tables)
    positives = prevalence(tables)[..., None]
    decided = false_positive + true_positive
    return Rates(
        precision=true_positive / np.maximum(decided, 1e-300),
        recall=true_positive / np.maximum(positives, 1e-300),
        accuracy=true_positive + (1 - positives) - false_positive,
        false_positive=false_positive,
        false_negative=positives - true_positive,
    )


def choose_threshold(
    population: FloatArray,
    draws: FloatArray,
    *,
    precision: float | None,
    recall: float | None,
    cost_fp: float | None,
    cost_fn: float | None,
    level: float,
) -> OperatingPoint:
    """The operating point for exactly one of: a precision, a recall, a pair of costs."""
    costs = (cost_fp, cost_fn)
    wanted = [precision is not None, recall is not None, costs != (None, None)]
    if sum(wanted) != 1 or (wanted[2] and None in costs):
        raise InputError(
            "operating_point: give exactly one of precision, recall, or both cost_fp and cost_fn"
        )
    if wanted[2] and not (cost_fp is not None and cost_fn is not None and min(cost_fp, cost_fn) > 0):
        raise InputError(f"cost_fp, cost_fn: must be positive, got {cost_fp!r} and {cost_fn!r}")

    def place(rates: Rates) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Index of the chosen threshold per table, -1 where none will do."""
        if precision is not None:
            reached = (rates.precision >= fraction(precision, "precision")) & (rates.recall > 1e-3)
            return np.where(reached.any(axis=-1), np.argmax(reached, axis=-1), -1)
        if recall is not None:
            kept = rates.recall >= fraction(recall, "recall")
            return np.asarray(kept.shape[-1] - 1 - np.argmax(kept[..., ::-1], axis=-1))
        return np.asarray(np.argmin(_cost(rates, cost_fp, cost_fn), axis=-1))

    rates = decision_rates(population)
    best = int(place(rates))
    if best < 0:
        reachable = float(rates.precision[rates.recall > 1e-3].max())
        raise NotIdentifiedError(
            f"precision: no threshold reaches {precision}; the highest within reach is {reachable:.3f}"
        )
    drawn = decision_rates(draws)
    repeated = place(drawn)
    found = np.where(repeated < 0, 1.0, DECISION_THRESHOLDS[repeated])
    threshold = float(DECISION_THRESHOLDS[best])
    with np.errstate(divide="ignore"):
        shift = -float(logit(threshold))
    cost = _cost(rates, cost_fp, cost_fn)[best] if cost_fp is not None else None
    drawn_cost = _cost(drawn, cost_fp, cost_fn)[:, best] if cost_fp is not None else None
    return OperatingPoint(
        threshold=threshold,
        shift=shift,
        precision=float(rates.precision[best]),
        recall=float(rates.recall[best]),
        accuracy=float(rates.accuracy[best]),
        threshold_interval=percentile_interval(found, level),
        precision_interval=percentile_interval(drawn.precision[:, best], level),
        recall_interval=percentile_interval(drawn.recall[:, best], level),
        accuracy_interval=percentile_interval(drawn.accuracy[:, best], level),
        expected_cost=None if cost is None else float(cost),
        expected_cost_interval=None if drawn_cost is None else percentile_interval(drawn_cost, level),
    )


def _cost(rates: Rates, cost_fp: float | None, cost_fn: float | None) -> FloatArray:
    assert cost_fp is not None
    assert cost_fn is not None
    return np.asarray(cost_fp * rates.false_positive + cost_fn * rates.false_negative)
