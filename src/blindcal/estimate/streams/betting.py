"""Games: bets against a claim about a stream of answers, which do not win on average if the claim holds.

An item is asked at a threshold t that is uniform on (0, 1), answers ``d = 1[f >= t]``, and may get a label Y.
A game has a few *sides*. Each is a table of gains by the bin of t, by d and by Y, whose mean is not positive
under the claim, whatever the distribution of f (METHOD 11, docs/method.md section 9). The claims:

- *calibration*: E[Y|f] is a given curve c, for perfect calibration c(f) = f. A function with slope c' in each
  bin is measured without bias by ``c(0) + d c'(t)``, so ``c(0) + d c'(t) - Y`` has mean zero: calibration in
  the large. The other sides are likelihood ratios of `alternatives`, which also see gaps of opposite sign.
- *questions*: a given share of the answers at each threshold is positive. The sides are likelihood ratios.
- *anchors*: a repeated query is answered wrongly at most so often.

A gain also pays for what the claim leaves open: a band around the curve, a mean deviation, and the known
noise of the answers, in proportion to how much the gain depends on the label. The bets are fixed in advance,
so their wealth is a product over the items, whose order does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import expit, logit, ndtr

from blindcal.estimate.streams.alternatives import BINS, EDGES, Distortion, likelihood_ratios
from blindcal.records import FloatArray, IntArray, Noise

IN_THE_LARGE = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Stakes on a side that is linear in the gap, as shares of what could be lost at once."""
RATIOS = (0.3, 0.97)
"""Stakes on a likelihood ratio."""
ANCHOR_STAKES = (0.3, 0.7)
"""Stakes on wrong answers to anchor queries, which a change makes frequent."""
QUESTION_DISTORTIONS = tuple(
    Distortion(*pair) for pair in ((0.5, 1), (-0.5, 1), (1.5, 1), (-1.5, 1), (0, 0.6), (0, 1.6))
)
"""How the log-odds of the confidences may have changed."""
_LEAST_LOSS = 1e-3  # a side that can hardly lose would have no highest stake
_POINTS = 20  # of the threshold in a bin, over which noisy answers are averaged


@dataclass(frozen=True, eq=False)
class BetSide:
    """One thing to bet on: the gains of the cells, its share of the stakes, and what it means if it wins."""

    gains: FloatArray
    means: Distortion
    share: float
    stakes: tuple[float, ...] = RATIOS


class Game:
    """Fixed bets on several sides; an observation falls into one of the cells of their tables."""

    def __init__(self, sides: Sequence[BetSide]) -> None:
        self.sides = tuple(sides)

    @cached_property
    def shares(self) -> FloatArray:
        """The share of each bet in the wealth."""
        return np.array([side.share / len(side.stakes) for side in self.sides for _ in side.stakes])

    @cached_property
    def log_factors(self) -> FloatArray:
        """What an observation in each cell (rows) multiplies each bet (columns) by, as logarithms."""
        columns = []
        for side in self.sides:
            most = max(-float(side.gains.min()), _LEAST_LOSS)
            columns += [np.log1p(stake / most * side.gains) for stake in side.stakes]
        return np.stack(columns, axis=1)

    def meaning(self, bet: int) -> Distortion:
        """What it means if a bet wins."""
        return [side.means for side in self.sides for _ in side.stakes][bet]


def calibration_cells(labels: IntArray, thresholds: FloatArray, answers: IntArray) -> IntArray:
    """The cell of each labelled answer: by bin of the threshold, answer and label."""
    return 2 * question_cells(thresholds, answers) + labels


def question_cells(thresholds: FloatArray, answers: IntArray) -> IntArray:
    """The cell of each answer: by bin of the threshold, and answer."""
    return 2 * np.minimum((thresholds * BINS).astype(np.int64), BINS - 1) + answers


def anchor_cells(above: IntArray, wrong: IntArray) -> IntArray:
    """The cell of each answer to an anchor query: by the side of its flip, and whether it is wrong."""
    return 2 * above + wrong


@dataclass(frozen=True, eq=False)
class CurveClaim:
    """The claim that the reliability curve is ``curve`` at the `EDGES` of the bins, and linear between them.

    ``width`` is by how much it may be off there, times a factor for each side, of which the first is
    calibration in the large; ``allowance`` is a mean deviation that is allowed on top, as by a limit of the
    ECE. Answers may be noisy, and thresholds whose log-odds are beyond ``reach`` are asked there.
    """

    curve: FloatArray = field(default_factory=EDGES.copy)
    width: FloatArray = field(default_factory=lambda: np.zeros(EDGES.size))
    factors: FloatArray | None = None
    allowance: float = 0.0
    noise: Noise = field(default_factory=Noise)
    reach: float = np.inf

    @cached_property
    def game(self) -> Game:
        """The bets against the claim."""
        found = likelihood_ratios(self.curve)
        large = self.in_the_large
        tables = np.concatenate([large, -large, found.tables - 1])
        factors = np.ones(1 + len(found.tables)) if self.factors is None else self.factors
        tables = tables - self._slack(tables, np.concatenate([factors[:1], factors]))
        tables = tables - _noise_excess(tables, self.noise, self.reach)[:, None, None, None]
        means = (Distortion(-1, 1), Distortion(1, 1), *found.means)
        shares = [1 / 4, 1 / 4, *(1 / 2 / len(found.tables) for _ in found.tables)]
        stakes = [IN_THE_LARGE] * 2 + [RATIOS] * len(found.tables)
        return Game(
            [
                BetSide(table.reshape(-1), meaning, share, own)
                for table, meaning, share, own in zip(tables, means, shares, stakes, strict=True)
            ]
        )

    @property
    def in_the_large(self) -> FloatArray:
        """The curve minus the label, measured by one answer: a table with one side."""
        slopes = np.diff(self.curve) * BINS
        answers, labels = np.array([[0.0], [1.0]]), np.array([[0.0, 1.0]])
        return np.asarray(self.curve[0] + slopes[:, None, None] * answers - labels)[None]

    def _slack(self, tables: FloatArray, factors: FloatArray) -> FloatArray:
        """What each side pays for the band and the allowance."""
        dependence = np.abs(label_dependence(tables))
        paid = self.allowance * dependence.max(axis=1)[:, None, None, None]
        band = factors[:, None] * self.width * dependence
        slopes = np.diff(band, axis=1) * BINS
        answers = np.array([[0.0], [1.0]])
        return np.asarray(paid + band[:, :1, None, None] + slopes[:, :, None, None] * answers)


