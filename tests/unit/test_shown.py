"""Estimates from probabilities that were read: those of the items, with intervals from resampled units."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindcal.estimate.fit import Fit
from blindcal.estimate.latent.difference import differences
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.problem import Problem
from blindcal.estimate.shown import ShownFit, classwise, fit_answers
from blindcal.estimate.truth import binned_ece
from blindcal.records import INVALID, Estimate, FloatArray, IntArray
from fitting import asked, ends

SCALARS = ("ece", "accuracy", "auroc", "brier", "log_loss", "mean_confidence", "overconfidence", "leaning")


def of_steps(steps: int) -> st.SearchStrategy[float]:
    return st.integers(0, steps).map(lambda k: k / steps)


ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([20, 2**20]).flatmap(of_steps)),
    min_size=2,
    max_size=30,
).filter(lambda rows: len({label for label, _ in rows}) == 2)


def shown(labels: Any, p: Any, groups: IntArray | None = None, size: int = 200, **options: Any) -> ShownFit:
    return ShownFit(labels=np.array(labels), p=np.array(p, float), groups=groups, resamples=size, **options)


def model(n: int, seed: int = 0) -> tuple[IntArray, FloatArray]:
    rng = np.random.default_rng(seed)
    p = rng.beta(0.8, 0.6, n)
    return (rng.random(n) < p**1.5).astype(np.int64), p


def values(fit: Fit) -> dict[str, float]:
    return {name: float(getattr(fit, name)) for name in SCALARS}


@settings(max_examples=15)
@given(ROWS, st.floats(0.001, 0.999), st.integers(1, 12))
def test_rates_are_counted_at_the_threshold_itself(
    rows: list[tuple[int, float]], threshold: float, bins: int
) -> None:
    """Any threshold and any number of bins: what a loop over the items finds, inside its interval."""
    labels, p = np.array(rows).T
    fit = shown(labels.astype(int), p, size=40, bin_count=bins)
    (point,) = fit.operating_at([threshold])
    yes = p >= threshold
    assert point.threshold == threshold
    assert float(point.positive_rate) == pytest.approx(yes.mean())
    assert float(point.recall) == pytest.approx(yes[labels == 1].mean())
    if yes.any():
        assert float(point.precision) == pytest.approx(labels[yes].mean())
    assert float(point.false_positive) == pytest.approx((yes & (labels == 0)).mean(), abs=1e-12)
    assert float(fit.expected_cost(5, 1, [threshold]).expected[0]) == pytest.approx(
        (5 * (yes & (labels == 0)) + (~yes & (labels == 1))).mean(), abs=1e-12
    )
    assert float(fit.ece) == pytest.approx(float(binned_ece(labels, p, bins).ece), abs=1e-12)
    everything = [getattr(fit, name) for name in SCALARS] + [each.gap for each in fit.bins]
    for estimate in (*everything, point.precision, point.recall, point.accuracy):
        if estimate.value is not None:
            low, high = ends(estimate)
            assert low - 1e-9 <= estimate.value <= high + 1e-9


@settings(max_examples=15)
@given(ROWS, st.integers(0, 99))
def test_estimates_do_not_depend_on_order_copies_or_the_name_of_the_positive_answer(
    rows: list[tuple[int, float]], seed: int
) -> None:
    """The same items shuffled, twice, or with both answers swapped: scores stay, and leanings change sign."""
    labels, p = np.array([y for y, _ in rows]), np.array([f for _, f in rows])
    known = values(shown(labels, p))
    order = np.random.default_rng(seed).permutation(labels.size)
    assert values(shown(labels[order], p[order])) == pytest.approx(known)
    assert values(shown(np.tile(labels, 3), np.tile(p, 3))) == pytest.approx(known)
    other = values(shown(1 - labels, 1 - p, bin_count=1))
    for name in ("auroc", "brier", "log_loss"):
        assert other[name] == pytest.approx(known[name])
    assert other["leaning"] == pytest.approx(-known["leaning"], abs=1e-9)


def test_many_items_cost_little_and_keep_their_estimates() -> None:
    """100,000 items take seconds, their draws are bounded, and their estimates are those of the items."""
    labels, p = model(100_000)
    start = time.process_time()
    fit = shown(labels, p, size=300)
    findings = fit.findings()
    assert time.process_time() - start < 10
    assert fit.draws.shape[1] < 8000
    assert float(findings.ece) == pytest.approx(float(binned_ece(labels, p, 5).ece), abs=1e-12)
    assert 0.001 < findings.auroc.half_width < 0.003
    few = np.random.default_rng(1).multinomial(labels.size, np.full(labels.size, 1 / labels.size), 200)
    drawn = (few * (p - labels) ** 2).mean(axis=1)
    assert findings.brier.half_width == pytest.approx(1.96 * drawn.std(), rel=0.2)


@pytest.mark.parametrize("spread", [0.0, 1e-9])
def test_tied_probabilities_stay_on_their_side_of_a_threshold(spread: float) -> None:
    """Resampled rates are around the estimate where many items tie at the threshold, also in merged cells."""
    rng = np.random.default_rng(0)
    p = np.concatenate([np.repeat([0.1, 0.3, 0.7], [3, 703, 1294]), rng.random(5000) * spread])
    fit = shown(rng.integers(0, 2, p.size), p)
    for point in fit.operating_at([0.1, 0.3, 0.7]):
        low, high = ends(point.positive_rate)
        assert low < (p >= point.threshold).mean() < high < low + 0.05


@pytest.mark.parametrize("right", [0, 1])
def test_few_items_without_an_error_promise_little(right: int) -> None:
    """40 items of one label, all with the same sure probability, leave room for what they miss."""
    labels, p = np.full(40, right), np.full(40, 0.01 + 0.98 * right)
    fit = shown(labels, p)
    low, high = ends(fit.ece)
    assert low < 0.01 < 0.07 < high
    assert ends(fit.accuracy)[0] < 0.93
    findings = fit.findings()
    assert (findings.auroc.value, findings.operating) == (None, ())


def test_groups_widen_the_intervals() -> None:
    """Items in groups of four copies tell as much as one each."""
    labels, p = model(300)
    alone = shown(labels, p)
    copies = shown(np.repeat(labels, 4), np.repeat(p, 4), np.repeat(np.arange(300), 4))
    for name in SCALARS:
        mine, other = getattr(copies, name), getattr(alone, name)
        assert float(mine) == pytest.approx(float(other))
        assert mine.half_width == pytest.approx(other.half_width, rel=0.25)


def test_two_runs_on_the_same_items_are_compared_item_by_item() -> None:
    """A second model that is the first one shifted: the difference is known better than either."""
    labels, p = model(500)
    first, second = shown(labels, p), shown(labels, np.clip(p + 0.05, 0, 1))
    units = np.arange(500)
    paired = {each.quantity: each for each in differences(first, second, (units, units))}
    assert paired["brier"].correlation > 0.9
    apart = {each.quantity: each for each in differences(first, second)}
    assert paired["brier"].difference.half_width < 0.5 * apart["brier"].difference.half_width
    assert float(paired["ece"].difference) == pytest.approx(float(second.ece) - float(first.ece))


def problem(width: float = 0.0, seed: int = 0) -> tuple[Problem, IntArray, FloatArray]:
    labels, p = model(300, seed)
    read = asked(labels, p, method="logprobs")
    assert read.bounds is not None
    read.bounds[:, 1] += width
    return Problem.of_answers(labels, read), labels, p


def test_items_without_a_probability_are_compared_with_those_of_another_run() -> None:
    """An unread item is in both runs' units; of its own run, it is in no table."""
    whole, labels, p = problem()
    read = asked(labels, p, method="logprobs")
    assert read.bounds is not None
    read.answers[:20], read.bounds[:20] = INVALID, np.nan
    some = fit_answers(Problem.of_answers(labels, read), resamples=50)
    assert isinstance(some, ShownFit)
    assert (some.items, some.invalid, some.queries) == (280, 20, 300)
    units = np.arange(300)
    latent = fit_answers(problem(0.1)[0], resamples=50)
    for other in (fit_answers(whole, resamples=50), latent):
        paired = {each.quantity: each for each in differences(other, some, (units, units))}
        assert paired["brier"].correlation > 0.8
        assert float(paired["brier"].difference) in paired["brier"].difference


