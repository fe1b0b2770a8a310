"""Forecasts of how precise an audit will be.

For an assumed shape, the expected counts of a design can be computed, and one fit to them shows how much
estimates vary: its curvature is the information in such answers (METHOD 4). A forecast therefore takes a
tenth of a second for any number of items. docs/plan.md compares forecasts with many simulated audits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.special import expit, gammaln, xlog1py, xlogy

from blindcal import design
from blindcal.errors import InputError
from blindcal.estimate import functionals as of
from blindcal.estimate.grid import CELLS, EDGES_P, MID_P, MID_S, positions
from blindcal.estimate.model import Ensemble, fit_ensemble, refit, tangents
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.estimate.resampling import of_items
from blindcal.estimate.truth import bin_edges
from blindcal.estimate.uncertainty import absolute_sum_interval, unseen_share
from blindcal.methods import FITTED, METHODS, SIMULABLE, at_most_once, repeated_queries, whole_queries
from blindcal.planning.shapes import Shape
from blindcal.records import AnswerTable, FloatArray, IntArray
from blindcal.simulation.simulate import log_odds, respond

_COARSE = 4  # thresholds are placed at every fourth edge of the grid, fine enough for a smooth density
_DRAWS = 1200
_AUDITS = 12  # simulated estimates whose intervals are averaged
_BENT, _REFITS = 1000, 120  # items and refits that measure the nonlinearity of estimates
_FLAT_REFITS = 240  # refits in place of a linear approximation, where the likelihood is nearly flat
_ROUGHLY = 1e-3  # log-likelihood units at which a fit may stop: far below the uncertainty of the answers
_REHEARSED = 3000  # items of the simulated audit that measures the gain of further queries
_STEPS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # queries per item at which it is evaluated
#: Most queries per item for which fits are forecast; well before, only the noise of the labels is left.
MAX_QUERIES = _STEPS[-1]


@dataclass(frozen=True, slots=True, repr=False)
class Forecast:
    """The expected precision of an audit of a model with the assumed shape.

    ``queries`` is the mean number per item and ``ece`` the ECE of the population. ``half_width`` is that of
    the interval for the ECE, ``None`` for methods without intervals. ``error`` is the mean absolute error of
    the estimate against the population's ECE, and ``error_95`` is the error exceeded in 5% of audits.
    """

    method: str
    items: int
    queries: float
    ece: float
    error: float
    error_95: float
    half_width: float | None

    def __repr__(self) -> str:
        return f"Forecast({self.items:,} items, {self.queries:g} queries per item, {self.summary})"

    @property
    def summary(self) -> str:
        """The forecast on one line."""
        width = "" if self.half_width is None else f" ± {self.half_width:.4f}"
        return f"{self.method}: ECE {self.ece:.4f}{width}"


def forecast(
    shape: Shape,
    method: str,
    n: int,
    queries: float,
    *,
    bins: int = 5,
    level: float = 0.95,
) -> Forecast:
    """Forecast the precision of one audit.

    Parameters
    ----------
    shape : Shape
        What is assumed about the model.
    method : str
        A method whose answers follow from probabilities.
    n, queries : int, float
        Number of items, and mean queries per item; below one, only some of the items are asked.
    bins, level : int, float
        Bins of the ECE, and confidence level of its interval.
    """
    if method not in SIMULABLE:
        raise InputError(f"method: can be planned for {', '.join(SIMULABLE)}, got {method!r}")
    if method == "extraction":
        whole_queries(queries)
    if method == "repeated":
        repeated_queries(queries)
    if METHODS[method].logprobs:
        at_most_once(queries)
    half_width = None
    if method not in FITTED:
        estimates = _face_value(shape, method, n, queries, bins)
    elif queries > MAX_QUERIES:
        raise InputError(
            f"queries: {method} can be planned with at most {MAX_QUERIES:g} per item, got {queries:g}; "
            "more would hardly tell more"
        )
    else:
        asked = max(1.0, min(queries, 1.0) * n)
        estimates = _ece(_scatter(shape, method, _rounded(asked), queries, bins))
        half_width = _mean_width(shape, method, asked, queries, bins, level) / 2
    ece = shape.ece(bins)
    off = np.abs(estimates - ece)
    error, error_95 = float(off.mean()), float(np.quantile(off, 0.95))
    return Forecast(method, n, queries, ece, error, error_95, half_width)


# Latent, temperature and repeated: one fit to expected counts


def _ece(gaps: FloatArray) -> FloatArray:
    """The ECE of each draw of the gaps."""
    return np.asarray(np.abs(gaps).sum(axis=1))


def _rounded(n: float) -> float:
    """Round a number of items, so that similar numbers share one cached forecast."""
    return float(f"{n:.3g}")


@lru_cache(maxsize=128)
def _scatter(shape: Shape, method: str, n: float, queries: float, bins: int) -> FloatArray:
    """Draws from the sampling distribution of the estimated gaps."""
    if not METHODS[method].tempered:
        # Two equal questions per item leave the likelihood too flat for a linear approximation.
        patterns = _expected(shape.table, method, n, queries)
        return of.gaps(_refits(patterns, fit_ensemble(patterns, enough=_ROUGHLY), _FLAT_REFITS).tables, bins)
    if method != "latent" or queries <= 1:
        draws = _gap_draws(_expected(shape.table, method, n, queries), bins)
        centre = draws.mean(axis=0)
        # the nonlinearity is proportional to the spread itself
        bend = 1 + (_bend(shape, method) - 1) * min(2.0, np.sqrt(_BENT / n))
        return np.asarray(centre + (draws - centre) * bend)
    if queries in _STEPS:
        # With several answers per item the prior matters little: the spread is proportional to 1/sqrt(n).
        draws = _rehearsed(shape, queries, bins)
        off = (draws - draws.mean(axis=0)) * np.sqrt(_REHEARSED / n)
        return np.asarray(of.gaps(shape.table, bins) + off)
    after = next(step for step in _STEPS if step > queries)
    before = max(step for step in (1.0, *_STEPS) if step < queries)
    share = (queries - before) / (after - before)
    less, more = (_scatter(shape, method, n, step, bins) for step in (before, after))
    return np.asarray((1 - share) * less + share * more)


@lru_cache(maxsize=16)
def _bend(shape: Shape, method: str) -> float:
    """By which factor nonlinearity widens the spread of estimates, measured once with real refits.

    Each refit is compared with its own linear approximation, so that about a hundred refits are enough.
    """
    patterns = _expected(shape.table, method, _BENT, METHODS[method].queries)
    ensemble = fit_ensemble(patterns, enough=_ROUGHLY)
    again = _refits(patterns, ensemble, _REFITS)
    bent = of.gaps(again.tables, 5)
    straight = np.empty_like(bent)
    for k, mode in enumerate(ensemble.modes):
        mine, along = again.which == k, tangents(mode)
        scores = patterns.sums(along) / patterns.mass(mode.table)[:, None]
        slope = (again.counts[mine] - patterns.counts) @ scores + again.centres[mine] * mode.precision
        step = np.linalg.solve(mode.information, of.gaps(along.T, 5))
        straight[mine] = of.gaps(mode.table, 5) + slope @ step
    return float(_ece(bent).std() / _ece(straight).std())


@dataclass(frozen=True, slots=True)
class _Refits:
    """Joint tables refitted to resampled ``counts``, each from mode ``which`` with random prior centres."""

    which: IntArray
    counts: FloatArray
    centres: FloatArray
    tables: FloatArray


def _refits(patterns: Patterns, ensemble: Ensemble, size: int) -> _Refits:
    """Refit to resampled items, as an audit does for its intervals."""
    rng = np.random.default_rng(0)
    which = rng.choice(ensemble.weights.size, size=size, p=ensemble.weights)
    precision = np.array([mode.precision for mode in ensemble.modes])[which]
    centres = rng.standard_normal(precision.shape) / np.sqrt(precision)
    counts = of_items(patterns)(size, rng)
    return _Refits(which, counts, centres, refit(patterns, ensemble.modes, which, counts, centres))


def _expected(table: FloatArray, method: str, n: float, queries: float) -> Patterns:
    if METHODS[method].logprobs:
        return _readings(table, n)
    if method == "latent":
        return _thresholds(table, n)
    return _samples(table, n, queries, design.TEMPERATURES if METHODS[method].tempered else (1.0,))


def _readings(table: FloatArray, n: float) -> Patterns:
    """Expected counts of exact readings of the probability: one pattern per label and cell."""
    cells = np.flatnonzero(table > 1e-9)
    return Patterns(start=cells, stop=cells + 1, counts=n * table[cells])


def _thresholds(table: FloatArray, n: float) -> Patterns:
    """Expected counts of one threshold query per item in the design of :class:`LatentDesign`."""
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
    """Expected counts of sampled answers, with temperatures in turn as in :class:`SampledDesign`."""
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
    """P(outcome | cell) of every outcome: the number of positive samples at each temperature.

    Each temperature is the first one in turn.
    """
    chance = expit(MID_S[:, None] / heats)
    for start in range(heats.size):
        asked = np.bincount((start + np.arange(times)) % heats.size, minlength=heats.size)
        for positives in product(*(range(k + 1) for k in asked)):
            yield np.asarray(np.exp(_log_binomial(asked, np.array(positives), chance).sum(axis=1)))


def _log_binomial(n: IntArray, k: IntArray, p: FloatArray) -> FloatArray:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + xlogy(k, p) + xlog1py(n - k, -p))


def _gap_draws(patterns: Patterns, bins: int) -> FloatArray:
    """Draws of the gaps fitted to patterns, linear in the coefficients, with the covariance of the fit.

    All fits use the same normal draws, in pairs of opposite sign, so that forecasts for similar numbers of
    items do not differ by chance.
    """
    ensemble = fit_ensemble(patterns, enough=_ROUGHLY)
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


@lru_cache(maxsize=64)
def _mean_width(shape: Shape, method: str, n: float, queries: float, bins: int, level: float) -> float:
    """Mean width of the intervals around a few simulated estimates, from the smallest to the largest.

    Each interval includes the effect of the unseen share.
    """
    draws = _scatter(shape, method, _rounded(n), queries, bins)
    off, unseen = draws - draws.mean(axis=0), unseen_share(n, level)
    step = len(draws) // _AUDITS
    widths = []
    for gaps in draws[np.argsort(_ece(draws))[step // 2 :: step]]:
        low, high = absolute_sum_interval(gaps, gaps + off, level)
        least = (1 - unseen) * np.abs(gaps).sum()
        widths.append(float(min(1.0, max(high, least + unseen)) - max(0.0, min(low, least))))
    return float(np.mean(widths))


# Gain of further queries


def worth(shape: Shape, queries: float) -> float:
    """Roughly how many items asked once are worth one item asked ``queries`` times by `latent`."""
    if queries <= 1:
        return 1.0
    once, more = (_mean_width(shape, "latent", float(_REHEARSED), k, 5, 0.95) for k in (1.0, queries))
    return max(1.0, (once / more) ** 2)


@lru_cache(maxsize=32)
def _rehearsed(shape: Shape, queries: float, bins: int) -> FloatArray:
    """Draws of the gaps after a simulated audit.

    Follow-ups depend on the answers, so their expected counts cannot be computed without a simulation.
    """
    labels, _ = _spread_items(shape)
    return _gap_draws(count_patterns(labels, _rehearsal(shape, queries)), bins)


def _spread_items(shape: Shape) -> tuple[IntArray, FloatArray]:
    """Items spread evenly over a shape."""
    return shape.spread(_REHEARSED, np.random.default_rng(0))


@lru_cache(maxsize=32)
def _rehearsal(shape: Shape, queries: float) -> AnswerTable:
    """The answers of one simulated audit up to ``queries`` per item, which is one of `_STEPS`."""
    labels, p = _spread_items(shape)
    before = [step for step in _STEPS if step < queries]
    return design.answer_design(
        design.LatentDesign(labels, MAX_QUERIES, 0),
        lambda asked, _: respond(log_odds(p), asked, np.random.default_rng(0)),
        answered=_rehearsal(shape, before[-1]) if before else None,
        enough=queries * _REHEARSED,
    )


# Methods that take answers at face value


def _face_value(shape: Shape, method: str, n: int, queries: float, bins: int) -> FloatArray:
    """Draws of the estimated ECE, from simulated counts of the answers of n items."""
    rng = np.random.default_rng(0)
    table = shape.table.reshape(2, CELLS)
    if method == "blind":
        return _blind_estimates(table, n, bins, rng)
    p, joint = _sampled(table, queries) if method == "sampling" else _extracted(table, int(queries))
    some = joint.sum(axis=0) > 1e-9 * joint.sum()
    p, joint = p[some], joint[:, some]
    counts = rng.multinomial(max(1, round(min(queries, 1.0) * n)), joint.ravel() / joint.sum(), size=_DRAWS)
    share = counts.reshape(_DRAWS, 2, -1) / counts.sum(axis=1)[:, None, None]
    signed = share[:, 0] * p - share[:, 1] * (1 - p)
    inside = np.minimum((p * bins).astype(np.int64), bins - 1)
    return _ece(np.stack([signed[:, inside == m].sum(axis=1) for m in range(bins)], axis=1))


def _sampled(table: FloatArray, queries: float) -> tuple[FloatArray, FloatArray]:
    """Shares of positive answers at T = 1, and the joint distribution of label and share."""
    whole = max(1, int(queries))
    values, joints = [], []
    for times, share in ((whole, whole + 1 - max(1.0, queries)), (whole + 1, max(1.0, queries) - whole)):
        if share > 1e-9:
            k = np.arange(times + 1)
            values.append(k / times)
            joints.append(share * table @ np.exp(_log_binomial(np.array(times), k, MID_P[:, None])))
    return np.concatenate(values), np.concatenate(joints, axis=1)


def _extracted(table: FloatArray, queries: int) -> tuple[FloatArray, FloatArray]:
    """Possible results of bisecting [-15, 15], and the joint distribution of label and result."""
    flips = np.linspace(-15, 15, 2 ** min(queries, 12) + 1)
    below = _below(table, expit(flips))
    below[:, 0], below[:, -1] = 0.0, np.cumsum(table, axis=1)[:, -1]
    return np.asarray(expit((flips[1:] + flips[:-1]) / 2)), np.diff(below, axis=1)


def _below(table: FloatArray, p: FloatArray) -> FloatArray:
    """Share of all items that have each label and a probability below ``p``, shape (2, p.size)."""
    total = np.concatenate([np.zeros((2, 1)), np.cumsum(table, axis=1)], axis=1)
    return np.stack([np.interp(positions(p), np.arange(CELLS + 1.0), row) for row in total])


def _blind_estimates(table: FloatArray, n: int, bins: int, rng: np.random.Generator) -> FloatArray:
    """Draws of ECE_blind (METHOD 3), from simulated answers of each subset."""
    edges = bin_edges(bins)
    centres = (edges[:-1] + edges[1:]) / 2
    above = np.cumsum(table, axis=1)[:, -1:] - _below(table, edges[:-1])
    size = np.array([len(range(m, n, bins)) for m in range(bins)])
    seen = np.zeros((_DRAWS, bins + 1, 2))
    for m in range(bins):
        chances = [above[0, m], above[1, m], max(0.0, 1 - above[:, m].sum())]
        drawn = rng.multinomial(size[m], np.array(chances) / sum(chances), size=_DRAWS)
        seen[:, m] = drawn[:, :2] / max(1, size[m])
    lost = seen[:, :-1] - seen[:, 1:]
    return _ece(centres * lost[..., 0] - (1 - centres) * lost[..., 1])
