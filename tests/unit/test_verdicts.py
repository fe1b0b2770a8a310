"""Verdicts of a judge beside labels: against plain counting, exact intervals and known populations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from blindcal.errors import InputError
from blindcal.estimate.verdicts import JudgeFindings, judge
from blindcal.records import Estimate, IntArray

FIGURES = ("tpr", "tnr", "precision", "agreement", "kappa", "labels_alone", "pass_rate", "rogan_gladen")


def population(
    n: int, labelled: int, seed: int = 0, rate: float = 0.7
) -> tuple[IntArray, IntArray, IntArray]:
    """Verdicts with TPR .9 and TNR .8, labels of the first items only, and all labels."""
    rng = np.random.default_rng(seed)
    truth = (rng.random(n) < rate).astype(np.int64)
    verdicts = (rng.random(n) < np.where(truth == 1, 0.9, 0.2)).astype(np.int64)
    return verdicts, np.where(np.arange(n) < labelled, truth, -1), truth


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-1, 1)), min_size=2, max_size=40))
def test_figures_are_those_of_plain_counting(rows: list[tuple[int, int]]) -> None:
    """Every figure is what a loop over the items finds, or unknown where that divides by zero."""
    seen = [(v, y) for v, y in rows if y >= 0]
    if not seen:
        return
    report = judge(*zip(*rows, strict=True))

    def share(of: list[bool]) -> float | None:
        return sum(of) / len(of) if of else None

    expected: dict[str, float | None] = {
        "tpr": share([v == 1 for v, y in seen if y == 1]),
        "tnr": share([v == 0 for v, y in seen if y == 0]),
        "precision": share([y == 1 for v, y in seen if v == 1]),
        "agreement": share([v == y for v, y in seen]),
        "labels_alone": share([y == 1 for _, y in seen]),
    }
    passed, right = sum(v for v, _ in seen) / len(seen), expected["labels_alone"] or 0.0
    chance = passed * right + (1 - passed) * (1 - right)
    expected["kappa"] = None if chance == 1 else ((expected["agreement"] or 0.0) - chance) / (1 - chance)
    for name, value in expected.items():
        assert getattr(report, name).value == (None if value is None else pytest.approx(value, abs=1e-9)), (
            name
        )
    for name in FIGURES:
        estimate = getattr(report, name)
        assert estimate.value is None or estimate.value in estimate, name


def test_the_pass_rate_is_the_prediction_powered_mean_of_least_variance() -> None:
    """It is lambda times the verdicts' mean plus that of (label - lambda verdict); no lambda varies less."""
    v, y, _ = population(2000, 300)
    seen, rest = y >= 0, y < 0
    report = judge(v, y)
    mean = report.weight * v[rest].mean() + (y[seen] - report.weight * v[seen]).mean()
    assert float(report.pass_rate) == pytest.approx(mean, abs=1e-12)

    def variance(weight: float) -> float:
        differences = y[seen] - weight * v[seen]
        return float(differences.var() / seen.sum() + weight**2 * v[rest].var() / rest.sum())

    assert all(variance(report.weight) <= variance(w) + 1e-6 for w in np.linspace(0, 1, 21))
    assert report.pass_rate.half_width < 0.85 * report.labels_alone.half_width


def test_a_pass_rate_of_labels_on_all_items_is_that_of_the_labels() -> None:
    """With a label for every item nothing is predicted, and nothing tests who was labelled."""
    v, _, truth = population(400, 400)
    report = judge(v, truth)
    for rate in (report.pass_rate, report.labels_alone, report.rogan_gladen):
        assert float(rate) == pytest.approx(truth.mean())
    assert (report.more_labels, report.selection_pvalue) == (None, None)


@pytest.mark.parametrize(("right", "wrong"), [(40, 10), (3, 1), (25, 0)])
def test_without_groups_the_interval_of_a_rate_is_that_of_jeffreys(right: int, wrong: int) -> None:
    """A share of k in n has the quantiles of Beta(k + 1/2, n - k + 1/2); a share of 0 or 1 is inside."""
    report = judge([1] * right + [0] * wrong + [0, 0, 1], [1] * (right + wrong) + [0, 0, 0])
    exact = [float(beta.ppf(q, right + 0.5, wrong + 0.5)) for q in (0.025, 0.975)]
    assert ends(report.tpr) == pytest.approx((exact[0], 1.0 if not wrong else exact[1]), abs=0.012)


