"""The threshold to deploy: rates by counting, choices by looking at every threshold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.special import logit

import blindcal as bc
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
from blindcal.items.score_files import read_scores
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import generate
from deciding import model
from fitting import asked, ends, fitted
from paths import SHARED


def table_of(seed: int, tilt: float = 0.0) -> FloatArray:
    """A smooth population whose labels follow the confidence loosely, the more so the higher the tilt."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(CELLS, 5.0))
    up = 0.1 + (0.8 + tilt / 10) * MID_P ** (2 - tilt)
    return np.concatenate([share * (1 - up), share * up])


def decisions_of(
    table: FloatArray,
    draws: FloatArray,
    units: float = np.inf,
    tested: FloatArray | float = np.inf,
) -> Decisions:
    """Decisions where the tables are known; by default from many units, all thresholds tested."""
    return Decisions(
        rates=decision_rates(table),
        drawn=decision_rates(draws),
        units=units,
        tested=np.broadcast_to(np.float64(tested), GRID_THRESHOLDS.shape),
        missed=np.zeros(len(draws)),
    )


def chosen(table: FloatArray, **wanted: Any) -> ChosenThreshold:
    """The choice where the table is known exactly."""
    return choose_threshold(decisions_of(table, np.stack([table] * 3)), **wanted)


def true_rates(p: FloatArray, labels: IntArray, threshold: float) -> dict[str, float]:
    """Rates of deciding "positive iff p >= threshold"."""
    above = p >= threshold
    return {
        "precision": labels[above].mean(),
        "recall": above[labels == 1].mean(),
        "accuracy": (above == labels).mean(),
        "positive_rate": above.mean(),
        "false_positive": (above & (labels == 0)).mean(),
        "false_negative": (~above & (labels == 1)).mean(),
        "negative_precision": 1 - labels[~above].mean(),
    }


@pytest.mark.parametrize(
    "wanted", [{"precision": 0.5}, {"precision": 0.8}, {"recall": 0.5}, {"recall": 0.99}]
)
def test_a_goal_takes_the_first_threshold_that_reaches_it(wanted: dict[str, float]) -> None:
    """The lowest with a precision, the highest with a recall."""
    table = table_of(1)
    rates, point = decision_rates(table), chosen(table, **wanted).point
    ((name, goal),) = wanted.items()
    assert float(getattr(point, name)) >= goal
    passed = point.threshold > GRID_THRESHOLDS if name == "precision" else point.threshold < GRID_THRESHOLDS
    assert (getattr(rates, name)[passed] < goal).all()


@pytest.mark.parametrize(("cost_fp", "cost_fn"), [(1, 1), (5, 1), (1, 5)])
def test_costs_take_the_cheapest_threshold(cost_fp: float, cost_fn: float) -> None:
    """No threshold costs less; with E[Y|f] known it lies where E[Y|f] = fp / (fp + fn)."""
    table = table_of(3)
    choice = chosen(table, cost_fp=cost_fp, cost_fn=cost_fn)
    assert choice.expected_cost is not None
    cheapest = decision_rates(table).cost(cost_fp, cost_fn).min()
    assert choice.expected_cost.value == pytest.approx(cheapest)
    assert choice.confidence is None
    known = np.sqrt((cost_fp / (cost_fp + cost_fn) - 0.1) / 0.8)
    assert choice.threshold.value == choice.point.threshold == pytest.approx(known, abs=1 / 240)


def test_a_precision_out_of_reach_is_refused_with_what_is_within() -> None:
    """Where no threshold will do, the error names the highest precision that one would."""
    share = np.full(CELLS, 1 / CELLS)
    with pytest.raises(NotIdentifiedError, match=r"no threshold reaches 0.9; the highest .* is 0.600"):
        chosen(np.concatenate([share * 0.4, share * 0.6]), precision=0.9)


