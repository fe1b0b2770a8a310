"""The published estimator: METHOD 3's formula, its expectation, its bounds, and unusual answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.published import BlindResult, blind, blind_subsets
from blindcal.records import Estimate, FloatArray, IntArray

NAN = float("nan")


def naive_gaps(labels: IntArray, thresholds: FloatArray, answers: IntArray, bins: int) -> list[float]:
    """METHOD 3 as it is written, one item at a time."""

    def term(threshold: float, centre: float) -> float:
        total, size = 0.0, 0
        for y, t, a in zip(labels, thresholds, answers, strict=True):
            if abs(t - threshold) < 1e-9:
                indicator = 1 if threshold == 0 else a
                total += (centre - y) * indicator
                size += 1
        return total / size

    gaps = []
    for m in range(1, bins + 1):
        centre = (m - 0.5) / bins
        second = term(m / bins, centre) if m < bins else 0.0
        gaps.append(term((m - 1) / bins, centre) - second)
    return gaps


def asked(f: FloatArray, bins: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Thresholds of random subsets, and what an endpoint answers to them."""
    thresholds = blind_subsets(f.size, bins, rng) / bins
    return thresholds, (f >= thresholds).astype(np.int64)


def audit(labels: IntArray, f: FloatArray, bins: int, rng: np.random.Generator) -> BlindResult:
    thresholds, answers = asked(f, bins, rng)
    return blind(labels, thresholds, answers, bins)


@given(st.integers(1, 9), st.integers(0, 10_000))
@settings(deadline=None)
def test_gaps_are_those_of_the_formula(bins: int, seed: int) -> None:
    """The gaps are METHOD's Delta_m, whatever the answers (they need not come from any f)."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(bins, 60 + bins))
    labels, answers = rng.integers(0, 2, n), rng.integers(0, 2, n)
    thresholds = blind_subsets(n, bins, rng) / bins
    found = blind(labels, thresholds, answers, bins)
    naive = naive_gaps(labels, thresholds, answers, bins)
    assert found.gaps == pytest.approx(naive, abs=1e-12)
    assert found.ece.value == pytest.approx(sum(map(abs, naive)), abs=1e-12)


@given(st.integers(1, 400), st.integers(1, 20), st.integers(0, 99))
def test_subsets_are_disjoint_and_even(n: int, bins: int, seed: int) -> None:
    """Every item has one subset, and sizes differ by at most one."""
    subsets = blind_subsets(n, bins, np.random.default_rng(seed))
    sizes = np.bincount(subsets, minlength=bins)
    assert sizes.size == bins
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= 1


def expected_gap(m: int, bins: int) -> float:
    """E Delta_m for f uniform on (0, 1) and E[Y|f] = f^2: the integral of c_m - f^2 over bin m."""
    low, high = (m - 1) / bins, m / bins
    return (m - 0.5) / bins * (high - low) - (high**3 - low**3) / 3


def test_gaps_have_their_expectation_and_variance_within_the_bound() -> None:
    """Over many audits of a population the mean gap is METHOD's expectation and Var(Delta_m) <= 2M/N."""
    n, bins, audits = 1000, 5, 1500
    rng = np.random.default_rng(5)
    gaps = np.empty((audits, bins))
    eces = np.empty(audits)
    for k in range(audits):
        f = rng.random(n)
        found = audit((rng.random(n) < f**2).astype(np.int64), f, bins, rng)
        gaps[k], eces[k] = found.gaps, float(found.ece)
    expected = np.array([expected_gap(m, bins) for m in range(1, bins + 1)])
    gap_variance, variance, lipschitz = 2 * bins / n, 8 * bins**2 / n, 2.0  # the theorem's bounds
    statistical = math.sqrt(2) * bins**1.5 / math.sqrt(n)
    bias = statistical + 1 / (2 * bins) + (1 + lipschitz) / (2 * bins)
    # the mean of `audits` draws, each of variance at most 2M/N: four standard errors
    assert np.abs(gaps.mean(axis=0) - expected).max() < 4 * math.sqrt(gap_variance / audits)
    assert gaps.var(axis=0).max() <= gap_variance
    assert eces.var() <= variance
    tce = 1 / 6
    assert abs(eces.mean() - tce) <= bias
    assert ((eces - tce) ** 2).mean() <= bias**2 + variance
    # |noise| only adds: the mean of the sum lies above the sum of |means|, within B_stat
    assert 0 <= eces.mean() - np.abs(expected).sum() <= statistical


