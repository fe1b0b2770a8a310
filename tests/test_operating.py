"""The threshold to deploy: rates by counting, choices by looking at every threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import logit

import blindcal as bc
from blindcal import design
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.grid import CELLS, EDGES_P, MID_P
from blindcal.estimate.operating import OperatingPoint, choose_threshold, decision_rates
from blindcal.records import FloatArray
from blindcal.simulate import ask, generate


def table_of(seed: int) -> FloatArray:
    """A smooth population whose labels follow the confidence loosely."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(CELLS, 5.0))
    up = 0.1 + 0.8 * MID_P**2
    return np.concatenate([share * (1 - up), share * up])


def chosen(table: FloatArray, **wanted: Any) -> OperatingPoint:
    options: dict[str, Any] = {
        "precision": None,
        "recall": None,
        "cost_fp": None,
        "cost_fn": None,
        "level": 0.95,
    }
    return choose_threshold(table, np.stack([table] * 3), **{**options, **wanted})


def test_rates_are_counts() -> None:
    """Precision, recall, accuracy and both errors at each threshold, summed cell by cell."""
    table = table_of(0)
    rates = decision_rates(table)
    negative, positive = table[:CELLS], table[CELLS:]
    for j in (0, 100, CELLS // 2, CELLS - 1):
        above = EDGES_P[j] <= MID_P
        true, false = positive[above].sum(), negative[above].sum()
        assert rates.precision[j] == pytest.approx(true / (true + false))
        assert rates.recall[j] == pytest.approx(true / positive.sum())
        assert rates.accuracy[j] == pytest.approx(true + negative[~above].sum())
        assert rates.false_positive[j] == pytest.approx(false)
        assert rates.false_negative[j] == pytest.approx(positive[~above].sum())


@pytest.mark.parametrize("wanted", [0.5, 0.7, 0.8])
def test_precision_takes_the_lowest_threshold_that_reaches_it(wanted: float) -> None:
    """The chosen threshold reaches the precision, and no lower one does."""
    table = table_of(1)
    rates = decision_rates(table)
    found = chosen(table, precision=wanted)
    assert found.precision >= wanted
    assert (rates.precision[EDGES_P[:-1] < found.threshold] < wanted).all()


@pytest.mark.parametrize("wanted", [0.5, 0.9, 0.99])
def test_recall_takes_the_highest_threshold_that_keeps_it(wanted: float) -> None:
    """The chosen threshold keeps the recall, and no higher one does."""
    table = table_of(2)
    rates = decision_rates(table)
    found = chosen(table, recall=wanted)
    assert found.recall >= wanted
    assert (rates.recall[EDGES_P[:-1] > found.threshold] < wanted).all()


@pytest.mark.parametrize(("cost_fp", "cost_fn"), [(1, 1), (5, 1), (1, 5)])
def test_costs_take_the_cheapest_threshold(cost_fp: float, cost_fn: float) -> None:
    """No threshold costs less; with E[Y|f] known it lies where E[Y|f] = fp / (fp + fn)."""
    table = table_of(3)
    rates = decision_rates(table)
    found = chosen(table, cost_fp=cost_fp, cost_fn=cost_fn)
    cost = cost_fp * rates.false_positive + cost_fn * rates.false_negative
    assert found.expected_cost == pytest.approx(cost.min())
    known = np.sqrt((cost_fp / (cost_fp + cost_fn) - 0.1) / 0.8)
    assert found.threshold == pytest.approx(known, abs=1 / 240)


def test_the_shift_deploys_the_threshold() -> None:
    """A greedy endpoint with the stated shift answers positive exactly where f is at least the threshold."""
    found = chosen(table_of(1), recall=0.9)
    f = np.random.default_rng(0).random(1000)
    assert ((logit(f) + found.shift >= 0) == (f >= found.threshold)).all()


def test_a_precision_out_of_reach_is_refused_with_what_is_within() -> None:
    """Where no threshold will do, the error names the highest precision that one would."""
    share = np.full(CELLS, 1 / CELLS)
    table = np.concatenate([share * 0.4, share * 0.6])
    with pytest.raises(
        NotIdentifiedError, match=r"no threshold reaches 0.9; the highest within reach is 0.600"
    ):
        chosen(table, precision=0.9)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "give exactly one of precision, recall, or both"),
    ({"precision": 0.9, "recall": 0.9}, "give exactly one of"),
    ({"cost_fp": 1.0}, "give exactly one of"),
    ({"cost_fp": 0.0, "cost_fn": 1.0}, "cost_fp, cost_fn: must be positive, got 0.0 and 1.0"),
    ({"cost_fp": -1.0, "cost_fn": 1.0}, "cost_fp, cost_fn: must be positive, got -1.0 and 1.0"),
    ({"cost_fp": float("nan"), "cost_fn": 1.0}, "cost_fp, cost_fn: must be positive, got nan"),
    ({"precision": 1.0}, "precision: must be strictly between 0 and 1, got 1.0"),
    ({"recall": float("nan")}, "recall: must be strictly between 0 and 1, got nan"),
]


@pytest.mark.parametrize(("wanted", "message"), BAD)
def test_bad_wishes_are_named(wanted: dict[str, Any], message: str) -> None:
    """The error names the argument, the rule and the value."""
    with pytest.raises(InputError, match=message):
        chosen(table_of(0), **wanted)


def test_what_a_fit_promises_is_what_the_hidden_probabilities_do() -> None:
    """Rates at the chosen threshold agree with those of the hidden probabilities, within the intervals."""
    labels, p = generate(6000, 3)
    answered = ask(design.make("latent", labels), labels, p)
    fit = bc.latent(labels[answered.items], answered.shifts, answered.answers, 0.0, answered.items)
    for wanted in ({"precision": 0.8}, {"recall": 0.9}, {"cost_fp": 1.0, "cost_fn": 3.0}):
        found = fit.operating_point(level=0.99, **wanted)
        above = p >= found.threshold
        assert labels[above].mean() in found.precision_interval
        assert above[labels == 1].mean() in found.recall_interval
        assert (above == (labels == 1)).mean() in found.accuracy_interval
        assert found.threshold in found.threshold_interval
