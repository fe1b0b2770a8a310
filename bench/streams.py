"""Streams of items with known truth, for measuring alarms: real models' probabilities, drawn at random."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.special import expit

from accuracy import load
from blindcal.probing.response_curve import Observation, Query, bisect, fit
from blindcal.records import FloatArray, IntArray
from blindcal.reproduce import sources
from blindcal.simulation.simulate import log_odds

FARTHEST = 40.0  # log-odds of items whose probability was rounded to 0 or 1
REFINING = 8  # queries around a flip if answers are noisy


@dataclass(frozen=True)
class Traffic:
    """A model's probabilities on a data set, and their labels: the whole population of a stream."""

    name: str
    labels: IntArray
    f: FloatArray

    @property
    def gap(self) -> float:
        """Mean confidence minus the share of positive labels."""
        return float((self.f - self.labels).mean())

    def stream(self, n: int, rng: np.random.Generator, chance: FloatArray | None = None) -> Stream:
        """Items drawn with replacement, with their labels or, given each item's chance, with new ones."""
        picked = rng.integers(self.f.size, size=n)
        thresholds = rng.random(n)
        labels = self.labels[picked]
        if chance is not None:
            labels = (rng.random(n) < chance[picked]).astype(np.int64)
        f = self.f[picked]
        return Stream(labels, f, thresholds, (f >= thresholds).astype(np.int64))

    def shifted(self, shift: float) -> Traffic:
        """The same items with other log-odds."""
        return Traffic(self.name, self.labels, expit(log_odds(self.f) + shift))


@dataclass(frozen=True)
class Stream:
    """Items with their probabilities and one answer each, in order."""

    labels: IntArray
    f: FloatArray
    thresholds: FloatArray
    answers: IntArray

    def then(self, other: Stream) -> Stream:
        """These items, and then others."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Stream(*(np.concatenate(pair) for pair in pairs))


@lru_cache
def recorded(path: Path) -> Traffic:
    """A score or logit file."""
    return Traffic(" ".join(sources.names(path)), *load(path))


#: Chances of a positive label whose mean distance from f is the second argument: f says too much, too
#: little, or is too extreme.
OFF: dict[str, Callable[[FloatArray, float], FloatArray]] = {
    "too high": lambda f, ece: f - ece / f.mean() * f,
    "too low": lambda f, ece: f + ece / (1 - f).mean() * (1 - f),
    "too sure": lambda f, ece: f - ece / np.abs(f - 0.5).mean() * (f - 0.5),
}


@dataclass(frozen=True)
class AnchorSetUp:
    """Reference items with their flips, as a watch finds them, and how often its confirmations went wrong.

    Queries are ``margin`` away from a flip: above it the answer should be positive, below it negative.
    """

    flips: FloatArray
    margin: float
    up_wrong: int = 0
    up_asked: int = 0
    down_wrong: int = 0
    down_asked: int = 0


def set_up_anchors(s: FloatArray, jitter: float, confirmations: int, rng: np.random.Generator) -> AnchorSetUp:
    """Find the flips of items with these log-odds, and confirm them, as watching/anchors.py does."""
    readings: list[Observation] = []

    async def flip(item: int) -> float:
        async def answer(shift: float) -> int:
            said = int(s[item] + shift + jitter * rng.standard_normal() >= 0)
            readings.append(Observation(Query(str(item), shift), said))
            return said

        found = await bisect(answer, -FARTHEST - 10, FARTHEST + 10)
        assert found is not None
        if jitter == 0:
            return found
        for k in range(REFINING):
            await answer(found + jitter * (0.5 + k / REFINING) * (-1) ** k)
        return fit([one for one in readings if one.query.item == str(item)]).shifts[str(item)]

    async def every() -> list[float]:
        return [await flip(item) for item in range(s.size)]

    flips, margin = np.array(asyncio.run(every())), 0.1 + 1.5 * jitter
    up, wrong = ask_anchors(s, AnchorSetUp(flips, margin), jitter, confirmations, rng)
    return AnchorSetUp(
        flips, margin, int((up & wrong).sum()), int(up.sum()), int((~up & wrong).sum()), int((~up).sum())
    )


def ask_anchors(
    s: FloatArray, ready: AnchorSetUp, jitter: float, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The sides and errors of so many anchor queries, each about a random item and a random side."""
    item, up = rng.integers(s.size, size=n), rng.random(n) < 0.5
    shift = ready.flips[item] + np.where(up, ready.margin, -ready.margin)
    positive = s[item] + shift + jitter * rng.standard_normal(n) >= 0
    return up, positive != up
