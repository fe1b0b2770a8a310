"""`latent`: estimates the distribution of the hidden log-odds given the label (METHOD 4 to 6).

Each answer is a censored (threshold) or noisy (sampled) reading of an item's log-odds; one likelihood takes
any mixture of them. With more than two answers, the posterior of the excess is approximated by a normal
distribution around its mode, and a fit at each of five points stands for it.

`differences` compares two fits; items that they share are resampled together, so that effects of hard items
and of labels cancel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import checks
from blindcal.estimate import grid as of
from blindcal.estimate.checks import ArrayLike
from blindcal.estimate.grid import CELLS, HALF, MID_S
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.intervals import Alternative, Resampling, incidence, of_units, resampled_tables
from blindcal.estimate.latent.model import fit_ensemble, working_mode
from blindcal.estimate.problem import Excess, ExcessPosterior, NoisePosterior, Problem
from blindcal.estimate.readings import Patterns, axis_of, margin_axis, read
from blindcal.records import INVALID, NEGATIVE, Estimate, FloatArray, IntArray, Noise

_DRAWS = 300  # most joint refits: they only estimate a correlation
_OTHER_RESAMPLES = 300  # refits for the intervals of each other plausible noise, at most: limits the time


def latent(
    labels: ArrayLike,
    shifts: ArrayLike,
    answers: ArrayLike,
    temperatures: ArrayLike = 0.0,
    items: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    counts: ArrayLike | None = None,
    bounds: ArrayLike | None = None,
    jitter: float = 0.0,
    flip_rate: float = 0.0,
    bins: int = 5,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> LatentFit:
    """Fit the distribution of the hidden log-odds given the label, by penalised maximum likelihood.

    Parameters
    ----------
    labels : array_like of 0/1, shape (queries,)
        The label of each query's item.
    shifts : array_like, shape (queries,)
        The shift ``b`` added to the positive answer.
    answers : array_like, shape (queries,)
        1 for positive, 0 for negative; -1, NaN or None for invalid.
    temperatures : array_like or float
        0 for a threshold query, positive for a sampled one.
    items : array_like, optional
        The item of each query, by any name; by default each query asks a different item.
    groups : array_like, optional
        The group of each query's item; intervals then resample groups, and the p-value allows for them.
    counts : array_like, optional
        Number of items that each query's item stands for; see ``blindcal.Counts``. Not with ``groups``.
    bounds : array_like, shape (queries, 2), optional
        Bounds on the log-odds from probabilities that the endpoint shows, used instead of the answer, or NaN.
    jitter : float
        Standard deviation of the endpoint's noise on the log-odds of threshold queries.
    flip_rate : float
        Share of threshold answers that are reversed at random; below 1/2.
    bins : int
        Number of bins of the ECE; ``LatentFit.at`` gives the same fit with other bins.
    level : float
        Confidence level of the intervals.
    resamples : int
        Number of refits for the intervals; with 0 there are no intervals.
    seed : int
        Random seed of those refits.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> f = rng.beta(2, 1, 3000)
    >>> labels = rng.random(3000) < f**2              # an overconfident model
    >>> thresholds = (rng.permutation(3000) + 0.5) / 3000
    >>> shifts = -np.log(thresholds / (1 - thresholds))
    >>> fit = latent(labels, shifts, f >= thresholds)
    >>> 0.13 < fit.ece.low < fit.ece.value < fit.ece.high < 0.20, fit.calibrated_pvalue < 1e-6
    (True, True)
    """
    problem = Problem.of_rows(
        labels, shifts, answers, temperatures, items, groups, counts=counts, bounds=bounds
    )
    _check_answered(problem)
    queries, invalid = problem.queries, problem.invalid
    if invalid > queries / 2 and not (problem.readings.answers == NEGATIVE).any():
        warnings.warn(
            f"answers: {invalid} of {queries} are invalid (-1) and none is 0; code answers as 1 and 0, not 1 "
            "and -1",
            stacklevel=2,
        )
    if isinstance(jitter, str) or not (np.isfinite(jitter) and jitter >= 0):
        raise InputError(f"jitter: must be a number of at least 0, got {jitter!r}")
    if not 0 <= flip_rate < 0.5:
        raise InputError(f"flip_rate: must be a number from 0 to below 0.5, got {flip_rate!r}")
    noise = NoisePosterior(Noise(float(jitter), flip_rate))
    return fit_problem(replace(problem, noise=noise), bins=bins, level=level, resamples=resamples, seed=seed)


def fit_problem(
    problem: Problem, *, bins: int = 5, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> LatentFit:
    """Fit a problem; intervals include those of fits for the other plausible noise."""
    refits = checks.whole(resamples, "resamples", 0)
    if refits == 1:
        raise InputError("resamples: must be 0 or at least 2, got 1")
    checks.whole(bins, "bins")
    checks.fraction(level, "level")
    _check_answered(problem)
    best = _fit(problem, problem.noise.best, bins, level, refits, seed)
    if not refits:
        return best
    fewer = min(refits, _OTHER_RESAMPLES)
    others = (_fit(problem, noise, bins, level, fewer, seed) for noise in problem.noise.plausible)
    return replace(best, others=tuple(others))


def _fit(problem: Problem, noise: Noise, bins: int, level: float, resamples: int, seed: int) -> LatentFit:
    if problem.excess is None:
        problem = replace(problem, excess=excess_of(problem, noise))
    excess = problem.excess if problem.hard.any() else None
    patterns = read(problem, noise, axis_of(problem, None if excess is None else excess.best))
    ensemble = fit_ensemble(patterns)
    alternatives = []
    for other, share in () if excess is None or not resamples else excess.others:
        otherwise = patterns.on(axis_of(problem, other))
        alternatives.append(Alternative(otherwise, fit_ensemble(otherwise), share))
    units = None if problem.units is None else np.unique(problem.units[problem.items], return_inverse=True)[1]
    return LatentFit(
        patterns=patterns,
        ensemble=ensemble,
        resampling=Resampling(patterns, ensemble, resamples, seed, units, tuple(alternatives)),
        problem=problem,
        noise=noise,
        bin_count=bins,
        level=level,
    )


def _check_answered(problem: Problem) -> None:
    rows = problem.readings
    valid = rows.answers != INVALID
    if problem.given is not None:
        if not valid.any():
            raise NotIdentifiedError("no query about an answer that was given has a valid answer")
        return
    if not valid.any():
        raise NotIdentifiedError(f"answers: all {len(rows)} are invalid, so nothing can be estimated")
    if not (valid & np.isfinite(rows.shifts)).any():
        raise NotIdentifiedError(
            "shifts: all valid answers were forced by an infinite shift: nothing was asked"
        )


_PRIOR, _SD = np.array([0.3, 0.0]), np.array([1.0, 1.5])  # of level and slope: vague
_STEP = np.array([0.4, 0.8])  # of the lattice
_FINEST = 0.1  # of the lattice's step, to measure the curvature
_FURTHEST = 12  # steps of the search
_LEAST_CURVATURE = 0.2  # of the log-posterior, where it looks flat or bends the wrong way


def excess_of(problem: Problem, noise: Noise, *, roughly: bool = False) -> ExcessPosterior | None:
    """The posterior of the excess, ``roughly`` to choose queries; ``None`` if no margin was tested."""
    if problem.choices is None or not problem.hard.any():
        return None
    choices = problem.choices[problem.items]
    first = read(problem, noise, margin_axis(choices, Excess(0.0, 0.0)))

    def reading(excess: Excess) -> Patterns:
        return first.on(margin_axis(choices, excess))

    start = last = working_mode(reading(Excess(*_PRIOR)))
    margins = start.table.reshape(2, CELLS).sum(axis=0)[HALF:]
    centre = float(margins @ (MID_S[HALF:] / (1 + MID_S[HALF:])) / margins.sum())
    known: dict[tuple[float, float], float] = {}

    def value(point: FloatArray) -> float:
        key = (round(float(point[0]), 6), round(float(point[1]), 6))
        nonlocal last
        if key not in known:
            last = mode = working_mode(reading(Excess(*key, centre)), last)
            known[key] = mode.evidence - 0.5 * float((((point - _PRIOR) / _SD) ** 2).sum())
        return known[key]

    best = _PRIOR
    for _ in range(_FURTHEST):
        values = {step: value(best + _STEP * step) for step in product((-1, 0, 1), repeat=2)}
        step = max(values, key=lambda at: values[at])
        if step == (0, 0):
            break
        best = best + _STEP * step
    near = _quadratic(value, best, _STEP, centre)
    if roughly:
        return near
    finer = np.clip(np.sqrt(np.diag(near.covariance)), _FINEST * _STEP, _STEP)
    return _quadratic(value, best + np.clip(near.mean - best, -_STEP, _STEP), finer, centre)


def _quadratic(
    value: Callable[[FloatArray], float], at: FloatArray, step: FloatArray, centre: float
) -> ExcessPosterior:
    """The normal distribution whose log-density agrees with ``value`` at ``at`` and a step around it."""
    v = {at_step: value(at + step * at_step) for at_step in product((-1, 0, 1), repeat=2)}
    gradient = np.array([v[1, 0] - v[-1, 0], v[0, 1] - v[0, -1]]) / 2 / step
    twist = (v[1, 1] - v[1, -1] - v[-1, 1] + v[-1, -1]) / 4
    bend = v[1, 0] + v[-1, 0] - 2 * v[0, 0], v[0, 1] + v[0, -1] - 2 * v[0, 0]
    curvature = -np.array([[bend[0], twist], [twist, bend[1]]]) / np.outer(step, step)
    strength, axes = np.linalg.eigh(curvature)
    covariance = (axes / np.maximum(strength, _LEAST_CURVATURE)) @ axes.T
    move = np.clip(covariance @ gradient, -2 * step, 2 * step)
    return ExcessPosterior(at + move, covariance, centre)


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity in two fits, its difference (second minus first), and the correlation of their errors."""

    quantity: str
    first: Estimate
    second: Estimate
    difference: Estimate
    correlation: float


