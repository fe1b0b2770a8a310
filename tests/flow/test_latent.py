"""`latent`: limits in which the answer is known, symmetries, little data, and arguments that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import logit
from scipy.stats import kstest

import blindcal as bc
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.records import INVALID, AnswerTable, FloatArray, IntArray, Round
from blindcal.simulation.simulate import generate, log_odds, respond
from fitting import SCALARS, asked, columns, ends, estimates_in, fitted, parts_of

NAN = float("nan")
NEED_BOTH_LABELS = {"auroc", "curve", "operating", "expected_cost", "choose_threshold"}


def check_sound(fit: bc.LatentFit) -> None:
    """No NaN, every number in its range, every interval in order; refusals are by name, and for a reason."""
    calls: dict[str, Callable[[], object]] = {
        "gaps": lambda: fit.at(bins=7).gaps,
        "pvalue": lambda: fit.calibrated_pvalue,
        "findings": fit.findings,
        "curve": lambda: fit.curve,
        "operating": lambda: fit.operating,
        "expected_cost": lambda: fit.expected_cost(1, 2),
        "choose_threshold": lambda: fit.choose_threshold(cost_fp=1, cost_fn=2),
        **{name: lambda name=name: getattr(fit, name) for name in SCALARS},  # type: ignore[misc]
    }
    values, refused = {}, {}
    for name, call in calls.items():
        try:
            values[name] = call()
        except NotIdentifiedError as error:
            refused[name] = str(error)
    assert set(refused) == (set() if np.unique(fit.patterns.labels).size == 2 else NEED_BOTH_LABELS)
    assert all(f"{name}: needs items of both labels" in message for name, message in refused.items())
    for name, value in values.items():
        assert not any(math.isnan(x) for x in parts_of(value) if isinstance(x, float)), name
        for estimate in estimates_in(value):
            assert (estimate.low is None) == (estimate.high is None), name
            if estimate.has_interval:
                assert ends(estimate)[0] <= ends(estimate)[1], name
                assert estimate.level == fit.level, name
    for name in ("ece", "tce", "accuracy", "brier", "mean_confidence"):
        low, high = ends(getattr(fit, name))
        assert 0 <= low <= high <= 1, name
    assert sum(abs(float(each.gap)) for each in fit.bins) == pytest.approx(float(fit.ece))
    assert 0 <= float(fit.ece) <= 1
    assert 0 <= fit.calibrated_pvalue <= 1


def drawn(n: int, seed: int, share: float, p: float) -> tuple[IntArray, FloatArray]:
    """Labels with this share of positive ones, and the same probability for each."""
    rng = np.random.default_rng(seed)
    return (rng.random(n) < share).astype(np.int64), np.full(n, p)


# -- limits in which the answer is known ---------------------------------------------------------------


def test_many_queries_give_the_binned_error_of_the_hidden_probabilities() -> None:
    """With a dozen queries per item nothing is left to estimate: every estimate is that of the true p."""
    labels, p = generate(1500, 1)
    fit = fitted(labels, asked(labels, p, 12))
    for bins in (3, 5, 10):
        assert fit.at(bins=bins).gaps == pytest.approx(bc.binned_ece(labels, p, bins).gaps, abs=1e-3)
    right, s = np.mean((p >= 0.5) == labels), log_odds(p)
    pairs = p[labels == 1][:, None] - p[labels == 0][None, :]
    truth = {
        "accuracy": right,
        "brier": np.mean((p - labels) ** 2),
        "auroc": np.mean(pairs > 0),
        "mean_confidence": p.mean(),
        "leaning": p.mean() - labels.mean(),
    }
    for name, value in truth.items():
        assert getattr(fit, name).value == pytest.approx(value, abs=1e-3), name
    assert fit.overconfidence.value == pytest.approx(np.maximum(p, 1 - p).mean() - right, abs=2e-3)
    loss = np.mean(np.logaddexp(0, np.where(labels == 1, -s, s)))
    assert fit.log_loss.value == pytest.approx(loss, abs=5e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_query_comes_close_to_the_binned_error(seed: int) -> None:
    """On 10,000 items of a smooth population one query per item estimates the sample's ECE within 0.0125."""
    labels, p = generate(10_000, seed)
    # sd of the estimate about its oracle is near .0035 at this size (mean |error| .0028 in METHOD 7's terms)
    assert fitted(labels, asked(labels, p, seed=seed)).ece.value == pytest.approx(
        bc.binned_ece(labels, p).ece.value, abs=0.0125
    )


