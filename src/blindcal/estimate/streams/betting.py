"""Games: bets against a claim about a stream of answers, which do not win on average if the claim holds.

An item is asked at a threshold t that is uniform on (0, 1), answers ``d = 1[f >= t]``, and may get a label Y.
Each bet has a table of gains by the bin of t, d and Y, whose mean is at most 0 under the claim, whatever the
distribution of f (METHOD 9). The claims:

- *calibration*: E[Y|f] is a given curve c. Then ``c(0) + d c'(t) - Y`` has mean zero, which is calibration in
  the large. Likelihood ratios also see gaps of opposite sign.
- *questions*: a given share of the answers at each threshold is positive. The bets are likelihood ratios.
- *anchors*: a repeated query is answered wrongly with at most a given probability.

Ratios are of a fixed alternative and the closest law that the claim allows (Grünwald, de Heide & Koolen, JRSS
B 86, 2024; Larsson, Ramdas & Ruf, Annals of Statistics 53, 2025), divided by their highest mean. Gains also
pay for what the claim leaves open: a band around the curve, a mean deviation, and known noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr

from blindcal.estimate import grid
from blindcal.estimate.grid import MID_P
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.uncertainty import draw_quantile
from blindcal.records import FloatArray, IntArray, Noise

Observed: TypeAlias = NDArray[Any]
"""Observations: numbers of cells, or rows of a probability and a label."""
BINS = 60
EDGES: FloatArray = np.linspace(0, 1, BINS + 1)
IN_THE_LARGE = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Stakes on a bet that is linear in the gap, as shares of the highest possible loss."""
RATIOS = (0.3, 0.97)
"""Stakes on a likelihood ratio."""
ANCHOR_STAKES = (0.3, 0.7)
"""Stakes on wrong answers to anchor queries, which a change makes frequent."""
_LEAST_LOSS = 1e-3  # a bet that can hardly lose would have no highest stake
_POINTS = 20  # of the threshold in a bin, over which noisy answers are averaged
_CELLS = 2 * BINS  # of the confidence, in the iteration
_F = (np.arange(_CELLS) + 0.5) / _CELLS
_DENSITIES = ((1, 1), (0.3, 0.3), (0.4, 1.2), (1.2, 0.4), (4, 4))  # parameters of beta distributions of f
_STEPS = 500
_ANSWERS = np.array([[0.0], [1.0]])  # along the second last axis of a table
NODES = np.linspace(0, 1, 21)  # of the curve of a reference
HATS = np.maximum(0, 1 - np.abs(MID_P[:, None] - NODES) / NODES[1])
_BENDS = np.diff(np.eye(NODES.size), n=2, axis=0)
_STIFFNESS = 0.01  # keeps the curve smooth where there are few items, in units of all items


@dataclass(frozen=True, slots=True)
class Distortion:
    """Log-odds become ``shift + slope * log-odds``."""

    shift: float
    slope: float

    def __call__(self, p: FloatArray) -> FloatArray:
        return np.asarray(expit(self.shift + self.slope * logit(np.clip(p, 1e-6, 1 - 1e-6))))


LABEL_DISTORTIONS = tuple(
    Distortion(*pair)
    for pair in ((0.7, 1), (-0.7, 1), (0, 0.3), (0, 0.65), (0, 1.5), (0.7, 0.5), (-0.7, 0.5))
)
"""Alternatives for labels: more or fewer positive ones, more or less clear-cut, or both."""
QUESTION_DISTORTIONS = tuple(
    Distortion(*pair) for pair in ((0.5, 1), (-0.5, 1), (1.5, 1), (-1.5, 1), (0, 0.6), (0, 1.6))
)
"""Alternatives for the log-odds of the confidences."""


@dataclass(frozen=True, eq=False)
class Bet:
    """The gains of the cells, what it means if the bet wins, and the share of the wealth that is bet."""

    gains: FloatArray
    means: Distortion
    share: float
    stakes: tuple[float, ...] = RATIOS


