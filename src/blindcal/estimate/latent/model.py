"""The latent model: a smooth density of the hidden log-odds times a smooth link to the label.

    log density(s) = smooth,        logit P(Y = 1 | s) = s + h(s)

Both are splines with a roughness prior. The smoothest densities, exp(a s + b s^2 + c log cosh(s/2)), include
Gaussians, beta-distributed f and two modes; the smoothest links are an intercept and a slope (Platt scaling),
and ``h = 0`` is perfect calibration. Fits of several smoothnesses are averaged by marginal likelihood
(Laplace); in some, the cells of 0, 1/2 and 1, where many items may tie exactly, stand out of the density.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.special import expit

from blindcal.estimate.grid import CELLS, HALF, MID_S, REACH, WIDTH_S
from blindcal.estimate.patterns import Patterns
from blindcal.estimate.readings import LOG_ODDS, Axis
from blindcal.estimate.uncertainty import quadratic_pvalue
from blindcal.records import BoolArray, FloatArray, IntArray

_NULL_SD_DENSITY = 10.0  # prior of the coefficients of s/4, (s/4)^2 and log cosh(s/2): vague
_VAGUE = 3  # number of these coefficients
_FLOOR = 1e-6  # share of the density spread evenly over the cells, so that no answer is impossible
_STEP = 10.0  # prior variances are searched by decades
SETTLED = 1e-12  # a fit stops if a step promises less log-likelihood than this
_ENOUGH = 5e-3  # the same for a refit: a tenth of a standard error
_NEARLY = 1e-8  # a step that promises less than this does not change the curvature
_MOST_STEPS = 200
_ARMIJO = 1e-4  # least share of the promised gain that a step must bring
_SHORTEST = 1e-6  # a step that must be shorter than this share of itself fails by rounding alone
_FEWER = 0.8  # share of the refits that are still moving, below which the others are set aside
_LADDER = ((-5, 3), (-1, 2))  # decades searched for the roughness of the density and of the link
_LINE_SD = (1.0, 8.0)  # prior of the link's intercept, and of its slope per s/4
_WIDER = 3.0  # factor of the wider prior, for models whose small differences in confidence mean a lot
_TIED = (0, HALF - 1, HALF, CELLS - 1)  # cells that may stand out of the smooth density
_TIES_SD = 2.5  # prior of the log of the factor by which they do, in the fits that let them
_DEPARTURE = 0.1  # roughness of the departures from calibration that are tested
_HELD = 1e10  # precision of a coefficient that is held at zero

# The marginal likelihood picks one smoothness for the whole density, and few answers show little roughness,
# but real densities are smooth in one place and rough in another. So refits have 10 times the roughness
# variance of the fit, and at least 0.1; fits of large score sets have 0.1 to 10. The same holds for links,
# but with few items a rougher link in refits takes up to three points off a promised precision, so there
# intervals only include what one fit with such a link changes. In refits its factor grows with the items,
# from 1 at 6,000 to 3 at 10,000 and 10 at 19,000. Chosen by bench/study.py.
_ROUGHER, _LEAST_ROUGH = 10.0, 0.1
_FEW = 6000  # items or groups, up to which refits have the link of the fit
_REFITTED = 8  # most modes that are refitted: the likeliest


@dataclass(frozen=True)
class _Splines:
    """Design matrices whose columns have independent priors: first vague ones, then unit roughness."""

    density: FloatArray
    link: FloatArray

    @property
    def rough(self) -> slice:
        return slice(_VAGUE, self.density.shape[1] - len(_TIED))

    @property
    def rough_link(self) -> slice:
        return slice(self.density.shape[1] + len(_LINE_SD), None)

    def precision(self, density: float, link: float, line: float = 1.0, *, ties: bool = False) -> FloatArray:
        vague, straight = np.full(_VAGUE, _NULL_SD_DENSITY**-2.0), np.power(np.multiply(_LINE_SD, line), -2.0)
        return np.concatenate(
            [
                vague,
                np.full(self.rough.stop - self.rough.start, 1 / density),
                np.full(len(_TIED), _TIES_SD**-2.0 if ties else _HELD),
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
    """Cubic splines that a penalty on this derivative affects, scaled to unit roughness."""
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
    # Freeing one large block makes glibc keep freed memory up to that size; returning large arrays to the
    # system and requesting them again takes more than half the time of a fit.
    np.empty(1 << 24, np.uint8)
    x = MID_S / 4
    return _Splines(
        density=np.column_stack(
            [x, x**2, np.log(np.cosh(2 * x)), _spline_columns(_knots(24), 3), np.eye(CELLS)[:, _TIED]]
        ),
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
    # one column per set of coefficients: sums over cells and patterns then run over whole rows of memory
    log_density = (x.density @ theta[..., :k].T).T + np.log(WIDTH_S)
    log_density[..., : axis.first] = -np.inf
    smooth = np.exp(log_density - log_density.max(axis=-1, keepdims=True))
    smooth /= smooth.sum(axis=-1, keepdims=True)
    density = (1 - _FLOOR) * smooth + _FLOOR / (CELLS - axis.first)
    density[..., : axis.first] = 0.0
    up = expit(axis.calibrated + (x.link @ theta[..., k:].T).T)
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
    log_marginal: float  # likelihood of the answers, coefficients integrated out


@dataclass(frozen=True)
class _Local:
    value: float
    gradient: FloatArray
    information: FloatArray
    scores: FloatArray
    table: FloatArray
    expected_counts: FloatArray

    def curvature(self, counts: FloatArray, precision: FloatArray) -> FloatArray:
        """The observed information, or the products of scores where it is not positive definite."""
        try:
            np.linalg.cholesky(self.information)
        except np.linalg.LinAlgError:
            return np.asarray((self.scores * counts[:, None]).T @ self.scores + np.diag(precision))
        return self.information

    def at(self, patterns: Patterns, theta: FloatArray, precision: FloatArray) -> _Local:
        """The same a tiny step away, where the derivatives are practically the same."""
        table = _tables(theta, patterns.axis).joint
        mass = patterns.mass(table)
        return replace(
            self,
            value=_penalised(patterns, mass, theta, precision),
            table=table,
            expected_counts=table * patterns.spread(patterns.counts / mass),
        )


def _penalised(patterns: Patterns, mass: FloatArray, theta: FloatArray, precision: FloatArray) -> float:
    return float(patterns.counts @ np.log(mass) - 0.5 * (precision * theta**2).sum())


def _value(patterns: Patterns, theta: FloatArray, precision: FloatArray) -> float:
    return _penalised(patterns, patterns.mass(_tables(theta, patterns.axis).joint), theta, precision)


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
    cells = expected[:CELLS] + expected[CELLS:]
    seen = cells * at.share
    information[:k, :k] += seen.sum() * centred.T @ (at.smooth[:, None] * centred)
    information[:k, :k] -= centred.T @ ((seen * (1 - at.share))[:, None] * centred)
    information[k:, k:] += x.link.T @ ((cells * up * (1 - up))[:, None] * x.link)
    information[np.diag_indices_from(information)] += precision
    return _Local(
        value=_penalised(patterns, mass, theta, precision),
        gradient=scores.T @ counts - precision * theta,
        information=information,
        scores=scores,
        table=table,
        expected_counts=expected,
    )


def find_mode(
    patterns: Patterns, precision: FloatArray, start: Mode | None = None, *, enough: float = SETTLED
) -> Mode:
    """Maximise the penalised likelihood by Newton's method, until a step promises less than ``enough``."""
    if start is None:
        theta = np.zeros(precision.size)
        theta[1] = -0.3  # a broad Gaussian
    else:
        theta = _moved(patterns, precision, start)[0]
    return _settled(patterns, precision, theta, enough)


