"""Seeds that make sampled answers repeatable.

The seed of a query follows from the run's seed and the query's number alone, and replays and simulations draw
their answers from it. So a run gives the same answers in any order, over HTTP or not, interrupted or not.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from blindcal.records import FloatArray, IntArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SEED_BITS = np.uint64(31)  # every server accepts seeds of this size


def query_seeds(seed: int, first: int, count: int) -> IntArray:
    """The seeds of ``count`` queries of a run, starting with query number ``first``."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    base = _mixed(np.array([seed], dtype=np.uint64))
    return (_mixed(base + numbers * _GOLDEN) >> (np.uint64(64) - _SEED_BITS)).astype(np.int64)


def uniform_draws(seeds: IntArray) -> FloatArray:
    """The uniform draw in [0, 1) that belongs to each seed."""
    return (_mixed(seeds.astype(np.uint64) + _GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_of_name(seed: int, name: str, purpose: str) -> float:
    """The uniform draw in (0, 1) that belongs to a name, such as an item's id, for one purpose."""
    key = seed.to_bytes(16, "little")
    words = name.encode(errors="surrogatepass")
    digest = hashlib.blake2b(words, digest_size=8, key=key, person=purpose.encode()).digest()
    return ((int.from_bytes(digest, "little") >> 12) + 0.5) * 2.0**-52


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function (Steele, Lea, Flood 2014)."""
    z = state + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