class Game:
    """Fixed bets, each at several stakes; an observation falls into one of the cells of their tables."""

    def __init__(self, bets: Sequence[Bet]) -> None:
        self.bets = tuple(bets)
        self.shares: FloatArray = np.array([bet.share / len(bet.stakes) for bet in bets for _ in bet.stakes])
        """The share of each stake in the wealth."""
        self.meanings = [bet.means for bet in bets for _ in bet.stakes]

    @cached_property
    def log_factors(self) -> FloatArray:
        """Logarithm of the factor by which each cell (rows) multiplies each stake (columns)."""
        return np.stack([np.log1p(rate * self.bets[k].gains) for k, rate in self.rates], axis=1)

    @cached_property
    def rates(self) -> list[tuple[int, float]]:
        """The number of the bet behind each stake, and the multiple of its gains that is at stake."""
        most = [max(-float(bet.gains.min()), _LEAST_LOSS) for bet in self.bets]
        return [(k, stake / most[k]) for k, bet in enumerate(self.bets) for stake in bet.stakes]

    def logs(self, observed: Observed) -> FloatArray:
        """The logarithms of the factors by which observations (rows) multiply each stake (columns)."""
        return np.asarray(self.log_factors[observed])


def question_cells(thresholds: FloatArray, answers: IntArray) -> IntArray:
    return 2 * np.minimum((thresholds * BINS).astype(np.int64), BINS - 1) + answers


def calibration_cells(labels: IntArray, thresholds: FloatArray, answers: IntArray) -> IntArray:
    return 2 * question_cells(thresholds, answers) + labels


def anchor_cells(above: IntArray, wrong: IntArray) -> IntArray:
    """The cell of each answer to an anchor query: whether it was asked above the flip, and is wrong."""
    return 2 * above + wrong


# Calibration


@dataclass(frozen=True, eq=False, kw_only=True)
class CurveClaim:
    """The claim that the reliability curve is ``curve`` at the `EDGES` of the bins, and linear between them.

    It may be off by ``width``, times a factor for each table of gains (calibration in the large first);
    ``allowance`` is a further mean deviation, as by a limit of the ECE. Answers have any of the ``noises``.
    Thresholds whose log-odds are beyond ``max_shift`` are asked there.
    """

    curve: FloatArray = field(default_factory=EDGES.copy)
    width: FloatArray = field(default_factory=lambda: np.zeros(EDGES.size))
    factors: FloatArray | None = None
    allowance: float = 0.0
    noises: tuple[Noise, ...] = (Noise(),)
    max_shift: float = np.inf

    @cached_property
    def game(self) -> Game:
        ratios, meanings = likelihood_ratios(self.curve)
        tables = np.concatenate([self.in_the_large, -self.in_the_large, ratios - 1])
        factors = np.ones(1 + len(ratios)) if self.factors is None else self.factors
        tables = tables - self._slack(tables, np.concatenate([factors[:1], factors]))
        tables = tables - _noise_excess(tables, self.noises, self.max_shift)[:, None, None, None]
        gains = tables.reshape(len(tables), -1)
        large = [Bet(gains[k], Distortion(sign, 1), 1 / 4, IN_THE_LARGE) for k, sign in enumerate((-1, 1))]
        share = 1 / 2 / len(ratios)
        return Game(large + [Bet(*bet, share) for bet in zip(gains[2:], meanings, strict=True)])

    @property
    def in_the_large(self) -> FloatArray:
        """The curve minus the label, measured by one answer; a single table."""
        slopes = np.diff(self.curve) * BINS
        return np.asarray(self.curve[0] + slopes[:, None, None] * _ANSWERS - np.array([[0.0, 1.0]]))[None]

    def _slack(self, tables: FloatArray, factors: FloatArray) -> FloatArray:
        dependence = np.abs(label_dependence(tables))
        paid = self.allowance * dependence.max(axis=1)[:, None, None, None]
        band = factors[:, None] * self.width * dependence
        slopes = np.diff(band, axis=1) * BINS
        return np.asarray(paid + band[:, :1, None, None] + slopes[:, :, None, None] * _ANSWERS)


def likelihood_ratios(curve: FloatArray) -> tuple[FloatArray, tuple[Distortion, ...]]:
    """Ratios (alternative, threshold bin, answer, label) against a curve at the `EDGES`, and meanings."""
    return _likelihood_ratios(np.asarray(curve, float).tobytes())


