"""Likelihood ratios against a claim about the reliability curve: the bets that win fastest if it is false.

The claim fixes E[Y|f] = c(f) and leaves the distribution of f open. The best bet against it, if the answers
and labels have some other law Q, is the likelihood ratio of Q and the closest law that the claim allows (the
reverse information projection). Whatever the distribution of f, its mean is at most 1 under the claim. Here Q
is one of a few fixed alternatives: some distributions of f, and a curve whose log-odds are shifted or
stretched. docs/watching.md shows how many items they need on real models' scores.

The closest law is found by iteration; a ratio is then divided by its highest mean, so that the bound holds
exactly, however well the iteration has converged.

References
----------
Grünwald, de Heide & Koolen, Safe testing, JRSS B 86 (2024). Larsson, Ramdas & Ruf, The numeraire e-variable
and reverse information projection, Annals of Statistics 53 (2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.special import expit, logit

from blindcal.records import FloatArray

BINS = 60
"""Bins of the threshold."""
EDGES: FloatArray = np.linspace(0, 1, BINS + 1)
_CELLS = 2 * BINS  # of the confidence, in the iteration
_F = (np.arange(_CELLS) + 0.5) / _CELLS
_DENSITIES = ((1, 1), (0.3, 0.3), (0.4, 1.2), (1.2, 0.4), (4, 4))  # parameters of beta distributions of f
_STEPS = 500


@dataclass(frozen=True, slots=True)
class Distortion:
    """Log-odds become ``shift + slope * log-odds``."""

    shift: float
    slope: float

    def __call__(self, p: FloatArray) -> FloatArray:
        return np.asarray(expit(self.shift + self.slope * logit(np.clip(p, 1e-6, 1 - 1e-6))))


DISTORTIONS = tuple(
    Distortion(*pair)
    for pair in ((0.7, 1), (-0.7, 1), (0, 0.3), (0, 0.65), (0, 1.5), (0.7, 0.5), (-0.7, 0.5))
)
"""How labels may be distributed instead: more or fewer positive ones, more or less clear-cut, or both."""


@dataclass(frozen=True, eq=False)
class LikelihoodRatios:
    """Tables with axes (alternative, bin of the threshold, answer, label); and what the alternatives mean."""

    tables: FloatArray
    means: tuple[Distortion, ...]


def likelihood_ratios(curve: FloatArray) -> LikelihoodRatios:
    """The likelihood ratios against the claim that the reliability curve is ``curve`` at the `EDGES`."""
    return _likelihood_ratios(np.asarray(curve, float).tobytes())


@lru_cache(maxsize=8)
def _likelihood_ratios(curve_bytes: bytes) -> LikelihoodRatios:
    curve = np.frombuffer(curve_bytes)
    claimed = np.interp(_F, EDGES, curve)
    pairs = list(product(_DENSITIES, DISTORTIONS))
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
    tables = tables / highest_means(tables, curve)[:, None, None, None]
    return LikelihoodRatios(tables, tuple(distortion for _, distortion in pairs))


def _law(positives: FloatArray, negatives: FloatArray) -> FloatArray:
    """Probabilities of bin, answer and label, given the masses of f with either label (a row per law)."""
    yes = np.clip(_F[:, None] * BINS - np.arange(BINS), 0, 1) / BINS
    no = 1 / BINS - yes
    joint = np.stack(
        [negatives @ no, positives @ no, negatives @ yes, positives @ yes], axis=-1
    )  # (law, bin, answer and label)
    return joint.reshape(len(positives), -1)


def mean_given(tables: FloatArray, f: FloatArray, curve: FloatArray) -> FloatArray:
    """The mean of each table (rows) at each confidence (columns) if E[Y|f] is the curve there."""
    yes = np.clip(f[:, None] * BINS - np.arange(BINS), 0, 1) / BINS
    label = np.interp(f, EDGES, curve)
    rates = np.stack([1 / BINS - yes, yes], axis=2)
    labels = np.stack([1 - label, label], axis=1)
    return np.asarray(np.einsum("fba,fy,sbay->sf", rates, labels, tables, optimize=True))


def highest_means(tables: FloatArray, curve: FloatArray) -> FloatArray:
    """The highest mean of each table over all confidences, exactly: it is quadratic in f within a bin."""
    low, high = EDGES[:-1], EDGES[1:]
    inside = 1e-12  # edges belong to the bin on their right
    first = mean_given(tables, low, curve)
    middle = mean_given(tables, (low + high) / 2, curve)
    last = mean_given(tables, high - inside, curve)
    bend = 2 * (first + last) - 4 * middle
    slope = 4 * middle - 3 * first - last
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.clip(np.where(bend < 0, -slope / (2 * bend), 0), 0, 1)
    top = first + slope * place + bend * place**2
    return np.asarray(np.maximum(np.maximum(first, last), top).max(axis=1))
