"""Populations with known truth, for measuring estimators: a distribution of f and a curve E[Y|f]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from blindcal.records import FloatArray, IntArray


@dataclass(frozen=True)
class Population:
    """Draws of the hidden log-odds s, and the chance of a positive label given f."""

    name: str
    draw: Callable[[np.random.Generator, int], FloatArray]
    curve: Callable[[FloatArray], FloatArray]

    def sample(self, n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """Labels and probabilities of n items."""
        f = expit(self.draw(rng, n))
        return (rng.random(n) < self.curve(f)).astype(np.int64), f

    def ece(self, bins: int = 5, n: int = 4_000_000) -> float:
        """The population's binned ECE, by its mean gap over many draws (no label noise)."""
        f = expit(self.draw(np.random.default_rng(12345), n))
        where = np.minimum((f * bins).astype(np.int64), bins - 1)
        return float(np.abs(np.bincount(where, f - self.curve(f), minlength=bins)).sum() / n)

    def tce(self, n: int = 4_000_000) -> float:
        """The population's true calibration error."""
        f = expit(self.draw(np.random.default_rng(12345), n))
        return float(np.abs(f - self.curve(f)).mean())


def _beta(a: float, b: float) -> Callable[[np.random.Generator, int], FloatArray]:
    return lambda rng, n: logit(np.clip(rng.beta(a, b, n), 1e-12, 1 - 1e-12))


def _two_humps(rng: np.random.Generator, n: int) -> FloatArray:
    return np.where(rng.random(n) < 0.45, -3.0, 3.5) + 2.0 * rng.standard_normal(n)


#: Five miscalibrated populations, then an exactly calibrated one.
POPULATIONS = (
    Population("confident and wrong", _two_humps, lambda f: expit(0.35 * logit(f) - 0.2)),
    Population(
        "underconfident", lambda rng, n: 0.2 + rng.standard_normal(n), lambda f: expit(2.2 * logit(f))
    ),
    Population(
        "sine-shaped curve", _beta(1.2, 1.0), lambda f: f + 0.15 * np.sin(2 * np.pi * f) * (f - f**2) * 4
    ),
    Population("crowded at 0 and 1", _beta(0.15, 0.2), lambda f: 0.12 + 0.7 * f),
    Population(
        "rare positives",
        lambda rng, n: -3.0 + 1.5 * rng.standard_normal(n),
        lambda f: expit(0.7 * logit(f) - 1.5),
    ),
    Population("exactly calibrated", _beta(0.8, 0.6), lambda f: f),
)
