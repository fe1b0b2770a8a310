"""The luck of a sampled answer, made repeatable: each query has a seed, and a seed decides the draw.

An answer at T > 0 depends on chance. Drawn from a stream, it would depend on the order in which queries
happen to arrive. Here query q of a run is asked with a seed that follows from the run's own seed and q
alone, and whoever answers by known probabilities (a replay, a simulation) turns that seed into its draw:
the same run gives the same answers in any order, over HTTP or not, interrupted or not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blindcal.records import FloatArray, IntArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SEED_BITS = np.uint64(31)  # what every server takes for a seed


def query_seeds(seed: int, first: int, count: int) -> IntArray:
    """The seeds of ``count`` queries of a run, from query number ``first`` on."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    base = _mixed(np.array([seed], dtype=np.uint64))
    return (_mixed(base + numbers * _GOLDEN) >> (np.uint64(64) - _SEED_BITS)).astype(np.int64)


def uniform_draws(seeds: IntArray) -> FloatArray:
    """The draw in [0, 1) that each seed decides."""
    return (_mixed(seeds.astype(np.uint64) + _GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function (Steele, Lea, Flood 2014): each bit in moves each bit out."""
    z = state + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
