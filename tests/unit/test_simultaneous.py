"""Statements about all parts at once: intervals that hold together, and few false alarms over all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from blindcal.estimate.uncertainty import beyond, difference_pvalues, holm, outlier_pvalues
from blindcal.evidence import estimate
from blindcal.records import Estimate
from reporting import evidence

PVALUES = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12)


@given(PVALUES, st.floats(0.001, 0.5))
def test_holm_rejects_step_by_step(pvalues: list[float | None], alpha: float) -> None:
    """As written: the smallest is compared with alpha / m, the next with alpha / (m - 1), and so on."""
    known = sorted((p, k) for k, p in enumerate(pvalues) if p is not None)
    rejected = set()
    for rank, (p, k) in enumerate(known):
        if p > alpha / (len(known) - rank):
            break
        rejected.add(k)
    adjusted = holm(pvalues)
    assert [one is None for one in adjusted] == [p is None for p in pvalues]
    near = {k for k, p in enumerate(adjusted) if p is not None and abs(p - alpha) < 1e-12}  # rounding decides
    assert {k for k, p in enumerate(adjusted) if p is not None and p <= alpha} - near == rejected - near


def test_a_far_interval_is_that_of_a_normal_distribution() -> None:
    """If the refits are normal, the widened interval is exact although none of them is that far out."""
    low, high = (0.4 + 0.03 * float(norm.ppf(share)) for share in (0.025, 0.975))
    near = Estimate(0.4, low, high, 0.95)
    few = Estimate(0.4, 0.33, 0.47, 0.9991)  # the extremes of few refits, which fall short
    found = beyond(near, few)
    exact = [0.4 + 0.03 * float(norm.ppf(share)) for share in (0.00045, 0.99955)]
    assert (found.low, found.high) == pytest.approx(exact)
    assert found.level == 0.9991
    wide = beyond(near, replace(few, low=0.1))  # what an unseen share allows stays allowed
    assert (wide.low, wide.high) == pytest.approx((0.1, found.high))
    assert beyond(Estimate(0.01, 0.0, 0.2, 0.95), Estimate(0.01, 0.0, 0.21, 0.99), least=0.0).low == 0.0
    assert beyond(Estimate(0.3), Estimate(0.3)) == Estimate(0.3)


def test_a_part_is_compared_with_all_others() -> None:
    """The statistic is that of the difference to their weighted mean; equal parts are not told apart."""
    rng = np.random.default_rng(0)
    covariances = [np.diag(rng.uniform(0.5, 2, 2)) for _ in range(4)]
    values = [rng.standard_normal(2) for _ in range(4)]
    found = difference_pvalues(values, covariances)
    for k, p in enumerate(found):
        others = [j for j in range(4) if j != k]
        weights = np.array([1 / np.diag(covariances[j]) for j in others])
        mean = (weights * np.array([values[j] for j in others])).sum(axis=0) / weights.sum(axis=0)
        variance = np.diag(covariances[k]) + 1 / weights.sum(axis=0)
        assert p == pytest.approx(chi2.sf(((values[k] - mean) ** 2 / variance).sum(), 2), rel=1e-6)
    assert min(difference_pvalues([np.ones(2)] * 4, covariances)) == pytest.approx(1)


def test_what_differs_most_is_set_aside_first() -> None:
    """One outlier of five does not make the others look different; of two, both differ."""
    values = [np.array([x, 0.0]) for x in (0.0, 0.1, 9.0, -0.1, 0.05)]
    found = outlier_pvalues(values, [np.eye(2)] * 5)
    assert found[2] < 1e-6
    assert min(p for k, p in enumerate(found) if k != 2) > 0.9
    assert min(difference_pvalues(values, [np.eye(2)] * 5)[:2]) < 0.5  # the mean of the others is drawn away
    two = outlier_pvalues(values[1:3], [np.eye(2)] * 2)
    assert two[0] == two[1] < 1e-6


def test_equal_parts_raise_few_alarms() -> None:
    """Among eight normal estimates with one mean, any is called different in 5% of cases at most."""
    rng = np.random.default_rng(2)
    alarms = [
        min(outlier_pvalues(list(rng.standard_normal((8, 2))), [np.eye(2)] * 8)) < 0.05 for _ in range(600)
    ]
    assert np.mean(alarms) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 600)


def test_one_part_that_is_off_is_found_and_the_others_are_left_alone() -> None:
    """Of four parts one is overconfident: it alone raises alarms. Intervals that hold together are wider."""
    rng = np.random.default_rng(3)
    p = rng.beta(0.7, 0.7, 1600)
    names = [f"part {k % 4}" for k in range(1600)]
    off = np.array([name == "part 2" for name in names])
    labels = (rng.random(1600) < np.where(off, 0.5 + 0.1 * (p - 0.5), p)).astype(np.int64)
    one = evidence("latent", labels, p, parts=names)
    single, joint = estimate(one), estimate(replace(one, simultaneous=True))
    alarms = [
        (part.calibrated_pvalue is not None and part.calibrated_pvalue < 0.05, (part.same_pvalue or 0) < 0.05)
        for part in single.parts
    ]
    assert alarms == [(False, False), (False, False), (True, True), (False, False)]
    assert (single.parts_level, joint.parts_level) == (None, 0.95)
    for mine, wide in zip(single.parts, joint.parts, strict=True):
        assert wide.ece.level == pytest.approx(0.9875)
        assert (wide.ece.value, wide.calibrated_pvalue) == (mine.ece.value, mine.calibrated_pvalue)
        for name in ("ece", "accuracy", "leaning", "overconfidence"):
            narrow, wider = getattr(mine, name), getattr(wide, name)
            ends = (wider.low, narrow.low, narrow.high, wider.high)
            assert all(a <= b for a, b in pairwise(ends)), name
            assert wider.half_width > narrow.half_width
