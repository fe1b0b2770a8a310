"""What one noisy answer per item leaves open, whatever the model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from blindcal import latent
from blindcal.estimate.latent.intervals import error_bounds
from blindcal.estimate.readings import Patterns, count_patterns
from blindcal.estimate.truth import binned_ece
from blindcal.records import AnswerTable, FloatArray, IntArray

N = 4000


def asked(labels: IntArray, f: FloatArray, rng: np.random.Generator, temperature: float = 1.0) -> IntArray:
    """One answer per item, drawn at a temperature."""
    return np.asarray(rng.random(labels.size) < expit(logit(f) / temperature)).astype(np.int64)


def patterns(labels: IntArray, answers: IntArray, temperature: float | FloatArray = 1.0) -> Patterns:
    n = labels.size
    t = np.broadcast_to(np.asarray(temperature, float), n)
    return count_patterns(labels, AnswerTable(np.arange(n), np.zeros(n), t, answers))


def test_at_one_the_bounds_are_two_shares() -> None:
    """Between the difference of the shares of yes, and the share of answers that differ from the label."""
    rng = np.random.default_rng(0)
    f = rng.beta(2, 1, N)
    labels = (rng.random(N) < f**2).astype(np.int64)
    answers = asked(labels, f, rng)
    found = error_bounds(patterns(labels, answers), 1e-9, N)  # chance left out
    assert found == pytest.approx(
        (abs(answers.mean() - labels.mean()), np.mean(answers != labels)), abs=2e-3
    )  # a cell is 1/480 wide


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
            found = error_bounds(patterns(labels, asked(labels, f, rng, temperature), temperature), 0.95, N)
            assert found is not None
            low, high = found
            outside += not low - 0.005 <= float(binned_ece(labels, f, 5).ece) <= high + 0.005
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
    assert error_bounds(patterns(labels, answers, 0.0), 0.95, 200) is None
    assert (
        error_bounds(patterns(labels, answers, np.where(np.arange(200) < 100, 1.0, 2.0)), 0.95, 200) is None
    )
    doubled = AnswerTable(np.repeat(np.arange(100), 2), np.zeros(200), np.ones(200), answers)
    twice = count_patterns(labels[:100], doubled)
    assert error_bounds(twice, 0.95, 100) is None
