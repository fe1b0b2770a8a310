"""The posterior of the excess of k answers: how far their log-odds lie below the margin (METHOD 8).

It is approximated by a normal distribution around its mode, which a search on a lattice finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np

from blindcal.estimate.grid import CELLS, HALF, MID_S
from blindcal.estimate.latent.model import working_mode
from blindcal.estimate.patterns import Patterns, read
from blindcal.estimate.problem import Excess, ExcessPosterior, Problem
from blindcal.estimate.readings import margin_axis
from blindcal.records import FloatArray, Noise

_PRIOR, _SD = np.array([0.3, 0.0, 1.0]), np.array([1.0, 1.5, 2.5])  # of level, slope and telling: vague
_USUAL = 2.5  # telling that intervals expect: between 0 and 5, as on all sets that were measured
_STEP = np.array([0.4, 0.8, 1.0])  # of the search
_FINEST = 0.1  # of the search's step, to measure the curvature
_FURTHEST = 12  # steps of the search
_LEAST_CURVATURE = 0.2  # of the log-posterior, where it looks flat or bends the wrong way
_AXES = np.eye(3)
_PAIRS = [_AXES[i] + _AXES[j] for i, j in combinations(range(3), 2)]
_AROUND = [sign * way for way in (*_AXES, *_PAIRS) for sign in (1, -1)]  # all that a quadratic needs


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
    known: dict[tuple[float, ...], float] = {}

    def value(point: FloatArray) -> float:
        key = tuple(point.round(6).tolist())
        nonlocal last
        if key not in known:
            last = mode = working_mode(reading(Excess(*key, centre=centre)), last)
            known[key] = mode.log_marginal - 0.5 * float((((point - _PRIOR) / _SD) ** 2).sum())
        return known[key]

    best = _PRIOR
    for _ in range(_FURTHEST):
        better = max((best + _STEP * way for way in _AROUND), key=value)
        if value(better) <= value(best):
            break
        best = better
    near = _quadratic(value, best, _STEP, centre)
    if roughly:
        return near
    finer = np.clip(np.sqrt(np.diag(near.covariance)), _FINEST * _STEP, _STEP)
    exact = _quadratic(value, best + np.clip(near.mean - best, -_STEP, _STEP), finer, centre)
    shrunk = Excess(*_shrunk(exact.mean, exact.covariance).tolist(), centre=centre)
    usual = exact.mean + exact.covariance[:, 2] * (_USUAL - _PRIOR[2]) / _SD[2] ** 2  # by another prior
    return replace(exact, mean=usual, best=shrunk)


def _quadratic(
    value: Callable[[FloatArray], float], at: FloatArray, step: FloatArray, centre: float
) -> ExcessPosterior:
    """The normal distribution whose log-density agrees with ``value`` at ``at`` and a step around it."""
    middle = value(at)
    up, down = (np.array([value(at + step * way) for way in _AROUND[side::2]]) for side in (0, 1))
    gradient = (up - down)[:3] / 2
    bend = up + down - 2 * middle  # along the axes, then along the pairs
    hessian = np.diag(bend[:3])
    for (i, j), along in zip(combinations(range(3), 2), bend[3:], strict=True):
        hessian[i, j] = hessian[j, i] = (along - bend[i] - bend[j]) / 2
    strength, axes = np.linalg.eigh(-hessian / np.outer(step, step))
    covariance = (axes / np.maximum(strength, _LEAST_CURVATURE)) @ axes.T
    move = np.clip(covariance @ (gradient / step), -2 * step, 2 * step)
    mean = at + move
    return ExcessPosterior(mean, covariance, centre, Excess(*mean.tolist(), centre=centre))


def _shrunk(mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """The mean of the posterior if telling is likely near 1, as in a calibrated model, but may be far away.

    A wide prior, around the usual, keeps intervals honest where telling is far from 1. Few answers determine
    it, and an estimate by that prior would wander; Student's distribution with three degrees of freedom holds
    it near 1 until the answers speak.
    """
    telling = np.linspace(mean[2] - 8.0, mean[2] + 8.0, 801)
    off = (telling - mean[2]) ** 2 / covariance[2, 2] - ((telling - _PRIOR[2]) / _SD[2]) ** 2
    density = -0.5 * off - 2.0 * np.log1p((telling - _PRIOR[2]) ** 2 / 3)
    weights = np.exp(density - density.max())
    move = weights @ telling / weights.sum() - mean[2]
    return np.asarray(mean + covariance[:, 2] / covariance[2, 2] * move)
