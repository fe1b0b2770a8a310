"""Calibration, discrimination and selective prediction as quantities of joint tables.

As those of `grid`, they are computed for stacks of tables at once, on the grid or on other `Cells`.
"""

from __future__ import annotations

import numpy as np
from scipy.fft import dct, idct
from scipy.optimize import isotonic_regression
from scipy.sparse import csr_array

from blindcal.estimate.grid import GRID, Cells, brier, by_label, cell_gaps, prevalence
from blindcal.records import FloatArray

_POINTS = 1024  # of the even grid on which gaps are smoothed
_FEWER = 256  # the same for draws
_STEPS = 16  # of the bisection for a width
_ROUNDING = 1e-12
_COARSE = 512  # cells that stacks of tables are merged to, which changes a draw by less than its noise


def isotonic(table: FloatArray) -> FloatArray:
    """The monotone E[Y|f] that is nearest to the labels, at each cell; NaN where a table has no items."""
    negative, positive = by_label(table)
    weight = negative + positive
    fitted = np.full(weight.shape, np.nan)
    for row in np.ndindex(weight.shape[:-1]):
        there = weight[row] > 0
        some = weight[row][there]
        fitted[(*row, there)] = isotonic_regression(positive[row][there] / some, weights=some).x
    return fitted


def brier_parts(table: FloatArray, cells: Cells = GRID) -> FloatArray:
    """Miscalibration, discrimination and uncertainty (last axis): their Brier score is a - b + c.

    References
    ----------
    Dimitriadis, Gneiting and Jordan (2021), Stable reliability diagrams for probabilistic classifiers.
    """
    table, cells = _coarse(table, cells)
    negative, positive = by_label(table)
    x = np.nan_to_num(isotonic(table))
    recalibrated = (negative * x**2 + positive * (1 - x) ** 2).sum(axis=-1)
    base = prevalence(table)
    uncertainty = base * (1 - base)
    return np.stack([brier(table, cells) - recalibrated, uncertainty - recalibrated, uncertainty], axis=-1)


def smoothed_gaps(table: FloatArray, cells: Cells, width: float) -> FloatArray:
    """Signed gaps smoothed by a reflected normal kernel; their absolute sum is the smooth ECE at a width."""
    return _smoothed(_waves(table, cells, _FEWER), np.asarray(width))


def smooth_ece(table: FloatArray, cells: Cells = GRID) -> FloatArray:
    """The smooth ECE at the width that equals it.

    References
    ----------
    Blasiok and Nakkiran (2024), Smooth ECE: principled reliability diagrams via kernel smoothing.
    """
    waves = _waves(table, cells, _POINTS)
    low, high = np.zeros(waves.shape[:-1]), np.ones(waves.shape[:-1])
    for _ in range(_STEPS):  # the error falls with the width
        width = (low + high) / 2
        error = np.abs(_smoothed(waves, width)).sum(axis=-1)
        low, high = np.where(error > width, width, low), np.where(error > width, high, width)
    return np.asarray((low + high) / 2)


def _waves(table: FloatArray, cells: Cells, points: int) -> FloatArray:
    place = np.clip(cells.p * points - 0.5, 0, points - 1)
    below = np.minimum(place.astype(np.int64), points - 2)
    above = place - below
    each = np.arange(cells.p.size)
    shares = csr_array(
        (np.concatenate([1 - above, above]), (np.tile(each, 2), np.concatenate([below, below + 1]))),
        shape=(each.size, points),
    )
    return np.asarray(dct(cell_gaps(table, cells) @ shares, type=2, axis=-1))


def _smoothed(waves: FloatArray, width: FloatArray) -> FloatArray:
    spread = np.pi * width[..., None] * np.arange(waves.shape[-1])
    return np.asarray(idct(waves * np.exp(-(spread**2) / 2), type=2, axis=-1))


def atb(table: FloatArray, cells: Cells = GRID) -> float:
    """Mean, over a boundary anywhere in [0, 1], of the squared gap below it plus that above it.

    References
    ----------
    Hartline, Hu and Wu (2026), A perfectly truthful calibration measure.
    """
    below, all_gaps = _gaps_below(table, cells, np.append(cells.p, np.inf))
    widths = np.diff(cells.p, prepend=0.0, append=1.0)
    return float(widths @ (below**2 + (all_gaps - below) ** 2))