def find_modes(
    patterns: Patterns, precisions: Sequence[FloatArray], starts: Sequence[Mode], *, enough: float = SETTLED
) -> list[Mode]:
    """As `find_mode`, for several priors at once: faster, as only the last steps need the curvature."""
    if not precisions:
        return []
    moved = [_moved(patterns, precision, start) for precision, start in zip(precisions, starts, strict=True)]
    theta, information = (np.array(each) for each in zip(*moved, strict=True))
    maxima = _maximised(
        patterns,
        np.array(precisions),
        np.tile(patterns.counts, (len(theta), 1)),
        np.zeros(theta.shape),
        theta,
        np.array([_whitening(precision) for precision in information]),
        max(enough, _NEARLY) / 4,
    )
    return [
        _settled(patterns, precision, at, enough) for precision, at in zip(precisions, maxima, strict=True)
    ]


def _settled(patterns: Patterns, precision: FloatArray, theta: FloatArray, enough: float) -> Mode:
    local = _local(patterns, theta, precision)
    for _ in range(60):
        information = local.curvature(patterns.counts, precision)
        step = np.linalg.solve(information, local.gradient)
        gain = float(local.gradient @ step)
        if gain < enough:
            break
        scale = 1.0
        while scale > 1e-8 and _value(patterns, theta + scale * step, precision) < local.value - 1e-9:
            scale /= 2
        theta = theta + scale * step
        if gain < _NEARLY:  # this was the last step, and it does not change the curvature
            local = local.at(patterns, theta, precision)
            break
        local = _local(patterns, theta, precision)
    else:
        information = local.curvature(patterns.counts, precision)
    log_determinant = np.linalg.slogdet(information)[1]
    return Mode(
        theta=theta,
        precision=precision,
        information=information,
        table=local.table,
        expected_counts=local.expected_counts,
        value=local.value,
        log_marginal=local.value + 0.5 * float(np.log(precision).sum()) - 0.5 * float(log_determinant),
    )


