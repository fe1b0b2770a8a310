"""Games for probabilities that were read: bets on the label given p, and on p alone (METHOD 9).

- *calibration*: E[Y|p] is a given curve c. Then ``B(p) (Y - c(p))`` has mean zero for any function B,
  whatever the distribution of p: 1 for calibration in the large, steps for one side of a confidence, and
  the slopes of likelihood ratios for distorted curves.
- *questions*: p falls as often into each range between quantiles of the reference. The bets are likelihood
  ratios of distorted references, less what the size of the reference leaves open.
- *anchors*: at most a given share of the probabilities of items asked again has moved by more than a margin.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from blindcal.estimate.grid import CELLS, EDGES_P, by_label
from blindcal.estimate.shown import ShownFit
from blindcal.estimate.streams.betting import (
    ANCHOR_STAKES,
    BINS,
    EDGES,
    HATS,
    IN_THE_LARGE,
    LABEL_DISTORTIONS,
    NODES,
    QUESTION_DISTORTIONS,
    RATIOS,
    Bet,
    CurveClaim,
    Distortion,
    Game,
    Observed,
    draw_factors,
    fitted_curve,
)
from blindcal.records import FloatArray, IntArray

STEPS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Confidences on either side of which is bet."""
_SIGNS = (1, -1)
_INSIDE = 0.005  # ratios nearer to 0 and 1 count as there, so that no label decides everything
_RANGES, _LEAST_IN_RANGE = 20, 40  # most ranges of p, and the least number of units in each
_SHARES = (1 / 4, 1 / 2, 1 / 4)  # of the wealth: in the large, ratios and steps
_MOST_LOST = 0.999  # gains between two edges may be slightly below those at the edges
_JOINING = 0.5  # units that join those in each range, so that none is impossible
_FEW = 10  # units near a node of the curve, below which nothing is claimed there


def label_slopes(curve: FloatArray) -> tuple[FloatArray, tuple[Distortion, ...]]:
    """Functions B at the `EDGES`, a row per bet, and what it means if the bet wins."""
    c = np.clip(curve, _INSIDE, 1 - _INSIDE)
    ratios = [(change(c) - c) / (c * (1 - c)) for change in LABEL_DISTORTIONS]
    ones = np.ones(EDGES.size)
    steps = [side * sign for at in STEPS for side in (at <= EDGES, at > EDGES) for sign in _SIGNS]
    meanings = [Distortion(sign, 1) for sign in _SIGNS]
    rows = np.stack([*(sign * ones for sign in _SIGNS), *ratios, *steps]).astype(np.float64)
    return rows, (*meanings, *LABEL_DISTORTIONS, *meanings * 2 * len(STEPS))