def test_gaps_of_a_wavy_curve_are_covered() -> None:
    """Of 20 gaps (seeds 0-3, n = 2,000) at most 3 miss: with 95% coverage more do once in 60 times."""
    f = np.arange(0.5, 100_000) / 100_000

    def curve(p: FloatArray) -> FloatArray:
        return np.asarray(p + 0.6 * np.sin(2 * np.pi * p) * p * (1 - p))

    truth = np.reshape(f - curve(f), (5, -1)).sum(axis=1) / f.size
    missed = 0
    for seed in range(4):
        rng = np.random.default_rng([seed, 2000])
        p = rng.random(2000)
        labels = (rng.random(2000) < curve(p)).astype(np.int64)
        bins = fitted(labels, asked(labels, p, seed=seed), resamples=80, seed=seed).bins
        missed += sum(gap not in each.gap for gap, each in zip(truth.tolist(), bins, strict=True))
    assert missed <= 3


@pytest.mark.parametrize(("p", "share"), [(0.7, 0.7), (0.7, 0.5), (0.8, 0.5), (0.03, 0.2), (0.5, 0.5)])
def test_one_atom(p: float, share: float) -> None:
    """Where every item has the same probability the error is |p - mean label|, and it is covered."""
    labels, hidden = drawn(2000, 0, share, p)
    fit = fitted(labels, asked(labels, hidden))
    check_sound(fit)
    # an atom on a bin's edge (0.8) may be shared between two bins, never lost
    assert fit.ece.value == pytest.approx(abs(p - labels.mean()), abs=0.01)
    # the mean label alone has sd sqrt(share (1-share) / 2000); the 95% interval must hold 4.5 of them less
    slack = 2.5 * math.sqrt(share * (1 - share) / 2000)
    low, high = ends(fit.ece)
    assert low - slack <= abs(p - share) <= high + slack


@pytest.mark.parametrize(("share", "p"), [(0.6, 1.0), (0.3, 0.0), (0.5, 1 - 1e-12)])
def test_saturated_probabilities_have_a_place(share: float, p: float) -> None:
    """p of exactly 0 or 1, or beyond any grid, counts in the outer bins with its whole error."""
    labels, hidden = drawn(1500, 1, share, p)
    fit = fitted(labels, asked(labels, hidden))
    check_sound(fit)
    oracle = float(bc.binned_ece(labels, hidden).ece)
    assert fit.ece.value == pytest.approx(oracle, abs=0.005)
    assert oracle in fit.ece
    assert fit.calibrated_pvalue < 1e-6


def test_certain_and_right_is_calibrated() -> None:
    """p = label in {0, 1} for every item: no error, no evidence of one, and no claim to know it exactly."""
    labels, _ = drawn(1000, 2, 0.6, 0.0)
    fit = fitted(labels, asked(labels, labels.astype(float)))
    check_sound(fit)
    assert float(fit.ece) < 0.001
    assert fit.calibrated_pvalue > 0.5
    low, high = ends(fit.ece)
    # a share of 1 - .025^(1/n) goes unseen in 2.5% of samples
    assert low == 0
    assert high >= 1 - 0.025 ** (1 / 1000)
    assert ends(fit.accuracy)[0] <= 0.025 ** (1 / 1000)


# -- symmetries, groups and mixtures -------------------------------------------------------------------


def values(fit: bc.LatentFit) -> list[float]:
    estimates = fit.ece, fit.tce, fit.accuracy, fit.auroc, fit.brier, fit.log_loss
    return [*map(float, estimates), fit.calibrated_pvalue]


