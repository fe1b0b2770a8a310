"""Theoretical bounds on the bias and variance of the published estimator (METHOD 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class BlindBounds:
    """The theorem's bounds on the blind estimator at n items and M bins (METHOD 3)."""

    gap_variance: float
    statistical: float
    trapezoid: float
    binning: float
    variance: float

    @property
    def bias(self) -> float:
        """Bound on the bias: the sum of its three parts."""
        return self.statistical + self.trapezoid + self.binning

    @property
    def mse(self) -> float:
        """Bound on the mean squared error."""
        return self.bias**2 + self.variance


def blind_bounds(n: int, bins: int, lipschitz: float = 1.0) -> BlindBounds:
    """All bounds of METHOD 3; ``lipschitz`` is the constant L of E[Y|f]."""
    return BlindBounds(
        gap_variance=2 * bins / n,
        statistical=float(np.sqrt(2) * bins**1.5 / np.sqrt(n)),
        trapezoid=1 / (2 * bins),
        binning=(1 + lipschitz) / (2 * bins),
        variance=8 * bins**2 / n,
    )
