"""The paper's baselines: shares of samples, and bisection of the flip."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from blindcal import design
from blindcal.estimate.baselines import EXTRACTION_REACH, extracted, flip_bounds, sampled_shares
from blindcal.estimate.truth import binned_ece
from blindcal.records import AnswerTable, FloatArray
from blindcal.simulation.simulate import ask


def test_sampling_counts_the_valid_answers() -> None:
    """An item's probability is its share of positive answers among its valid ones; NaN if it has none."""
    items = np.array([0, 0, 0, 1, 1, 2, 3, 3])
    answers = np.array([1, 0, 1, -1, 0, -1, 1, 1])
    assert sampled_shares(5, items, answers) == pytest.approx([2 / 3, 0, np.nan, 1, np.nan], nan_ok=True)


@pytest.mark.parametrize(("answer", "p"), [(1, expit(7.5)), (0, expit(-7.5))])
def test_one_query_of_extraction_says_sigmoid_of_plus_or_minus_seven_and_a_half(
    answer: int, p: float
) -> None:
    """K = 1 asks b = 0, which leaves half of [-15, 15] (METHOD 3)."""
    asked = design.make("extraction", [1], queries=1).next_round(AnswerTable.empty())
    assert asked is not None
    assert asked.shifts.tolist() == [0.0]
    assert extracted(1, asked.items, asked.shifts, np.array([answer])) == pytest.approx([p])


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
    answered = ask(design.make("extraction", labels, queries=queries), labels, p)
    assert len(answered) == 50 * queries
    found = extracted(50, answered.items, answered.shifts, answered.answers)
    assert found == pytest.approx([bisected(f, queries) for f in p], abs=1e-12)


def test_extraction_converges_to_the_probability() -> None:
    """Each query halves the interval, so K queries leave at most 15/2^K of log-odds error within reach."""
    s = np.linspace(-14.9, 14.9, 200)
    labels = np.ones(200, int)
    answered = ask(design.make("extraction", labels, queries=12), labels, expit(s))
    found = extracted(200, answered.items, answered.shifts, answered.answers)
    assert np.abs(logit(found) - s).max() <= EXTRACTION_REACH / 2**12 + 1e-6


def test_an_invalid_answer_leaves_the_range_as_it_is() -> None:
    """A query without a valid answer narrows nothing; an item without any has no probability."""
    items, shifts = np.array([0, 0, 1]), np.array([0.0, 7.5, 0.0])
    low, high = flip_bounds(2, items, shifts, np.array([0, -1, -1]))
    assert (low.tolist(), high.tolist()) == ([0.0, -15.0], [15.0, 15.0])
    assert extracted(2, items, shifts, np.array([0, -1, -1])) == pytest.approx(
        [expit(-7.5), np.nan], nan_ok=True
    )


def test_sampling_is_biased_as_its_expectation_says() -> None:
    """One sample an item makes every bin but the outer two empty: E ECE = E f(1-y) + E (1-f) y."""
    n = 40_000
    rng = np.random.default_rng(4)
    f: FloatArray = rng.beta(2, 2, n)
    labels = (rng.random(n) < f).astype(np.int64)
    answered = ask(design.make("sampling", labels, queries=1), labels, f)
    ece = binned_ece(labels, sampled_shares(n, answered.items, answered.answers), 5).ece
    expected = 2 * float((f * (1 - f)).mean())
    # of n items, each wrong with its own chance: a binomial's sd is at most 1/(2 sqrt n)
    assert abs(ece - expected) < 4 / (2 * np.sqrt(n))
