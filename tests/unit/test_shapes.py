"""Shapes: what is assumed of a model before it is asked."""

from __future__ import annotations

import numpy as np
import pytest

from blindcal.errors import InputError
from blindcal.estimate.truth import binned_ece
from blindcal.planning.forecast import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_a_sample_of_a_shape_has_its_ece(name: str) -> None:
    """Items drawn from a shape have its binned ECE, and items spread over it have it more closely."""
    shape = preset(name)
    labels, p = shape.sample(100_000, np.random.default_rng(0))
    # five gaps, each with a standard error of at most .5 / sqrt(100,000) = .0016
    assert float(binned_ece(labels, p, 5).ece) == pytest.approx(shape.ece(), abs=5 * 0.0016)
    labels, p = shape.spread(2000, np.random.default_rng(2))
    assert float(binned_ece(labels, p, 5).ece) == pytest.approx(shape.ece(), abs=0.004)


@pytest.mark.parametrize("name", PRESETS)
def test_a_shape_can_be_scaled_to_any_smaller_ece(name: str) -> None:
    """Scaled to an ECE, a shape has it, and the same confidences as before."""
    shape = preset(name)
    scaled = shape.with_ece(0.03)
    assert scaled.ece() == pytest.approx(0.03, abs=1e-4)
    half = shape.table.size // 2
    assert scaled.table[:half] + scaled.table[half:] == pytest.approx(shape.table[:half] + shape.table[half:])


def test_what_no_shape_has_is_refused_with_the_range() -> None:
    """An ECE that no scaling reaches and an unknown name are answered with what is possible."""
    with pytest.raises(InputError, match=r"a model of the shape 'rare' can have an ECE from 0 to 0\.\d\d"):
        preset("rare").with_ece(0.9)
    with pytest.raises(InputError, match=r"must be one of overconfident, .*, got 'shy'"):
        preset("shy")
