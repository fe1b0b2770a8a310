"""Intervals and p-values against exact answers, and what one noisy answer per item leaves open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import binomtest, chi2, kstest, norm

from blindcal import latent
from blindcal.estimate.findings import AnswerMargins
from blindcal.estimate.latent.intervals import error_bounds
from blindcal.estimate.patterns import count_patterns
from blindcal.estimate.truth import binned_ece
from blindcal.estimate.uncertainty import (
    absolute_sum_interval,
    beyond,
    heterogeneity_pvalue,
    quadratic_pvalue,
    unseen_draws,
)
from blindcal.records import AnswerTable, Estimate, FloatArray, IntArray

# the midpoints of 20,000 equal slices of a standard normal: draws without Monte Carlo error
DRAWS = norm.ppf((np.arange(20_000) + 0.5) / 20_000)


def folded_interval(observed: float, sd: float, level: float) -> tuple[float, float]:
    """Exact inversion: which |mean| of a normal makes so large, or so small, an absolute value unusual?"""
    tail = (1 - level) / 2

    def above(mean: float) -> float:
        return float(norm.sf((observed - mean) / sd) + norm.cdf((-observed - mean) / sd))

    low = 0.0 if above(0.0) >= tail else brentq(lambda m: above(m) - tail, 0, observed)
    high = brentq(lambda m: (1 - above(m)) - tail, 0, observed + 10 * sd) if 1 - above(0.0) > tail else 0.0
    return low, high


@pytest.mark.parametrize("estimate", [0.0, 0.3, 1.0, 1.9, 2.3, 3.0, 6.0, -0.3, -2.3, -6.0])
@pytest.mark.parametrize(("sd", "level"), [(1.0, 0.95), (0.02, 0.95), (1.0, 0.8)])
def test_one_component_inverts_the_folded_normal(estimate: float, sd: float, level: float) -> None:
    """In one dimension the interval holds the exact one, and is exactly it away from zero."""
    interval = absolute_sum_interval(np.array([estimate * sd]), (estimate + DRAWS[:, None]) * sd, level)
    low, high = folded_interval(abs(estimate) * sd, sd, level)
    assert interval[0] == pytest.approx(low, abs=2e-3 * sd)
    assert interval[1] >= high - 2e-3 * sd
    if abs(estimate) > 3:
        assert interval[1] == pytest.approx(high, abs=2e-3 * sd)


def test_zero_is_never_excluded_by_noise_alone() -> None:
    """For components that are pure noise the interval starts at zero in all but the stated share of cases."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((2000, 5))
    excluded = sum(
        absolute_sum_interval(estimate, draws + estimate, 0.95)[0] > 0
        for estimate in rng.standard_normal((400, 5))
    )
    # one-sided 2.5% of 400: mean 10, sd 3.1; 4 of them
    assert excluded <= 10 + 4 * 3.1


def test_intervals_cover_a_sum_of_absolute_values() -> None:
    """Over repeated estimates with components large and small the 95% interval covers as often as it says."""
    rng = np.random.default_rng(1)
    truth = np.array([4.0, -2.0, 0.5, 0.0, -6.0])
    covered = 0
    for estimate in truth + rng.standard_normal((400, 5)):
        draws = estimate + rng.standard_normal((1000, 5))
        low, high = absolute_sum_interval(estimate, draws, 0.95)
        covered += low <= np.abs(truth).sum() <= high
    # binomial: sd = sqrt(.95 * .05 / 400) = .011; 4 of them below
    assert covered / 400 > 0.95 - 4 * 0.011


def test_an_estimate_holds_what_lies_in_its_interval() -> None:
    """``x in estimate`` is about the interval, ends included; without an interval nothing is in it."""
    estimate = Estimate(0.2, 0.1, 0.3, 0.95)
    assert [x in estimate for x in (0.0999, 0.1, 0.25, 0.3, 0.3001)] == [False, True, True, True, False]
    assert float("nan") not in estimate
    for bare in (Estimate(0.2), Estimate(None), Estimate(0.2, low=0.1), Estimate(0.2, high=0.3)):
        assert not bare.has_interval
        assert 0.2 not in bare
    assert estimate.has_interval


