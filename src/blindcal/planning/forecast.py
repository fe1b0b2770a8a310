"""Forecasts of the width of an audit's interval.

An audit of an assumed model is simulated and fitted, and its spread scaled to the number of items.
docs/plan.md compares forecasts with many simulated audits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit, logit, ndtr

from blindcal.errors import InputError
from blindcal.estimate import grid
from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, MID_P, positions
from blindcal.estimate.latent.intervals import of_items
from blindcal.estimate.latent.model import Ensemble, fit_ensemble, refit, tangents
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.estimate.shown import ShownFit
from blindcal.estimate.uncertainty import absolute_sum_interval, unseen_share
from blindcal.methods import METHODS, SIMULABLE, make_design
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import ask

_DRAWS = 1200
_REFITS = 240
_AUDITS = 12  # draws whose intervals are averaged
_ROUGHLY = 1e-3  # log-likelihood units at which a fit may stop: far below the uncertainty of the answers
_SIMULATED = 10_000  # most items of a simulated audit
_MOST_AUDITS = 40  # simulated for one forecast
_LEAST_SIMULATED = 1000  # items of all simulated audits together
#: Maximum queries per item of a forecast; well before, only the noise of the labels is left.
MAX_QUERIES = 8.0


def half_width(
    shape: Shape, method: str, n: int, queries: float, *, bins: int = 5, level: float = 0.95
) -> float | None:
    """Forecast the half-width of the interval of the ECE; ``None`` for methods without intervals."""
    method = "logprobs" if method == "decisions" else method  # both show probabilities
    if method not in SIMULABLE:
        raise InputError(f"method: can be planned for {', '.join(SIMULABLE)}, got {method!r}")
    METHODS[method].check_queries(queries)
    if not METHODS[method].fitted:
        return None
    if queries > MAX_QUERIES:
        raise InputError(
            f"queries: {method} can be planned with at most {MAX_QUERIES:g} per item, got {queries:g}; "
            "more would hardly tell more"
        )
    asked = max(1, round(min(queries, 1.0) * n))
    return _mean_width(shape, method, asked, max(queries, 1.0), bins, level) / 2


@lru_cache(maxsize=64)
def _mean_width(shape: Shape, method: str, n: int, queries: float, bins: int, level: float) -> float:
    audits = min(_MOST_AUDITS, -(-_LEAST_SIMULATED // n))  # few items are simulated several times
    return float(np.mean([_width(shape, method, n, queries, bins, level, seed) for seed in range(audits)]))


def _width(shape: Shape, method: str, n: int, queries: float, bins: int, level: float, seed: int) -> float:
    simulated = min(n, _SIMULATED)
    draws = _simulated_gaps(shape, method, simulated, queries, bins, seed)
    off, unseen = (draws - draws.mean(axis=0)) * np.sqrt(simulated / n), unseen_share(n, level)
    draws = grid.gaps(shape.table, bins) + off
    step = len(draws) // _AUDITS
    widths = []
    for gaps in draws[np.argsort(np.abs(draws).sum(axis=1))[step // 2 :: step]]:
        low, high = absolute_sum_interval(gaps, gaps + off, level)
        least = (1 - unseen) * np.abs(gaps).sum()
        widths.append(float(min(1.0, max(high, least + unseen)) - max(0.0, min(low, least))))
    return float(np.mean(widths))


@lru_cache(maxsize=64)
def _simulated_gaps(shape: Shape, method: str, n: int, queries: float, bins: int, seed: int) -> FloatArray:
    """Draws of the estimated gaps of one simulated audit, whose items are spread evenly over the shape."""
    labels, p = shape.spread(n, np.random.default_rng(seed))
    if METHODS[method].shown:
        shown = ShownFit(labels=labels, p=p, resamples=_DRAWS)
        return grid.gaps(shown.draws, bins, shown.draw_cells)
    answered = ask(make_design(method, labels, queries=queries, seed=seed), p, seed=seed)
    patterns = count_patterns(labels, answered)
    ensemble = fit_ensemble(patterns, enough=_ROUGHLY)
    if METHODS[method].tempered:
        return _linear_gaps(ensemble, bins)
    return _refitted_gaps(patterns, ensemble, bins)


def _linear_gaps(ensemble: Ensemble, bins: int) -> FloatArray:
    """Draws by the information of the fit; all forecasts use the same noise."""
    half = np.random.default_rng(0).standard_normal((_DRAWS // 2, bins))
    noise = np.stack([half, -half], axis=1).reshape(_DRAWS, bins)
    place = (np.arange(_DRAWS) * 0.6180339887498949 + 0.5) % 1  # golden ratio: evenly over (0, 1)
    which = np.minimum(np.searchsorted(np.cumsum(ensemble.weights), place), ensemble.weights.size - 1)
    draws = np.empty((_DRAWS, bins))
    for k, mode in enumerate(ensemble.modes):
        along = grid.gaps(tangents(mode).T, bins)
        variance, axes = np.linalg.eigh(along.T @ np.linalg.solve(mode.information, along))
        root = (axes * np.sqrt(np.maximum(variance, 0.0))) @ axes.T
        mine = which == k
        draws[mine] = grid.gaps(mode.table, bins) + noise[mine] @ root
    return draws


def _refitted_gaps(patterns: Patterns, ensemble: Ensemble, bins: int) -> FloatArray:
    """Used where equal questions leave the likelihood too flat for a linear approximation."""
    rng = np.random.default_rng(0)
    which = rng.choice(ensemble.weights.size, size=_REFITS, p=ensemble.weights)
    precision = np.array([mode.precision for mode in ensemble.modes])[which]
    centres = rng.standard_normal(precision.shape) / np.sqrt(precision)
    counts = of_items(patterns)(_REFITS, rng)
    return grid.gaps(refit(patterns, ensemble.modes, which, counts, centres), bins)


# Shapes: the distribution of a confidence, with a reliability curve


@dataclass(frozen=True, repr=False, eq=False)
class Shape:
    """A joint table over (label, cell), label 0 first, that sums to one."""

    name: str
    table: FloatArray

    def __repr__(self) -> str:
        return f"Shape({self.name!r}, ECE {self.ece():.4f})"

    def ece(self, bins: int = 5) -> float:
        return float(grid.ece(self.table, bins))

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


def _overconfident() -> Shape:
    density = sum(np.diff(ndtr((EDGES_S - mean) / 1.8)) for mean in (-2.0, 2.5))
    curve = expit(0.5 * logit(MID_P) - 0.2)
    table = np.concatenate([density * (1 - curve), density * curve])
    return Shape("overconfident", table / table.sum())


OVERCONFIDENT = _overconfident()
"""The shape assumed by default: sure in both directions, and wrong more often than it says."""


def shape_of_scores(name: str, labels: IntArray, p: FloatArray) -> Shape:
    """The shape of a score file: the histogram of its scores, smoothed by a fit."""
    cell = np.minimum(positions(p).astype(np.int64), CELLS - 1) + CELLS * labels
    seen, counts = np.unique(cell, return_counts=True)
    patterns = Patterns(start=seen, stop=seen + 1, counts=counts.astype(np.float64))
    return Shape(name, fit_ensemble(patterns).table)
