"""`latent` on data that tell little, or nothing, or are not data: wide intervals and clear errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import logit
from scipy.stats import kstest

import blindcal as bc
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.records import INVALID, AnswerTable, IntArray
from blindcal.simulation.simulate import generate, log_odds
from fitting import asked, check_sound, ends, fitted

NAN = float("nan")

# -- data that tell little -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 20])
@pytest.mark.parametrize("seed", range(4))
def test_tiny_samples_are_sound_and_unsure(n: int, seed: int) -> None:
    """A handful of items gives wide intervals, whatever they happen to say."""
    rng = np.random.default_rng(seed)
    p = rng.beta(2, 1, n)
    labels = (rng.random(n) < p**2).astype(np.int64)
    fit = fitted(labels, asked(labels, p, seed=seed))
    check_sound(fit)
    truth = 1 / 6  # E(f - f^2) under Beta(2, 1)
    assert truth in fit.at(level=0.99).ece
    # n items alike say no more than that the share of others is at most 1 - .025^(1/n)
    low, high = ends(fit.ece)
    assert high - low >= (1 - 0.025 ** (1 / n)) * 0.99
    assert fit.calibrated_pvalue > 1e-4


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_only(label: int) -> None:
    """Gaps against a single class are found; what needs both classes is refused by name."""
    rng = np.random.default_rng(0)
    p = rng.beta(2, 1, 1500)
    labels = np.full(1500, label)
    fit = fitted(labels, asked(labels, p))
    check_sound(fit)
    assert fit.ece.value == pytest.approx(abs(p - label).mean(), abs=0.01)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("auroc", lambda: fit.auroc),
        ("curve", lambda: fit.curve),
        ("operating", lambda: fit.operating),
        ("expected_cost", lambda: fit.expected_cost(1, 2)),
        ("choose_threshold", lambda: fit.choose_threshold(recall=0.9)),
        ("next_precision", lambda: fit.next_precision(0.5, 10)),
    ]
    for name, call in refused:
        with pytest.raises(NotIdentifiedError, match=f"{name}: needs items of both labels"):
            call()


def test_no_valid_answer_is_an_error() -> None:
    """Nothing is estimated from nothing."""
    with pytest.raises(NotIdentifiedError, match="all 3 are invalid"):
        bc.latent([0, 1, 1], [0.0, 0.1, 0.2], np.array([-1, -1, None]))
    with pytest.raises(NotIdentifiedError, match="infinite shift"):
        bc.latent([0, 1, 1], np.full(3, np.inf), [1, 1, -1])


def test_invalid_answers_are_counted() -> None:
    """Invalid answers are left out and counted; losing them at random widens the interval."""
    labels, p = generate(2000, 2)
    answered = asked(labels, p)
    lost = np.random.default_rng(0).random(2000) < 0.3
    part = AnswerTable(
        answered.items, answered.shifts, answered.temperatures, np.where(lost, INVALID, answered.answers)
    )
    whole, fit = fitted(labels, answered), fitted(labels, part)
    check_sound(fit)
    assert (fit.invalid, fit.unanswered, fit.items, fit.queries) == (lost.sum(), lost.sum(), 2000, 2000)
    assert fit.invalid_bound == pytest.approx(2 * lost.mean())
    assert fit.ece.half_width > whole.ece.half_width
    assert (whole.invalid, whole.invalid_bound) == (0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_effect_of_invalid_answers_is_bounded(seed: int) -> None:
    """Whatever ten invalid answers of 500 had been, the ECE moves by no more than the stated bound."""
    labels, p = generate(500, seed)
    answered = asked(labels, p, seed=seed)
    lost = np.random.default_rng(seed).permutation(500) < 10

    def with_answers(answers: IntArray) -> bc.LatentFit:
        filled = np.where(lost, answers, answered.answers)
        return fitted(labels, replace(answered, answers=filled), resamples=0)

    fit = with_answers(np.full(500, INVALID))
    assert fit.invalid_bound == pytest.approx(2 * 10 / 500)
    right = labels[answered.items]
    fills = np.zeros(500, np.int64), np.ones(500, np.int64), right, 1 - right, answered.answers
    moved = [abs(float(with_answers(fill).ece) - float(fit.ece)) for fill in fills]
    assert max(moved) <= fit.invalid_bound
    assert max(moved) > fit.invalid_bound / 4  # so that a bound a few times too small would be noticed


def test_contradictory_answers_are_counted_and_survived() -> None:
    """Answers at random, four per item: the fit stands, and says how many items contradict themselves."""
    rng = np.random.default_rng(1)
    items = np.repeat(np.arange(300), 4)
    shifts = -logit(rng.uniform(0.01, 0.99, 1200))
    labels, answers = rng.integers(0, 2, 300), rng.integers(0, 2, 1200)
    fit = bc.latent(labels[items], shifts, answers, 0.0, items, resamples=200)
    check_sound(fit)
    # an item is free of contradiction if its answers fall in order: brute force over the 300
    orderly = 0
    for i in range(300):
        rows = items == i
        positive, negative = shifts[rows & (answers == 1)], shifts[rows & (answers == 0)]
        orderly += positive.size == 0 or negative.size == 0 or (-positive).max() < (-negative).min()
    assert fit.contradictions == 300 - orderly


def at_one_threshold(seed: int) -> tuple[float, bc.LatentFit]:
    """The oracle of some items, and a fit to what they answer unshifted."""
    labels, p = generate(2000, seed)
    return float(bc.binned_ece(labels, p).ece), bc.latent(labels, np.zeros(2000), p >= 0.5, resamples=300)


def test_a_single_threshold_gives_the_accuracy_and_no_verdict() -> None:
    """All items asked b = 0: accuracy is exact, and calibration is not ruled out."""
    labels, p = generate(2000, 2)
    _, fit = at_one_threshold(2)
    check_sound(fit)
    assert fit.accuracy.value == pytest.approx(np.mean((p >= 0.5) == labels), abs=1e-6)
    assert fit.ece.low == 0
    assert fit.calibrated_pvalue > 1e-3


def test_a_single_threshold_leaves_the_error_open() -> None:
    """All items asked b = 0: the ECE can hardly be told, so its interval holds what it really is."""
    found = [at_one_threshold(seed) for seed in range(4)]
    assert sum(oracle in fit.ece for oracle, fit in found) >= 3
    # an item surely lies on its own side of 1/2, so that not everything is possible
    assert max(ends(fit.ece)[1] for _, fit in found) < 0.75


# -- the p-value -----------------------------------------------------------------------------------------


def test_the_pvalue_is_uniform_under_the_null() -> None:
    """On 20 calibrated samples of 300 items the p-values look uniform."""
    pvalues = []
    for seed in range(20):
        rng = np.random.default_rng([seed, 1])
        p = rng.beta(0.8, 0.6, 300)
        labels = (rng.random(300) < p).astype(np.int64)
        pvalues.append(fitted(labels, asked(labels, p, seed=seed)).calibrated_pvalue)
    # binomial(20, .05): mean 1, sd 1; 3 of them. Kolmogorov-Smirnov at one in a thousand
    assert sum(one < 0.05 for one in pvalues) <= 1 + 3 * 1
    assert kstest(pvalues, "uniform").pvalue > 1e-3


def test_the_pvalue_sees_an_error_of_a_twentieth() -> None:
    """At TCE 0.05 and n = 3,000, nearly every sample is told from a calibrated one."""
    found = 0
    for seed in range(12):
        rng = np.random.default_rng([seed, 2])
        p = rng.beta(1, 1, 3000)
        labels = (rng.random(3000) < p + 0.2 * (0.5 - p)).astype(np.int64)  # E|.2 (f - .5)| = .05
        found += fitted(labels, asked(labels, p, seed=seed)).calibrated_pvalue < 0.05
    # power above .9: of 12, 10.8 less 2 binomial sds of 1.04
    assert found >= 10.8 - 2 * 1.04


# -- what is handed in -----------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"labels": [0, 1, 1], "shifts": [0.0, 1.0, -1.0], "answers": [1, 0, 1]}
BAD = [
    ({"labels": []}, "labels: must not be empty"),
    ({"labels": [0, 1, 2]}, r"labels: must be 0 or 1, got .*2.* at position 2"),
    ({"labels": [0, 1, NAN]}, r"labels: must be 0 or 1, got .*nan.* at position 2"),
    ({"labels": [[0], [1], [1]]}, r"labels: must be one-dimensional, got shape \(3, 1\)"),
    ({"labels": [0, [1], 1]}, r"labels: must be"),
    ({"shifts": [0.0, NAN, 1.0]}, r"shifts: must be a number, got .*nan.* at position 1"),
    ({"shifts": [0.0, 1.0]}, r"shifts: must be as long as labels \(3\), got 2"),
    ({"shifts": ["a", "b", "c"]}, r"shifts: must hold numbers, got .*'a'"),
    ({"answers": [1, 0]}, r"answers: must be as long as labels \(3\), got 2"),
    ({"answers": [1, 0, 0.5]}, r"answers: must be 1 \(positive\), 0 .* or -1 .*, got .*0\.5.* at position 2"),
    (
        {"temperatures": -1.0},
        r"temperatures: must be a finite number of at least 0, got .*-1.* at position 0",
    ),
    (
        {"temperatures": [0.0, np.inf, 1]},
        r"temperatures: must be a finite number .* got .*inf.* at position 1",
    ),
    ({"temperatures": [0.0, 1.0]}, r"temperatures: must be as long as labels \(3\), got 2"),
    ({"items": [0, 0, 1]}, r"labels: must be the same for all queries of one item, .* position 0"),
    ({"items": [0, 1]}, r"items: must be as long as labels \(3\), got 2"),
    ({"items": [0.0, NAN, 1.0]}, r"items: must not be NaN, got .*nan.* at position 1"),
    ({"groups": ["a", "b"]}, r"groups: must be as long as labels \(3\), got 2"),
    (
        {"items": [0, 1, 1], "groups": ["a", "b", "c"]},
        r"groups: must be the same for all queries of one item",
    ),
    ({"jitter": -0.1}, r"jitter: must be a number of at least 0, got -0\.1"),
    ({"jitter": "guess"}, r"jitter: must be a number of at least 0, got 'guess'"),
    ({"jitter": NAN}, r"jitter: must be a number of at least 0"),
    ({"resamples": 1}, r"resamples: must be 0 or at least 2, got 1"),
    ({"resamples": -1}, r"resamples: must be a whole number of at least 0, got -1"),
    ({"resamples": 10.5}, r"resamples: must be a whole number of at least 0, got 10\.5"),
    ({"bins": 0}, r"bins: must be a whole number of at least 1, got 0"),
    ({"level": 95}, r"level: must be strictly between 0 and 1, got 95"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    """The error names the argument, the rule and the value."""
    with pytest.raises(InputError, match=message):
        bc.latent(**{**GOOD, **change})


def test_bad_questions_are_named() -> None:
    """So do the errors of what is asked of a fit."""
    fit = bc.latent(**GOOD)
    wrong: Any = 2.5
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: fit.at(bins=0), "bins: must be a whole number of at least 1, got 0"),
        (lambda: fit.at(bins=wrong), "bins: must be a whole number"),
        (lambda: fit.at(level=1.0), "level: must be strictly between 0 and 1, got 1.0"),
        (lambda: fit.at(level=NAN), "level: must be strictly between 0 and 1, got nan"),
        (lambda: fit.at(level=95), "level: must be strictly between 0 and 1, got 95"),
        (lambda: fit.curve_at([0.5, 1.5]), r"f: must be a number in \[0, 1\], got .*1\.5.* at position 1"),
        (lambda: fit.expected_cost(0, 1), "cost_fp, cost_fn: must be positive, got 0 and 1"),
        (lambda: fit.next_precision(1.0, 10), "threshold: must be strictly between 0 and 1, got 1.0"),
        (lambda: fit.next_precision(0.5, 0), "decisions: must be a whole number of at least 1, got 0"),
        (lambda: fit.choose_threshold(), "give exactly one of precision, recall"),
    ]
    for call, message in calls:
        with pytest.raises(InputError, match=message):
            call()


def test_answers_may_be_written_in_every_usual_way() -> None:
    """Booleans, numbers, None and NaN mean the same as 1, 0 and -1."""
    labels, p = generate(60, 0)
    shifts = -logit((np.random.default_rng(0).permutation(60) + 0.5) / 60)
    answers = (log_odds(p) + shifts >= 0).astype(int)

    def ece(labels: Any, shifts: Any, answers: Any) -> bc.Estimate:
        return bc.latent(labels, shifts, answers, resamples=20).ece

    plain = ece(labels, shifts, answers)
    assert ece(labels.astype(bool), shifts, answers.astype(bool)) == plain
    assert ece(labels.tolist(), shifts.tolist(), answers.astype(float).tolist()) == plain
    some = [None if i < 5 else bool(a) for i, a in enumerate(answers)]
    nans = np.where(np.arange(60) < 5, NAN, answers)
    ints = np.where(np.arange(60) < 5, -1, answers)
    fewer = ece(labels, shifts, ints)
    assert fewer != plain
    assert ece(labels, shifts, np.array(some)) == fewer
    assert ece(labels, shifts, nans) == fewer
