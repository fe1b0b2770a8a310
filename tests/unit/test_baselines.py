"""The paper's baselines: shares of samples, bisection of the flip, and probabilities at face value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from blindcal.estimate.findings import OperatingPoint
from blindcal.estimate.published import extracted, findings_at_face_value, sampled_shares
from blindcal.methods import make_design
from blindcal.records import AnswerTable
from blindcal.simulation.simulate import ask


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
    if any(f == 1 - y for y, f in known):
        assert found.log_loss.value is None  # a wrong answer of which the model was certain
    else:
        assert found.log_loss.value == pytest.approx(
            -np.mean([np.log(f if y else 1 - f) for y, f in known]), abs=1e-12
        )
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