FORMATTED = [
    (Estimate(0.09876, 0.08221, 0.11509, 0.95), ".4f", "0.0988 (95%: 0.0822 to 0.1151)"),
    (Estimate(0.09876, 0.08221, 0.11509, 0.95), ".1%", "9.9% (95%: 8.2% to 11.5%)"),
    (Estimate(0.5, 0.25, 0.75, 0.999), "", "0.5000 (99.9%: 0.2500 to 0.7500)"),
    (Estimate(0.5, 0.25, 0.75), ".2f", "0.50 (0.25 to 0.75)"),
    (Estimate(-0.04), "+.3f", "-0.040"),
    (Estimate(0.5, low=0.25), ".2f", "0.50"),
    (Estimate(None), ".4f", "unknown"),
    (Estimate(None, 0.0, 1.0, 0.95), ".4f", "unknown"),
]


@pytest.mark.parametrize(("estimate", "spec", "text"), FORMATTED)
def test_an_estimate_is_written_with_its_interval(estimate: Estimate, spec: str, text: str) -> None:
    """The format is that of each number; the level is named where it is known."""
    assert format(estimate, spec) == text


def test_estimates_that_differ_by_chance_are_called_alike() -> None:
    """Under one mean Cochran's Q is chi-square: the share of p-values below 5% is 5%, and a shift is seen."""
    rng = np.random.default_rng(4)
    covariances = [np.array([[a, 0.3 * a], [0.3 * a, 2 * a]]) for a in (1.0, 4.0, 0.25)]
    roots = [np.linalg.cholesky(covariance) for covariance in covariances]

    def drawn(shift: float) -> list[np.ndarray]:
        values = [np.array([3.0, -1.0]) + root @ rng.standard_normal(2) for root in roots]
        return [values[0] + shift, *values[1:]]

    null = np.array([heterogeneity_pvalue(drawn(0.0), covariances) for _ in range(1000)])
    # binomial: sd = sqrt(.05 * .95 / 1000) = .0069; 4 of them. Kolmogorov-Smirnov at one in a thousand
    assert abs((null < 0.05).mean() - 0.05) < 4 * 0.0069
    assert kstest(null, "uniform").pvalue > 1e-3
    assert heterogeneity_pvalue(drawn(12.0), covariances) < 1e-6


def test_heterogeneity_of_two_numbers_is_their_z_test() -> None:
    """Two values with a variance each: Q is the square of (a - b) over its standard error."""
    pvalue = heterogeneity_pvalue([np.array([0.3]), np.array([0.8])], [np.eye(1) * 0.04, np.eye(1) * 0.09])
    assert pvalue == pytest.approx(2 * norm.sf(0.5 / np.sqrt(0.13)), rel=1e-6)


def test_unequal_weights_match_monte_carlo() -> None:
    """For falling weights the tail is that of a million simulated sums."""
    rng = np.random.default_rng(2)
    weights = np.array([1.0, 0.6, 0.3, 0.1, 0.01, 1e-6])
    sums = rng.chisquare(1, (1_000_000, weights.size)) @ weights
    for p in (0.9, 0.5, 0.2, 0.05, 0.01):
        tail = quadratic_pvalue(float(np.quantile(sums, 1 - p)), weights)
        # the saddlepoint's own error; Monte Carlo adds sqrt(p(1-p)/1e6) < .0005
        assert tail == pytest.approx(p, rel=0.05, abs=0.002)


