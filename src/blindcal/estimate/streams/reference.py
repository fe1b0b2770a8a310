"""What an audit says of the stream that follows it: its reliability curve and its confidences, with bands.

Bands must hold for the averages that are bet on, not at every confidence at once: each is the standard
deviation of the refits, times the factor for which it covers such averages in nearly all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from blindcal.estimate.grid import MID_P
from blindcal.estimate.latent import functionals as of
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.streams.betting import (
    BINS,
    EDGES,
    QUESTION_DISTORTIONS,
    CurveClaim,
    ShareClaim,
    label_dependence,
    likelihood_ratios,
    positive_rates,
    share_ratios,
)
from blindcal.estimate.uncertainty import draw_quantile
from blindcal.records import FloatArray, Noise

_NODES = np.linspace(0, 1, 21)
_HATS = np.maximum(0, 1 - np.abs(MID_P[:, None] - _NODES) / _NODES[1])
_BENDS = np.diff(np.eye(_NODES.size), n=2, axis=0)
_STIFFNESS = 0.01  # keeps the curve smooth where there are few items, in units of all items


@dataclass(frozen=True, eq=False)
class Reference:
    """What a fit claims about the answers that follow: the reliability curve, and shares of positives."""

    curve: CurveClaim
    share: ShareClaim

    @classmethod
    def of(cls, fit: LatentFit, missed: float, *, max_shift: float = np.inf) -> Reference:
        """Read a fit and its refits; a band is too narrow with chance ``missed``."""
        seen = fit.noise, max_shift
        return cls(_curve(fit.population, fit.draws, missed, *seen), _share(fit, missed, *seen))


def _curve(table: FloatArray, draws: FloatArray, missed: float, noise: Noise, max_shift: float) -> CurveClaim:
    """The curve with a few knots, so that single answers do not weigh too much."""
    values, spread = _at_nodes(table[None])[0], _at_nodes(draws).std(axis=0)
    claim = CurveClaim(curve=np.interp(EDGES, _NODES, values), width=np.interp(EDGES, _NODES, spread))
    tables = np.concatenate([claim.in_the_large, likelihood_ratios(claim.curve)[0]])
    depends = np.stack([np.interp(MID_P, EDGES, one) for one in label_dependence(tables)])
    negatives, positives = of.by_label(draws)
    # what the bets would see if a refit were true, with its own distribution of confidences
    off = positives - (negatives + positives) * np.interp(MID_P, EDGES, claim.curve)
    width = np.interp(MID_P, EDGES, claim.width) * np.add(*of.by_label(table))
    factors = _factors(off @ depends.T, np.abs(depends) @ width, missed)
    return replace(claim, factors=factors, noise=noise, max_shift=max_shift)


def _at_nodes(tables: FloatArray) -> FloatArray:
    negatives, positives = of.by_label(tables)
    pairs = (_HATS[:, :, None] * _HATS[:, None, :]).reshape(len(_HATS), -1)
    gram = ((negatives + positives) @ pairs).reshape(len(tables), _NODES.size, _NODES.size)
    stiff = gram + _STIFFNESS * _BENDS.T @ _BENDS
    return np.clip(np.linalg.solve(stiff, (positives @ _HATS)[..., None])[..., 0], 0, 1)


def _share(fit: LatentFit, missed: float, noise: Noise, max_shift: float) -> ShareClaim:
    mass, draws = (np.add(*of.by_label(one)) for one in (fit.population, fit.draws))
    rates = positive_rates(MID_P, noise, max_shift)
    share, drawn = mass @ rates, draws @ rates
    spread = drawn.std(axis=0)
    changed = [positive_rates(change(MID_P), noise, max_shift) for change in QUESTION_DISTORTIONS]
    others = np.stack([mass @ one for one in changed])
    ratios = share_ratios(share, others)
    depends = (ratios[..., 1] - ratios[..., 0]) / BINS
    factors = _factors((drawn - share) @ depends.T, np.abs(depends) @ spread, missed)
    return ShareClaim(share, spread, factors, others)


def _factors(off: FloatArray, width: FloatArray, missed: float) -> FloatArray:
    typical = np.sqrt((off**2).mean(axis=0))
    worst = np.max(np.abs(off) / np.maximum(typical, 1e-12), axis=1)
    return np.asarray(draw_quantile(worst, 1 - missed) * typical / np.maximum(width, 1e-12))