def _moved(patterns: Patterns, precision: FloatArray, start: Mode) -> tuple[FloatArray, FloatArray]:
    change = precision - start.precision
    information = start.information + np.diag(change)
    if np.linalg.eigvalsh(information)[0] > 0:
        theta = start.theta - np.linalg.solve(information, change * start.theta)
        if _value(patterns, theta, precision) >= start.value - 0.5 * float((change * start.theta**2).sum()):
            return np.asarray(theta), information
    return start.theta, start.information


@dataclass(frozen=True)
class Ensemble:
    """Modes for all plausible degrees of smoothness, weighted by their marginal likelihood."""

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
    """Search the prior variances by marginal likelihood, and keep all plausible modes."""

    def prior(place: tuple[int, ...], line: float = 1.0, *, ties: bool = False) -> FloatArray:
        density, link = (_STEP**decade for decade in place)
        return _splines().precision(density, link, line, ties=ties)

    best: tuple[int, ...] = (-1, -1)
    modes_at = {best: find_mode(patterns, prior(best), enough=enough)}
    while True:
        around = [
            place
            for place in product(*((at - 1, at, at + 1) for at in best))
            if all(low <= at <= high for at, (low, high) in zip(place, _LADDER, strict=True))
        ]
        new = [place for place in around if place not in modes_at]
        modes = find_modes(
            patterns, [prior(place) for place in new], [modes_at[best]] * len(new), enough=enough
        )
        modes_at |= dict(zip(new, modes, strict=True))
        top = max(around, key=lambda place: modes_at[place].log_marginal)
        if modes_at[top].log_marginal <= modes_at[best].log_marginal:
            break
        best = top
    plausible = _kept(list(modes_at.items()))
    places, starts = zip(*plausible, strict=True)
    priors = [prior(place, _WIDER) for place in places] + [prior(place, ties=True) for place in places]
    others = find_modes(patterns, priors, [*starts, *starts], enough=enough)
    kept = tuple(mode for _, mode in _kept(plausible + list(zip([*places, *places], others, strict=True))))
    log_marginal = np.array([mode.log_marginal for mode in kept])
    weights = np.exp(log_marginal - log_marginal.max())
    return Ensemble(kept, weights / weights.sum())


def roughened(patterns: Patterns, ensemble: Ensemble, units: int | None = None) -> Ensemble:
    """The likeliest modes with a rougher link, or as those of refits to a number of independent units."""
    kept = np.argsort(-ensemble.weights)[:_REFITTED]
    rough = _splines().rough_link if units is None else _splines().rough
    starts = [ensemble.modes[which] for which in kept]
    priors = [mode.precision.copy() for mode in starts]
    for prior in priors:
        prior[rough] = np.minimum(prior[rough] / _ROUGHER, 1 / _LEAST_ROUGH)
        if units is not None:
            prior[_splines().rough_link] /= np.clip((units / _FEW) ** 2, 1.0, _ROUGHER)
    weights = ensemble.weights[kept]
    modes = find_modes(patterns, priors, starts, enough=_ENOUGH)
    return Ensemble(tuple(modes), weights / weights.sum())