@lru_cache(maxsize=8)
def _likelihood_ratios(curve_bytes: bytes) -> tuple[FloatArray, tuple[Distortion, ...]]:
    curve = np.frombuffer(curve_bytes)
    claimed = np.interp(_F, EDGES, curve)
    pairs = list(product(_DENSITIES, LABEL_DISTORTIONS))
    masses = np.stack([_F ** (a - 1) * (1 - _F) ** (b - 1) for (a, b), _ in pairs])
    masses /= masses.sum(axis=1, keepdims=True)
    other = np.stack([distortion(claimed) for _, distortion in pairs])
    wanted = _law(masses * other, masses * (1 - other))
    allowed = _law(np.diag(claimed), np.diag(1 - claimed))
    weights = np.full(masses.shape, 1 / _CELLS)
    for _ in range(_STEPS):
        ratios = wanted / np.maximum(weights @ allowed, 1e-300)
        weights = weights * (ratios @ allowed.T)
        weights /= weights.sum(axis=1, keepdims=True)
    ratios = wanted / np.maximum(weights @ allowed, 1e-300)
    tables = ratios.reshape(len(pairs), BINS, 2, 2)
    return tables / _highest_means(tables, curve)[:, None, None, None], tuple(means for _, means in pairs)


def _law(positives: FloatArray, negatives: FloatArray) -> FloatArray:
    """Probabilities of bin, answer and label, given the masses of f with either label (a row per law)."""
    yes = np.clip(_F[:, None] * BINS - np.arange(BINS), 0, 1) / BINS
    no = 1 / BINS - yes
    joint = np.stack([negatives @ no, positives @ no, negatives @ yes, positives @ yes], axis=-1)
    return joint.reshape(len(positives), -1)


def _highest_means(tables: FloatArray, curve: FloatArray) -> FloatArray:
    """The highest mean of each table over all f, exactly: it is quadratic in f within a bin."""

    def means_at(f: FloatArray) -> FloatArray:
        yes = np.clip(f[:, None] * BINS - np.arange(BINS), 0, 1) / BINS
        label = np.interp(f, EDGES, curve)
        rates = np.stack([1 / BINS - yes, yes], axis=2)
        labels = np.stack([1 - label, label], axis=1)
        return np.asarray(np.einsum("fba,fy,sbay->sf", rates, labels, tables, optimize=True))

    low, high = EDGES[:-1], EDGES[1:]
    inside = 1e-12  # edges belong to the bin on their right
    first, middle, last = means_at(low), means_at((low + high) / 2), means_at(high - inside)
    bend = 2 * (first + last) - 4 * middle
    slope = 4 * middle - 3 * first - last
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.clip(np.where(bend < 0, -slope / (2 * bend), 0), 0, 1)
    top = first + slope * place + bend * place**2
    return np.asarray(np.maximum(np.maximum(first, last), top).max(axis=1))


def label_dependence(tables: FloatArray) -> FloatArray:
    """The slope of the mean gain of each table in E[Y|f], at the `EDGES`; linear between them."""
    effect = (tables[..., 1] - tables[..., 0]) / BINS
    below = np.cumsum(effect[..., 1], axis=1)
    above = np.cumsum(effect[:, ::-1, 0], axis=1)[:, ::-1]
    none = np.zeros((len(tables), 1))
    return np.asarray(np.concatenate([none, below], axis=1) + np.concatenate([above, none], axis=1))


def positive_rates(f: FloatArray, noise: Noise, max_shift: float = np.inf, bins: int = BINS) -> FloatArray:
    """The probability of a positive answer in each bin of the threshold, a row per confidence."""
    if noise.jitter == 0 and not np.isfinite(max_shift):
        clean = np.clip(f[:, None] * bins - np.arange(bins), 0, 1)
    else:
        t = (np.arange(bins * _POINTS) + 0.5) / (bins * _POINTS)
        distance = logit(f)[:, None] - np.clip(logit(t), -max_shift, max_shift)
        rates = (distance >= 0).astype(float) if noise.jitter == 0 else ndtr(distance / noise.jitter)
        clean = rates.reshape(f.size, bins, _POINTS).mean(axis=2)
    return np.asarray(noise.flip_rate + (1 - 2 * noise.flip_rate) * clean)