def test_an_empty_subset_leaves_its_gaps_undefined_and_the_sum_refused() -> None:
    """Gaps beside an empty subset are NaN and noted; their sum is an error, and unknown in findings."""
    found = blind([1, 0, 1, 0], [0.0, 0.2, 0.4, 0.8], [1, 1, 0, 0], bins=5)
    assert np.isnan(found.gaps).tolist() == [False, False, True, True, False]
    assert any("1 subset(s) hold no valid answer" in note for note in found.notes)
    with pytest.raises(NotIdentifiedError, match="gap 3 of 5 has no valid answer to rest on"):
        _ = found.ece
    findings = found.findings()
    assert [one.gap.value is None for one in findings.bins] == [False, False, True, True, False]
    assert (findings.ece, findings.leaning, findings.overconfidence) == (Estimate(None),) * 3
    assert findings.ece_if_invalid == (0.0, 1.0)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=50)
def test_the_invalid_bound_holds_for_every_way_the_answers_could_have_been(seed: int) -> None:
    """Replacing invalid answers by any valid ones moves the ECE by no more than the stated bound."""
    rng = np.random.default_rng(seed)
    n, bins = 60, int(rng.integers(2, 5))
    f = rng.random(n)
    labels = (rng.random(n) < f).astype(np.int64)
    thresholds, answers = asked(f, bins, rng)
    lost = rng.random(n) < 0.15
    found = blind(labels, thresholds, np.where(lost, -1, answers), bins)
    assert found.invalid == int((lost & (thresholds > 0)).sum())
    if np.isnan(found.gaps).any():
        return
    for fill in (np.zeros(n, int), np.ones(n, int), labels, 1 - labels, rng.integers(0, 2, n)):
        complete = blind(labels, thresholds, np.where(lost, fill, answers), bins)
        assert abs(float(complete.ece) - float(found.ece)) <= found.invalid_bound + 1e-12


@pytest.mark.parametrize("bins", [1, 4, 5])
def test_findings_are_sums_of_signed_gaps(bins: int) -> None:
    """Leaning adds up all gaps, overconfidence those above 1/2 less those below, and none around 1/2."""
    rng = np.random.default_rng(6)
    f = rng.random(400)
    labels = (rng.random(400) < f**2).astype(np.int64)
    thresholds, answers = asked(f, bins, rng)
    answers[:40] = -1
    result = blind(labels, thresholds, answers, bins)
    found = result.findings()
    assert found.ece == result.ece == Estimate(float(np.abs(result.gaps).sum()))
    assert [one.gap.value for one in found.bins] == result.gaps.tolist()
    assert [(one.low, one.high) for one in found.bins] == [(m / bins, (m + 1) / bins) for m in range(bins)]
    assert found.leaning.value == pytest.approx(sum(result.gaps))
    below, above = range(bins // 2), range(bins - bins // 2, bins)
    over = sum(result.gaps[m] for m in above) - sum(result.gaps[m] for m in below)
    assert found.overconfidence.value == pytest.approx(over)
    bound = result.invalid_bound
    assert (bound > 0) == (bins > 1)
    assert found.ece_if_invalid == (max(0.0, float(result.ece) - bound), min(1.0, float(result.ece) + bound))
    assert (found.accuracy, found.curve, found.operating) == (Estimate(None), None, ())


BAD = [
    (([], [], []), "labels: must not be empty"),
    (([0, 3], [0, 0.5], [1, 1]), r"labels: must be 0 or 1, got .*3.* at position 1"),
    (([0, 1], [0, 0.3], [1, 1]), r"thresholds: must be one of 0, 1/2, .*got .*0\.3.* at position 1"),
    (([0, 1], [0, NAN], [1, 1]), r"thresholds: must be a number in \[0, 1\], got .*nan.* at position 1"),
    (([0, 1], [0], [1, 1]), r"thresholds: must be as long as labels \(2\), got 1"),
    (([0, 1], [0, 0.5], [1, 2]), r"answers: must be 1 \(positive\), 0 .* got .*2.* at position 1"),
    (([0, 1], [0, 0.5], ["Yes", "No"]), r"answers: must hold numbers, got .*'Yes'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_named(arguments: tuple[object, object, object], message: str) -> None:
    """The error names the argument, the rule and the value."""
    with pytest.raises(InputError, match=message):
        blind(*arguments, bins=2)  # type: ignore[arg-type]  # on purpose
