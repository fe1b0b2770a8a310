"""Were answers drawn from the probabilities that are shown beside them?

Both tests bet against these probabilities on whether each answer is the likeliest one. If the answers were
drawn from them, the expected wealth is at most 1, and exceeds `PROOF` with probability 1 / `PROOF` at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import expit, logsumexp

from blindcal.records import NEGATIVE, BoolArray, FloatArray

PROOF = 1000.0
_AT_RANDOM = 0.1  # share of answers that may have nothing to do with the probabilities
_CUT = 0.5  # share of unlikely answers that may never come
_LEAST = 0.002  # probabilities are rounded, so that smaller ones are not trusted


@dataclass(frozen=True, eq=False)
class DrawnAnswers:
    """Whether each answer is the ``likeliest``; the highest ``chance`` of this event, and the ``least``."""

    likeliest: BoolArray
    chance: FloatArray
    least: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, *, several: bool) -> Self:
        """From rows of an answer, the likeliest one, and bounds of its log-odds, or of the positive one's."""
        said, likeliest, low, high = rows.reshape(-1, 4).T
        if not several:
            turned = likeliest == NEGATIVE
            low, high = np.where(turned, -high, low), np.where(turned, -low, high)
        same = said == likeliest
        return cls(same, np.where(same, expit(high), expit(-low)), np.where(same, expit(low), expit(-high)))

    @property
    def unlikely(self) -> int:
        """The number of answers that are not the likeliest ones."""
        return int((~self.likeliest).sum())

    @property
    def expected(self) -> float:
        """The number of answers that should not be the likeliest ones."""
        return float(np.where(self.likeliest, 1 - self.chance, self.chance).sum())

    @property
    def surprising(self) -> bool:
        """Whether answers that are not the likeliest must be commoner than the probabilities say."""
        chance = np.maximum(self.chance, _LEAST)
        tempered = 1 / (1 + np.sqrt((1 - chance) / chance))  # log-odds half as large
        bets = [np.full_like(chance, 0.5), tempered, (1 - _AT_RANDOM) * chance + _AT_RANDOM / 2]
        gain = np.array(bets) / chance
        gain = np.where(self.likeliest, np.minimum(gain, 1.0), np.maximum(gain, 1.0))
        return bool(logsumexp(np.log(gain).sum(axis=1)) > np.log(len(bets) * PROOF))

    @property
    def too_sure(self) -> bool:
        """Whether answers that are not the likeliest must be rarer than the probabilities say."""
        chance, odds = np.maximum(self.chance, _LEAST), self.least / (1 - self.least + _LEAST)
        cut = np.where(self.likeliest, chance + _CUT * (1 - chance), (1 - _CUT) * chance)
        bets = [cut, odds**2 / (1 + odds**2)]  # log-odds twice as large
        gain = np.log(np.maximum(bets / chance, _LEAST)).sum(axis=1)
        return bool(logsumexp(gain) > np.log(len(bets) * PROOF))
