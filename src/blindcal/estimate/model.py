"""The latent model: a smooth density of the hidden log-odds times a smooth link to the label.

    log density(s) = smooth,        logit P(Y = 1 | s) = s + h(s)

Both are splines with a roughness prior. The smoothest densities are exp(a s + b s^2 + c log cosh(s/2)), which
includes Gaussians, beta-distributed f and two modes. The smoothest links are an intercept and a slope (Platt
scaling), and ``h = 0`` is perfect calibration. The marginal likelihood of the answers (Laplace approximation)
weights the degrees of smoothness, and the fits are averaged.

Estimates are joint tables over (label, cell). Refits to resampled counts reuse the factored curvature of the
fit, so each step is a few matrix products shared by all resamples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
from scipy.special import expit

from blindcal.estimate.axis import LOG_ODDS, Axis
from blindcal.estimate.grid import CELLS, MID_S, REACH, WIDTH_S
from blindcal.estimate.patterns import Patterns
from blindcal.records import FloatArray, IntArray

_NULL_SD_DENSITY = 10.0  # prior of the coefficients of s/4, (s/4)^2 and log cosh(s/2): vague
_VAGUE = 3  # number of these coefficients
_FLOOR = 1e-6  # share of the density spread evenly over the cells, so that no answer is impossible
_STEP = 10.0  # prior variances are searched by decades
SETTLED = 1e-12  # a fit stops if a step promises less log-likelihood than this
_ENOUGH = 2e-3  # the same for a refit
_MOST_STEPS = 25
_MEMORY = 5  # earlier steps that a refit mixes
_LADDER = ((-5, 3), (-1, 2))  # decades searched for the roughness of the density and of the link
_LINE_SD = (1.0, 8.0)  # prior of the link's intercept, and of its slope per s/4
_WIDER = 3.0  # factor of the wider prior, for models whose small differences in confidence mean a lot


@dataclass(frozen=True)
class _Splines:
    """Design matrices whose columns have independent priors: first the vague ones, then unit roughness."""

    density: FloatArray
    link: FloatArray

    def precision(self, density: float, link: float, line: float = 1.0) -> FloatArray:
        """Prior precision of each coefficient, from the two roughness variances and the scale of the line."""
        vague, straight = np.full(_VAGUE, _NULL_SD_DENSITY**-2.0), np.power(np.multiply(_LINE_SD, line), -2.0)
        return np.concatenate(
            [
                vague,
                np.full(self.density.shape[1] - vague.size, 1 / density),
                straight,
                np.full(self.link.shape[1] - straight.size, 1 / link),
            ]
        )


def _knots(count: int) -> FloatArray:
    """Knots from -REACH to REACH, denser in the middle, where thresholds resolve the log-odds better."""
    even = np.linspace(-1, 1, count + 1)
    stretch = np.arcsinh(REACH / 2)
    return np.asarray(2 * np.sinh(stretch * even))


def _spline_columns(knots: FloatArray, order: int) -> FloatArray:
    """Cubic splines that a penalty on the derivative of this ``order`` affects, scaled to unit roughness."""
    from scipy.interpolate import BSpline  # slow to import, and needed only for a fit

    padded = np.concatenate([np.repeat(knots[0], 3), knots, np.repeat(knots[-1], 3)])
    size = padded.size - 4
    spline = BSpline(padded, np.eye(size), 3)
    fine = np.concatenate([np.linspace(a, b, 21)[:-1] + (b - a) / 40 for a, b in pairwise(knots)])
    weight = np.repeat(np.diff(knots) / 20, 20)
    curvature = spline.derivative(order)(fine)
    roughness, directions = np.linalg.eigh(curvature.T @ (weight[:, None] * curvature))
    scaled = directions[:, order:] / np.sqrt(roughness[order:])
    return np.asarray(spline(np.clip(MID_S, knots[0], knots[-1])) @ scaled)


@lru_cache(maxsize=1)
def _splines() -> _Splines:
    # Freeing one large block makes glibc keep freed memory up to that size. Otherwise it returns large arrays
    # to the system at once, and requesting them again takes more than half the time of a fit.
    np.empty(1 << 24, np.uint8)
    x = MID_S / 4
    return _Splines(
        density=np.column_stack([x, x**2, np.log(np.cosh(2 * x)), _spline_columns(_knots(24), 3)]),
        link=np.column_stack([np.ones(CELLS), x, _spline_columns(_knots(12), 2)]),
    )


@dataclass(frozen=True)
class _Tables:
    """The tables of coefficients of shape (..., p); all but the joint table have shape (..., CELLS)."""

    joint: FloatArray  # (..., 2 * CELLS)
    smooth: FloatArray  # the spline density, before the floor
    share: FloatArray  # of each cell's probability that comes from the spline, not the floor
    up: FloatArray  # P(Y = 1 | cell)

    def slopes(self) -> FloatArray:
        """Derivative of a log joint table with respect to its coefficients, shape (2 * CELLS, p)."""
        x, up = _splines(), self.up[:, None]
        seen = self.share[:, None] * (x.density - self.smooth @ x.density)
        return np.concatenate(
            [np.column_stack([seen, -up * x.link]), np.column_stack([seen, (1 - up) * x.link])]
        )


def _tables(theta: FloatArray, axis: Axis = LOG_ODDS) -> _Tables:
    x = _splines()
    k = x.density.shape[1]
    log_density = theta[..., :k] @ x.density.T + np.log(WIDTH_S)
    log_density[..., : axis.first] = -np.inf
    smooth = np.exp(log_density - log_density.max(axis=-1, keepdims=True))
    smooth /= smooth.sum(axis=-1, keepdims=True)
    density = (1 - _FLOOR) * smooth + _FLOOR / (CELLS - axis.first)
    density[..., : axis.first] = 0.0
    up = expit(axis.calibrated + theta[..., k:] @ x.link.T)
    return _Tables(
        joint=np.concatenate([density * (1 - up), density * up], axis=-1),
        smooth=smooth,
        share=(1 - _FLOOR) * smooth / np.maximum(density, 1e-300),
        up=up,
    )


@dataclass(frozen=True)
class Mode:
    """The most probable coefficients under one choice of smoothness."""

    theta: FloatArray
    precision: FloatArray
    information: FloatArray
    table: FloatArray
    expected_counts: FloatArray
    value: float
    evidence: float


@dataclass(frozen=True)
class _Local:
    """Penalised likelihood at one point: value, gradient, curvature and posterior counts per cell."""

    value: float
    gradient: FloatArray
    information: FloatArray
    scores: FloatArray
    table: FloatArray
    expected_counts: FloatArray

    def curvature(self, counts: FloatArray, precision: FloatArray) -> FloatArray:
        """The observed information if it is positive definite, else the score products, which always are.

        The likelihood need not be concave far from its mode or in directions that only the prior determines.
        """
        try:
            np.linalg.cholesky(self.information)
        except np.linalg.LinAlgError:
            return np.asarray((self.scores * counts[:, None]).T @ self.scores + np.diag(precision))
        return self.information


def _value(patterns: Patterns, theta: FloatArray, precision: FloatArray) -> float:
    mass = patterns.mass(_tables(theta, patterns.axis).joint)
    return float(patterns.counts @ np.log(mass) - 0.5 * (precision * theta**2).sum())


def _local(patterns: Patterns, theta: FloatArray, precision: FloatArray) -> _Local:
    x = _splines()
    counts = patterns.counts
    at = _tables(theta, patterns.axis)
    table, up = at.joint, at.up
    mass = patterns.mass(table)
    centred = x.density - at.smooth @ x.density
    slopes = at.slopes()
    scores = patterns.sums(table[:, None] * slopes) / mass[:, None]
    expected = table * patterns.spread(counts / mass)
    # Louis' formula: information of the complete data minus what the answers do not determine
    information = (scores * counts[:, None]).T @ scores - slopes.T @ (expected[:, None] * slopes)
    k = x.density.shape[1]
    information[:k, :k] += patterns.n * centred.T @ (at.smooth[:, None] * centred)
    cells = expected[:CELLS] + expected[CELLS:]
    information[k:, k:] += x.link.T @ ((cells * up * (1 - up))[:, None] * x.link)
    information[np.diag_indices_from(information)] += precision
    return _Local(
        value=float(counts @ np.log(mass) - 0.5 * (precision * theta**2).sum()),
        gradient=scores.T @ counts - precision * theta,
        information=information,
        scores=scores,
        table=table,
        expected_counts=expected,
    )


def find_mode(
    patterns: Patterns, precision: FloatArray, start: Mode | None = None, *, enough: float = SETTLED
) -> Mode:
    """Maximise the penalised likelihood by Newton's method with step halving.

    It stops if a step promises a gain below ``enough``, and can start from the mode under another prior.
    """
    if start is None:
        theta = np.zeros(precision.size)
        theta[1] = -0.3  # a broad Gaussian
    else:
        theta = _moved(patterns, precision, start)
    here = _local(patterns, theta, precision)
    for _ in range(60):
        step = np.linalg.solve(here.curvature(patterns.counts, precision), here.gradient)
        if float(here.gradient @ step) < enough:
            break
        scale = 1.0
        while scale > 1e-8 and _value(patterns, theta + scale * step, precision) < here.value - 1e-9:
            scale /= 2
        theta = theta + scale * step
        here = _local(patterns, theta, precision)
    information = here.curvature(patterns.counts, precision)
    log_determinant = np.linalg.slogdet(information)[1]
    return Mode(
        theta=theta,
        precision=precision,
        information=information,
        table=here.table,
        expected_counts=here.expected_counts,
        value=here.value,
        evidence=here.value + 0.5 * float(np.log(precision).sum()) - 0.5 * float(log_determinant),
    )


def _moved(patterns: Patterns, precision: FloatArray, start: Mode) -> FloatArray:
    """One Newton step from the mode under another prior, where only the prior's change has a gradient."""
    change = precision - start.precision
    information = start.information + np.diag(change)
    if np.linalg.eigvalsh(information)[0] > 0:
        theta = start.theta - np.linalg.solve(information, change * start.theta)
        if _value(patterns, theta, precision) >= start.value - 0.5 * float((change * start.theta**2).sum()):
            return np.asarray(theta)
    return start.theta


