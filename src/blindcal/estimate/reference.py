"""What an audit says of the stream that follows it: its reliability curve and its confidences, with bands.

A band must hold for the averages that are bet on, not at every confidence at once. So it is the standard
deviation of the refits, times the factor for which it covers the deviation of such an average in nearly all
of them. Where the audit is less sure the band is wider, and so are the averages of other questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blindcal.estimate import functionals as of
from blindcal.estimate.betting import WEIGHTS, CalibrationGame, QuestionsGame, positive_rate
from blindcal.estimate.grid import EDGES_P, EDGES_S, MID_P
from blindcal.estimate.latent_fit import LatentFit
from blindcal.estimate.piecewise import PiecewiseLinear
from blindcal.estimate.uncertainty import draw_quantile
from blindcal.records import FloatArray, Noise

_NODES = np.linspace(0, 1, 21)
_HATS = np.maximum(0, 1 - np.abs(MID_P[:, None] - _NODES) / _NODES[1])
_BENDS = np.diff(np.eye(_NODES.size), n=2, axis=0)
_STIFFNESS = 0.01  # keeps the curve smooth where there are few items, in units of all items


@dataclass(frozen=True, eq=False)
class Band:
    """A function with its band, whose width is multiplied by a factor for each of the `WEIGHTS`."""

    middle: PiecewiseLinear
    width: PiecewiseLinear
    factors: FloatArray


@dataclass(frozen=True, eq=False)
class Reference:
    """The reliability curve, and the share of positive answers at each threshold."""

    curve: Band
    share: Band
    noise: Noise

    @classmethod
    def of(cls, fit: LatentFit, missed: float, flip_rate: float = 0.0) -> Reference:
        """Read a fit, whose refits say how sure it is; a band is too narrow with chance ``missed``."""
        noise = Noise(fit.jitter, flip_rate)
        return cls(
            _curve(fit.population, fit.draws, missed),
            _share(np.add(*of.by_label(fit.population)), np.add(*of.by_label(fit.draws)), noise, missed),
            noise,
        )

    def calibration_game(self, reach: float = np.inf) -> CalibrationGame:
        """Bets against the claim that the curve is still the same."""
        band = self.curve
        return CalibrationGame(band.middle, band.width, tuple(band.factors), noise=self.noise, reach=reach)

    def questions_game(self) -> QuestionsGame:
        """Bets against the claim that confidences are distributed as before."""
        return QuestionsGame(self.share.middle, self.share.width, tuple(self.share.factors))


def _curve(table: FloatArray, draws: FloatArray, missed: float) -> Band:
    """The curve with a few knots, so that single answers do not weigh too much."""
    values, drawn = _at_nodes(table[None])[0], _at_nodes(draws)
    spread = drawn.std(axis=0)
    mass = np.add(*of.by_label(table))
    negatives, positives = of.by_label(draws)
    # what the bets would see if a refit were true, with its own distribution of confidences
    off = positives - (negatives + positives) * (_HATS @ values)
    weights = np.stack([weight(MID_P) for weight in WEIGHTS])
    factors = _factors(off @ weights.T, np.abs(weights) @ (_HATS @ spread * mass), missed)
    return Band(PiecewiseLinear(_NODES, values), PiecewiseLinear(_NODES, spread), factors)


def _at_nodes(tables: FloatArray) -> FloatArray:
    """The reliability curve of each table at the nodes: a least-squares fit that items weigh."""
    negatives, positives = of.by_label(tables)
    pairs = (_HATS[:, :, None] * _HATS[:, None, :]).reshape(len(_HATS), -1)
    gram = ((negatives + positives) @ pairs).reshape(len(tables), _NODES.size, _NODES.size)
    stiff = gram + _STIFFNESS * _BENDS.T @ _BENDS
    return np.clip(np.linalg.solve(stiff, (positives @ _HATS)[..., None])[..., 0], 0, 1)


def _share(mass: FloatArray, draws: FloatArray, noise: Noise, missed: float) -> Band:
    """The share of positive answers at each threshold, as the noise of the answers lets it appear."""
    rates = positive_rate(MID_P[:, None], EDGES_S[1:-1], noise)
    shares, drawn = mass @ rates, draws @ rates
    spread = drawn.std(axis=0)
    t = EDGES_P[1:-1]
    weights = np.stack([weight(t) for weight in WEIGHTS]) * np.gradient(t)
    factors = _factors((drawn - shares) @ weights.T, np.abs(weights) @ spread, missed)
    ends = noise.flip_rate, 1 - noise.flip_rate
    return Band(
        PiecewiseLinear(EDGES_P, np.concatenate([[ends[1]], shares, [ends[0]]])),
        PiecewiseLinear(EDGES_P, np.concatenate([[0], spread, [0]])),
        factors,
    )


def _factors(off: FloatArray, width: FloatArray, missed: float) -> FloatArray:
    """By how much to multiply the widths of the averages so that all cover nearly all refits at once."""
    typical = np.sqrt((off**2).mean(axis=0))
    worst = np.max(np.abs(off) / np.maximum(typical, 1e-12), axis=1)
    return np.asarray(draw_quantile(worst, 1 - missed) * typical / np.maximum(width, 1e-12))