def differences(
    first: LatentFit,
    second: LatentFit,
    units: tuple[IntArray, IntArray] | None = None,
    *,
    bins: int = 5,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Difference, ...]:
    """Subtract the first fit's quantities from the second's, with intervals (Zou and Donner's MOVER, 2008).

    ``units`` are the unit (an item or a group) of each item of each fit; without them the fits are
    independent. Quantities that are undefined because a fit lacks a label are left out.
    """
    checks.fraction(level, "level")
    checks.whole(bins, "bins")
    if not (first.resampling.size and second.resampling.size):
        raise InputError("resamples: fits that are compared need at least 2, and one here has none")
    drawn = None if units is None else _jointly(first, second, units, seed)
    compared = []
    for name, of_tables in _quantities(first, bins).items():
        try:
            before, after = (getattr(fit.at(bins=bins, level=level), name) for fit in (first, second))
        except NotIdentifiedError:
            continue
        a, b = float(before), float(after)
        r = 0.0 if drawn is None else _correlation(*(of_tables(tables) for tables in drawn))
        low = b - a - _distance(b - after.low, before.high - a, r)
        high = b - a + _distance(after.high - b, a - before.low, r)
        compared.append(
            Difference(
                quantity=name,
                first=before,
                second=after,
                difference=Estimate(b - a, low, high, level),
                correlation=r,
            )
        )
    return tuple(compared)


