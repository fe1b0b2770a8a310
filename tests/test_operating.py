"""The threshold to deploy: rates by counting, choices by looking at every threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import logit

import blindcal as bc
from blindcal import design
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.grid import CELLS, MID_P
from blindcal.estimate.operating import (
    THRESHOLDS,
    Decisions,
    OperatingPoint,
    choose_threshold,
    decision_rates,
)
from blindcal.records import FloatArray
from blindcal.simulation.simulate import ask, generate


def table_of(seed: int) -> FloatArray:
    """A smooth population whose labels follow the confidence loosely."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(CELLS, 5.0))
    up = 0.1 + 0.8 * MID_P**2
    return np.concatenate([share * (1 - up), share * up])


def chosen(table: FloatArray, **wanted: Any) -> OperatingPoint:
    """The choice where the table is known exactly."""
    return choose_threshold(Decisions.of(table, np.stack([table] * 3), lambda _: 0.0), **wanted)


def test_rates_are_counts() -> None:
    """Precision, recall, accuracy and both errors at each threshold, summed cell by cell."""
    table = table_of(0)
    rates = decision_rates(table)
    negative, positive = table[:CELLS], table[CELLS:]
    for j in (0, 100, CELLS // 2, CELLS - 2):
        above = THRESHOLDS[j] <= MID_P
        true, false = positive[above].sum(), negative[above].sum()
        assert rates.precision[j] == pytest.approx(true / (true + false))
        assert rates.recall[j] == pytest.approx(true / positive.sum())
        assert rates.positive_rate[j] == pytest.approx(true + false)
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
    assert (rates.precision[found.threshold > THRESHOLDS] < wanted).all()


@pytest.mark.parametrize("wanted", [0.5, 0.9, 0.99])
def test_recall_takes_the_highest_threshold_that_keeps_it(wanted: float) -> None:
    """The chosen threshold keeps the recall, and no higher one does."""
    table = table_of(2)
    rates = decision_rates(table)
    found = chosen(table, recall=wanted)
    assert found.recall >= wanted
    assert (rates.recall[found.threshold < THRESHOLDS] < wanted).all()


@pytest.mark.parametrize(("cost_fp", "cost_fn"), [(1, 1), (5, 1), (1, 5)])
def test_costs_take_the_cheapest_threshold(cost_fp: float, cost_fn: float) -> None:
    """No threshold costs less; with E[Y|f] known it lies where E[Y|f] = fp / (fp + fn)."""
    table = table_of(3)
    rates = decision_rates(table)
    found = chosen(table, cost_fp=cost_fp, cost_fn=cost_fn)
    assert found.expected_cost == pytest.approx(rates.cost(cost_fp, cost_fn).min())
    assert found.confidence is None
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
    ({"cost_fp": 1.0}, "cost_fp, cost_fn: give both or none"),
    ({"precision": 0.9, "confidence": 0.4}, "confidence: must be at least 0.5 and below 1, got 0.4"),
    ({"precision": 0.9, "confidence": 1.0}, "confidence: must be at least 0.5 and below 1, got 1.0"),
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


def fitted(n: int, seed: int = 3, **more: Any) -> tuple[bc.LatentFit, FloatArray, Any]:
    labels, p = generate(n, seed)
    answered = ask(design.make("latent", labels), labels, p)
    fit = bc.latent(labels[answered.items], answered.shifts, answered.answers, 0.0, answered.items, **more)
    return fit, p, labels


def test_the_curve_is_what_each_threshold_does() -> None:
    """Rows agree with the hidden probabilities within 99% intervals, and with the point chosen."""
    fit, p, labels = fitted(6000)
    curve = fit.operating_curve(cost_fp=2, cost_fn=1, level=0.99)
    assert curve.thresholds == pytest.approx(np.arange(1, 20) / 20)
    assert curve.shifts == pytest.approx(-logit(curve.thresholds))
    assert curve.expected_cost is not None
    for k in range(1, 19, 4):
        above = p >= curve.thresholds[k]
        truth = {
            "precision": labels[above].mean(),
            "recall": above[labels == 1].mean(),
            "accuracy": (above == labels).mean(),
            "positive_rate": above.mean(),
            "expected_cost": (2 * (above & (labels == 0)) + 1 * (~above & (labels == 1))).mean(),
        }
        for name, value in truth.items():
            band = getattr(curve, name)
            assert band.low[k] <= band.value[k] <= band.high[k]
            assert band.low[k] <= value <= band.high[k], name
    point = fit.operating_point(recall=0.8, level=0.99)
    same = fit.operating_curve([point.threshold], level=0.99)
    assert same.precision.value[0] == point.precision
    assert (same.recall.low[0], same.recall.high[0]) == tuple(point.recall_interval)


@pytest.mark.parametrize("thresholds", [[0.0], [0.5, 1.0], [float("nan")], [[0.5]]])
def test_thresholds_outside_are_named(thresholds: Any) -> None:
    """A threshold that no shift deploys is refused."""
    fit, _, _ = fitted(200, resamples=20)
    with pytest.raises(InputError, match="thresholds: must lie strictly between 0 and 1"):
        fit.operating_curve(thresholds)


def test_few_decisions_leave_precision_open() -> None:
    """Where ten of a hundred items are decided positive and all are right, one in four may still be wrong."""
    share = np.where(MID_P > 0.9, 1.0, 0.0)
    high = share / share.sum()
    low = np.where(MID_P < 0.2, 1.0, 0.0)
    table = np.concatenate([0.9 * low / low.sum(), 0.1 * high])
    unseen = 1 - 0.05 ** (1 / 100)  # what the rule of three says of a hundred items
    decisions = Decisions.of(table, np.stack([table] * 5), lambda tail: 1 - tail ** (1 / 100))
    at_half = int(np.argmin(np.abs(THRESHOLDS - 0.5)))
    bound = decisions.lower(lambda rates: rates.precision, 0.05)[at_half]
    assert bound == pytest.approx(0.1 * (1 - unseen) / (0.1 * (1 - unseen) + unseen))
    assert 0.7 < bound < 0.8  # ten right of ten: the exact one-sided 95% bound is 0.05 ** (1 / 10) = 0.741
    with pytest.raises(NotIdentifiedError, match=r"no threshold reaches 0.95 with 95% confidence, although"):
        choose_threshold(decisions, precision=0.95)
    assert choose_threshold(decisions, precision=0.95, confidence=None).precision == pytest.approx(1.0)


@pytest.mark.parametrize("wanted", [{"precision": 0.7}, {"recall": 0.9}])
def test_surer_thresholds_are_more_careful(wanted: dict[str, float]) -> None:
    """The surer, the higher a threshold for precision and the lower one for recall."""
    fit, _, _ = fitted(3000, resamples=200)
    ((name, goal),) = wanted.items()
    points = [fit.operating_point(confidence=c, level=0.9, **wanted) for c in (None, 0.8, 0.95, 0.99)]
    thresholds = [point.threshold for point in points]
    assert thresholds == sorted(thresholds, reverse=name == "recall")
    assert len(set(thresholds)) == 4
    # the low end of a 90% interval is the bound that 95% confidence is about
    assert getattr(points[2], f"{name}_interval").low >= goal
    assert points[2].confidence == 0.95
    assert points[0].confidence is None


def test_no_threshold_beyond_what_the_endpoint_takes() -> None:
    """With a small largest shift the choice is made within it."""
    fit, _, _ = fitted(1000, resamples=50)
    assert fit.operating_point(recall=0.97, confidence=None).shift > 0.5
    with pytest.raises(NotIdentifiedError, match="recall"):
        fit.operating_point(recall=0.97, max_shift=0.5)
    assert abs(fit.operating_point(cost_fp=1, cost_fn=50, max_shift=0.5).shift) <= 0.5
    with pytest.raises(NotIdentifiedError, match="max_shift"):
        fit.operating_point(recall=0.5, max_shift=-1.0)


def test_nothing_is_promised_where_hardly_an_answer_lies() -> None:
    """However good the refits look, a sure threshold has 30 answers beyond it, counted by hand."""
    labels, p = generate(600, 3)
    answered = ask(design.make("latent", labels, adaptive=False), labels, p)
    fit = bc.latent(
        labels[answered.items], answered.shifts, answered.answers, 0.0, answered.items, resamples=40
    )
    tested = fit.patterns.tested_beyond()
    for k in (5, 100, THRESHOLDS.size // 2 + 20, THRESHOLDS.size - 60):
        t, asked = THRESHOLDS[k], 1 / (1 + np.exp(answered.shifts))
        assert tested[k] == ((asked >= t - 1e-9) if t >= 0.5 else (asked <= t + 1e-9)).sum()
    bare = Decisions.of(fit.population, np.stack([fit.population] * 3), lambda _: 0.0, tested)
    precision = decision_rates(fit.population).precision
    highest = float(THRESHOLDS[tested >= 30].max())
    sure = choose_threshold(bare, precision=float(precision[tested >= 30].max()))
    assert sure.threshold <= highest < THRESHOLDS[-1]
    beyond = float(
        precision[THRESHOLDS.searchsorted(highest) + 10]
    )  # only thresholds past the highest reach it
    assert choose_threshold(bare, precision=beyond, confidence=None).threshold > highest
    with pytest.raises(NotIdentifiedError):
        choose_threshold(bare, precision=beyond)
