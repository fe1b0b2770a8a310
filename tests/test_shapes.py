"""Shapes: what is assumed of a model before it is asked."""

from __future__ import annotations

import numpy as np
import pytest

from blindcal.errors import InputError
from blindcal.estimate.truth import binned_ece
from blindcal.planning import shapes


@pytest.mark.parametrize("name", shapes.PRESETS)
def test_a_sample_of_a_shape_has_its_ece(name: str) -> None:
    """Items drawn from a shape have its binned ECE, within what 100,000 labels scatter."""
    shape = shapes.preset(name)
    labels, p = shape.sample(100_000, np.random.default_rng(0))
    # five gaps, each with a standard error of at most .5 / sqrt(100,000) = .0016
    assert float(binned_ece(labels, p, 5).ece) == pytest.approx(shape.ece(), abs=5 * 0.0016)
    assert shape.table.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", shapes.PRESETS)
def test_a_shape_can_be_given_any_smaller_ece(name: str) -> None:
    """Scaled to an ECE, a shape has it, and the same confidences as before."""
    shape = shapes.preset(name)
    scaled = shape.with_ece(0.03)
    assert scaled.ece() == pytest.approx(0.03, abs=1e-4)
    half = shape.table.size // 2
    assert scaled.table[:half] + scaled.table[half:] == pytest.approx(shape.table[:half] + shape.table[half:])


def test_an_impossible_ece_is_refused_with_the_range() -> None:
    """What no scaling reaches is refused, naming what can be had."""
    with pytest.raises(
        InputError, match=r"ece: a model of the shape 'rare' can have an ECE from 0 to 0\.\d\d"
    ):
        shapes.preset("rare").with_ece(0.9)


def test_a_shape_shows_itself_in_one_line() -> None:
    """Its name and its ECE, and not its table."""
    assert repr(shapes.preset("calibrated")) == "Shape('calibrated', ECE 0.0000)"


def test_an_unknown_shape_is_refused_with_the_known_ones() -> None:
    """A wrong name is answered with the right ones."""
    with pytest.raises(InputError, match=r"must be one of overconfident, .*, got 'shy'"):
        shapes.preset("shy")


def test_scores_give_back_the_shape_they_came_from() -> None:
    """The shape behind 20,000 scores has nearly the ECE of the population they were drawn from."""
    shape = shapes.preset("confident")
    labels, p = shape.sample(20_000, np.random.default_rng(1))
    found = shapes.of_scores("scores", labels, p)
    assert found.ece() == pytest.approx(shape.ece(), abs=0.01)
    assert found.table.sum() == pytest.approx(1)


def test_a_spread_sample_is_nearly_the_shape_itself() -> None:
    """Evenly spread items have the shape's ECE far more closely than a random sample would."""
    shape = shapes.preset("overconfident")
    labels, p = shape.spread(2000, np.random.default_rng(2))
    assert float(binned_ece(labels, p, 5).ece) == pytest.approx(shape.ece(), abs=0.004)
