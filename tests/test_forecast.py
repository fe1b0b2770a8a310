"""Forecasts against outcomes: what is said before an audit is what is seen after it."""

from __future__ import annotations

import numpy as np
import pytest

from blindcal.errors import InputError
from blindcal.estimate.latent import fit_table
from blindcal.planning import shapes
from blindcal.planning.forecast import Forecast, forecast, worth
from blindcal.simulation.simulate import simulate
from fitting import asked

AUDITS = 12


@pytest.mark.parametrize(
    ("name", "method", "n", "queries"),
    [
        ("overconfident", "latent", 1500, 1.0),
        ("rare", "latent", 1500, 1.0),
        ("underconfident", "latent", 800, 2.0),
        ("confident", "latent", 800, 0.5),
        ("overconfident", "temperature", 1000, 3.0),
        ("overconfident", "repeated", 1000, 2.0),
        ("overconfident", "logprobs", 1000, 1.0),
        ("rare", "logprobs", 1500, 0.5),
        ("rare", "repeated", 1500, 3.0),
    ],
)
def test_forecast_widths_are_seen(name: str, method: str, n: int, queries: float) -> None:
    """The mean width of a dozen seeded audits is within 15% of the forecast, and its own chance error."""
    shape = shapes.preset(name)
    widths = []
    for seed in range(AUDITS):
        labels, p = shape.sample(n, np.random.default_rng([seed, 9]))
        answers = asked(labels, p, queries, method, seed)
        widths.append(fit_table(labels, answers, resamples=200).ece.half_width)
    expected = forecast(shape, method, n, queries)
    assert expected.half_width is not None
    chance = 2 * float(np.std(widths)) / np.sqrt(AUDITS) / np.mean(widths)
    assert expected.half_width / np.mean(widths) == pytest.approx(1, abs=0.15 + chance)


@pytest.mark.parametrize(("method", "queries"), [("blind", 1.0), ("sampling", 4.0), ("extraction", 6.0)])
def test_forecast_errors_of_face_value_methods_are_seen(method: str, queries: float) -> None:
    """The mean error of methods without intervals is as forecast, within a fifth and its chance error."""
    shape = shapes.preset("overconfident")
    off = []
    for seed in range(40):
        labels, p = shape.sample(1000, np.random.default_rng([seed, 11]))
        found = simulate(method, labels, p, queries=queries, repeats=1, seed=seed)
        off.append(abs(found.estimates[0] - shape.ece()))
    expected = forecast(shape, method, 1000, queries)
    assert expected.half_width is None
    chance = 2 * np.std(off) / np.sqrt(len(off))
    assert expected.error == pytest.approx(np.mean(off), abs=0.2 * np.mean(off) + chance)


@pytest.mark.parametrize("method", ["latent", "temperature"])
def test_more_of_anything_narrows_the_interval(method: str) -> None:
    """Widths fall with items and with queries."""
    shape = shapes.preset("overconfident")

    def width(n: int, queries: float) -> float:
        found = forecast(shape, method, n, queries).half_width
        assert found is not None
        return found

    by_items = [width(n, 2.0) for n in (300, 1000, 3000, 10_000)]
    by_queries = [width(1000, k) for k in (1.0, 1.5, 2.0, 3.0)]
    assert by_items == sorted(by_items, reverse=True)
    assert by_queries == sorted(by_queries, reverse=True)


def test_half_the_items_asked_is_half_the_items() -> None:
    """Half a query per item is forecast to find what one query per item finds on half the items."""
    shape = shapes.preset("underconfident")
    for method in ("latent", "logprobs"):
        half, fewer = forecast(shape, method, 2000, 0.5), forecast(shape, method, 1000, 1.0)
        assert half.half_width == fewer.half_width


def test_a_second_query_is_worth_less_than_a_second_item() -> None:
    """An item asked K times is worth more than one asked once, ever more with K, and at most about K."""
    for name in ("calibrated", "confident"):
        worths = [worth(shapes.preset(name), k) for k in (1.0, 1.25, 1.5, 2.0, 3.0)]
        assert worths[0] == 1
        assert worths == sorted(worths)
        assert worths[-1] < 4.5


def test_what_is_left_after_many_queries_is_the_labels_noise() -> None:
    """From four queries per item to eight the interval hardly changes; beyond eight nothing is forecast."""
    shape = shapes.preset("underconfident")
    four, eight = (forecast(shape, "latent", 1000, k).half_width for k in (4.0, 8.0))
    assert four is not None
    assert eight == pytest.approx(four, rel=0.1)
    # and that is what is left if the probabilities are read
    assert eight == pytest.approx(forecast(shape, "logprobs", 1000, 1.0).half_width, rel=0.1)
    with pytest.raises(InputError, match=r"logprobs reads each item once at most, got 2.0"):
        forecast(shape, "logprobs", 1000, 2.0)
    for method in ("latent", "temperature", "repeated"):
        with pytest.raises(InputError, match=f"{method} can be planned with at most 8 per item, got 9"):
            forecast(shape, method, 1000, 9.0)


def test_one_answer_per_item_is_not_forecast_for_repeated() -> None:
    """It could not tell a model that wavers from one that is sure and often wrong."""
    with pytest.raises(InputError, match=r"repeated asks each item at least 2 times: one answer .* got 1"):
        forecast(shapes.preset("rare"), "repeated", 1000, 1.0)


def test_a_forecast_repeats_itself() -> None:
    """The same question gets the same answer: nothing is drawn at random."""
    first, second = (forecast(shapes.preset("rare"), "latent", 700, 1.5) for _ in range(2))
    assert isinstance(first, Forecast)
    assert first == second


def test_a_forecast_shows_itself_in_one_line() -> None:
    """The audit, and what it is expected to find."""
    found = Forecast("latent", 1500, 1.5, 0.1, 0.01, 0.02, 0.03)
    assert repr(found) == "Forecast(1,500 items, 1.5 queries per item, latent: ECE 0.1000 ± 0.0300)"


def test_what_cannot_be_forecast_is_refused() -> None:
    """A method whose outcome does not follow from the shape is refused by name."""
    for method in ("oracle", "verbalized"):
        with pytest.raises(
            InputError, match=rf"method: can be planned for logprobs, latent, .*, got '{method}'"
        ):
            forecast(shapes.preset("rare"), method, 700, 1.0)