def _quantities(fit: LatentFit, bins: int) -> dict[str, Callable[[FloatArray], FloatArray]]:
    return {
        "ece": lambda tables: of.ece(tables, bins),
        "accuracy": fit.accuracy_of,
        "auroc": of.auroc,
        "brier": of.brier,
        "log_loss": of.log_loss,
    }


def _jointly(
    first: LatentFit, second: LatentFit, units: tuple[IntArray, IntArray], seed: int
) -> tuple[FloatArray, FloatArray]:
    count = 1 + int(max(each.max() for each in units))
    size = min(_DRAWS, first.resampling.size, second.resampling.size)

    def tables(turn: int, fit: LatentFit) -> FloatArray:
        resample = of_units(incidence(units[turn], count, fit.patterns))
        rng, stream = np.random.default_rng([seed, 12, turn]), np.random.default_rng([seed, 11])
        # units have their own random stream: it is the same for both fits and does not depend on chunks
        refitted = resampled_tables(
            fit.patterns, fit.ensemble, size, rng, lambda some, _: resample(some, stream)
        )
        return fit.patterns.axis.to_log_odds(refitted)

    return tables(0, first), tables(1, second)


def _correlation(a: FloatArray, b: FloatArray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0


def _distance(a: float, b: float, r: float) -> float:
    a, b = max(a, 0.0), max(b, 0.0)  # a sample's estimate may lie just outside the population's interval
    return float(np.sqrt(max(a**2 + b**2 - 2 * r * a * b, 0.0)))
