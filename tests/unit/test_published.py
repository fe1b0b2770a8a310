"""The published estimator (METHOD 3) and the paper's baselines, against slow computations and its bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.findings import OperatingPoint
from blindcal.estimate.grid import MID_S
from blindcal.estimate.published import (
    BlindResult,
    blind,
    blind_subsets,
    extracted,
    findings_at_face_value,
    sampled_shares,
)
from blindcal.methods import make_design
from blindcal.records import AnswerTable, Estimate, FloatArray, IntArray
from blindcal.simulation.simulate import ask

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


# The baselines


def test_sampling_counts_the_valid_answers() -> None:
    """An item's probability is its share of positive answers among its valid ones; NaN if it has none."""
    items = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    answers = np.array([1, 0, 1, -1, 0, -1, 1, 1])
    asked = AnswerTable(items, np.zeros(8), np.ones(8), answers)
    assert sampled_shares(5, asked) == pytest.approx([2 / 3, 0, np.nan, 1, np.nan], nan_ok=True)


def bisected(p: float, queries: int) -> float:
    """The paper's bisection for one item, written as a loop."""
    low, high = -15.0, 15.0
    s = float(logit(p))
    for _ in range(queries):
        b = (low + high) / 2
        if s + b >= 0:
            high = b
        else:
            low = b
    return float(expit(-(low + high) / 2))


@pytest.mark.parametrize("queries", [1, 2, 3, 5, 8])
def test_extraction_is_bisection(queries: int) -> None:
    """Rounds of the design, answered and read back, are the loop that bisects each item by itself."""
    p = np.random.default_rng(2).beta(0.3, 0.4, 50)
    labels = np.arange(50) % 2
    answered = ask(make_design("extraction", labels, queries=queries), p)
    assert len(answered) == 50 * queries
    found = extracted(50, answered)
    assert found == pytest.approx([bisected(f, queries) for f in p], abs=1e-12)


values = st.integers(0, 20).map(lambda k: k / 20) | st.floats(0, 1)
items = st.lists(
    st.tuples(st.integers(0, 1), values | st.just(float("nan"))), min_size=1, max_size=40
).filter(lambda rows: any(np.isfinite(f) for _, f in rows))


@given(items, st.integers(1, 9))
def test_probabilities_at_face_value_are_counted_item_by_item(
    rows: list[tuple[int, float]], bins: int
) -> None:
    """Bins, scores, distributions and rates are what a loop over the items with a probability finds."""
    labels, p = np.array([y for y, _ in rows]), np.array([f for _, f in rows])
    found = findings_at_face_value(labels, p, bins)
    known = [(y, f) for y, f in rows if np.isfinite(f)]
    n = len(known)
    for m, one in enumerate(found.bins):
        inside = [(y, f) for y, f in known if f >= m / bins and (m == bins - 1 or f < (m + 1) / bins)]
        assert one.share == pytest.approx(len(inside) / n)
        assert one.gap.value == pytest.approx(sum(f - y for y, f in inside) / n, abs=1e-12)
        if inside:
            assert one.predicted == pytest.approx(np.mean([f for _, f in inside]))
            assert one.observed == pytest.approx(np.mean([y for y, _ in inside]))
    assert found.ece.value == pytest.approx(sum(abs(float(one.gap)) for one in found.bins))
    left = 1 - n / len(rows)
    rest = (1 - left) * float(found.ece)
    assert found.ece_if_invalid == pytest.approx((max(0, rest - left), min(1, rest + left)), abs=1e-12)
    right = [(f >= 0.5) == (y == 1) for y, f in known]
    assert found.accuracy.value == pytest.approx(np.mean(right))
    sure = [max(f, 1 - f) for _, f in known]
    assert found.overconfidence.value == pytest.approx(np.mean(sure) - np.mean(right), abs=1e-12)
    assert found.leaning.value == pytest.approx(np.mean([f - y for y, f in known]), abs=1e-12)
    assert found.brier.value == pytest.approx(np.mean([(f - y) ** 2 for y, f in known]))
    capped = [(y, expit(np.clip(logit(f), MID_S[0], MID_S[-1]))) for y, f in known]
    losses = [-np.log(f if y else 1 - f) for y, f in capped]
    assert found.log_loss.value == pytest.approx(np.mean(losses), rel=1e-9)
    pairs = [(a > b) + (a == b) / 2 for y, a in known for z, b in known if y > z]
    assert found.auroc.value == (pytest.approx(np.mean(pairs)) if pairs else None)
    assert found.confidence is not None
    for label, shares in enumerate((found.confidence.negatives, found.confidence.positives)):
        mine = [f for y, f in known if y == label]
        counts = [sum(k / 20 <= f < (k + 1) / 20 for f in mine) for k in range(20)]
        counts[-1] += mine.count(1.0)
        assert shares == pytest.approx([count / max(len(mine), 1) for count in counts])
    assert len(found.operating) == (39 if pairs else 0)
    for point in found.operating:
        check_decisions(point, known)
    assert [one.has_interval for one in (found.ece, found.accuracy, found.leaning)] == [False] * 3


def check_decisions(point: OperatingPoint, known: list[tuple[int, float]]) -> None:
    """What deciding by a threshold does, one item at a time."""
    n, t = len(known), point.threshold
    assert point.shift == pytest.approx(-logit(t))
    true, false = (sum(y == label and f >= t for y, f in known) for label in (1, 0))
    missed, rejected = (sum(y == label and f < t for y, f in known) for label in (1, 0))
    shares = {
        "precision": (true, true + false),
        "recall": (true, true + missed),
        "accuracy": (true + rejected, n),
        "positive_rate": (true + false, n),
        "false_positive": (false, n),
        "false_negative": (missed, n),
        "negative_precision": (rejected, missed + rejected),
    }
    for name, (part, whole) in shares.items():
        found = getattr(point, name).value
        assert found == (pytest.approx(part / whole, abs=1e-12) if whole else None), name