@dataclass(frozen=True)
class Ensemble:
    """Modes for all plausible degrees of smoothness, weighted by their evidence."""

    modes: tuple[Mode, ...]
    weights: FloatArray

    @property
    def table(self) -> FloatArray:
        """The population's joint table, averaged over the modes."""
        return np.asarray(sum(w * m.table for w, m in zip(self.weights, self.modes, strict=True)))

    @property
    def expected_counts(self) -> FloatArray:
        """The sample's expected items per (label, cell), given each item's own answers (METHOD 4)."""
        return np.asarray(sum(w * m.expected_counts for w, m in zip(self.weights, self.modes, strict=True)))


def fit_ensemble(patterns: Patterns, *, enough: float = SETTLED) -> Ensemble:
    """Search the prior variances by evidence, from the middle of their range, and keep all plausible modes.

    ``enough`` as in :func:`find_mode`.
    """

    def climb(place: tuple[int, ...], start: Mode | None, line: float = 1.0) -> Mode:
        density, link = (_STEP**decade for decade in place)
        return find_mode(patterns, _splines().precision(density, link, line), start, enough=enough)

    best: tuple[int, ...] = (-1, -1)
    found = {best: climb(best, None)}
    while True:
        around = [
            place
            for place in product(*((at - 1, at, at + 1) for at in best))
            if all(low <= at <= high for at, (low, high) in zip(place, _LADDER, strict=True))
        ]
        for place in around:
            if place not in found:
                found[place] = climb(place, found[best])
        top = max(around, key=lambda place: found[place].evidence)
        if found[top].evidence <= found[best].evidence:
            break
        best = top
    plausible = _kept(list(found.items()))
    wider = [(place, climb(place, mode, _WIDER)) for place, mode in plausible]
    modes = tuple(mode for _, mode in _kept(plausible + wider))
    evidence = np.array([mode.evidence for mode in modes])
    weights = np.exp(evidence - evidence.max())
    return Ensemble(modes, weights / weights.sum())


