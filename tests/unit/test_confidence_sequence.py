"""Confidence sequences of gaps: intervals that hold, and that become narrow however long the stream is."""

from __future__ import annotations

import numpy as np
import pytest

from blindcal.estimate.streams.confidence_sequence import RANGES, GapCounts


@pytest.mark.parametrize("gap", [0.005, -0.0153])
def test_a_gap_between_two_candidate_values_is_found_in_a_long_stream(gap: float) -> None:
    """Once the interval is narrower than the steps between candidate values, it does not become empty."""
    rng = np.random.default_rng(5)
    counts = GapCounts()
    narrow = []
    for _ in range(4):
        f = rng.uniform(0.1, 0.9, 250_000)
        t = rng.uniform(size=f.size)
        labels = (rng.uniform(size=f.size) < f - gap).astype(np.int64)
        counts.add(labels, t, (f >= t).astype(np.int64))
        found = counts.gap(RANGES["all items"], 0.95)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= gap <= found.high
        narrow.append(found.high - found.low)
    assert max(narrow) < 0.025
    assert narrow[-1] < 0.01
