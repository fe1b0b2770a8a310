"""Forecasts against outcomes: the width that is planned is the width that is seen; and assumed shapes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from blindcal.errors import InputError
from blindcal.estimate.latent.fitting import fit_problem
from blindcal.estimate.problem import Problem
from blindcal.estimate.truth import binned_ece
from blindcal.planning.forecast import OVERCONFIDENT, Shape, half_width, shape_of_scores
from blindcal.records import FloatArray
from fitting import asked

AUDITS = 6


def shape_of(s: FloatArray, chance: FloatArray) -> Shape:
    """The shape of these log-odds, whose labels are positive with this chance."""
    labels = np.random.default_rng(1).random(s.size) < chance
    return shape_of_scores("drawn", labels.astype(np.int64), expit(s))


DRAWN = np.random.default_rng(0).standard_normal(20_000)
CONFIDENT = logit(np.clip(np.random.default_rng(0).beta(0.15, 0.2, 20_000), 1e-9, 1 - 1e-9))
SHAPES = {
    "overconfident": OVERCONFIDENT,
    "underconfident": shape_of(0.2 + DRAWN, expit(0.44 + 2.2 * DRAWN)),
    "confident": shape_of(CONFIDENT, 0.12 + 0.7 * expit(CONFIDENT)),
    "rare": shape_of(1.5 * DRAWN - 3, expit(1.05 * DRAWN - 3.6)),
}


def width(method: str, n: int, queries: float, shape: Shape = OVERCONFIDENT) -> float:
    forecast = half_width(shape, method, n, queries)
    assert forecast is not None
    return forecast


@pytest.mark.parametrize(
    ("name", "method", "n", "queries"),
    [
        ("rare", "latent", 1500, 1.0),
        ("underconfident", "latent", 800, 2.0),
        ("confident", "latent", 800, 0.5),
        ("overconfident", "temperature", 1000, 3.0),
        ("overconfident", "repeated", 1000, 2.0),
        ("rare", "logprobs", 1500, 0.5),
    ],
)
def test_forecast_widths_are_seen(name: str, method: str, n: int, queries: float) -> None:
    """The mean width of seeded audits is within 15% of the forecast, and its own chance error."""
    widths = []
    for seed in range(AUDITS):
        labels, p = SHAPES[name].sample(n, np.random.default_rng([seed, 9]))
        answers = asked(labels, p, queries, method, seed)
        widths.append(fit_problem(Problem.of_answers(labels, answers), resamples=100).ece.half_width)
    chance = 2 * float(np.std(widths)) / np.sqrt(AUDITS) / np.mean(widths)
    assert width(method, n, queries, SHAPES[name]) / np.mean(widths) == pytest.approx(1, abs=0.15 + chance)


@pytest.mark.parametrize("method", ["latent", "temperature"])
def test_more_of_anything_narrows_the_interval(method: str) -> None:
    """Widths fall with items and with queries, and half a query per item is half the items."""
    by_items = [width(method, n, 2.0) for n in (300, 3000, 10_000)]
    by_queries = [width(method, 1000, k) for k in (1.0, 1.5, 3.0)]
    assert by_items == sorted(by_items, reverse=True)
    assert by_queries == sorted(by_queries, reverse=True)
    assert width(method, 2000, 0.5) == width(method, 1000, 1.0)


def test_what_is_left_after_many_queries_is_the_noise_of_labels() -> None:
    """Eight queries per item give the interval of probabilities that are read."""
    eight = width("latent", 1000, 8.0)
    assert eight == pytest.approx(width("logprobs", 1000, 1.0), rel=0.1)


@pytest.mark.parametrize(
    ("method", "queries", "message"),
    [
        ("logprobs", 2.0, r"logprobs reads each item once at most, got 2"),
        ("temperature", 9.0, "temperature can be planned with at most 8 per item, got 9"),
        ("repeated", 1.0, r"repeated asks each item at least 2 times: one answer .* got 1"),
        ("verbalized", 1.0, r"method: can be planned for logprobs, latent, .*, got 'verbalized'"),
    ],
)
def test_what_cannot_be_forecast_is_refused(method: str, queries: float, message: str) -> None:
    """A method or a number of queries without a forecast is refused with the rule."""
    with pytest.raises(InputError, match=message):
        half_width(OVERCONFIDENT, method, 700, queries)


def test_a_sample_of_a_shape_has_its_ece() -> None:
    """Items drawn from a shape have its binned ECE, and items spread over it have it more closely."""
    labels, p = OVERCONFIDENT.sample(100_000, np.random.default_rng(0))
    # five gaps, each with a standard error of at most .5 / sqrt(100,000) = .0016
    assert float(binned_ece(labels, p, 5).ece) == pytest.approx(OVERCONFIDENT.ece(), abs=5 * 0.0016)
    labels, p = OVERCONFIDENT.spread(2000, np.random.default_rng(2))
    assert float(binned_ece(labels, p, 5).ece) == pytest.approx(OVERCONFIDENT.ece(), abs=0.004)