def label_dependence(tables: FloatArray) -> FloatArray:
    """How much the mean gain of each side grows with E[Y|f], at the `EDGES`; it is linear between them."""
    effect = tables[..., 1] - tables[..., 0]
    no, yes = effect[..., 0] / BINS, effect[..., 1] / BINS
    below = np.concatenate([np.zeros((len(tables), 1)), np.cumsum(yes, axis=1)], axis=1)
    above = np.cumsum(no[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(below + np.concatenate([above, np.zeros((len(tables), 1))], axis=1))


def positive_rate(f: FloatArray, log_odds: FloatArray, noise: Noise) -> FloatArray:
    """How often the answer at a threshold, given in log-odds, is positive for confidence f."""
    distance = logit(f) - log_odds
    clean = (distance >= 0).astype(float) if noise.jitter == 0 else ndtr(distance / noise.jitter)
    return np.asarray(noise.flip_rate + (1 - 2 * noise.flip_rate) * clean)


def positive_rates(f: FloatArray, noise: Noise, reach: float = np.inf) -> FloatArray:
    """The mean of `positive_rate` over each bin of the threshold, with a row per confidence."""
    if noise.jitter == 0 and not np.isfinite(reach):
        clean = np.clip(f[:, None] * BINS - np.arange(BINS), 0, 1)
        return np.asarray(noise.flip_rate + (1 - 2 * noise.flip_rate) * clean)
    t = (np.arange(BINS * _POINTS) + 0.5) / (BINS * _POINTS)
    rates = positive_rate(f[:, None], np.clip(logit(t), -reach, reach), noise)
    return np.asarray(rates.reshape(f.size, BINS, _POINTS).mean(axis=2))


def _noise_excess(tables: FloatArray, noise: Noise, reach: float) -> FloatArray:
    """By how much noise could raise the mean gain of each side, whatever f and the label are."""
    if noise.jitter == 0 and noise.flip_rate == 0 and not np.isfinite(reach):
        return np.zeros(len(tables))
    f = expit(np.linspace(-12, 12, 241))
    change = (positive_rates(f, noise, reach) - positive_rates(f, Noise())) / BINS
    by_label = np.einsum("fb,sby->fsy", change, tables[:, :, 1] - tables[:, :, 0])
    return np.asarray(np.maximum(0, by_label.max(axis=(0, 2))))


@dataclass(frozen=True, eq=False)
class ShareClaim:
    """The claim that a ``share`` of the answers in each bin of the threshold is positive.

    ``width`` is by how much it may be off, times a factor for each of the `QUESTION_DISTORTIONS`.
    ``others`` are the shares under these.
    """

    share: FloatArray
    width: FloatArray
    factors: FloatArray
    others: FloatArray

    @cached_property
    def game(self) -> Game:
        """The bets against the claim."""
        ratios = share_ratios(self.share, self.others)
        slack = self.factors[:, None] * self.width * np.abs(ratios[:, :, 1] - ratios[:, :, 0])
        gains = ratios - 1 - slack[:, :, None]
        count = len(self.others)
        return Game(
            [
                BetSide(table.reshape(-1), meaning, 1 / count)
                for table, meaning in zip(gains, QUESTION_DISTORTIONS, strict=True)
            ]
        )


def share_ratios(share: FloatArray, others: FloatArray) -> FloatArray:
    """Likelihood ratios of answers, with axes (other share, bin, answer); their means are at most 1."""
    least = 1e-3  # an answer that is all but impossible would decide everything
    near, others = np.clip(share, least, 1 - least), np.clip(others, least, 1 - least)
    ratios = np.stack([(1 - others) / (1 - near), others / near], axis=2)
    means = ratios[..., 0] * (1 - share) + ratios[..., 1] * share
    return np.asarray(ratios / np.maximum(means, 1)[..., None])


def anchor_game(most_above: float, most_below: float) -> Game:
    """Bets on more wrong answers to anchor queries: above their flips, below them, and on both sides.

    Wrong answers above a flip are negative ones, as if the log-odds had become lower.
    """
    below, above = np.array([-most_below, 1 - most_below]), np.array([-most_above, 1 - most_above])
    none = np.zeros(2)
    sides = (
        (np.concatenate([none, above]), Distortion(-1, 1)),
        (np.concatenate([below, none]), Distortion(1, 1)),
        (np.concatenate([below, above]), Distortion(0, 1)),
    )
    return Game([BetSide(gains, means, 1 / 3, ANCHOR_STAKES) for gains, means in sides])