def _kept(modes: list[tuple[tuple[int, ...], Mode]]) -> list[tuple[tuple[int, ...], Mode]]:
    log_marginal = np.array([mode.log_marginal for _, mode in modes])
    weights = np.exp(log_marginal - log_marginal.max())
    return [each for each, kept in zip(modes, weights > 1e-3 * weights.sum(), strict=True) if kept]


def working_table(patterns: Patterns) -> FloatArray:
    """A joint table good enough to choose the next queries: one smoothness, no search."""
    return find_mode(patterns, _splines().precision(0.1, 0.1)).table


def working_mode(patterns: Patterns, start: Mode | None = None) -> Mode:
    """A fit of one smoothness, good enough to compare readings of the same answers by likelihood."""
    return find_mode(patterns, _splines().precision(0.1, 0.1), start, enough=_ENOUGH)


def refit(
    patterns: Patterns, modes: tuple[Mode, ...], which: IntArray, counts: FloatArray, centres: FloatArray
) -> FloatArray:
    """Refit modes to other counts and prior centres, as tables of shape (resamples, 2 * CELLS)."""
    whiten = np.array([_whitening(mode.information) for mode in modes])[which]
    precision = np.array([mode.precision for mode in modes])[which]
    theta = np.array([mode.theta for mode in modes])[which]
    thetas = _maximised(patterns, precision, counts, centres, theta, whiten, _ENOUGH)
    return np.ascontiguousarray(_tables(thetas, patterns.axis).joint)


def _whitening(information: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.inv(np.linalg.cholesky(information)))


@dataclass
class _Climbing:
    """The likelihoods still being maximised; ``which`` are their numbers among all."""

    which: IntArray
    theta: FloatArray
    precision: FloatArray
    counts: FloatArray  # in columns, as the tables are laid out
    centres: FloatArray
    whiten: FloatArray
    inverse: FloatArray
    scale: FloatArray
    value: FloatArray
    residual: FloatArray

    def of(self, some: BoolArray) -> _Climbing:
        made = _Climbing(**{name: column[some] for name, column in vars(self).items()})
        return replace(made, counts=np.asfortranarray(made.counts))

    def learn(self, better: BoolArray, step: FloatArray, change: FloatArray) -> None:
        """Update the inverse curvatures (BFGS) by the ``change`` of the gradient along a ``step``."""
        change = np.where(better[:, None], change, 0.0)  # it may be beyond all bounds where a step fails
        along = np.einsum("ij,ij->i", step, change)
        convex = along > 1e-8 * np.einsum("ij,ij->i", step, step)
        along = np.where(convex, along, 1.0)[:, None]
        step = np.where(convex[:, None], step, 0.0)
        moved = np.matmul(self.inverse, change[..., None])[..., 0]
        more = 1 + np.einsum("ij,ij->i", change, moved)[:, None] / along
        other = (more / 2 * step - moved) / along
        both = np.stack([step, other], axis=2)
        self.inverse += np.matmul(both, both[..., ::-1].transpose(0, 2, 1))


