"""Bets against a claim about a stream of answers: gains that are not positive on average if the claim holds.

An item is asked at a threshold t that is uniform on (0, 1), and answers ``d = 1[f >= t]``. So for every
function g with g(0) = 0, ``d g'(t)`` has the mean g(f): one answer measures any smooth function of the hidden
confidence without bias (METHOD 11). With a weight h and a curve c, the number

    S = (c(0) - Y) h(0) + d ((c h)'(t) - Y h'(t))

has the mean ``(c(f) - E[Y|f]) h(f)``, which is zero if c is the reliability curve, whatever the distribution
of f. A game bets on S and on -S, with several weights; nothing has to be estimated, and gaps of opposite sign
do not cancel. A gain also pays for what the claim leaves open: a band around the curve, a mean deviation, and
the known noise of the answers.

The bets are fixed in advance. So the wealth is a product over the items, whose order does not matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.special import expit, logit, ndtr

from blindcal.estimate.piecewise import (
    IDENTITY,
    ONE,
    ZERO,
    PiecewiseLinear,
    product_slope,
    soft_sign,
)
from blindcal.records import FloatArray, IntArray, Noise

Column: TypeAlias = FloatArray | IntArray

FRACTIONS: FloatArray = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.7])
"""Shares of the highest stake, the one that a single observation could lose whole."""
CENTRES = (0.25, 0.5, 0.75)
"""Where the weights change sign that find gaps of opposite sign."""
WEIGHTS: tuple[PiecewiseLinear, ...] = (ONE, *(soft_sign(centre, 1.0) for centre in CENTRES))
"""Weights of the gaps: all alike, and soft signs."""
_SHARES = (1 / 2, *(1 / 2 / len(CENTRES) for _ in CENTRES))
_EDGE = 1e-12  # how near the left of a knot the slope on its left is taken
_NOISE_GRID = 2000


@dataclass(frozen=True, slots=True)
class BetSide:
    """One thing to bet on, with its share of the stakes.

    ``sign`` is the direction of the bet. ``centre`` is where its weight changes sign, ``None`` if nowhere.
    """

    sign: int
    share: float
    centre: float | None = None


_BOTH_DIRECTIONS = tuple(
    BetSide(sign, share / 2, centre)
    for share, centre in zip(_SHARES, (None, *CENTRES), strict=True)
    for sign in (1, -1)
)


class Game(ABC):
    """Bets against one claim: a few sides, each with stakes at all `FRACTIONS`.

    A subclass defines the gains of the sides, whose mean is not positive if the claim holds, and the least
    gain that each can have.
    """

    sides: tuple[BetSide, ...]

    @property
    @abstractmethod
    def least(self) -> FloatArray:
        """The least gain of each side, negative."""

    @cached_property
    def shares(self) -> FloatArray:
        """The share of each bet in the stakes; bets are numbered by side, then by fraction."""
        return np.repeat([side.share for side in self.sides], FRACTIONS.size) / FRACTIONS.size

    def side_of(self, bet: int) -> BetSide:
        """The side of a bet."""
        return self.sides[bet // FRACTIONS.size]

    def log_factors(self, gains: FloatArray) -> FloatArray:
        """What each observation multiplies each bet by, as logarithms; ``gains`` has a column per side."""
        stakes = FRACTIONS / -self.least[:, None]
        return np.log1p(gains[:, :, None] * stakes).reshape(len(gains), -1)


@dataclass(frozen=True, eq=False)
class CalibrationGame(Game):
    """Bets against the claim that the reliability curve is ``curve``, up to ``width`` at each confidence.

    The width is multiplied by a factor for each of the `WEIGHTS`. ``allowance`` is a mean deviation that the
    claim allows on top, as a limit of the ECE does. Answers may be noisy, and thresholds whose log-odds are
    beyond ``reach`` are asked there.
    """

    curve: PiecewiseLinear = IDENTITY
    width: PiecewiseLinear = ZERO
    factors: tuple[float, ...] = (1.0,) * len(WEIGHTS)
    allowance: float = 0.0
    noise: Noise = field(default_factory=Noise)
    reach: float = np.inf
    sides = _BOTH_DIRECTIONS

    def gains(self, labels: IntArray, thresholds: FloatArray, answers: IntArray) -> FloatArray:
        """The gain of each labelled answer on each side."""
        return self._gross(labels, thresholds, answers) - self._noise_allowance

    @cached_property
    def least(self) -> FloatArray:
        """The least gain of each side: gains are linear in t between knots, so it is at one of them."""
        functions = (self.curve, self.width, *WEIGHTS, *(one.magnitude() for one in WEIGHTS))
        knots = np.unique(np.concatenate([one.knots for one in functions]))
        t = np.concatenate([knots[:-1], knots[1:] - _EDGE])
        cases = [(y, d) for y in (0, 1) for d in (0, 1)]
        found = [self.gains(np.full(t.size, y), t, np.full(t.size, d)).min(axis=0) for y, d in cases]
        return np.asarray(np.min(found, axis=0))

    def _gross(
        self, labels: FloatArray | IntArray, t: FloatArray, answers: FloatArray | IntArray
    ) -> FloatArray:
        """Gains before the noise is paid for; linear in labels and answers, which may be probabilities."""
        columns = []
        for weight, factor in zip(WEIGHTS, self.factors, strict=True):
            size = weight.magnitude()
            start = (self.curve.first - labels) * weight.first
            moved = product_slope(self.curve, weight, t) - labels * weight.slope(t)
            signed = start + answers * moved
            wide = self.width.first * size.first + answers * product_slope(self.width, size, t)
            slack = factor * wide + self.allowance
            columns += [signed - slack, -signed - slack]
        return np.stack(columns, axis=1)

    @cached_property
    def _noise_allowance(self) -> FloatArray:
        """The highest mean that noise could give each side if the claim holds, whatever f is."""
        noise = self.noise
        if noise.jitter == 0 and noise.flip_rate == 0 and not np.isfinite(self.reach):
            return np.zeros(2 * len(WEIGHTS))
        t = (np.arange(_NOISE_GRID) + 0.5) / _NOISE_GRID
        asked = np.clip(logit(t), -self.reach, self.reach)
        highest = np.zeros(2 * len(WEIGHTS))
        for f in expit(np.linspace(-12, 12, 241)):
            positive = positive_rate(np.full(t.size, f), asked, noise)
            step = (f >= t).astype(float)
            for label in (0.0, 1.0):  # linear between them
                labels = np.full(t.size, label)
                excess = self._gross(labels, t, positive) - self._gross(labels, t, step)
                highest = np.maximum(highest, excess.mean(axis=0))
        return highest


@dataclass(frozen=True, eq=False)
class QuestionsGame(Game):
    """Bets against the claim that a share ``share(t)`` of the answers is positive, up to ``width(t)``.

    The width is multiplied by a factor for each of the `WEIGHTS`.
    """

    share: PiecewiseLinear
    width: PiecewiseLinear = ZERO
    factors: tuple[float, ...] = (1.0,) * len(WEIGHTS)
    sides = _BOTH_DIRECTIONS

    def gains(self, thresholds: FloatArray, answers: IntArray) -> FloatArray:
        """The gain of each answer on each side."""
        columns = []
        for weight, factor in zip(WEIGHTS, self.factors, strict=True):
            h = weight(thresholds)
            signed = (answers - self.share(thresholds)) * h
            slack = factor * self.width(thresholds) * np.abs(h)
            columns += [signed - slack, -signed - slack]
        return np.stack(columns, axis=1)

    @cached_property
    def least(self) -> FloatArray:
        """A bound of the least gain of each side."""
        return np.repeat(-1 - float(self.width.values.max()) * np.array(self.factors), 2)


@dataclass(frozen=True, eq=False)
class AnchorGame(Game):
    """Bets against the claim that a repeated query is answered wrongly at most so often, on either side.

    ``most`` are the highest rates of wrong answers above and below a flip. The three sides bet on more wrong
    answers above, below, and anywhere.
    """

    most: tuple[float, float]
    sides = (BetSide(1, 1 / 3), BetSide(-1, 1 / 3), BetSide(0, 1 / 3))

    def gains(self, above: IntArray, wrong: IntArray) -> FloatArray:
        """The gain of each answer on each side; ``above`` says whether it was asked above its flip."""
        excess = wrong - np.where(above, *self.most)
        return np.stack([above * excess, (1 - above) * excess, excess], axis=1)

    @cached_property
    def least(self) -> FloatArray:
        """The least gain of each side."""
        return -np.array([*self.most, max(self.most)])


def positive_rate(f: FloatArray, log_odds: FloatArray, noise: Noise) -> FloatArray:
    """How often the answer at a threshold, given in log-odds, is positive for confidence f."""
    distance = logit(f) - log_odds
    clean = (distance >= 0).astype(float) if noise.jitter == 0 else ndtr(distance / noise.jitter)
    return np.asarray(noise.flip_rate + (1 - 2 * noise.flip_rate) * clean)
