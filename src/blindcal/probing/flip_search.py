"""Find the shift at which an answer flips, and how sharp the flip is.

The answer to an item changes from negative to positive at one shift, its flip (METHOD 2: ``b = -s``).
With jitter on the hidden log-odds, the probability of a positive answer is a normal distribution
function around the flip. The flip and the jitter are estimated from a handful of answers, some of which
may be strays.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from blindcal.records import INVALID, NEGATIVE, POSITIVE, FloatArray

DROP = 1.92  # of the log-likelihood, from its maximum to the end of a 95% interval
FARTHEST_JITTER = 3.0  # distance from a flip beyond which a wrong answer is a stray, not jitter
_FINEST, _WIDEST = 0.01, 10.0
_STRAY = 0.001  # the share of stray answers; with more, they would explain what jitter does


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer to one item at one shift and temperature."""

    item: str
    shift: float
    answer: int
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class FlipFit:
    """The flip of each item, and the jitter of the log-odds with its limits.

    ``jitter`` is 0 if every answer is on the right side of its flip; ``most`` is an upper limit even then.
    Answers may stray: be the wrong one for no reason, however far from the flip.
    """

    shifts: Mapping[str, float]
    jitter: float
    least: float
    most: float

    @property
    def margin(self) -> float:
        """The distance from a flip beyond which answers are reliable."""
        return 0.05 + 3 * self.most

    def far(self, reading: Reading) -> bool:
        """Whether a greedy answer is so far from its flip that no jitter reaches it."""
        distance = abs(reading.shift - self.shifts[reading.item])
        return reading.temperature == 0 and distance > max(FARTHEST_JITTER, 4 * self.jitter)

    def astray(self, reading: Reading) -> bool:
        """Whether an answer is far from its flip and on the wrong side of it."""
        wanted = POSITIVE if reading.shift > self.shifts[reading.item] else NEGATIVE
        return self.far(reading) and reading.answer != wanted


async def bisect(
    answer: Callable[[float], Awaitable[int]], low: float, high: float, width: float = 0.05
) -> float | None:
    """The place between ``low`` and ``high`` where ``answer`` turns positive; ``None`` if one is invalid.

    Bisects on a scale that is linear near zero and logarithmic far out, where flips are rare.
    """
    while high - low > width:
        middle = math.sinh((math.asinh(low) + math.asinh(high)) / 2)
        found = await answer(middle)
        if found == INVALID:
            return None
        if found == POSITIVE:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def fit(readings: Sequence[Reading], known: Mapping[str, float] | None = None) -> FlipFit:
    """The likeliest flip of each item (or the `known` one) and the likeliest common jitter, at T = 0."""
    widths = np.geomspace(_FINEST, _WIDEST, 73)
    profile = np.zeros(widths.size)
    places: dict[str, FloatArray] = {}
    clean = True
    readings = [reading for reading in readings if reading.temperature == 0]
    for item in dict.fromkeys(reading.item for reading in readings):
        own = [reading for reading in readings if reading.item == item]
        shifts = np.array([reading.shift for reading in own], float)
        signs = np.array([1.0 if reading.answer == POSITIVE else -1.0 for reading in own])
        candidates = _between(shifts, signs) if known is None else np.array([known[item]])
        away = signs * (shifts - candidates[:, None])
        clean &= bool(((away > 0) | (away < -FARTHEST_JITTER)).all(axis=1).any())
        right = _STRAY + (1 - 2 * _STRAY) * ndtr(away[:, None, :] / widths[:, None])
        likelihood = np.log(right).sum(axis=2)
        places[item] = candidates[likelihood.argmax(axis=0)]
        profile += likelihood.max(axis=0)
    best = int(profile.argmax())
    plausible = widths[profile > profile[best] - DROP]
    flips = {item: float(found[best]) for item, found in places.items()}
    least, jitter = (0.0, 0.0) if clean else (float(plausible.min()), float(widths[best]))
    return FlipFit(flips, jitter, least, float(plausible.max()))


def _between(shifts: FloatArray, signs: FloatArray) -> FloatArray:
    """Candidates for a flip: everywhere between answers where few answers would be on the wrong side."""
    order = np.argsort(shifts)
    ordered, up = shifts[order], signs[order] > 0
    edges = np.concatenate([[ordered[0] - 1], ordered, [ordered[-1] + 1]])
    wrong = np.concatenate([[0], np.cumsum(up)]) + np.concatenate([np.cumsum(~up[::-1])[::-1], [0]])
    (fits,) = np.nonzero(wrong <= wrong.min() + (wrong.min() > 0))
    return np.linspace(edges[fits[0]], edges[fits[-1] + 1], 101)