def two_bin_gaps(table: FloatArray, cells: Cells) -> FloatArray:
    """Gaps below and above even boundaries, whose `norm` of order 2 is nearly the root of the ATB."""
    below, all_gaps = _gaps_below(table, cells, (np.arange(_FEWER) + 0.5) / _FEWER)
    return np.asarray(np.concatenate([below, all_gaps - below], axis=-1) / np.sqrt(_FEWER))


def _gaps_below(table: FloatArray, cells: Cells, boundaries: FloatArray) -> tuple[FloatArray, FloatArray]:
    gaps = cell_gaps(table, cells)
    sums = np.concatenate([np.zeros((*gaps.shape[:-1], 1)), np.cumsum(gaps, axis=-1)], axis=-1)
    return sums[..., np.searchsorted(cells.p, boundaries)], sums[..., -1:]


def selective_errors(table: FloatArray, cells: Cells = GRID) -> tuple[FloatArray, FloatArray]:
    """Accepted items and wrong ones among them, at each least confidence in the answer given, from none on.

    Both are shares of all items. The confidence in the answer given is max(f, 1 - f).
    """
    negative, positive = by_label(table)
    confidence = np.maximum(cells.p, 1 - cells.p).round(12)  # f and 1 - f tie
    sure, order = np.unique(confidence, return_inverse=True)
    if table.ndim > 1 and sure.size > _COARSE:
        order = order * _COARSE // sure.size
    to_level = csr_array((np.ones(order.size), (np.arange(order.size), order)))
    both, wrong = negative + positive, np.where(cells.p >= 0.5, negative, positive)
    covered, errors = (np.cumsum((each @ to_level)[..., ::-1], axis=-1) for each in (both, wrong))  # type: ignore[index]  # of arrays
    none = np.zeros((*covered.shape[:-1], 1))
    return np.concatenate([none, covered], axis=-1), np.concatenate([none, errors], axis=-1)


def coverage_at(table: FloatArray, cells: Cells, error: float) -> float:
    """The largest share of items that can be accepted, the surest first, with at most this ``error``."""
    covered, wrong = selective_errors(table, cells)
    return float(covered[wrong <= error * covered + _ROUNDING].max())


def risk(table: FloatArray, cells: Cells, coverages: FloatArray) -> FloatArray:
    """Share of wrong answers among the surest items at each coverage, and last the mean over all (AURC).

    Items of equal confidence come in random order.
    """
    covered, wrong = selective_errors(table, cells)
    # an error that is accepted at coverage c counts at all larger ones: -log c
    area = covered - covered * np.log(np.where(covered > 0, covered, 1.0))
    share, errors, areas = (np.diff(each, axis=-1) for each in (covered, wrong, area))
    aurc = (errors * areas / np.where(share > 0, share, 1.0)).sum(axis=-1)
    rows = zip(covered.reshape(-1, covered.shape[-1]), wrong.reshape(-1, wrong.shape[-1]), strict=True)
    shares = np.array([np.interp(coverages, *row) / coverages for row in rows])
    return np.concatenate([shares.reshape((*aurc.shape, -1)), aurc[..., None]], axis=-1)


def _coarse(table: FloatArray, cells: Cells) -> tuple[FloatArray, Cells]:
    """A stack of tables over fewer cells; a single table as it is."""
    size = cells.p.size
    if table.ndim == 1 or size <= _COARSE:
        return table, cells
    first = np.unique(np.searchsorted(cells.p, np.quantile(cells.p, np.arange(_COARSE) / _COARSE)))
    merged = np.concatenate([np.add.reduceat(half, first, axis=-1) for half in by_label(table)], axis=-1)
    weight = table.reshape(-1, 2, size).sum(axis=(0, 1)) + _ROUNDING
    mean = np.add.reduceat(weight * cells.p, first) / np.add.reduceat(weight, first)
    return merged, Cells.at(mean)
