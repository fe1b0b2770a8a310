"""Shapes: assumed distributions of a model's confidence, each with a reliability curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betainc, expit, logit, ndtr

from blindcal.errors import InputError
from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, MID_P, positions
from blindcal.estimate.latent import functionals as of
from blindcal.estimate.latent.model import fit_ensemble
from blindcal.estimate.readings import Patterns
from blindcal.records import FloatArray, IntArray


@dataclass(frozen=True, repr=False, eq=False)
class Shape:
    """A joint table over (label, cell), label 0 first, that sums to one; equal tables make equal shapes."""

    name: str
    table: FloatArray

    def __repr__(self) -> str:
        return f"Shape({self.name!r}, ECE {self.ece():.4f})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        return hash(self.table.tobytes())

    def ece(self, bins: int = 5) -> float:
        return float(of.ece(self.table, bins))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """Draw the labels and probabilities of n items."""
        return self._at(rng.random(n), rng.random(n))

    def spread(self, n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """Labels and probabilities of n items spread evenly over the shape: a sample with little noise."""
        return self._at((np.arange(n) + rng.random()) / n, rng.random(n))

    def _at(self, quantile: FloatArray, within: FloatArray) -> tuple[IntArray, FloatArray]:
        total = np.cumsum(self.table)
        cell = np.minimum(np.searchsorted(total / total[-1], quantile, side="right"), 2 * CELLS - 1)
        label, cell = np.divmod(cell, CELLS)
        return label.astype(np.int64), EDGES_P[cell] + within * (EDGES_P[cell + 1] - EDGES_P[cell])

    def with_ece(self, ece: float, bins: int = 5) -> Shape:
        """Scale the departures from calibration to this ECE; a calibrated shape becomes overconfident."""
        from scipy.optimize import brentq  # slow to import, and rarely needed

        density = self.table[:CELLS] + self.table[CELLS:]
        departure = logit(np.clip(of.curve(self.table), 1e-9, 1 - 1e-9)) - _S
        if self.ece(bins) < 1e-6:
            departure = -_S / 2

        def scaled(by: float) -> Shape:
            return _joint(self.name, density, expit(_S + by * departure))

        most = 1.0
        while scaled(most).ece(bins) < ece and most < 64:
            most *= 2
        if not 0 <= ece <= scaled(most).ece(bins):
            raise InputError(
                f"ece: a model of the shape {self.name!r} can have an ECE from 0 to "
                f"{scaled(most).ece(bins):.2f}, got {ece!r}"
            )
        by = brentq(lambda by: scaled(by).ece(bins) - ece, 0.0, most, xtol=1e-6) if ece > 0 else 0.0
        return replace(scaled(by), name=f"{self.name} at ECE {ece:g}")


def _joint(name: str, density: FloatArray, curve: FloatArray) -> Shape:
    table = np.concatenate([density * (1 - curve), density * curve])
    return Shape(name, table / table.sum())


def _normal(*parts: tuple[float, float, float]) -> FloatArray:
    """A mixture of normal log-odds: the (share, mean, standard deviation) of each."""
    return np.asarray(sum(share * np.diff(ndtr((EDGES_S - mean) / sd)) for share, mean, sd in parts))


def _beta(a: float, b: float) -> FloatArray:
    return np.asarray(np.diff(betainc(a, b, EDGES_P)))


_S = logit(MID_P)
PRESETS: dict[str, Callable[[], tuple[FloatArray, FloatArray]]] = {
    # sure in both directions, and wrong more often than it says
    "overconfident": lambda: (_normal((0.5, -2.0, 1.8), (0.5, 2.5, 1.8)), expit(0.5 * _S - 0.2)),
    # hesitant, and right more often than it says
    "underconfident": lambda: (_normal((1.0, 0.2, 1.0)), expit(2.2 * _S)),
    # right as often as it says
    "calibrated": lambda: (_beta(0.8, 0.6), MID_P),
    # crowded at 0 and 1, as many large models are
    "confident": lambda: (_beta(0.15, 0.2), 0.12 + 0.7 * MID_P),
    # few positives, and says Yes too often
    "rare": lambda: (_normal((1.0, -3.0, 1.5)), expit(0.7 * _S - 1.5)),
}
DEFAULT = "overconfident"


def preset(name: str) -> Shape:
    if name not in PRESETS:
        raise InputError(f"shape: must be one of {', '.join(PRESETS)}, got {name!r}")
    return _joint(name, *PRESETS[name]())


def of_scores(name: str, labels: IntArray, p: FloatArray) -> Shape:
    """The shape of a score file: the histogram of its scores, smoothed by a fit."""
    cell = np.minimum(positions(p).astype(np.int64), CELLS - 1) + CELLS * labels
    seen, counts = np.unique(cell, return_counts=True)
    patterns = Patterns(start=seen, stop=seen + 1, counts=counts.astype(np.float64))
    return Shape(name, fit_ensemble(patterns).table)
