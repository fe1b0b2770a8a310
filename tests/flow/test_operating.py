"""The threshold to deploy: rates by counting, choices by looking at every threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import logit

import blindcal as bc
from blindcal.design import spread_evenly
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.grid import CELLS, MID_P
from blindcal.estimate.latent.intervals import answers_beyond
from blindcal.estimate.latent.operating import (
    GRID_THRESHOLDS,
    ChosenThreshold,
    Decisions,
    choose_threshold,
    decision_rates,
)
from blindcal.methods import make_design
from blindcal.records import AnswerTable, FloatArray
from blindcal.simulation.simulate import ask, generate
from fitting import ends


def table_of(seed: int, tilt: float = 0.0) -> FloatArray:
    """A smooth population whose labels follow the confidence loosely, the more so the higher the tilt."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(CELLS, 5.0))
    up = 0.1 + (0.8 + tilt / 10) * MID_P ** (2 - tilt)
    return np.concatenate([share * (1 - up), share * up])


def decisions_of(
    table: FloatArray,
    draws: FloatArray,
    unseen: Callable[[float], float] = lambda _: 0.0,
    tested: FloatArray | float = np.inf,
) -> Decisions:
    """Decisions where the tables are known; by default nothing is unseen, and every threshold well tested."""
    tests = np.broadcast_to(np.float64(tested), GRID_THRESHOLDS.shape)
    return Decisions(
        rates=decision_rates(table),
        drawn=decision_rates(draws),
        unseen=unseen,
        tested=tests,
        missed=np.zeros(len(draws)),
    )


def chosen(table: FloatArray, **wanted: Any) -> ChosenThreshold:
    """The choice where the table is known exactly."""
    return choose_threshold(decisions_of(table, np.stack([table] * 3)), **wanted)