@pytest.mark.parametrize("wanted", [{"precision": 0.88}, {"recall": 0.8}, {"cost_fp": 2.0, "cost_fn": 1.0}])
def test_a_threshold_is_as_sure_as_its_refits_agree(wanted: dict[str, float]) -> None:
    """Its interval holds two thirds of what one more refit alone would choose, or 1 where none will do."""
    draws = np.stack([table_of(seed, tilt) for seed, tilt in enumerate(np.linspace(-0.5, 0.5, 11))])
    choice = choose_threshold(decisions_of(table_of(20), draws), level=2 / 3, confidence=None, **wanted)
    alone = []
    for table in draws:
        try:
            alone.append(chosen(table, confidence=None, **wanted).point.threshold)
        except NotIdentifiedError:
            alone.append(1.0)
    assert len(set(alone)) > 5
    assert (1.0 in alone) == ("precision" in wanted)
    assert ends(choice.threshold) == pytest.approx((sorted(alone)[1], sorted(alone)[-2]))


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "give exactly one of precision, recall, or both"),
    ({"precision": 0.9, "recall": 0.9}, "give exactly one of"),
    ({"cost_fp": 1.0}, "cost_fp, cost_fn: give both or none"),
    ({"precision": 0.9, "confidence": 0.4}, "confidence: must be at least 0.5 and below 1, got 0.4"),
    ({"precision": 0.9, "confidence": 1.0}, "confidence: must be at least 0.5 and below 1, got 1.0"),
    ({"cost_fp": -1.0, "cost_fn": 1.0}, "cost_fp, cost_fn: must be positive, got -1.0 and 1.0"),
    ({"cost_fp": float("nan"), "cost_fn": 1.0}, "cost_fp, cost_fn: must be positive, got nan"),
    ({"precision": 1.0}, "precision: must be strictly between 0 and 1, got 1.0"),
    ({"recall": float("nan")}, "recall: must be strictly between 0 and 1, got nan"),
]


@pytest.mark.parametrize(("wanted", "message"), BAD)
def test_bad_goals_are_named(wanted: dict[str, Any], message: str) -> None:
    """The error names the argument, the rule and the value."""
    with pytest.raises(InputError, match=message):
        chosen(table_of(0), **wanted)


@pytest.fixture(scope="module")
def audited() -> tuple[bc.LatentFit, FloatArray, IntArray]:
    """A fit to 6,000 items with 99% intervals, their probabilities and labels."""
    labels, p = generate(6000, 3)
    return fitted(labels, asked(labels, p), level=0.99), p, labels


def test_rates_are_those_of_the_hidden_probabilities(
    audited: tuple[bc.LatentFit, FloatArray, IntArray],
) -> None:
    """Within the intervals, at every threshold and at those chosen."""
    fit, p, labels = audited
    costs, points = fit.expected_cost(2, 1), fit.operating
    assert (costs.cost_fp, costs.cost_fn) == (2, 1)
    assert [point.threshold for point in points] == pytest.approx(np.arange(1, 40) / 40)
    assert [point.shift for point in points] == pytest.approx([-logit(point.threshold) for point in points])
    choices = [
        fit.choose_threshold(**wanted)
        for wanted in ({"precision": 0.8}, {"recall": 0.9}, {"cost_fp": 1.0, "cost_fn": 3.0})
    ]
    for choice in choices:
        assert choice.point.threshold in choice.threshold
        assert choice.point.precision.half_width < 0.1
    for point in (*points[3::8], *(choice.point for choice in choices)):
        for name, value in true_rates(p, labels, point.threshold).items():
            estimate = getattr(point, name)
            assert float(estimate) in estimate, name
            assert value in estimate, name
    for k in range(3, 39, 8):
        rates = true_rates(p, labels, points[k].threshold)
        assert 2 * rates["false_positive"] + rates["false_negative"] in costs.expected[k]
    assert fit.operating_at([choices[1].point.threshold]) == (choices[1].point,)