def _kept(found: list[tuple[tuple[int, ...], Mode]]) -> list[tuple[tuple[int, ...], Mode]]:
    """The modes with more than a thousandth of the total evidence."""
    evidence = np.array([mode.evidence for _, mode in found])
    weights = np.exp(evidence - evidence.max())
    return [one for one, kept in zip(found, weights > 1e-3 * weights.sum(), strict=True) if kept]


def working_table(patterns: Patterns) -> FloatArray:
    """A joint table good enough to choose the next queries: one smoothness, no search."""
    return find_mode(patterns, _splines().precision(0.1, 0.1)).table


def working_mode(patterns: Patterns, start: Mode | None = None) -> Mode:
    """A fit of one smoothness, good enough to compare readings of the same answers by their evidence."""
    return find_mode(patterns, _splines().precision(0.1, 0.1), start, enough=_ENOUGH)


def refit(
    patterns: Patterns, modes: tuple[Mode, ...], which: IntArray, counts: FloatArray, centres: FloatArray
) -> FloatArray:
    """Refit modes to other counts and prior centres, as tables of shape (resamples, 2 * CELLS).

    All resamples are fitted at once, each starting from its mode. In coordinates where that mode's curvature
    is the identity, a plain step is the gradient itself; Anderson mixing of the last few steps corrects for
    the different curvature of each resample. A resample stops when less than ``_ENOUGH`` log-likelihood units
    are left to gain, and falls back to a shorter plain step if a mixed one makes it worse.
    """
    whiten = np.array([np.linalg.inv(np.linalg.cholesky(mode.information)) for mode in modes])[which]
    precision = np.array([mode.precision for mode in modes])[which]
    theta = np.array([mode.theta for mode in modes])[which]
    value, gradient, table = _climb(patterns, precision, counts, centres, theta)
    residual = np.einsum("ipq,iq->ip", whiten, gradient)
    size, p = theta.shape
    moves, changes = np.zeros((size, _MEMORY, p)), np.zeros((size, _MEMORY, p))
    held = np.zeros(size, np.int64)
    scale = np.ones(size)
    for _ in range(_MOST_STEPS):
        active = np.flatnonzero(np.einsum("ij,ij->i", residual, residual) > 2 * _ENOUGH)
        if active.size == 0:
            break
        step = scale[active, None] * _mixed(residual[active], moves[active], changes[active])
        trial = theta[active] + np.einsum("iq,iqp->ip", step, whiten[active])
        found, gradient, new_table = _climb(
            patterns, precision[active], counts[active], centres[active], trial
        )
        better = found >= value[active]
        up, slot = active[better], held[active[better]] % _MEMORY
        new_residual = np.einsum("ipq,iq->ip", whiten[up], gradient[better])
        moves[up, slot], changes[up, slot] = step[better], new_residual - residual[up]
        held[up] += 1
        scale[up] = 1.0
        theta[up], value[up], residual[up] = trial[better], found[better], new_residual
        table[up] = new_table[better]
        down = active[~better]
        moves[down], changes[down], held[down] = 0.0, 0.0, 0
        scale[down] /= 4
    return table


