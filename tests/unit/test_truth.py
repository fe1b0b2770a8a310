"""Known probabilities: binned ECE against a naive loop, and the rule for bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindcal.errors import InputError
from blindcal.estimate.truth import bin_edges, bin_index, binned_ece, bins_blind

scored = st.lists(
    st.tuples(st.integers(0, 1), st.floats(0, 1) | st.integers(0, 20).map(lambda k: k / 20)),
    min_size=1,
    max_size=40,
)


def naive_gaps(labels: list[int], p: list[float], bins: int) -> list[float]:
    """METHOD 1 read aloud: for each bin, look at every item and add (f - y)/N."""
    gaps = []
    for m in range(bins):
        total = 0.0
        for y, f in zip(labels, p, strict=True):
            inside = f >= m / bins and (m == bins - 1 or not f >= (m + 1) / bins)
            total += (f - y) / len(p) if inside else 0.0
        gaps.append(total)
    return gaps


@given(scored, st.integers(1, 17))
def test_gaps_are_those_of_a_naive_loop(rows: list[tuple[int, float]], bins: int) -> None:
    """The gaps, their absolute sum and the counts agree with a loop over bins and items."""
    labels, p = [y for y, _ in rows], [f for _, f in rows]
    found = binned_ece(labels, p, bins)
    naive = naive_gaps(labels, p, bins)
    assert found.gaps == pytest.approx(naive, abs=1e-12)
    assert found.ece.value == pytest.approx(sum(map(abs, naive)), abs=1e-12)
    assert found.counts.sum() == len(rows)


@given(scored, st.integers(1, 12))
def test_top_label_gaps_are_those_of_a_naive_loop(rows: list[tuple[int, float]], bins: int) -> None:
    """With ``top_label`` the predicted class's confidence is held against being right."""
    right = [int((f >= 0.5) == (y == 1)) for y, f in rows]
    confidence = [max(f, 1 - f) for _, f in rows]
    found = binned_ece([y for y, _ in rows], [f for _, f in rows], bins, top_label=True)
    assert found.gaps == pytest.approx(naive_gaps(right, confidence, bins), abs=1e-12)


@pytest.mark.parametrize("bins", [1, 2, 3, 5, 7, 10, 15, 38, 49])
def test_an_edge_belongs_to_the_bin_above_it(bins: int) -> None:
    """``f >= t_m`` holds at the edge itself, for every edge; 1 stays in the last bin."""
    edges = bin_edges(bins)
    assert bin_index(edges[:-1], bins).tolist() == list(range(bins))
    assert bin_index(np.nextafter(edges[1:], 0), bins).tolist() == list(range(bins))
    assert bin_index(np.array([1.0]), bins).tolist() == [bins - 1]


def test_the_bin_rule_gives_the_published_numbers() -> None:
    """5 bins for 3,270 items and 9 for 56,168."""
    assert [bins_blind(n) for n in (1, 3_270, 56_168)] == [1, 5, 9]


BAD = [
    (([], []), "labels: must not be empty"),
    (([0, 2], [0.1, 0.2]), r"labels: must be 0 or 1, got .*2.* at position 1"),
    (([0, float("nan")], [0.1, 0.2]), r"labels: must be 0 or 1, got .*nan.* at position 1"),
    ((["yes", "no"], [0.1, 0.2]), r"labels: must hold numbers, got .*'yes'"),
    (([[0, 1]], [0.1, 0.2]), r"labels: must be one-dimensional, got shape \(1, 2\)"),
    (([0, 1], [0.1, float("nan")]), r"p: must be a number in \[0, 1\], got .*nan.* at position 1"),
    (([0, 1], [0.1, 1.5]), r"p: must be a number in \[0, 1\], got .*1\.5.* at position 1"),
    (([0, 1], [0.1]), r"p: must be as long as labels \(2\), got 1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_named(arguments: tuple[object, object], message: str) -> None:
    """The error names the argument, the rule and the value."""
    with pytest.raises(InputError, match=message):
        binned_ece(*arguments)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("bins", [0, -1, 2.5, "5", None, True])
def test_bins_must_be_a_whole_number(bins: object) -> None:
    """Bins that are no positive whole number are refused by name."""
    with pytest.raises(InputError, match="bins: must be a whole number of at least 1"):
        binned_ece([0, 1], [0.2, 0.8], bins)  # type: ignore[arg-type]  # on purpose
