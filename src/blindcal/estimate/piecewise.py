"""Functions on [0, 1] that are linear between knots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blindcal.records import FloatArray


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """A continuous function on [0, 1], given by its values at increasing knots from 0 to 1."""

    knots: FloatArray
    values: FloatArray

    def __call__(self, x: FloatArray) -> FloatArray:
        return np.interp(x, self.knots, self.values)

    def slope(self, x: FloatArray) -> FloatArray:
        """The slope at each x; at a knot, the slope to its right."""
        slopes = np.diff(self.values) / np.diff(self.knots)
        return np.asarray(slopes[np.clip(np.searchsorted(self.knots, x, "right") - 1, 0, slopes.size - 1)])

    @property
    def first(self) -> float:
        """The value at 0."""
        return float(self.values[0])


ONE = PiecewiseLinear(np.array([0.0, 1.0]), np.array([1.0, 1.0]))


def soft_step(place: float, width: float, *, above: bool = True) -> PiecewiseLinear:
    """1 above ``place`` (or below it) and 0 on the other side, with a ramp of this width inside [0, 1]."""
    knots = np.unique(np.clip([0, place - width / 2, place + width / 2, 1], 0, 1))
    values = np.clip((knots - place) / width + 0.5, 0, 1)
    return PiecewiseLinear(knots, values if above else 1 - values)