def _maximised(
    patterns: Patterns,
    precision: FloatArray,
    counts: FloatArray,
    centres: FloatArray,
    theta: FloatArray,
    whiten: FloatArray,
    enough: float,
) -> FloatArray:
    """Maximise several penalised likelihoods at once, by BFGS in the coordinates of ``whiten``."""
    maxima = theta.copy()
    counts = np.asfortranarray(counts)
    value, gradient = _climb(patterns, precision, counts, centres, theta)
    now = _Climbing(
        which=np.arange(len(theta)),
        theta=theta,
        precision=precision,
        counts=counts,
        centres=centres,
        whiten=whiten,
        inverse=np.tile(np.eye(theta.shape[1]), (len(theta), 1, 1)),
        scale=np.ones(len(theta)),
        value=value,
        residual=np.einsum("ipq,iq->ip", whiten, gradient),
    )
    for _ in range(_MOST_STEPS):
        step = np.matmul(now.inverse, now.residual[..., None])[..., 0]
        gain = np.einsum("ij,ij->i", now.residual, step)
        active = (gain > 2 * enough) & (now.scale > _SHORTEST)
        if not active.any():
            break
        if active.sum() < _FEWER * active.size:  # to copy costs more than a few steps too many
            maxima[now.which] = now.theta
            now, step, gain = now.of(active), step[active], gain[active]
        step *= now.scale[:, None]
        trial = now.theta + np.einsum("iq,iqp->ip", step, now.whiten)
        value, gradient = _climb(patterns, now.precision, now.counts, now.centres, trial)
        better = value >= now.value + _ARMIJO * now.scale * gain
        now.scale = np.where(better, 1.0, now.scale / 3)
        residual = np.einsum("ipq,iq->ip", now.whiten, gradient)
        now.learn(better, step, now.residual - residual)
        now.theta = np.where(better[:, None], trial, now.theta)
        now.residual = np.where(better[:, None], residual, now.residual)
        now.value = np.where(better, value, now.value)
    maxima[now.which] = now.theta
    return maxima


def _climb(
    patterns: Patterns, precision: FloatArray, counts: FloatArray, centres: FloatArray, theta: FloatArray
) -> tuple[FloatArray, FloatArray]:
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
    return value, gradient - off * precision


def calibrated_mode(patterns: Patterns) -> Mode:
    """The best perfectly calibrated fit (h = 0), with the smoothness chosen by marginal likelihood."""
    best: Mode | None = None
    for decade in range(_LADDER[0][0], _LADDER[0][1] + 1):
        precision = _splines().precision(_STEP**decade, 1.0)
        precision[_splines().density.shape[1] :] = _HELD
        mode = find_mode(patterns, precision, best)
        if best is not None and mode.log_marginal < best.log_marginal - 3:
            break
        best = mode if best is None or mode.log_marginal > best.log_marginal else best
    assert best is not None
    return best


def calibration_pvalue(patterns: Patterns, incidence: csr_array | None) -> float:
    """P-value of a score test of no link; ``incidence`` counts items per group and pattern.

    Efficient scores, at the best calibrated fit, are what refitting the density does not explain. Their
    variance is that of labels redrawn from this fit.
    """
    mode = calibrated_mode(patterns)
    k = _splines().density.shape[1]
    local = _local(patterns, mode.theta, mode.precision)
    curvature = local.curvature(patterns.counts, mode.precision)
    along = np.linalg.solve(curvature[:k, :k], curvature[:k, k:])
    other = patterns.relabelled()
    either = [local.scores, _local(other, mode.theta, mode.precision).scores]
    mass = np.array([patterns.mass(local.table), other.mass(local.table)])
    mine, theirs = (scores[:, k:] - scores[:, :k] @ along for scores in either)
    weights = patterns.counts * mass / mass.sum(axis=0)
    variance = (mine * weights[0][:, None]).T @ mine + (theirs * weights[1][:, None]).T @ theirs
    prior = np.diag(_splines().precision(1.0, _DEPARTURE)[k:])
    # directions that the answers resolve count in full, those that only the prior determines hardly count
    inner = np.linalg.inv(variance + prior)
    if incidence is not None:
        by_group = incidence @ mine
        excess, directions = eigh(by_group.T @ by_group + prior, variance + prior)
        inner = (directions / np.maximum(excess, 1.0)) @ directions.T
    total = patterns.counts @ mine
    resolved = 1 - np.asarray(np.linalg.eigvals(inner @ prior).real, dtype=np.float64)
    return quadratic_pvalue(float(total @ inner @ total), resolved)


def tangents(mode: Mode, axis: Axis = LOG_ODDS) -> FloatArray:
    """Derivative of a mode's joint table with respect to its coefficients, shape (2 * CELLS, p)."""
    at = _tables(mode.theta, axis)
    return np.asarray(at.joint[:, None] * at.slopes())