@pytest.mark.parametrize(("method", "queries"), [("latent", 1), ("latent", 2.5), ("temperature", 3)])
def test_order_and_names_do_not_matter(method: str, queries: float) -> None:
    """Shuffled rows give the same fit; labels, shifts and answers turned round give gaps turned round."""
    labels, p = generate(1000, 6)
    answered = asked(labels, p, queries, method)
    fit = fitted(labels, answered)
    order = np.random.default_rng(0).permutation(len(answered))
    shuffled = fitted(labels, AnswerTable(*(column[order] for column in columns(answered))))
    assert values(shuffled) == pytest.approx(values(fit), rel=1e-9)
    assert ends(shuffled.ece) == pytest.approx(ends(fit.ece), rel=1e-9)
    answers = AnswerTable(answered.items, -answered.shifts, answered.temperatures, 1 - answered.answers)
    turned = fitted(1 - labels, answers)
    # f >= t turns into f > t: the cells are open on the other side, which no answer at an edge tells apart
    assert turned.gaps == pytest.approx(-fit.gaps[::-1], abs=1e-6)
    assert values(turned) == pytest.approx(values(fit), rel=1e-5)
    assert turned.mean_confidence.value == pytest.approx(1 - float(fit.mean_confidence), abs=1e-6)


def test_groups_undo_the_false_certainty_of_duplicates() -> None:
    """Four copies of every item look like four times the data, unless groups say that they are not."""
    labels, p = generate(500, 9)
    answered = asked(labels, p)
    once = fitted(labels, answered, resamples=400)
    shifts, temperatures, answers = (np.tile(column, 4) for column in columns(answered)[1:])
    copies = np.concatenate([answered.items + 500 * k for k in range(4)])
    copied = AnswerTable(copies, shifts, temperatures, answers)
    plain, grouped = (
        fitted(np.tile(labels, 4), copied, groups=groups, resamples=400)
        for groups in (None, np.tile(answered.items, 4))
    )
    for name in ("ece", "accuracy", "auroc", "brier"):
        width = [getattr(fit, name).half_width for fit in (once, plain, grouped)]
        # half the width with four times the data; back to the first with groups (Monte Carlo error: a tenth)
        assert width[1] < 0.75 * width[0], name
        assert width[2] == pytest.approx(width[0], rel=0.25), name
    assert plain.calibrated_pvalue < min(once.calibrated_pvalue, grouped.calibrated_pvalue)


def test_a_known_jitter_is_taken_into_account() -> None:
    """With much noise, known noise beats ignored noise on thresholds that are asked twice."""
    labels, p = generate(3000, 5)
    answered = asked(labels, p, jitter=0.8)
    once = Round(answered.items, answered.shifts, answered.temperatures)
    answered = answered.with_round(once, respond(log_odds(p), once, np.random.default_rng(1), 0.8))
    known, ignored = (fitted(labels, answered, jitter=jitter, bins=10) for jitter in (0.8, 0.0))
    oracle = bc.binned_ece(labels, p, 10).gaps
    assert np.abs(known.gaps - oracle).sum() < np.abs(ignored.gaps - oracle).sum()
    assert ignored.contradictions > 0


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
    assert 1 / 6 in fit.at(level=0.99).ece  # E(f - f^2) under Beta(2, 1)
    # n items alike say no more than that the share of others is at most 1 - .025^(1/n)
    low, high = ends(fit.ece)
    assert high - low >= (1 - 0.025 ** (1 / n)) * 0.99
    assert fit.calibrated_pvalue > 1e-4


