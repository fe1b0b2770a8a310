"""Intervals for sums of absolute values, and tails of quadratic forms, against exact answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import chi2, norm

from blindcal.estimate.uncertainty import (
    Interval,
    absolute_sum_interval,
    percentile_interval,
    quadratic_pvalue,
)

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
    found = absolute_sum_interval(np.array([estimate * sd]), (estimate + DRAWS[:, None]) * sd, level)
    low, high = folded_interval(abs(estimate) * sd, sd, level)
    assert found.low == pytest.approx(low, abs=2e-3 * sd)
    assert found.high >= high - 2e-3 * sd
    if abs(estimate) > 3:
        assert found.high == pytest.approx(high, abs=2e-3 * sd)


def test_zero_is_never_excluded_by_noise_alone() -> None:
    """For components that are pure noise the interval starts at zero in all but the stated share of cases."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((2000, 5))
    excluded = sum(
        absolute_sum_interval(estimate, draws + estimate, 0.95).low > 0
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
        covered += np.abs(truth).sum() in absolute_sum_interval(estimate, draws, 0.95)
    # binomial: sd = sqrt(.95 * .05 / 400) = .011; 4 of them below
    assert covered / 400 > 0.95 - 4 * 0.011


def test_no_noise_is_no_width() -> None:
    """Draws that never differ leave the estimate itself."""
    found = absolute_sum_interval(np.array([0.1, -0.2]), np.tile([0.1, -0.2], (50, 1)), 0.95)
    assert tuple(found) == pytest.approx((0.3, 0.3))


@given(st.integers(0, 10**6), st.sampled_from([0.5, 0.8, 0.95, 0.99]))
@settings(max_examples=25)
def test_intervals_are_ordered_and_widen_with_the_level(seed: int, level: float) -> None:
    """0 <= low <= high, and a higher level gives an interval that holds the lower one's."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 6))
    estimate = rng.standard_normal(d) * rng.choice([0.1, 1, 10])
    draws = estimate + rng.standard_normal((400, d)) * rng.random(d)
    inner, outer = (absolute_sum_interval(estimate, draws, at) for at in (level, 1 - (1 - level) / 2))
    assert 0 <= inner.low <= inner.high
    assert outer.low <= inner.low + 1e-3
    assert outer.high >= inner.high - 1e-3


def test_percentiles_are_those_of_the_draws() -> None:
    """The central 95% of a normal's draws end at +-1.96."""
    found = percentile_interval(DRAWS, 0.95)
    assert tuple(found) == pytest.approx((-1.95996, 1.95996), abs=1e-3)


def test_an_interval_unpacks_and_contains() -> None:
    """``low, high = interval`` and ``x in interval`` work, ends included."""
    low, high = Interval(0.1, 0.3, 0.95)
    assert (low, high) == (0.1, 0.3)
    assert 0.1 in Interval(0.1, 0.3, 0.95)
    assert 0.31 not in Interval(0.1, 0.3, 0.95)


@pytest.mark.parametrize("df", [1, 2, 5, 14])
@pytest.mark.parametrize("p", [0.99, 0.7, 0.5, 0.3, 0.05, 1e-3, 1e-8])
def test_equal_weights_are_chi_square(df: int, p: float) -> None:
    """With equal weights the tail is chi-square's, within the saddlepoint's few per cent."""
    statistic = float(chi2.isf(p, df))
    found = quadratic_pvalue(3.0 * statistic, np.full(df, 3.0))
    assert found == pytest.approx(p, rel=0.15 if df == 1 else 0.08)


def test_unequal_weights_match_monte_carlo() -> None:
    """For falling weights the tail is that of a million simulated sums."""
    rng = np.random.default_rng(2)
    weights = np.array([1.0, 0.6, 0.3, 0.1, 0.01, 1e-6])
    sums = rng.chisquare(1, (1_000_000, weights.size)) @ weights
    for p in (0.9, 0.5, 0.2, 0.05, 0.01):
        found = quadratic_pvalue(float(np.quantile(sums, 1 - p)), weights)
        # the saddlepoint's own error; Monte Carlo adds sqrt(p(1-p)/1e6) < .0005
        assert found == pytest.approx(p, rel=0.05, abs=0.002)


@given(st.floats(0, 200), st.floats(1e-3, 1e3))
def test_the_tail_is_a_probability_that_falls_and_has_no_unit(statistic: float, scale: float) -> None:
    """Between 0 and 1, not rising in the statistic, the same when all is rescaled."""
    weights = np.array([1.0, 0.5, 0.1])
    here = quadratic_pvalue(statistic, weights)
    assert 0 <= here <= 1
    assert quadratic_pvalue(statistic + 1, weights) <= here + 2e-3  # the seam at the mean is that wide
    assert quadratic_pvalue(statistic * scale, weights * scale) == pytest.approx(here, rel=1e-4, abs=1e-9)


def test_no_departure_no_evidence() -> None:
    """A statistic of zero, or next to it, has a p-value of one."""
    for statistic in (0.0, 1e-300, 1e-12):
        assert quadratic_pvalue(statistic, np.array([1.0, 0.5, 0.1])) == pytest.approx(1, abs=1e-4)


def test_no_weights_no_evidence() -> None:
    """Without any direction to depart in the p-value is 1."""
    assert quadratic_pvalue(1.0, np.empty(0)) == 1.0
    assert quadratic_pvalue(1.0, np.zeros(3)) == 1.0
