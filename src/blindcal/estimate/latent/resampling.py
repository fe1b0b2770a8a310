"""Refits to resampled items, from which all intervals come, for one fit or two fits together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array

from blindcal.errors import NotIdentifiedError
from blindcal.estimate.grid import CELLS
from blindcal.estimate.latent.model import Ensemble, refit, roughened
from blindcal.estimate.readings import Axis, Patterns
from blindcal.records import FloatArray, IntArray

#: Draws a given number of resamples, as counts of each pattern.
Resample: TypeAlias = Callable[[int, np.random.Generator], FloatArray]

_CHUNK = 2_000_000  # number of (resample, pattern) pairs that are refitted at a time


@dataclass(frozen=True, eq=False)
class Alternative:
    """Another plausible reading of the same answers, and its share of the refits."""

    patterns: Patterns
    ensemble: Ensemble
    share: float


@dataclass(frozen=True, eq=False)
class Resampling:
    """Refits to resampled items or ``groups`` of items, computed on first use; none with ``size`` 0."""

    patterns: Patterns
    ensemble: Ensemble
    size: int
    seed: int
    groups: IntArray | None = None
    alternatives: tuple[Alternative, ...] = ()

    @cached_property
    def draws(self) -> FloatArray:
        """Joint tables of the population over (label, log-odds), one per refit."""
        return np.concatenate([axis.to_log_odds(tables) for axis, tables in self._by_axis])

    @property
    def over_margins(self) -> FloatArray:
        """The same over (label, cell of the fit)."""
        return np.concatenate([tables for _, tables in self._by_axis])

    @cached_property
    def _by_axis(self) -> tuple[tuple[Axis, FloatArray], ...]:
        if not self.size:
            raise NotIdentifiedError("this fit was made without resamples, so it has no intervals")
        resample = of_items(self.patterns) if self.incidence is None else of_units(self.incidence)
        rng = np.random.default_rng(self.seed)
        sizes = [round(self.size * other.share) for other in self.alternatives]
        read = [
            (self.patterns, self.ensemble),
            *((other.patterns, other.ensemble) for other in self.alternatives),
        ]
        return tuple(
            (patterns.axis, resampled_tables(patterns, ensemble, size, rng, resample))
            for (patterns, ensemble), size in zip(read, [self.size - sum(sizes), *sizes], strict=True)
        )

    @cached_property
    def incidence(self) -> csr_array | None:
        """Number of items per group (rows) and pattern (columns); ``None`` without groups."""
        if self.groups is None:
            return None
        return incidence(self.groups, int(self.groups.max()) + 1, self.patterns)

    @cached_property
    def units(self) -> int:
        """Number of independent units: groups, or items if there are no groups."""
        return int(self.patterns.n) if self.groups is None else np.unique(self.groups).size


def resampled_tables(
    patterns: Patterns, ensemble: Ensemble, size: int, rng: np.random.Generator, resample: Resample
) -> FloatArray:
    """Refit to resamples: a weighted-likelihood bootstrap with randomised priors.

    Each draw resamples items or groups, the prior's centre (from the prior) and the smoothness (by its
    evidence). In the Gaussian limit the draws have exactly the posterior's spread. Their density is rougher
    than that of the fit, because the answers do not show how smooth the population really is.
    """
    ensemble = roughened(patterns, ensemble)
    tables = np.empty((size, 2 * CELLS))
    which = rng.choice(ensemble.weights.size, size=size, p=ensemble.weights)
    scale = 1 / np.sqrt([mode.precision for mode in ensemble.modes])
    step = max(1, _CHUNK // len(patterns))
    for begin in range(0, size, step):
        part = which[begin : begin + step]
        centres = rng.standard_normal((part.size, scale.shape[1])) * scale[part]
        counts = resample(part.size, rng)
        tables[begin : begin + part.size] = refit(patterns, ensemble.modes, part, counts, centres)
    return tables


def of_items(patterns: Patterns) -> Resample:
    shares = patterns.counts / patterns.counts.sum()
    return lambda size, rng: rng.multinomial(int(patterns.n), shares, size=size).astype(np.float64)


def of_units(incidence: csr_array) -> Resample:
    """Draw units (rows of the incidence) with replacement."""
    units = incidence.shape[0]

    def resample(size: int, rng: np.random.Generator) -> FloatArray:
        picked = rng.multinomial(units, np.full(units, 1 / units), size=size)
        return np.asarray((incidence.T @ picked.T).T, dtype=np.float64)

    return resample


def incidence(units: IntArray, count: int, patterns: Patterns) -> csr_array:
    """Number of items per unit (rows) and pattern (columns); ``units`` has one entry per item."""
    return csr_array((np.ones(units.size), (units, patterns.of_item)), shape=(count, len(patterns)))
