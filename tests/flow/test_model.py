"""The latent model's likelihood, derivatives and modes, against brute force and scipy's optimiser."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from blindcal.estimate import grid
from blindcal.estimate.grid import CELLS, MID_S, WIDTH_S
from blindcal.estimate.latent import model
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.methods import make_design
from blindcal.records import FloatArray
from blindcal.simulation.simulate import ask, generate


def counted(n: int, queries: float = 1.0, method: str = "latent", seed: int = 0) -> Patterns:
    """Patterns of an overconfident model's answers."""
    labels, p = generate(n, seed)
    answered = ask(make_design(method, labels, queries=queries, seed=seed), p, seed=seed)
    return count_patterns(labels, answered)


def some_theta(seed: int, spread: float = 0.3) -> FloatArray:
    theta = spread * np.random.default_rng(seed).standard_normal(PRECISION.size)
    theta[1] -= 0.5
    return theta


PRECISION = model._splines().precision(0.1, 0.1, ties=True)
MIXED = [("latent", 1.0), ("latent", 2.0), ("temperature", 2.0)]


def brute_table(theta: FloatArray) -> FloatArray:
    """The joint table, cell by cell: exp of a spline's value times the cell's width, times the link."""
    splines = model._splines()
    k = splines.density.shape[1]
    weight = [float(np.exp(splines.density[c] @ theta[:k])) * WIDTH_S[c] for c in range(CELLS)]
    table = np.empty(2 * CELLS)
    for c in range(CELLS):
        share = (1 - model._FLOOR) * weight[c] / sum(weight) + model._FLOOR / CELLS
        up = 1 / (1 + np.exp(-(MID_S[c] + splines.link[c] @ theta[k:])))
        table[c], table[CELLS + c] = share * (1 - up), share * up
    return table


@pytest.mark.parametrize(("method", "queries"), MIXED)
def test_the_likelihood_is_that_of_each_item_by_itself(method: str, queries: float) -> None:
    """It is the sum over items of log P(label, answers) under a table made cell by cell, less the penalty.

    That the mass of a pattern is the likelihood of its items is tested by brute force where patterns are.
    """
    patterns, theta = counted(60, queries, method, seed=3), some_theta(1)
    masses = patterns.mass(brute_table(theta))[patterns.of_item]
    total = np.log(masses).sum() - 0.5 * (PRECISION * theta**2).sum()
    assert model._value(patterns, theta, PRECISION) == pytest.approx(total, rel=1e-9)
    assert model._local(patterns, theta, PRECISION).value == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(("method", "queries"), MIXED)
def test_derivatives_are_those_of_finite_differences(method: str, queries: float) -> None:
    """The gradient and the observed information agree with central differences of the value."""
    patterns = counted(300, queries, method)
    theta = some_theta(4)
    here = model._local(patterns, theta, PRECISION)
    step = 1e-5
    gradient = np.empty(theta.size)
    for j in range(theta.size):
        off = np.zeros(theta.size)
        off[j] = step
        gradient[j] = (
            model._value(patterns, theta + off, PRECISION) - model._value(patterns, theta - off, PRECISION)
        ) / (2 * step)
    assert here.gradient == pytest.approx(gradient, rel=1e-5, abs=1e-4)
    rng = np.random.default_rng(0)
    for _ in range(6):
        along = rng.standard_normal(theta.size)
        ends = [model._local(patterns, theta + sign * step * along, PRECISION).gradient for sign in (1, -1)]
        difference = (ends[1] - ends[0]) / (2 * step)
        assert here.information @ along == pytest.approx(difference, rel=1e-4, abs=1e-2)


@pytest.mark.parametrize(("method", "queries"), MIXED)
def test_the_mode_is_the_one_scipy_finds(method: str, queries: float) -> None:
    """A trust-region method on the same objective, from another start, ends at the same value and table."""
    patterns = counted(400, queries, method)
    mode = model.find_mode(patterns, PRECISION)

    def value(theta: FloatArray) -> float:
        return -model._value(patterns, theta, PRECISION)

    def gradient(theta: FloatArray) -> FloatArray:
        return -model._local(patterns, theta, PRECISION).gradient

    def hessian(theta: FloatArray) -> FloatArray:
        return model._local(patterns, theta, PRECISION).information

    found = minimize(value, some_theta(7), method="trust-exact", jac=gradient, hess=hessian, tol=1e-6)
    assert model._value(patterns, mode.theta, PRECISION) == pytest.approx(-found.fun, abs=1e-4)
    assert mode.table == pytest.approx(model._tables(found.x).joint, abs=1e-5)
    assert np.abs(model._local(patterns, mode.theta, PRECISION).gradient).max() < 0.05


def resampled_gaps(size: int) -> tuple[Patterns, model.Mode, FloatArray, FloatArray]:
    """A fit, resampled counts, and the gaps of fits to those counts from scratch."""
    patterns = counted(2000)
    counts = np.random.default_rng(1).multinomial(2000, patterns.counts / 2000, size=size).astype(float)
    scratch = []
    for row in counts:
        kept = row > 0
        seen = replace(patterns, start=patterns.start[kept], stop=patterns.stop[kept], counts=row[kept])
        scratch.append(grid.gaps(model.find_mode(seen, PRECISION).table, 10))
    return patterns, model.find_mode(patterns, PRECISION), counts, np.array(scratch)


def test_a_patient_refit_is_a_fit_to_the_other_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Climbing by the first fit's curvature to the very top ends where a fit from scratch does."""
    monkeypatch.setattr(model, "_ENOUGH", 1e-8)
    monkeypatch.setattr(model, "_MOST_STEPS", 1000)
    patterns, mode, counts, scratch = resampled_gaps(5)
    tables = model.refit(patterns, (mode,), np.zeros(5, np.int64), counts, np.zeros((5, PRECISION.size)))
    assert grid.gaps(tables, 10) == pytest.approx(scratch, abs=5e-5)


def test_the_evidence_is_laplaces_integral() -> None:
    """In two coefficients the approximation agrees with a numerical integral over a fine grid."""
    patterns = counted(400)
    stiff = np.full(PRECISION.size, 1e8)
    free = [1, model._splines().density.shape[1]]  # the density's width, the link's intercept
    stiff[free] = 1.0
    mode = model.find_mode(patterns, stiff)
    sd = np.sqrt(np.diag(np.linalg.inv(mode.information))[free])
    places = np.linspace(-7, 7, 57)
    values = np.empty((places.size, places.size))
    for i, a in enumerate(places):
        for j, b in enumerate(places):
            theta = mode.theta.copy()
            theta[free] += np.array([a, b]) * sd
            values[i, j] = model._value(patterns, theta, stiff)
    top = values.max()
    volume = np.exp(values - top).sum() * (places[1] - places[0]) ** 2 * sd.prod()
    # the free priors' log precisions are 0; each dimension brings log(2 pi) / 2
    integral = top + np.log(volume) - np.log(2 * np.pi)
    held = np.delete(np.arange(stiff.size), free)
    log_rest = (
        0.5 * np.log(stiff[held]).sum() - 0.5 * np.linalg.slogdet(mode.information[np.ix_(held, held)])[1]
    )
    assert mode.log_marginal - log_rest == pytest.approx(integral, abs=0.1)