def noise_effects(
    noises: Sequence[Noise], max_shift: float, bins: int = BINS, flips: float = 0.0
) -> FloatArray:
    """The change of the mean answer in each bin, a row per confidence and noise; ``flips`` are undone."""
    f, e = expit(np.linspace(-12, 12, 241)), flips
    noisy = np.concatenate([positive_rates(f, noise, max_shift, bins) for noise in noises])
    clean = np.tile(positive_rates(f, Noise(), bins=bins), (len(noises), 1))
    return np.asarray(((noisy - e) / (1 - 2 * e) - clean) / bins)


def _noise_excess(tables: FloatArray, noises: Sequence[Noise], max_shift: float) -> FloatArray:
    """The most by which noise could raise the mean gain of each table, whatever f and the label."""
    change = noise_effects(noises, max_shift)
    by_label = np.einsum("fb,sby->fsy", change, tables[:, :, 1] - tables[:, :, 0])
    return np.asarray(np.maximum(0, by_label.max(axis=(0, 2))))


# Questions and anchors


@dataclass(frozen=True, eq=False)
class ShareClaim:
    """The claim that a ``share`` of the answers in each bin is positive, within ``width`` times a factor."""

    share: FloatArray
    width: FloatArray
    factors: FloatArray
    others: FloatArray

    @cached_property
    def game(self) -> Game:
        ratios = share_ratios(self.share, self.others)
        slack = self.factors[:, None] * self.width * np.abs(ratios[:, :, 1] - ratios[:, :, 0])
        gains = (ratios - 1 - slack[:, :, None]).reshape(len(ratios), -1)
        share = 1 / len(self.others)
        return Game([Bet(*bet, share) for bet in zip(gains, QUESTION_DISTORTIONS, strict=True)])


def share_ratios(share: FloatArray, others: FloatArray) -> FloatArray:
    """Likelihood ratios of answers, with axes (other share, bin, answer) and means of at most 1."""
    least = 1e-3  # an answer that is all but impossible would decide everything
    near, others = np.clip(share, least, 1 - least), np.clip(others, least, 1 - least)
    ratios = np.stack([(1 - others) / (1 - near), others / near], axis=2)
    means = ratios[..., 0] * (1 - share) + ratios[..., 1] * share
    return np.asarray(ratios / np.maximum(means, 1)[..., None])


def anchor_game(most_above: float, most_below: float) -> Game:
    """Bets on more wrong answers to anchor queries: above their flips, below them, and in both places."""
    below, above = np.array([-most_below, 1 - most_below]), np.array([-most_above, 1 - most_above])
    none = np.zeros(2)
    # wrong answers above a flip are negative ones, as if the log-odds had become lower
    tables = (
        (np.concatenate([none, above]), Distortion(-1, 1)),
        (np.concatenate([below, none]), Distortion(1, 1)),
        (np.concatenate([below, above]), Distortion(0, 1)),
    )
    return Game([Bet(*table, 1 / 3, ANCHOR_STAKES) for table in tables])


# References


@dataclass(frozen=True, eq=False)
class Reference:
    """What a fit claims about the answers that follow: the reliability curve, and shares of positives.

    Bands must hold for the averages that are bet on, not at every confidence at once: each is the standard
    deviation of the refits, times the factor for which it covers such averages in nearly all of them.
    """

    curve: CurveClaim
    share: ShareClaim

    @classmethod
    def of(cls, fit: LatentFit, missed: float, *, max_shift: float = np.inf) -> Reference:
        """Read a fit and its refits; a band is too narrow with chance ``missed``."""
        seen = fit.noise, max_shift
        return cls(_curve(fit, missed, *seen), _share(fit, missed, *seen))


def _curve(fit: LatentFit, missed: float, noise: Noise, max_shift: float) -> CurveClaim:
    def dependence(claim: CurveClaim) -> FloatArray:
        return label_dependence(np.concatenate([claim.in_the_large, likelihood_ratios(claim.curve)[0]]))

    table, units, seed = fit.population, fit.resampling.units, fit.resampling.seed
    claim = fitted_curve(table, fit.draws, units, seed, missed, dependence)
    return replace(claim, noises=(noise,), max_shift=max_shift)


