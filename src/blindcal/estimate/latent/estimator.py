"""`latent`: estimates the distribution of the hidden log-odds given the label (METHOD 4 to 6).

Each answer is a censored (threshold) or noisy (sampled) reading of an item's log-odds; one likelihood takes
any mixture of them. With more than two answers, the posterior of the excess is approximated by a normal
distribution around its mode, and fits at six points stand for it.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import checks
from blindcal.estimate.checks import ArrayLike
from blindcal.estimate.latent.excess import excess_of
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.intervals import Alternative, Resampling
from blindcal.estimate.latent.model import fit_ensemble
from blindcal.estimate.patterns import axis_of, read
from blindcal.estimate.problem import NoisePosterior, Problem
from blindcal.records import INVALID, NEGATIVE, Noise

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
    refits = check_options(bins, level, resamples)
    _check_answered(problem)
    best = _fit(problem, problem.noise.best, bins, level, refits, seed)
    if not refits:
        return best
    fewer = min(refits, _OTHER_RESAMPLES)
    others = (_fit(problem, noise, bins, level, fewer, seed) for noise in problem.noise.plausible)
    return replace(best, others=tuple(others))


def check_options(bins: int, level: float, resamples: int) -> int:
    """Check the options of a fit, and return the number of resamples."""
    refits = checks.whole(resamples, "resamples", 0)
    if refits == 1:
        raise InputError("resamples: must be 0 or at least 2, got 1")
    checks.whole(bins, "bins")
    checks.fraction(level, "level")
    return refits


def _fit(problem: Problem, noise: Noise, bins: int, level: float, resamples: int, seed: int) -> LatentFit:
    if problem.excess is None:
        problem = replace(problem, excess=excess_of(problem, noise))
    excess = problem.excess if problem.hard.any() else None
    patterns = read(problem, noise, axis_of(problem, None if excess is None else excess.best))
    ensemble = fit_ensemble(patterns)
    alternatives = []
    for other in () if excess is None or not resamples else excess.others:
        otherwise = patterns.on(axis_of(problem, other))
        alternatives.append(Alternative(otherwise, fit_ensemble(otherwise)))
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
