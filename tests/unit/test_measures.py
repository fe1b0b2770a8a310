"""Quantities of joint tables against counting over items, and their intervals where the truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.special import ndtr

from blindcal.estimate import grid, measures
from blindcal.estimate.fit import Fit
from blindcal.estimate.shown import ShownFit
from blindcal.records import FloatArray, IntArray

NAMES = ("smece", "atb", "miscalibration", "discrimination", "uncertainty", "aurc", "coverage")
MISCALIBRATED = ("smece", "atb", "miscalibration")


def items(seed: int, n: int = 80, steps: int = 30) -> tuple[IntArray, FloatArray]:
    """Labels, and probabilities in even steps, so that some tie."""
    rng = np.random.default_rng(seed)
    p = rng.integers(0, steps + 1, n) / steps
    return (rng.random(n) < p**1.5).astype(np.int64), p


def fit_of(labels: Any, p: FloatArray, size: int = 0, **options: Any) -> ShownFit:
    return ShownFit(labels=np.asarray(labels), p=p, resamples=size, **options)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_quantities_are_those_of_the_items(seed: int) -> None:
    """Parts of the Brier score, ATB, risk and coverage: what loops over the items find."""
    y, f = items(seed)
    fit = fit_of(y, f)
    order = np.argsort(f)
    pooled = [y[f == each].mean() for each in np.unique(f)]
    weights = np.unique(f, return_counts=True)[1]
    x = np.repeat(isotonic_regression(pooled, weights=weights).x, weights)
    recalibrated, base = ((x - y[order]) ** 2).mean(), y.mean() * (1 - y.mean())
    assert float(fit.miscalibration) == pytest.approx(((f - y) ** 2).mean() - recalibrated)
    assert float(fit.discrimination) == pytest.approx(base - recalibrated)
    parts = float(fit.miscalibration) - float(fit.discrimination) + float(fit.uncertainty)
    assert parts == pytest.approx(float(fit.brier))
    q = (np.arange(30_000) + 0.5) / 30_000
    below = ((f - y) * (f < q[:, None])).mean(axis=1)
    assert float(fit.atb) == pytest.approx((below**2 + ((f - y).mean() - below) ** 2).mean(), abs=1e-5)
    sure, wrong = np.maximum(f, 1 - f).round(9), (f >= 0.5) != (y == 1)
    levels = np.unique(sure)[::-1]
    covered, errors = (
        np.array([some[sure >= c].sum() / y.size for c in levels]) for some in (wrong + 1 - wrong, wrong)
    )
    reached = covered[errors <= 0.2 * covered + 1e-12]
    assert float(fit.coverage_at(0.2)) == pytest.approx(reached.max(initial=0.0))
    at = (np.arange(40_000) + 0.5) / 40_000
    curve = np.interp(at, np.append(0, covered), np.append(0, errors)) / at
    assert float(fit.aurc) == pytest.approx(curve.mean(), abs=1e-3)
    for point in fit.risk:
        errors_at = np.interp(point.coverage, np.append(0, covered), np.append(0, errors))
        assert float(point.error) == pytest.approx(errors_at / point.coverage)
    for decided in fit.operating:
        yes, odds = f >= decided.threshold, decided.threshold / (1 - decided.threshold)
        assert float(decided.net_benefit) == pytest.approx(
            (yes & (y == 1)).mean() - odds * (yes & (y == 0)).mean()
        )
        assert float(decided.act_on_all) == pytest.approx(y.mean() - odds * (1 - y.mean()))


@pytest.mark.parametrize("seed", range(3))
def test_the_smooth_ece_is_its_own_width(seed: int) -> None:
    """Gaps of single items, each spread by a reflected normal density, at the width that they add up to."""
    y, f = items(seed, 300)
    width = float(fit_of(y, f).smece)
    edges = np.linspace(0, 1, 2001)

    def mass(centre: FloatArray) -> FloatArray:
        return np.diff(ndtr((edges[:, None] - centre) / width), axis=0)

    spread = sum(mass(sign * f + shift) for sign in (1, -1) for shift in (-2, 0, 2))
    assert np.abs((spread * (f - y)).mean(axis=1)).sum() == pytest.approx(width, abs=2e-4)


def test_stacks_of_tables_are_taken_at_once() -> None:
    """A stack has the quantities of its tables, nearly so if it has many cells."""
    at, rng = np.arange(1, 21) / 20, np.random.default_rng(0)
    quantities: list[Any] = [
        *(measures.brier_parts, measures.smooth_ece, measures.two_bin_gaps),
        lambda table, cells: measures.smoothed_gaps(table, cells, 0.05),
        lambda table, cells: measures.risk(table, cells, at),
    ]
    for size, error in ((30, 1e-12), (3000, 2e-3)):
        p = np.sort(rng.random(size))
        shares = np.concatenate([1 - p, p]) / size
        tables = rng.multinomial(20_000, shares / shares.sum(), 3) / 20_000
        for quantity in quantities:
            alone = np.stack([quantity(table, grid.Cells.at(p)) for table in tables])
            assert quantity(tables, grid.Cells.at(p)) == pytest.approx(alone, abs=error)


def test_intervals_of_a_calibrated_model_contain_none_of_its_errors() -> None:
    """What is zero in the population is within the interval nearly always, although every sample has some."""
    held = dict.fromkeys(MISCALIBRATED, 0)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p = rng.beta(2, 1, 300)
        fit = fit_of(rng.random(300) < p, p, 100)
        for name in MISCALIBRATED:
            estimate = getattr(fit, name)
            held[name] += 0.0 in estimate
            assert estimate.value > 0
    assert min(held.values()) >= 16


def test_another_level_has_other_intervals() -> None:
    """Of the same estimates, also after those of the first level were asked for."""
    fit = fit_of(*items(2, 200), 200)
    wide, narrow = ([getattr(each, name) for name in NAMES] for each in (fit, fit.at(level=0.5)))
    for one, other in zip(wide, narrow, strict=True):
        assert (one.level, other.level, one.value) == (0.95, 0.5, other.value)
        assert other.half_width < one.half_width


def _known(fit: Fit) -> dict[str, float]:
    return {name: float(getattr(fit, name)) for name in NAMES}


def test_estimates_do_not_depend_on_order_copies_or_the_name_of_the_positive_answer() -> None:
    """The same items shuffled, three times, or with both answers swapped."""
    y, p = items(4, 200, steps=31)  # none at 1/2, which counts as the positive answer
    known, order = _known(fit_of(y, p)), np.random.default_rng(0).permutation(y.size)
    for labels, f in ((y[order], p[order]), (np.tile(y, 3), np.tile(p, 3)), (1 - y, 1 - p)):
        assert _known(fit_of(labels, f)) == pytest.approx(known)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("label", [0, 1])
def test_one_label_and_one_probability_are_no_special_case(p: float, label: int) -> None:
    """Every quantity is a number within its interval."""
    fit = fit_of(np.full(50, label), np.full(50, p), 50)
    for estimate in (*(getattr(fit, name) for name in NAMES), *(point.error for point in fit.risk)):
        assert np.isfinite([estimate.value, estimate.low, estimate.high]).all()
        assert estimate.value in estimate
