"""Functions on [0, 1] that are linear between knots."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from blindcal.records import FloatArray


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """A continuous function on [0, 1], given by its values at increasing knots from 0 to 1."""

    knots: FloatArray
    values: FloatArray

    @classmethod
    def of(cls, *points: tuple[float, float]) -> PiecewiseLinear:
        """The function through points (x, y), whose first x is 0 and whose last is 1."""
        knots, values = np.array(points, float).T
        return cls(knots, values)

    def __call__(self, x: FloatArray) -> FloatArray:
        return np.interp(x, self.knots, self.values)

    def slope(self, x: FloatArray) -> FloatArray:
        """The slope at each x; at a knot, the slope to its right."""
        slopes = np.diff(self.values) / np.diff(self.knots)
        return slopes[np.clip(np.searchsorted(self.knots, x, side="right") - 1, 0, slopes.size - 1)]

    @property
    def first(self) -> float:
        """The value at 0."""
        return float(self.values[0])

    def magnitude(self) -> PiecewiseLinear:
        """The absolute value, with a knot at every zero."""
        points = list(zip(self.knots.tolist(), self.values.tolist(), strict=True))
        crossed = [
            (x0 + (x1 - x0) * y0 / (y0 - y1), 0.0) for (x0, y0), (x1, y1) in pairwise(points) if y0 * y1 < 0
        ]
        return PiecewiseLinear.of(*((x, abs(y)) for x, y in sorted(points + crossed)))


def product_slope(one: PiecewiseLinear, other: PiecewiseLinear, x: FloatArray) -> FloatArray:
    """The slope of the product of two functions at each x."""
    return one.slope(x) * other(x) + one(x) * other.slope(x)


IDENTITY = PiecewiseLinear.of((0, 0), (1, 1))
ZERO = PiecewiseLinear.of((0, 0), (1, 0))
ONE = PiecewiseLinear.of((0, 1), (1, 1))


def soft_sign(centre: float, width: float) -> PiecewiseLinear:
    """-1 below ``centre`` and 1 above it, with a ramp of this width, which may reach beyond [0, 1]."""
    ramp = PiecewiseLinear(np.array([centre - width / 2, centre + width / 2]), np.array([-1.0, 1.0]))
    knots = np.unique(np.clip(np.concatenate([[0.0], ramp.knots, [1.0]]), 0, 1))
    return PiecewiseLinear(knots, ramp(knots))


def soft_step(place: float, width: float, *, above: bool = True) -> PiecewiseLinear:
    """1 above ``place`` (or below it) and 0 on the other side, with a ramp of this width."""
    sign = soft_sign(place, width)
    return PiecewiseLinear(sign.knots, (1 + sign.values) / 2 if above else (1 - sign.values) / 2)