def test_exact_readings_are_not_fitted() -> None:
    """Narrow bounds are read as their middle; wide ones, of a single item even, by their likelihood."""
    exact, labels, p = problem()
    fit = fit_answers(exact, resamples=50)
    assert isinstance(fit, ShownFit)
    assert float(fit.ece) == pytest.approx(float(binned_ece(labels, p, 5).ece), abs=1e-9)
    assert isinstance(fit_answers(problem(0.01)[0], resamples=50), ShownFit)
    assert isinstance(fit_answers(problem(0.1)[0], resamples=50), LatentFit)
    curve = fit.curve_at([0.2, 0.8])
    assert curve.low is not None
    assert 0 < fit.calibrated_pvalue < 0.05
    assert float(fit.tce) in fit.ece
    assert repr(fit).startswith("ShownFit(300 items, 300 queries, ECE")


def test_thresholds_are_chosen_by_what_was_read() -> None:
    """A goal that the items meet is promised with the confidence that they allow."""
    labels, p = model(2000)
    chosen = shown(labels, p).choose_threshold(precision=0.8)
    yes = p >= float(chosen.threshold)
    assert float(chosen.point.precision) == pytest.approx(labels[yes].mean())
    assert labels[yes].mean() > 0.8
    assert yes.sum() > 30


# Several answers


def test_classwise_errors_are_those_of_yes_no_questions() -> None:
    """Each class by itself is the binned error of its own probability, and the mean is theirs."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(4, 0.6), 400)
    labels = np.array([rng.choice(4, p=row**2 / (row**2).sum()) for row in p])
    mean, each = classwise(labels, p, resamples=200)
    known = [float(binned_ece(labels == k, p[:, k], 5).ece) for k in range(4)]
    assert [float(one) for one in each] == pytest.approx(known)
    assert float(mean) == pytest.approx(np.mean(known))
    assert mean.half_width < max(one.half_width for one in each)
    alone = [shown((labels == k).astype(int), p[:, k]).ece for k in range(4)]
    for one, other in zip(each, alone, strict=True):
        assert ends(one) == pytest.approx(ends(other), abs=0.015)


def test_a_class_that_never_errs_in_40_items_is_not_certain() -> None:
    """Its interval has room for what 40 items miss."""
    labels = np.arange(40) % 2
    p = np.column_stack([labels == 0, labels == 1, np.zeros(40)]) * 0.98 + 0.02 / 3
    _, each = classwise(labels, p, resamples=100)
    assert all(ends(one)[1] > 0.08 for one in each)


def test_without_resamples_there_are_no_intervals() -> None:
    """Estimates alone."""
    labels, p = model(50)
    fit = shown(labels, p, size=0)
    assert fit.ece == Estimate(float(binned_ece(labels, p, 5).ece))
    assert not fit.operating[0].precision.has_interval
