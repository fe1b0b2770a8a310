"""Forecasts of the width of an audit's interval.

The curvature of one fit to the expected counts of a design is the information in its answers (METHOD 4).
Follow-up queries depend on the answers, so an audit with them is simulated, and its spread scaled to the
number of items. docs/plan.md compares forecasts with many simulated audits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product

import numpy as np
from scipy.special import betainc, expit, gammaln, logit, ndtr, xlog1py, xlogy

from blindcal import design
from blindcal.errors import InputError
from blindcal.estimate import grid as of
from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, MID_P, MID_S, positions
from blindcal.estimate.latent.intervals import of_items
from blindcal.estimate.latent.model import fit_ensemble, refit, tangents
from blindcal.estimate.readings import Patterns, count_patterns
from blindcal.estimate.uncertainty import absolute_sum_interval, unseen_share
from blindcal.methods import METHODS, SIMULABLE
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import log_odds, respond

_COARSE = 4  # thresholds are placed at every fourth edge of the grid, fine enough for a smooth density
_DRAWS = 1200
_AUDITS = 12  # simulated estimates whose intervals are averaged
_REFITS = 240  # refits in place of a linear approximation, where the likelihood is nearly flat
_ROUGHLY = 1e-3  # log-likelihood units at which a fit may stop: far below the uncertainty of the answers
_REHEARSED = 3000  # items of the simulated audit
#: Maximum queries per item of a forecast; well before, only the noise of the labels is left.
MAX_QUERIES = 8.0


def half_width(
    shape: Shape, method: str, n: int, queries: float, *, bins: int = 5, level: float = 0.95
) -> float | None:
    """Forecast the half-width of the interval of the ECE; ``None`` for methods without intervals."""
    if method not in SIMULABLE:
        raise InputError(f"method: can be planned for {', '.join(SIMULABLE)}, got {method!r}")
    METHODS[method].check_queries(queries)
    if not METHODS[method].fitted:
        return None
    if queries > MAX_QUERIES:
        raise InputError(
            f"queries: {method} can be planned with at most {MAX_QUERIES:g} per item, got {queries:g}; "
            "more would hardly tell more"
        )
    asked = max(1.0, min(queries, 1.0) * n)
    return _mean_width(shape, method, asked, max(queries, 1.0), bins, level) / 2


@lru_cache(maxsize=64)
def _mean_width(shape: Shape, method: str, n: float, queries: float, bins: int, level: float) -> float:
    draws = _gaps(shape, method, float(f"{n:.3g}"), queries, bins)  # similar numbers share a fit
    off, unseen = draws - draws.mean(axis=0), unseen_share(n, level)
    step = len(draws) // _AUDITS
    widths = []
    for gaps in draws[np.argsort(np.abs(draws).sum(axis=1))[step // 2 :: step]]:
        low, high = absolute_sum_interval(gaps, gaps + off, level)
        least = (1 - unseen) * np.abs(gaps).sum()
        widths.append(float(min(1.0, max(high, least + unseen)) - max(0.0, min(low, least))))
    return float(np.mean(widths))


@lru_cache(maxsize=128)
def _gaps(shape: Shape, method: str, n: float, queries: float, bins: int) -> FloatArray:
    if method == "latent" and queries > 1:
        # With several answers per item the prior matters little: the spread is proportional to 1/sqrt(n).
        draws = _rehearsed(shape, queries, bins)
        off = (draws - draws.mean(axis=0)) * np.sqrt(_REHEARSED / n)
        return np.asarray(of.gaps(shape.table, bins) + off)
    patterns = _expected(shape.table, method, n, queries)
    return _linear_draws(patterns, bins) if METHODS[method].tempered else _refitted_draws(patterns, bins)


@lru_cache(maxsize=32)
def _rehearsed(shape: Shape, queries: float, bins: int) -> FloatArray:
    labels, p = shape.spread(_REHEARSED, np.random.default_rng(0))
    answers = design.answer_design(
        design.LatentDesign(labels, queries, 0),
        lambda asked, _: respond(log_odds(p), asked, np.random.default_rng(0)),
    )
    return _linear_draws(count_patterns(labels, answers), bins)


def _linear_draws(patterns: Patterns, bins: int) -> FloatArray:
    ensemble = fit_ensemble(patterns, enough=_ROUGHLY)
    # Every fit uses the same draws, so that forecasts for similar n do not differ by chance.
    half = np.random.default_rng(0).standard_normal((_DRAWS // 2, bins))
    noise = np.stack([half, -half], axis=1).reshape(_DRAWS, bins)
    place = (np.arange(_DRAWS) * 0.6180339887498949 + 0.5) % 1  # golden ratio: evenly over (0, 1)
    which = np.minimum(np.searchsorted(np.cumsum(ensemble.weights), place), ensemble.weights.size - 1)
    draws = np.empty((_DRAWS, bins))
    for k, mode in enumerate(ensemble.modes):
        along = of.gaps(tangents(mode).T, bins)
        variance, axes = np.linalg.eigh(along.T @ np.linalg.solve(mode.information, along))
        root = (axes * np.sqrt(np.maximum(variance, 0.0))) @ axes.T
        mine = which == k
        draws[mine] = of.gaps(mode.table, bins) + noise[mine] @ root
    return draws


def _refitted_draws(patterns: Patterns, bins: int) -> FloatArray:
    """Used where equal questions leave the likelihood too flat for a linear approximation."""
    ensemble = fit_ensemble(patterns, enough=_ROUGHLY)
    rng = np.random.default_rng(0)
    which = rng.choice(ensemble.weights.size, size=_REFITS, p=ensemble.weights)
    precision = np.array([mode.precision for mode in ensemble.modes])[which]
    centres = rng.standard_normal(precision.shape) / np.sqrt(precision)
    counts = of_items(patterns)(_REFITS, rng)
    return of.gaps(refit(patterns, ensemble.modes, which, counts, centres), bins)


# Expected counts


def _expected(table: FloatArray, method: str, n: float, queries: float) -> Patterns:
    if METHODS[method].logprobs:
        return _readings(table, n)
    if method == "latent":
        return _thresholds(table, n)
    return _samples(table, n, queries, design.TEMPERATURES if METHODS[method].tempered else (1.0,))


def _readings(table: FloatArray, n: float) -> Patterns:
    cells = np.flatnonzero(table > 1e-9)
    return Patterns(start=cells, stop=cells + 1, counts=n * table[cells])


def _thresholds(table: FloatArray, n: float) -> Patterns:
    """One threshold query per item, as in `LatentDesign`."""
    edges = np.arange(2, CELLS, _COARSE)
    middles = np.concatenate([[0.0], (EDGES_P[edges[1:]] + EDGES_P[edges[:-1]]) / 2, [1.0]])
    pilot = design.PILOT if n >= design.LEAST_PILOT else 1.0
    starts, stops, counts = [], [], []
    for y, informative in enumerate(design.threshold_densities(table)):
        density = pilot * np.diff(EDGES_P) + (1 - pilot) * informative / informative.sum()
        share = np.diff(np.interp(middles, EDGES_P, np.concatenate([[0.0], np.cumsum(density)])))
        cells = table[y * CELLS : (y + 1) * CELLS]
        below = np.cumsum(cells)[edges - 1]
        first, last = np.full(edges.size, y * CELLS), np.full(edges.size, (y + 1) * CELLS)
        starts += [first, y * CELLS + edges]
        stops += [y * CELLS + edges, last]
        counts += [n * share * below, n * share * (cells.sum() - below)]
    some = np.concatenate(counts) > 1e-9 * n
    return Patterns(
        start=np.concatenate(starts)[some],
        stop=np.concatenate(stops)[some],
        counts=np.concatenate(counts)[some],
    )


def _samples(table: FloatArray, n: float, queries: float, temperatures: tuple[float, ...]) -> Patterns:
    """Temperatures in turn, as in `SampledDesign`."""
    whole = int(queries)
    labels, curves, counts = [], [], []
    for times, share in ((whole, whole + 1 - queries), (whole + 1, queries - whole)):
        for curve in _curves(times, np.array(temperatures)) if share > 1e-9 and times else ():
            for y in (0, 1):
                labels.append(y)
                curves.append(curve)
                mass = table[y * CELLS : (y + 1) * CELLS] @ curve
                counts.append(n * share * mass / len(temperatures))
    return Patterns(
        curve_labels=np.array(labels), curves=np.array(curves), counts=np.maximum(counts, 1e-12 * n)
    )


def _curves(times: int, heats: FloatArray) -> Iterator[FloatArray]:
    """P(outcome | cell): the positives at each temperature, each of which is the first in turn."""
    chance = expit(MID_S[:, None] / heats)
    for start in range(heats.size):
        asked = np.bincount((start + np.arange(times)) % heats.size, minlength=heats.size)
        for positives in product(*(range(k + 1) for k in asked)):
            yield np.asarray(np.exp(_log_binomial(asked, np.array(positives), chance).sum(axis=1)))


def _log_binomial(n: IntArray, k: IntArray, p: FloatArray) -> FloatArray:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + xlogy(k, p) + xlog1py(n - k, -p))


# Shapes: assumed distributions of a confidence, each with a reliability curve


@dataclass(frozen=True, repr=False, eq=False)
class Shape:
    """A joint table over (label, cell), label 0 first, that sums to one."""

    name: str
    table: FloatArray

    def __repr__(self) -> str:
        return f"Shape({self.name!r}, ECE {self.ece():.4f})"

    def ece(self, bins: int = 5) -> float:
        return float(of.ece(self.table, bins))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """Draw the labels and probabilities of n items."""
        return self._at(rng.random(n), rng.random(n))

    def spread(self, n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """Labels and probabilities of n items spread evenly over the shape: a sample with little noise."""
        return self._at((np.arange(n) + rng.random()) / n, rng.random(n))

    def _at(self, quantile: FloatArray, within: FloatArray) -> tuple[IntArray, FloatArray]:
        total = np.cumsum(self.table)
        cell = np.minimum(np.searchsorted(total / total[-1], quantile, side="right"), 2 * CELLS - 1)
        label, cell = np.divmod(cell, CELLS)
        return label.astype(np.int64), EDGES_P[cell] + within * (EDGES_P[cell + 1] - EDGES_P[cell])

    def with_ece(self, ece: float, bins: int = 5) -> Shape:
        """Scale the departures from calibration to this ECE; a calibrated shape becomes overconfident."""
        from scipy.optimize import brentq  # slow to import, and rarely needed

        density = self.table[:CELLS] + self.table[CELLS:]
        departure = logit(np.clip(of.curve(self.table), 1e-9, 1 - 1e-9)) - _S
        if self.ece(bins) < 1e-6:
            departure = -_S / 2

        def scaled(by: float) -> Shape:
            return _joint(self.name, density, expit(_S + by * departure))

        most = 1.0
        while scaled(most).ece(bins) < ece and most < 64:
            most *= 2
        if not 0 <= ece <= scaled(most).ece(bins):
            raise InputError(
                f"ece: a model of the shape {self.name!r} can have an ECE from 0 to "
                f"{scaled(most).ece(bins):.2f}, got {ece!r}"
            )
        by = brentq(lambda by: scaled(by).ece(bins) - ece, 0.0, most, xtol=1e-6) if ece > 0 else 0.0
        return replace(scaled(by), name=f"{self.name} at ECE {ece:g}")


def _joint(name: str, density: FloatArray, curve: FloatArray) -> Shape:
    table = np.concatenate([density * (1 - curve), density * curve])
    return Shape(name, table / table.sum())


def _normal(*parts: tuple[float, float, float]) -> FloatArray:
    """A mixture of normal log-odds: the (share, mean, standard deviation) of each."""
    return np.asarray(sum(share * np.diff(ndtr((EDGES_S - mean) / sd)) for share, mean, sd in parts))


def _beta(a: float, b: float) -> FloatArray:
    return np.asarray(np.diff(betainc(a, b, EDGES_P)))


_S = logit(MID_P)
PRESETS: dict[str, Callable[[], tuple[FloatArray, FloatArray]]] = {
    # sure in both directions, and wrong more often than it says
    "overconfident": lambda: (_normal((0.5, -2.0, 1.8), (0.5, 2.5, 1.8)), expit(0.5 * _S - 0.2)),
    # hesitant, and right more often than it says
    "underconfident": lambda: (_normal((1.0, 0.2, 1.0)), expit(2.2 * _S)),
    # right as often as it says
    "calibrated": lambda: (_beta(0.8, 0.6), MID_P),
    # crowded at 0 and 1, as many large models are
    "confident": lambda: (_beta(0.15, 0.2), 0.12 + 0.7 * MID_P),
    # few positives, and says Yes too often
    "rare": lambda: (_normal((1.0, -3.0, 1.5)), expit(0.7 * _S - 1.5)),
}
DEFAULT = "overconfident"


@cache
def preset(name: str) -> Shape:
    if name not in PRESETS:
        raise InputError(f"shape: must be one of {', '.join(PRESETS)}, got {name!r}")
    return _joint(name, *PRESETS[name]())


def shape_of_scores(name: str, labels: IntArray, p: FloatArray) -> Shape:
    """The shape of a score file: the histogram of its scores, smoothed by a fit."""
    cell = np.minimum(positions(p).astype(np.int64), CELLS - 1) + CELLS * labels
    seen, counts = np.unique(cell, return_counts=True)
    patterns = Patterns(start=seen, stop=seen + 1, counts=counts.astype(np.float64))
    return Shape(name, fit_ensemble(patterns).table)