def _mixed(residual: FloatArray, moves: FloatArray, changes: FloatArray) -> FloatArray:
    """Anderson mixing: cancel what earlier steps can cancel of the residual, then move by the rest."""
    gram = np.einsum("imp,ikp->imk", changes, changes)
    gram[:, np.arange(_MEMORY), np.arange(_MEMORY)] += 1e-10 + 1e-8 * np.einsum("imm->i", gram)[:, None]
    weights = np.linalg.solve(gram, np.einsum("imp,ip->im", changes, residual)[..., None])[..., 0]
    return np.asarray(residual - np.einsum("im,imp->ip", weights, moves + changes))


def _climb(
    patterns: Patterns, precision: FloatArray, counts: FloatArray, centres: FloatArray, theta: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Value and gradient of the penalised likelihood of each resample, and its table."""
    x = _splines()
    tables = _tables(theta, patterns.axis)
    mass = patterns.mass(tables.joint)
    off = theta - centres
    value = np.einsum("ij,ij->i", counts, np.log(mass)) - 0.5 * np.einsum("ij,ij->i", off**2, precision)
    expected = tables.joint * patterns.spread(counts / mass)
    positive = expected[:, CELLS:]
    both = expected[:, :CELLS] + positive
    seen = both * tables.share
    gradient = np.concatenate(
        [
            (seen - seen.sum(axis=1, keepdims=True) * tables.smooth) @ x.density,
            (positive - both * tables.up) @ x.link,
        ],
        axis=1,
    )
    return value, gradient - off * precision, tables.joint


def calibrated_mode(patterns: Patterns) -> Mode:
    """The best perfectly calibrated fit (h = 0), with the density's smoothness chosen by evidence."""
    best: Mode | None = None
    for decade in range(_LADDER[0][0], _LADDER[0][1] + 1):
        precision = _splines().precision(_STEP**decade, 1.0)
        precision[_splines().density.shape[1] :] = 1e10  # holds the link at zero
        mode = find_mode(patterns, precision, best)
        if best is not None and mode.evidence < best.evidence - 3:
            break
        best = mode if best is None or mode.evidence > best.evidence else best
    assert best is not None
    return best


@dataclass(frozen=True)
class LinkScores:
    """Efficient scores for departures of the link from zero.

    Attributes
    ----------
    scores : array of shape (patterns, departures)
    variance : array of shape (departures, departures)
        Variance of their sum over the items if labels are redrawn from the calibrated fit, given the answers.
    precision : array of shape (departures,)
        The prior precision of each departure.
    """

    scores: FloatArray
    variance: FloatArray
    precision: FloatArray


def link_scores(patterns: Patterns, roughness: float = 0.1) -> LinkScores:
    """Efficient scores at the best calibrated fit: what refitting the density does not explain."""
    mode = calibrated_mode(patterns)
    k = _splines().density.shape[1]
    here = _local(patterns, mode.theta, mode.precision)
    curvature = here.curvature(patterns.counts, mode.precision)
    along = np.linalg.solve(curvature[:k, :k], curvature[:k, k:])
    other = patterns.relabelled()
    either = [here.scores, _local(other, mode.theta, mode.precision).scores]
    mass = np.array([patterns.mass(here.table), other.mass(here.table)])
    mine, theirs = (scores[:, k:] - scores[:, :k] @ along for scores in either)
    weights = patterns.counts * mass / mass.sum(axis=0)
    return LinkScores(
        scores=mine,
        variance=(mine * weights[0][:, None]).T @ mine + (theirs * weights[1][:, None]).T @ theirs,
        precision=_splines().precision(1.0, roughness)[k:],
    )


def tangents(mode: Mode, axis: Axis = LOG_ODDS) -> FloatArray:
    """Derivative of a mode's joint table with respect to its coefficients, shape (2 * CELLS, p)."""
    at = _tables(mode.theta, axis)
    return np.asarray(at.joint[:, None] * at.slopes())