def test_repeated_items_are_no_more_data() -> None:
    """Each item four times over, in groups: the same estimates, and nearly the same intervals."""
    v, y, _ = population(600, 150)
    once, often = judge(v, y), judge(np.tile(v, 4), np.tile(y, 4), np.tile(np.arange(600), 4))
    for name in FIGURES:
        first, again = getattr(once, name), getattr(often, name)
        assert float(again) == pytest.approx(float(first), abs=1e-3)
        assert again.half_width == pytest.approx(first.half_width, rel=0.1), name


def test_strata_undo_labels_that_were_chosen_by_verdict() -> None:
    """Half the fails and few passes are labelled: naming the verdict as stratum corrects it."""
    v, _, truth = population(20_000, 0, rate=0.8)
    rng = np.random.default_rng(1)
    y = np.where(rng.random(v.size) < np.where(v == 1, 0.05, 0.5), truth, -1)
    plain, weighted = judge(v, y), judge(v, y, strata=v)
    assert plain.selection_pvalue is not None
    assert plain.selection_pvalue < 1e-6
    assert (plain.labelled_passes, plain.labelled_fails) == pytest.approx((0.05, 0.5), abs=0.02)
    assert 0.9 not in plain.tpr
    assert 0.8 not in plain.labels_alone
    assert weighted.selection_pvalue is None
    everything = judge(v, truth)
    for name in FIGURES:
        assert float(getattr(everything, name)) in getattr(weighted, name), name


def test_labels_that_were_drawn_at_random_raise_no_suspicion() -> None:
    """The p-value of equal shares is below 5% in about 5% of files."""
    small = sum((judge(*population(500, 100, seed)[:2]).selection_pvalue or 0) < 0.05 for seed in range(100))
    assert small <= 13  # of Binomial(100, .05), the upper 0.1% quantile


def test_as_many_more_labels_halve_the_interval() -> None:
    """A file with the labels that it asked for has half the interval."""
    v, y, truth = population(20_000, 300)
    report = judge(v, y)
    assert report.more_labels is not None
    more = judge(v, np.where(np.arange(v.size) < 300 + report.more_labels, truth, -1))
    assert more.pass_rate.half_width == pytest.approx(report.pass_rate.half_width / 2, rel=0.12)
    assert judge(v[:400], y[:400]).more_labels is None  # 400 labels are not enough


@pytest.mark.parametrize("labelled", [50, 200])
def test_intervals_of_the_pass_rate_hold_what_they_promise(labelled: int) -> None:
    """The true rate is inside the interval in 93 to 98% of files, as far as 100 of them can tell."""
    inside = sum(0.7 in judge(*population(2000, labelled, seed)[:2]).pass_rate for seed in range(100))
    assert inside >= 88  # of Binomial(100, .95), the lower 0.4% quantile


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "verdicts: must not be empty"),
        (([1, 0.5], [1, 0]), "verdicts: must be 0 or 1, got 0.5 at position 1"),
        (([1, float("nan")], [1, 0]), "verdicts: must be 0 or 1, got nan at position 1"),
        (([1, 0], [1, 2]), r"labels: must be 0, 1 or -1 \(no label\), got 2"),
        (([1, 0], [1]), "labels: must be as long as labels"),
        (([1, 0], [-1, -1]), "labels: no item has a label"),
        (([1, 0], [1, -1], None, ["a", "b"]), "labels: stratum 2: no item has a label"),
        ((range(2), [1, 0], None, range(3)), "strata: must be as long as labels"),
        (([1] * 60, [1] * 60, None, range(60)), "strata: must be at most 50, got 60"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[Any, ...], message: str) -> None:
    """One line names the argument and the rule."""
    with pytest.raises(InputError, match=message):
        judge(*arguments)


def test_a_judge_that_tells_nothing_leaves_the_labels_alone() -> None:
    """Verdicts of one kind have no weight, and their rates that divide by nothing are unknown."""
    report: JudgeFindings = judge([1] * 100, [1, 0] * 20 + [-1] * 60)
    assert (report.weight, report.rogan_gladen.value, report.kappa.value) == (0.0, None, 0.0)
    assert float(report.pass_rate) == float(report.labels_alone) == 0.5