@pytest.mark.parametrize("n", [3, 21, 80])
def test_a_few_right_answers_do_not_show_a_direction_of_nearly_zero(n: int) -> None:
    """Certain and right every time: a share of 1 - .025^(1/n) of the questions may still be otherwise."""
    labels, _ = drawn(n, 2, 0.6, 0.0)
    fit = fitted(labels, asked(labels, labels.astype(float)), resamples=60)
    unseen = 1 - 0.025 ** (1 / n)
    low, high = ends(fit.overconfidence)  # half right and unsure, or sure and wrong
    assert low <= -0.5 * unseen * 0.99
    assert high >= unseen * 0.99
    low, high = ends(fit.leaning)
    assert low <= -unseen * 0.99
    assert high >= unseen * 0.99


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("groups", [1, 2])
def test_one_or_two_groups_show_no_direction(groups: int, seed: int) -> None:
    """However overconfident 30 questions about one text are, another text may be otherwise."""
    labels, p = drawn(30 * groups, seed, 0.5, 0.97)
    answered = asked(labels, p, seed=seed)
    fit = fitted(labels, answered, resamples=60, groups=answered.items // 30)
    for estimate in (fit.overconfidence, fit.leaning):
        assert 0 in estimate
        assert 2 * estimate.half_width > 1
    curve = fit.curve_at([0.9])
    assert curve.low is not None
    assert curve.high is not None
    assert curve.high[0] - curve.low[0] > 0.5


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_only(label: int) -> None:
    """Gaps against a single class are estimated; what needs both classes is refused by name."""
    p = np.random.default_rng(0).beta(2, 1, 1500)
    labels = np.full(1500, label)
    fit = fitted(labels, asked(labels, p))
    check_sound(fit)
    assert fit.ece.value == pytest.approx(abs(p - label).mean(), abs=0.01)


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
    part = replace(answered, answers=np.where(lost, INVALID, answered.answers))
    whole, fit = fitted(labels, answered), fitted(labels, part)
    check_sound(fit)
    assert (fit.invalid, fit.patterns.unanswered, fit.items, fit.queries) == (
        lost.sum(),
        lost.sum(),
        2000,
        2000,
    )
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
    # not a bound a few times too small, or too large
    assert fit.invalid_bound / 4 < max(moved) <= fit.invalid_bound


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


def test_a_single_threshold_gives_the_accuracy_and_leaves_the_error_open() -> None:
    """All items asked b = 0: accuracy is exact, and calibration is not ruled out."""
    held, highest = 0, 0.0
    for seed in range(4):
        labels, p = generate(2000, seed)
        fit = bc.latent(labels, np.zeros(2000), p >= 0.5, resamples=300)
        assert fit.accuracy.value == pytest.approx(np.mean((p >= 0.5) == labels), abs=1e-6)
        held += float(bc.binned_ece(labels, p).ece) in fit.ece
        highest = max(highest, ends(fit.ece)[1])
        if seed == 2:
            check_sound(fit)
            assert fit.ece.low == 0
            assert fit.calibrated_pvalue > 1e-3
    assert held >= 3
    # an item surely lies on its own side of 1/2, so that not everything is possible
    assert highest < 0.75


# -- the p-value -----------------------------------------------------------------------------------------


def pvalues_of(
    repeats: int, n: int, a: float, b: float, up: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    pvalues = []
    for seed in range(repeats):
        rng = np.random.default_rng([seed, 1 if n == 300 else 2])
        p = rng.beta(a, b, n)
        labels = (rng.random(n) < up(p)).astype(np.int64)
        pvalues.append(fitted(labels, asked(labels, p, seed=seed), resamples=0).calibrated_pvalue)
    return np.array(pvalues)


def test_the_pvalue_is_uniform_under_the_null() -> None:
    """On 20 calibrated samples of 300 items the p-values look uniform."""
    pvalues = pvalues_of(20, 300, 0.8, 0.6, lambda p: p)
    # binomial(20, .05): mean 1, sd 1; 3 of them. Kolmogorov-Smirnov at one in a thousand
    assert (pvalues < 0.05).sum() <= 1 + 3 * 1
    assert kstest(pvalues, "uniform").pvalue > 1e-3


def test_the_pvalue_sees_an_error_of_a_twentieth() -> None:
    """At TCE 0.05 (E|.2 (f - .5)|) and n = 3,000, nearly every sample is told from a calibrated one."""
    pvalues = pvalues_of(12, 3000, 1, 1, lambda p: p + 0.2 * (0.5 - p))
    # power above .9: of 12, 10.8 less 2 binomial sds of 1.04
    assert (pvalues < 0.05).sum() >= 10.8 - 2 * 1.04


# -- arguments -------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"labels": [0, 1, 1], "shifts": [0.0, 1.0, -1.0], "answers": [1, 0, 1]}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"labels": []}, "labels: must not be empty"),
    ({"shifts": [0.0, NAN, 1.0]}, r"shifts: must be a number, got .*nan.* at position 1"),
    ({"shifts": [0.0, 1.0]}, r"shifts: must be as long as labels \(3\), got 2"),
    ({"answers": [1, 0, 0.5]}, r"answers: must be 1 \(positive\), 0 .* or -1 .*, got .*0\.5.* at position 2"),
    ({"temperatures": -1.0}, r"temperatures: must be a finite number of at least 0, got .*-1.* position 0"),
    ({"temperatures": [0.0, np.inf, 1]}, r"temperatures: must be a finite number .* got .*inf.* position 1"),
    ({"items": [0, 0, 1]}, r"labels: must be the same for all queries of one item, .* position 0"),
    ({"items": [0.0, NAN, 1.0]}, r"items: must not be NaN, got .*nan.* at position 1"),
    ({"items": [0, 1, 1], "groups": ["a", "b", "c"]}, r"groups: must be the same for all queries of one"),
    ({"jitter": -0.1}, r"jitter: must be a number of at least 0, got -0\.1"),
    ({"jitter": NAN}, r"jitter: must be a number of at least 0"),
    ({"resamples": 1}, r"resamples: must be 0 or at least 2, got 1"),
    ({"resamples": 10.5}, r"resamples: must be a whole number of at least 0, got 10\.5"),
    ({"level": 95}, r"level: must be strictly between 0 and 1, got 95"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    """The error names the argument, the rule and the value."""
    with pytest.raises(InputError, match=message):
        bc.latent(**{**GOOD, **change})


def test_bad_arguments_of_a_fit_are_named() -> None:
    """So are those of its methods."""
    fit = bc.latent(**GOOD)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: fit.at(bins=0), "bins: must be a whole number of at least 1, got 0"),
        (lambda: fit.at(level=1.0), "level: must be strictly between 0 and 1, got 1.0"),
        (lambda: fit.at(level=NAN), "level: must be strictly between 0 and 1, got nan"),
        (lambda: fit.curve_at([0.5, 1.5]), r"f: must be a number in \[0, 1\], got .*1\.5.* at position 1"),
        (lambda: fit.expected_cost(0, 1), "cost_fp, cost_fn: must be positive, got 0 and 1"),
        *(
            (lambda t=t: fit.operating_at(t), "thresholds: must lie strictly between 0 and 1")
            for t in ([0.0], [0.5, 1.0], [NAN], [[0.5]])
        ),
        (lambda: fit.expected_cost(1, 1, [1.0]), "thresholds: must lie strictly between 0 and 1"),
    ]
    for call, message in calls:
        with pytest.raises(InputError, match=message):
            call()


def test_answers_may_be_written_in_every_usual_way() -> None:
    """Booleans, numbers, None and NaN mean the same as 1, 0 and -1."""
    labels, p = generate(60, 0)
    shifts = -logit((np.random.default_rng(0).permutation(60) + 0.5) / 60)
    answers = (log_odds(p) + shifts >= 0).astype(int)

    def ece(labels: Any, shifts: Any, answers: Any) -> float:
        return float(bc.latent(labels, shifts, answers, resamples=0).ece)

    lost = np.arange(60) < 5
    plain, fewer = ece(labels, shifts, answers), ece(labels, shifts, np.where(lost, -1, answers))
    assert plain != fewer
    assert ece(labels.astype(bool), shifts, answers.astype(bool)) == plain
    assert ece(labels.tolist(), shifts.tolist(), answers.astype(float).tolist()) == plain
    assert ece(labels, shifts, np.array([None if i < 5 else bool(a) for i, a in enumerate(answers)])) == fewer
    assert ece(labels, shifts, np.where(lost, NAN, answers)) == fewer