class LabelGame(Game):
    """Bets on labels against a claim about the curve; an observation is a row of p and label."""

    def __init__(self, claim: CurveClaim) -> None:
        slopes, meanings = label_slopes(claim.curve)
        factors = np.zeros(len(slopes)) if claim.factors is None else claim.factors
        size = np.abs(slopes)
        paid = claim.allowance * size.max(axis=1, keepdims=True) + factors[:, None] * claim.width * size
        self._rows = np.concatenate([claim.curve[None], slopes, paid])
        gains = self._gains(np.repeat(EDGES, 2), np.tile([0.0, 1.0], EDGES.size))
        kinds = (2, IN_THE_LARGE), (len(LABEL_DISTORTIONS), RATIOS), (4 * len(STEPS), RATIOS)
        each = [
            (share / some, stakes)
            for share, (some, stakes) in zip(_SHARES, kinds, strict=True)
            for _ in range(some)
        ]
        super().__init__(
            [Bet(*bet, *how) for bet, how in zip(zip(gains.T, meanings, strict=True), each, strict=True)]
        )

    def logs(self, observed: Observed) -> FloatArray:
        gains = self._gains(*observed.T)
        return np.stack(
            [np.log1p(np.maximum(stake * gains[:, k], -_MOST_LOST)) for k, stake in self.rates], axis=1
        )

    def _gains(self, p: FloatArray, labels: FloatArray) -> FloatArray:
        """The gains of each bet (columns); curve, slopes and what is paid are linear between the `EDGES`."""
        below = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        beside = (p * BINS - below)[:, None]
        rows = (1 - beside) * self._rows.T[below] + beside * self._rows.T[below + 1]
        curve, slopes, paid = np.split(rows, [1, 1 + (rows.shape[1] - 1) // 2], axis=1)
        return np.asarray(slopes * (labels[:, None] - curve) - paid)


class RangeGame(Game):
    """Bets on where p falls; an observation is the number of a range."""

    def __init__(self, fit: ShownFit, missed: float) -> None:
        p, units = np.sort(fit.p), fit.unseen[0]
        ranges = int(np.clip(units // _LEAST_IN_RANGE, 2, _RANGES))
        edges = np.unique(p[np.arange(1, ranges) * p.size // ranges])
        self._edges = edges[edges > p[0]]
        share = np.full(p.size, 1 / p.size) @ self._inside(p)
        ratios = self._ratios(p, np.full(p.size, 1 / p.size), units)
        # what the bets would win if the sample were the population, and a draw of it the reference
        drawn = self._ratios(fit.draw_cells.p, np.add(*by_label(fit.draws)), units)
        paid = draw_factors((drawn - ratios) @ share, np.ones(len(ratios)), missed)
        gains = ratios - ratios @ share[:, None] - paid[:, None]
        bets = zip(gains, QUESTION_DISTORTIONS, strict=True)
        super().__init__([Bet(*bet, 1 / len(ratios)) for bet in bets])

    def ranges(self, p: FloatArray) -> IntArray:
        return np.asarray(np.searchsorted(self._edges, p, side="right"), np.int64)

    def _inside(self, p: FloatArray) -> FloatArray:
        return np.asarray(self.ranges(p)[:, None] == np.arange(self._edges.size + 1), np.float64)

    def _ratios(self, p: FloatArray, masses: FloatArray, units: float) -> FloatArray:
        """How much likelier each range is for each distortion of p with these ``masses`` than for p."""
        changed = [masses @ self._inside(change(p)) for change in QUESTION_DISTORTIONS]
        share, joining = masses @ self._inside(p), _JOINING / units
        return np.asarray((np.stack(changed, axis=-2) + joining) / (share[..., None, :] + joining))


def moved_game(most: float) -> Game:
    """Bets on more items whose probability has moved down, up or either way, in `anchor_cells`."""
    down, up = np.array([0.0, 0, 0, 1]), np.array([0.0, 1, 0, 0])
    tables = ((down, Distortion(-1, 1)), (up, Distortion(1, 1)), (down + up, Distortion(0, 1)))
    return Game([Bet(moved - most, means, 1 / 3, ANCHOR_STAKES) for moved, means in tables])


def claim_of(fit: ShownFit, missed: float) -> CurveClaim:
    """What a fit claims about the labels that follow, with a band for the bets on them."""
    p, cells = fit.p, fit.draw_cells.p
    where = np.searchsorted(EDGES_P[1:-1], p, side="right")
    table = np.bincount(fit.labels * CELLS + where, minlength=2 * CELLS) / p.size
    there = np.searchsorted(EDGES_P[1:-1], cells, side="right")
    places = np.arange(2 * cells.size), np.concatenate([there, there + CELLS])
    merged = csr_array((np.ones(2 * cells.size), places), shape=(2 * cells.size, 2 * CELLS))
    draws: FloatArray = np.asarray(merged.T @ fit.draws.T).T
    units = fit.unseen[0]
    about = units, fit.seed, missed, lambda claim: label_slopes(claim.curve)[0]
    claim = fitted_curve(table, draws, *about, _FEW / units)
    assert claim.factors is not None
    few = np.add(*by_label(table)) @ HATS * units < _FEW
    width = np.where(np.interp(EDGES, NODES, few) > 0, 1.0, claim.width)
    return replace(claim, width=width, factors=np.maximum(claim.factors, 1))
