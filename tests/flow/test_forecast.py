"""Forecasts against outcomes: the width that is planned is the width that is seen."""

from __future__ import annotations

import numpy as np
import pytest

from blindcal.errors import InputError
from blindcal.estimate.latent.fitting import fit_problem
from blindcal.estimate.problem import Problem
from blindcal.planning.forecast import half_width, preset
from fitting import asked

AUDITS = 6


def width(name: str, method: str, n: int, queries: float) -> float:
    forecast = half_width(preset(name), method, n, queries)
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
        labels, p = preset(name).sample(n, np.random.default_rng([seed, 9]))
        answers = asked(labels, p, queries, method, seed)
        widths.append(fit_problem(Problem.of_answers(labels, answers), resamples=100).ece.half_width)
    chance = 2 * float(np.std(widths)) / np.sqrt(AUDITS) / np.mean(widths)
    assert width(name, method, n, queries) / np.mean(widths) == pytest.approx(1, abs=0.15 + chance)


@pytest.mark.parametrize("method", ["latent", "temperature"])
def test_more_of_anything_narrows_the_interval(method: str) -> None:
    """Widths fall with items and with queries, and half a query per item is half the items."""
    by_items = [width("overconfident", method, n, 2.0) for n in (300, 3000, 10_000)]
    by_queries = [width("overconfident", method, 1000, k) for k in (1.0, 1.5, 3.0)]
    assert by_items == sorted(by_items, reverse=True)
    assert by_queries == sorted(by_queries, reverse=True)
    assert width("rare", method, 2000, 0.5) == width("rare", method, 1000, 1.0)


def test_what_is_left_after_many_queries_is_the_noise_of_labels() -> None:
    """Eight queries per item give the interval of probabilities that are read."""
    eight = width("underconfident", "latent", 1000, 8.0)
    assert eight == pytest.approx(width("underconfident", "logprobs", 1000, 1.0), rel=0.1)


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
        half_width(preset("rare"), method, 700, queries)