def fitted_curve(
    table: FloatArray,
    draws: FloatArray,
    units: float,
    seed: int,
    missed: float,
    dependence: Callable[[CurveClaim], FloatArray],
    borrowed: float = 0.1,
) -> CurveClaim:
    """The curve with a few knots, so that single answers do not weigh too much.

    Items of one label at some confidence do not show that others have it too, but only that few have not.
    So half an item of each label joins those at each knot, in refits with random weights: posteriors are then
    those of Jeffreys' prior, and no claimed probability is 0 or 1. ``dependence`` has the slope of the mean
    gain of each bet in E[Y|f] at the `EDGES`, for which the band must hold. A node of the smooth curve counts
    as resting on a share ``borrowed`` of the items, at least.
    """
    joining = np.full((2, 1, NODES.size), 0.5) / units
    weights = np.random.default_rng([seed, 2]).gamma(0.5, 2, (2, len(draws), NODES.size))
    values = _joined(_at_nodes(table[None]), table[None], joining, borrowed)[0]
    fitted = _at_nodes(draws)
    drawn = _joined(fitted, draws, weights * joining, borrowed)
    claim = CurveClaim(
        curve=np.interp(EDGES, NODES, values), width=np.interp(EDGES, NODES, drawn.std(axis=0))
    )
    depends = np.stack([np.interp(MID_P, EDGES, slope) for slope in dependence(claim)])
    negatives, positives = grid.by_label(draws)
    # what the bets would see if a refit were true, with its own distribution of confidences
    beyond = (drawn - fitted) @ HATS.T - np.interp(MID_P, EDGES, claim.curve)
    off = positives + (negatives + positives) * beyond
    width = np.interp(MID_P, EDGES, claim.width) * np.add(*grid.by_label(table))
    return replace(claim, factors=draw_factors(off @ depends.T, np.abs(depends) @ width, missed))


def _at_nodes(tables: FloatArray) -> FloatArray:
    negatives, positives = grid.by_label(tables)
    pairs = (HATS[:, :, None] * HATS[:, None, :]).reshape(len(HATS), -1)
    gram = ((negatives + positives) @ pairs).reshape(len(tables), NODES.size, NODES.size)
    stiff = gram + _STIFFNESS * _BENDS.T @ _BENDS
    return np.clip(np.linalg.solve(stiff, (positives @ HATS)[..., None])[..., 0], 0, 1)


def _joined(values: FloatArray, tables: FloatArray, joining: FloatArray, borrowed: float) -> FloatArray:
    """Curves at the nodes after shares ``joining`` of negative and positive items joined those of tables."""
    near = np.maximum(np.add(*grid.by_label(tables)) @ HATS, borrowed)
    return np.asarray((near * values + joining[1]) / (near + joining.sum(axis=0)))


def _share(fit: LatentFit, missed: float, noise: Noise, max_shift: float) -> ShareClaim:
    mass, draws = (np.add(*grid.by_label(table)) for table in (fit.population, fit.draws))
    rates = positive_rates(MID_P, noise, max_shift)
    share, drawn = mass @ rates, draws @ rates
    spread = drawn.std(axis=0)
    changed = [positive_rates(change(MID_P), noise, max_shift) for change in QUESTION_DISTORTIONS]
    others = np.stack([mass @ rate for rate in changed])
    ratios = share_ratios(share, others)
    depends = (ratios[..., 1] - ratios[..., 0]) / BINS
    factors = draw_factors((drawn - share) @ depends.T, np.abs(depends) @ spread, missed)
    return ShareClaim(share, spread, factors, others)


def draw_factors(off: FloatArray, width: FloatArray, missed: float) -> FloatArray:
    """The multiple of each ``width`` that all but a share ``missed`` of the draws (rows) stay within."""
    typical = np.sqrt((off**2).mean(axis=0))
    worst = np.max(np.abs(off) / np.maximum(typical, 1e-12), axis=1)
    return np.asarray(draw_quantile(worst, 1 - missed) * typical / np.maximum(width, 1e-12))