def test_rates_are_counts() -> None:
    """Precision, recall, accuracy and both errors at each threshold, summed cell by cell."""
    table = table_of(0)
    rates = decision_rates(table)
    negative, positive = table[:CELLS], table[CELLS:]
    for j in (0, 100, CELLS // 2, CELLS - 2):
        above = GRID_THRESHOLDS[j] <= MID_P
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
    found = chosen(table, precision=wanted).point
    assert float(found.precision) >= wanted
    assert (rates.precision[found.threshold > GRID_THRESHOLDS] < wanted).all()


@pytest.mark.parametrize("wanted", [0.5, 0.9, 0.99])
def test_recall_takes_the_highest_threshold_that_keeps_it(wanted: float) -> None:
    """The chosen threshold keeps the recall, and no higher one does."""
    table = table_of(2)
    rates = decision_rates(table)
    found = chosen(table, recall=wanted).point
    assert float(found.recall) >= wanted
    assert (rates.recall[found.threshold < GRID_THRESHOLDS] < wanted).all()


@pytest.mark.parametrize(("cost_fp", "cost_fn"), [(1, 1), (5, 1), (1, 5)])
def test_costs_take_the_cheapest_threshold(cost_fp: float, cost_fn: float) -> None:
    """No threshold costs less; with E[Y|f] known it lies where E[Y|f] = fp / (fp + fn)."""
    table = table_of(3)
    rates = decision_rates(table)
    found = chosen(table, cost_fp=cost_fp, cost_fn=cost_fn)
    assert found.expected_cost is not None
    assert found.expected_cost.value == pytest.approx(rates.cost(cost_fp, cost_fn).min())
    assert found.confidence is None
    known = np.sqrt((cost_fp / (cost_fp + cost_fn) - 0.1) / 0.8)
    assert found.threshold.value == found.point.threshold == pytest.approx(known, abs=1 / 240)


def test_a_precision_out_of_reach_is_refused_with_what_is_within() -> None:
    """Where no threshold will do, the error names the highest precision that one would."""
    share = np.full(CELLS, 1 / CELLS)
    table = np.concatenate([share * 0.4, share * 0.6])
    with pytest.raises(
        NotIdentifiedError, match=r"no threshold reaches 0.9; the highest within reach is 0.600"
    ):
        chosen(table, precision=0.9)


@pytest.mark.parametrize("wanted", [{"precision": 0.88}, {"recall": 0.8}, {"cost_fp": 2.0, "cost_fn": 1.0}])
def test_a_threshold_is_as_sure_as_its_refits_agree(wanted: dict[str, float]) -> None:
    """Its interval holds two thirds of what one more refit alone would choose, or 1 where none will do."""
    draws = np.stack([table_of(seed, tilt) for seed, tilt in enumerate(np.linspace(-0.5, 0.5, 11))])
    decisions = decisions_of(table_of(20), draws)
    found = choose_threshold(decisions, level=2 / 3, confidence=None, **wanted)
    alone = []
    for table in draws:
        try:
            alone.append(chosen(table, confidence=None, **wanted).point.threshold)
        except NotIdentifiedError:
            alone.append(1.0)
    assert len(set(alone)) > 5
    assert (1.0 in alone) == ("precision" in wanted)
    assert ends(found.threshold) == pytest.approx((sorted(alone)[1], sorted(alone)[-2]))


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
    labels, p = generate(12_000, 3)
    answered = ask(make_design("latent", labels), p)
    fit = bc.latent(labels[answered.items], answered.shifts, answered.answers, 0.0, answered.items)
    for wanted in ({"precision": 0.8}, {"recall": 0.9}, {"cost_fp": 1.0, "cost_fn": 3.0}):
        found = fit.at(level=0.99).choose_threshold(**wanted)
        above = p >= found.point.threshold
        assert labels[above].mean() in found.point.precision
        assert above[labels == 1].mean() in found.point.recall
        assert (above == (labels == 1)).mean() in found.point.accuracy
        assert above.mean() in found.point.positive_rate
        assert found.point.threshold in found.threshold
        assert found.point.precision.half_width < 0.1


def fitted(n: int, seed: int = 3, **more: Any) -> tuple[bc.LatentFit, FloatArray, Any]:
    labels, p = generate(n, seed)
    answered = ask(make_design("latent", labels), p)
    fit = bc.latent(labels[answered.items], answered.shifts, answered.answers, 0.0, answered.items, **more)
    return fit, p, labels


def test_the_curve_is_what_each_threshold_does() -> None:
    """Rows agree with the hidden probabilities within 99% intervals, and with the point chosen."""
    fit, p, labels = fitted(6000)
    fit = fit.at(level=0.99)
    costs = fit.expected_cost(2, 1)
    assert (costs.cost_fp, costs.cost_fn) == (2, 1)
    points = fit.operating
    assert [one.threshold for one in points] == pytest.approx(np.arange(1, 40) / 40)
    assert [one.shift for one in points] == pytest.approx([-logit(one.threshold) for one in points])
    for k in range(3, 39, 8):
        above = p >= points[k].threshold
        wrong, missed = above & (labels == 0), ~above & (labels == 1)
        truth = {
            "precision": labels[above].mean(),
            "recall": above[labels == 1].mean(),
            "accuracy": (above == labels).mean(),
            "positive_rate": above.mean(),
            "false_positive": wrong.mean(),
            "false_negative": missed.mean(),
            "negative_precision": 1 - labels[~above].mean(),
        }
        for name, value in truth.items():
            estimate = getattr(points[k], name)
            assert float(estimate) in estimate, name
            assert value in estimate, name
        assert (2 * wrong + 1 * missed).mean() in costs.expected[k]
    point = fit.choose_threshold(recall=0.8).point
    assert fit.operating_at([point.threshold]) == (point,)


@pytest.mark.parametrize("decisions", [1, 20, 1000])
def test_the_next_decisions_are_a_draw_on_top_of_the_precision(decisions: int) -> None:
    """The share of right ones among the next few is less sure than the precision, and of many hardly so.

    Its ends are quantiles of a binomial draw at each refit's precision, by drawing them.
    """
    fit, _, _ = fitted(2000, resamples=300)
    (point,) = fit.operating_at([0.6])
    found = fit.next_precision(0.6, decisions)
    assert (found.value, found.level) == (point.precision.value, 0.95)
    assert found.half_width > point.precision.half_width
    place = int(np.argmin(np.abs(GRID_THRESHOLDS - 0.6)))
    precision = decision_rates(fit.draws).precision[:, place]
    shares = np.random.default_rng(0).binomial(decisions, np.repeat(precision, 200)) / decisions
    low, high = np.quantile(shares, [0.025, 0.975], method="inverted_cdf")
    # 60,000 draws: a count off at the most, or 2% of the width
    slack = max(1 / decisions if decisions > 1 else 0.0, 0.02 * (high - low))
    assert (found.low, found.high) == pytest.approx((low, high), abs=slack)


@pytest.mark.parametrize("thresholds", [[0.0], [0.5, 1.0], [float("nan")], [[0.5]]])
def test_thresholds_outside_are_named(thresholds: Any) -> None:
    """A threshold that no shift deploys is refused."""
    fit, _, _ = fitted(200, resamples=20)
    with pytest.raises(InputError, match="thresholds: must lie strictly between 0 and 1"):
        fit.operating_at(thresholds)
    with pytest.raises(InputError, match="thresholds: must lie strictly between 0 and 1"):
        fit.expected_cost(1, 1, thresholds)


def test_few_decisions_leave_precision_open() -> None:
    """Where ten of a hundred items are decided positive and all are right, one in four may still be wrong."""
    share = np.where(MID_P > 0.9, 1.0, 0.0)
    high = share / share.sum()
    low = np.where(MID_P < 0.2, 1.0, 0.0)
    table = np.concatenate([0.9 * low / low.sum(), 0.1 * high])
    unseen = 1 - 0.05 ** (1 / 100)  # what the rule of three says of a hundred items
    decisions = decisions_of(table, np.stack([table] * 5), lambda tail: 1 - tail ** (1 / 100))
    at_half = int(np.argmin(np.abs(GRID_THRESHOLDS - 0.5)))
    bound = decisions.ends(lambda rates: rates.precision, 0.05)[0][at_half]
    assert bound == pytest.approx(0.1 * (1 - unseen) / (0.1 * (1 - unseen) + unseen))
    assert 0.7 < bound < 0.8  # ten right of ten: the exact one-sided 95% bound is 0.05 ** (1 / 10) = 0.741
    wrong = decisions.ends(lambda rates: rates.false_positive, 0.05)[1][at_half]
    assert wrong == pytest.approx(unseen)  # none was seen, so that all the unseen may be
    assert [one[at_half] for one in decisions.next_right(1000, 0.9)] == pytest.approx([bound, 1.0])
    with pytest.raises(NotIdentifiedError, match=r"no threshold reaches 0.95 with 95% confidence, although"):
        choose_threshold(decisions, precision=0.95)
    likely = choose_threshold(decisions, precision=0.95, confidence=None)
    assert likely.point.precision.value == pytest.approx(1.0)


def test_no_threshold_beyond_what_the_endpoint_takes() -> None:
    """With a small largest shift the choice is made within it."""
    fit, _, _ = fitted(1000, resamples=50)
    assert fit.choose_threshold(recall=0.97, confidence=None).point.shift > 0.5
    with pytest.raises(NotIdentifiedError, match="recall"):
        fit.choose_threshold(recall=0.97, max_shift=0.5)
    assert abs(fit.choose_threshold(cost_fp=1, cost_fn=50).point.shift) > 0.5
    assert abs(fit.choose_threshold(cost_fp=1, cost_fn=50, max_shift=0.5).point.shift) <= 0.5
    with pytest.raises(NotIdentifiedError, match="max_shift"):
        fit.choose_threshold(recall=0.5, max_shift=-1.0)


def test_nothing_is_promised_where_hardly_an_answer_lies() -> None:
    """However good the refits look, a sure threshold has 30 answers beyond it, counted by hand."""
    labels, p = generate(600, 3)
    t = spread_evenly(600, np.random.default_rng(3))
    shifts = np.log((1 - t) / t)
    answered = AnswerTable(np.arange(600), shifts, np.zeros(600), (p >= t).astype(np.int64))
    fit = bc.latent(
        labels[answered.items], answered.shifts, answered.answers, 0.0, answered.items, resamples=40
    )
    tested = answers_beyond(fit.patterns)
    for k in (5, 100, GRID_THRESHOLDS.size // 2 + 20, GRID_THRESHOLDS.size - 60):
        t, asked = GRID_THRESHOLDS[k], 1 / (1 + np.exp(answered.shifts))
        assert tested[k] == ((asked >= t - 1e-9) if t >= 0.5 else (asked <= t + 1e-9)).sum()
    bare = decisions_of(fit.population, np.stack([fit.population] * 3), tested=tested)
    precision = decision_rates(fit.population).precision
    highest = float(GRID_THRESHOLDS[tested >= 30].max())
    sure = choose_threshold(bare, precision=float(precision[tested >= 30].max()))
    assert sure.point.threshold <= highest < GRID_THRESHOLDS[-1]
    beyond = float(
        precision[GRID_THRESHOLDS.searchsorted(highest) + 10]
    )  # only thresholds past the highest reach it
    assert choose_threshold(bare, precision=beyond, confidence=None).point.threshold > highest
    with pytest.raises(NotIdentifiedError):
        choose_threshold(bare, precision=beyond)


def test_between_few_thresholds_nothing_is_tested() -> None:
    """If most items were asked once at one of few thresholds, as by `blind`, answers test only their own."""
    labels, p = generate(1500, seed=8)[:2]
    answered = ask(make_design("blind", labels), p)
    tested = answers_beyond(bc.latent(labels[answered.items], answered.shifts, answered.answers).patterns)
    edges = logit(GRID_THRESHOLDS)
    assert np.count_nonzero(tested) == 4
    for shift in np.unique(answered.shifts):
        nearest = np.argmin(np.abs(edges + shift))
        assert tested[nearest] == np.count_nonzero(answered.shifts == shift)