def test_few_decisions_leave_precision_open() -> None:
    """Where ten of a hundred items are decided positive and all are right, one in four may still be wrong."""
    low, high = (np.where(inside, 1.0, 0.0) for inside in (MID_P < 0.2, MID_P > 0.9))
    table = np.concatenate([0.9 * low / low.sum(), 0.1 * high / high.sum()])
    unseen = 1 - 0.05 ** (1 / 100)  # what the rule of three says of a hundred items
    decisions = decisions_of(table, np.stack([table] * 5), units=100)
    at_half = int(np.argmin(np.abs(GRID_THRESHOLDS - 0.5)))
    bound = decisions.ends(lambda rates: rates.precision, 0.05)[0][at_half]
    assert bound == pytest.approx(0.1 * (1 - unseen) / (0.1 * (1 - unseen) + unseen))
    assert 0.7 < bound < 0.8  # ten right of ten: the exact one-sided 95% bound is 0.05 ** (1 / 10) = 0.741
    wrong = decisions.ends(lambda rates: rates.false_positive, 0.05)[1][at_half]
    assert wrong == pytest.approx(unseen)  # none was seen, so that all the unseen may be
    with pytest.raises(NotIdentifiedError, match=r"no threshold reaches 0.95 with 95% confidence, although"):
        choose_threshold(decisions, precision=0.95)
    likely = choose_threshold(decisions, precision=0.95, confidence=None)
    assert likely.point.precision.value == pytest.approx(1.0)


def test_no_threshold_beyond_the_largest_shift(audited: tuple[bc.LatentFit, FloatArray, IntArray]) -> None:
    """With a small largest shift the choice is made within it."""
    fit = audited[0]
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
    answered = asked(labels, p, seed=3)
    fit = fitted(labels, answered, resamples=0)
    tested, t = answers_beyond(fit.patterns), 1 / (1 + np.exp(answered.shifts))
    for k in (5, 100, GRID_THRESHOLDS.size // 2 + 20, GRID_THRESHOLDS.size - 60):
        at = GRID_THRESHOLDS[k]
        assert tested[k] == ((t >= at - 1e-9) if at >= 0.5 else (t <= at + 1e-9)).sum()
    bare = decisions_of(fit.population, np.stack([fit.population] * 3), tested=tested)
    precision = decision_rates(fit.population).precision
    highest = float(GRID_THRESHOLDS[tested >= 30].max())
    sure = choose_threshold(bare, precision=float(precision[tested >= 30].max()))
    assert sure.point.threshold <= highest < GRID_THRESHOLDS[-1]
    # only thresholds past the highest reach this
    beyond = float(precision[GRID_THRESHOLDS.searchsorted(highest) + 10])
    assert choose_threshold(bare, precision=beyond, confidence=None).point.threshold > highest
    with pytest.raises(NotIdentifiedError):
        choose_threshold(bare, precision=beyond)


def test_between_few_thresholds_nothing_is_tested() -> None:
    """If most items were asked once at one of few thresholds, as by `blind`, answers test only their own."""
    labels, p = generate(1500, seed=8)
    answered = asked(labels, p, method="blind")
    tested = answers_beyond(fitted(labels, answered, resamples=0).patterns)
    assert np.count_nonzero(tested) == 4
    for shift in np.unique(answered.shifts):
        nearest = np.argmin(np.abs(logit(GRID_THRESHOLDS) + shift))
        assert tested[nearest] == np.count_nonzero(answered.shifts == shift)


# On other items


LOGITS = SHARED / "logits" / "qwen__boolq__logits.csv.gz"


@pytest.mark.parametrize("real", [False, True])
def test_promises_are_kept_on_the_other_half(real: bool) -> None:
    """Of three random halves at most one falls short, for a precision of 0.8 and of 0.85.

    0.85 is near what the real model can reach on BoolQ: an audit may say that it cannot be promised.
    """
    labels, p = model(3270, 21, steepness=0.6)
    if real:
        if not LOGITS.is_file():
            pytest.skip("needs the recorded logits beside the project")
        known = read_scores(LOGITS, words=("True", "False"))
        labels, p = known.labels, known.p
    short, silent = Counter[float](), Counter[float]()
    for seed in range(3):
        order = np.random.default_rng([seed, 6]).permutation(labels.size)
        ours, theirs = order[:1635], order[1635:]
        fit = fitted(labels[ours], asked(labels[ours], p[ours], seed=seed), resamples=200)
        for goal in (0.8, 0.85):
            try:
                threshold = fit.choose_threshold(precision=goal).point.threshold
            except NotIdentifiedError:
                silent[goal] += 1
                continue
            right = labels[theirs][p[theirs] >= threshold]
            # its own two standard errors
            short[goal] += right.mean() < goal - 2 * np.sqrt(goal * (1 - goal) / right.size)
    assert silent[0.8] == 0
    assert silent[0.85] <= 2
    for goal in (0.8, 0.85):
        assert short[goal] <= 1