@given(st.floats(0, 200), st.floats(1e-3, 1e3))
def test_the_tail_is_a_probability_that_falls_and_has_no_unit(statistic: float, scale: float) -> None:
    """Between 0 and 1, not rising in the statistic, the same when all is rescaled."""
    weights = np.array([1.0, 0.5, 0.1])
    tail = quadratic_pvalue(statistic, weights)
    assert 0 <= tail <= 1
    assert quadratic_pvalue(statistic + 1, weights) <= tail + 2e-3  # the seam at the mean is that wide
    assert quadratic_pvalue(statistic * scale, weights * scale) == pytest.approx(tail, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(("right", "n"), [(0, 20), (9, 10), (19, 20), (45, 50), (25, 50)])
def test_draws_joined_by_an_unseen_share_are_like_clopper_and_pearson(right: int, n: int) -> None:
    """The ends are near those of the exact interval of a share, within a tenth of its width."""
    rng = np.random.default_rng(0)
    shares, unseen = rng.binomial(n, right / n, 20_000) / n, unseen_draws(n, 20_000, rng)
    low = np.quantile((1 - unseen) * shares, 0.025)
    high = np.quantile((1 - unseen) * shares + unseen, 0.975)
    exact = binomtest(right, n).proportion_ci(0.95, "exact")
    wide = exact.high - exact.low
    assert low == pytest.approx(exact.low, abs=0.1 * wide)
    assert high == pytest.approx(exact.high, abs=0.1 * wide)


def test_a_far_interval_is_that_of_a_normal_distribution() -> None:
    """If the refits are normal, the widened interval is exact although none of them is that far out."""
    low, high = (0.4 + 0.03 * float(norm.ppf(share)) for share in (0.025, 0.975))
    near = Estimate(0.4, low, high, 0.95)
    few = Estimate(0.4, 0.33, 0.47, 0.9991)  # the extremes of few refits, which fall short
    widened = beyond(near, few)
    exact = [0.4 + 0.03 * float(norm.ppf(share)) for share in (0.00045, 0.99955)]
    assert (widened.low, widened.high) == pytest.approx(exact)
    assert widened.level == 0.9991
    wide = beyond(near, replace(few, low=0.1))  # what an unseen share allows stays allowed
    assert (wide.low, wide.high) == pytest.approx((0.1, widened.high))
    assert beyond(Estimate(0.01, 0.0, 0.2, 0.95), Estimate(0.01, 0.0, 0.21, 0.99)).low == 0.0
    assert beyond(Estimate(0.3), Estimate(0.3)) == Estimate(0.3)


# -- one noisy answer per item -----------------------------------------------------------------------

N = 4000


def asked(labels: IntArray, f: FloatArray, rng: np.random.Generator, temperature: float = 1.0) -> IntArray:
    """One answer per item, drawn at a temperature."""
    return np.asarray(rng.random(labels.size) < expit(logit(f) / temperature)).astype(np.int64)


def bounds_of(
    labels: IntArray, answers: IntArray, temperature: float | FloatArray = 1.0, level: float = 0.95
) -> tuple[float, float] | None:
    n = labels.size
    heats = np.broadcast_to(np.asarray(temperature, float), answers.shape)
    items = np.arange(answers.size) * n // answers.size
    patterns = count_patterns(labels, AnswerTable(items, np.zeros(answers.size), heats, answers))
    return error_bounds(patterns, level, n)


def test_at_one_the_bounds_are_two_shares() -> None:
    """Between the difference of the shares of yes, and the share of answers that differ from the label."""
    rng = np.random.default_rng(0)
    f = rng.beta(2, 1, N)
    labels = (rng.random(N) < f**2).astype(np.int64)
    answers = asked(labels, f, rng)
    shares = abs(answers.mean() - labels.mean()), np.mean(answers != labels)
    # chance left out; a cell is 1/480 wide
    assert bounds_of(labels, answers, level=1e-9) == pytest.approx(shares, abs=2e-3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_models_that_answer_alike_are_all_inside(temperature: float) -> None:
    """A model that wavers and one that is sure give the same answers, and each may be the one.

    At T = 1 their answers are the same in law, and their errors the two ends: 0 and 1/2. Chance puts an
    end outside by its two-sided 5% at the most; seeds 0 to 9, N = 4000.
    """
    outside = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 2, N)
        sure = np.where(rng.random(N) < 0.5, 1e-5, 1 - 1e-5)
        for f in (np.full(N, 0.5), sure, rng.beta(0.5, 0.5, N)):
            bounds = bounds_of(labels, asked(labels, f, rng, temperature), temperature)
            assert bounds is not None
            outside += not bounds[0] - 0.005 <= float(binned_ece(labels, f, 5).ece) <= bounds[1] + 0.005
    assert outside <= 5  # of 30; more than five would have a chance of 0.003 at 5% each


def test_the_interval_of_a_fit_is_as_wide() -> None:
    """One draw per item cannot tell a sure model from a wavering one, and the interval says so."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, N)
    f = np.where(rng.random(N) < 0.5, 1e-5, 1 - 1e-5)
    fit = latent(labels, np.zeros(N), asked(labels, f, rng), np.ones(N), resamples=50)
    assert float(binned_ece(labels, f, 5).ece) in fit.ece
    assert 0.0 in fit.ece


def test_other_questions_tell_more() -> None:
    """Thresholds, two temperatures or two draws per item are left to the likelihood."""
    rng = np.random.default_rng(4)
    labels, f = rng.integers(0, 2, 200), rng.random(200)
    answers = asked(labels, f, rng)
    assert bounds_of(labels, answers, 0.0) is None
    assert bounds_of(labels, answers, np.where(np.arange(200) < 100, 1.0, 2.0)) is None
    assert bounds_of(labels[:100], answers) is None


# Answers given as often as they are right


#: Unaided distance vision of the left and the right eye of 7,477 women (Stuart 1955).
VISION = ((1520, 266, 124, 66), (234, 1512, 432, 78), (117, 362, 1772, 205), (36, 82, 179, 492))


def test_the_pvalue_is_the_published_one() -> None:
    """The statistic of these eyes is 11.957, with three degrees of freedom."""
    found = AnswerMargins.of(VISION)
    assert found is not None
    assert found.pvalue is not None
    assert chi2.isf(found.pvalue, 3) == pytest.approx(11.957, abs=5e-4)
    assert found.labelled == pytest.approx([1976 / 7477, 2256 / 7477, 2456 / 7477, 789 / 7477])
    assert found.given == pytest.approx([1907 / 7477, 2222 / 7477, 2507 / 7477, 841 / 7477])


def test_nothing_is_claimed_without_wrong_answers_or_with_groups() -> None:
    """No wrong answer, no test; items in groups, no test; no answers, nothing at all."""
    right = AnswerMargins.of(((5, 0, 0), (0, 7, 0), (0, 0, 9)))
    assert right is not None
    assert (right.moved, right.pvalue) == (0.0, None)
    grouped = AnswerMargins.of(VISION, grouped=True)
    assert grouped is not None
    assert grouped.pvalue is None
    assert AnswerMargins.of(()) is None
    assert AnswerMargins.of(((0, 0, 0),) * 3) is None


def test_the_pvalue_of_a_fair_model_is_uniform() -> None:
    """If answers and labels have the same distribution, a share p of the p-values is below p."""
    rng = np.random.default_rng(0)
    cells = np.array([[0.2, 0.04, 0.03], [0.04, 0.25, 0.06], [0.03, 0.06, 0.29]])
    tables = rng.multinomial(600, cells.ravel() / cells.sum(), 400).reshape(-1, 3, 3)
    found = np.array([AnswerMargins.of(table.tolist()).pvalue for table in tables])  # type: ignore[union-attr]
    for level in (0.1, 0.5):
        # three standard errors of 400 draws
        assert abs((found < level).mean() - level) < 3 * np.sqrt(level * (1 - level) / 400)
