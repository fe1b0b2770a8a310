"""Refits to resampled items: what stands behind every interval, of one fit or of two together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array

from blindcal.errors import NotIdentifiedError
from blindcal.estimate.grid import CELLS
from blindcal.estimate.model import Ensemble, refit
from blindcal.estimate.patterns import Patterns
from blindcal.records import FloatArray, IntArray

#: So many resamples' counts of each pattern.
Resample: TypeAlias = Callable[[int, np.random.Generator], FloatArray]

_CHUNK = 2_000_000  # resamples are refitted so many (resample, pattern) pairs at a time


@dataclass(frozen=True, eq=False)
class Resampling:
    """How a fit is refitted to resampled items, or to whole groups of them; done once, when first asked for.

    ``groups`` is each item's group. ``size`` 0 stands for a fit that knows nothing of its own uncertainty.
    """

    patterns: Patterns
    ensemble: Ensemble
    size: int
    seed: int
    groups: IntArray | None = None

    @cached_property
    def draws(self) -> FloatArray:
        """Joint tables of the population, one for each refit."""
        if not self.size:
            raise NotIdentifiedError("this fit was made without resamples, so nothing tells how sure it is")
        resample = of_items(self.patterns) if self.incidence is None else of_units(self.incidence)
        rng = np.random.default_rng(self.seed)
        return resampled_tables(self.patterns, self.ensemble, self.size, rng, resample)

    @cached_property
    def incidence(self) -> csr_array | None:
        """Items of each group (rows) that show each pattern (columns); ``None`` without groups."""
        if self.groups is None:
            return None
        return incidence(self.groups, int(self.groups.max()) + 1, self.patterns)

    @cached_property
    def units(self) -> int:
        """Number of independent units: groups, or items where there are none."""
        return int(self.patterns.n) if self.groups is None else np.unique(self.groups).size


def resampled_tables(
    patterns: Patterns, ensemble: Ensemble, size: int, rng: np.random.Generator, resample: Resample
) -> FloatArray:
    """Weighted-likelihood bootstrap with randomised priors.

    Each draw resamples the items (or groups) and moves the prior's centre by a draw from the prior, so
    that in the Gaussian limit the draws have exactly the posterior's spread: sampling noise where the
    answers decide, the prior's width where they do not. Smoothness is drawn by its evidence.
    """
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
    """Items drawn with replacement, each for itself."""
    shares = patterns.counts / patterns.counts.sum()
    return lambda size, rng: rng.multinomial(int(patterns.n), shares, size=size).astype(np.float64)


def of_units(incidence: csr_array) -> Resample:
    """Units (groups of items) drawn with replacement; rows of the incidence are units, columns patterns."""
    units = incidence.shape[0]

    def resample(size: int, rng: np.random.Generator) -> FloatArray:
        picked = rng.multinomial(units, np.full(units, 1 / units), size=size)
        return np.asarray((incidence.T @ picked.T).T, dtype=np.float64)

    return resample


def incidence(units: IntArray, count: int, patterns: Patterns) -> csr_array:
    """Items of each unit (rows) that show each pattern (columns); ``units`` is each item's unit."""
    return csr_array((np.ones(units.size), (units, patterns.of_item)), shape=(count, len(patterns)))
