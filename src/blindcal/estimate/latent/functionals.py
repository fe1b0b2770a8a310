"""Quantities computed from a joint table of (label, hidden log-odds) (METHOD 4).

Every function works on stacks of tables of shape (..., 2 * CELLS), label 0 first, that sum to one.
"""

from __future__ import annotations

import numpy as np

from blindcal.estimate.grid import CELLS, HALF, MID_P, MID_S, memberships
from blindcal.records import FloatArray


def by_label(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    return table[..., :CELLS], table[..., CELLS:]


def cell_gaps(table: FloatArray) -> FloatArray:
    """Signed gap of each cell: its share of items times (confidence - mean label)."""
    negative, positive = by_label(table)
    return np.asarray(negative * MID_P - positive * (1 - MID_P))


def gaps(table: FloatArray, bins: int) -> FloatArray:
    """Signed gap of each equal-width bin; their absolute sum is the binned ECE."""
    return np.asarray(cell_gaps(table) @ memberships(bins))


def ece(table: FloatArray, bins: int) -> FloatArray:
    return np.asarray(np.abs(gaps(table, bins)).sum(axis=-1))


def tce(table: FloatArray) -> FloatArray:
    """True calibration error E|E[Y|f] - f|."""
    return np.asarray(np.abs(cell_gaps(table)).sum(axis=-1))


def accuracy(table: FloatArray) -> FloatArray:
    """Share of items whose greedy answer (positive iff f >= 1/2) equals the label."""
    negative, positive = by_label(table)
    return np.asarray(negative[..., :HALF].sum(axis=-1) + positive[..., HALF:].sum(axis=-1))


def brier(table: FloatArray) -> FloatArray:
    """Mean squared difference between f and the label."""
    negative, positive = by_label(table)
    return np.asarray((negative * MID_P**2 + positive * (1 - MID_P) ** 2).sum(axis=-1))


def log_loss(
    table: FloatArray, of_negatives: FloatArray = MID_S, of_positives: FloatArray = MID_S
) -> FloatArray:
    """Mean negative log-likelihood of the labels; by default log-odds beyond ±12 count as ±13."""
    negative, positive = by_label(table)
    losses = np.logaddexp(0, of_negatives), np.logaddexp(0, -of_positives)
    return np.asarray((negative * losses[0] + positive * losses[1]).sum(axis=-1))


def auroc(table: FloatArray) -> FloatArray:
    """P(f of a positive > f of a negative), ties counting one half; NaN if a label is missing."""
    negative, positive = by_label(table)
    below = np.cumsum(negative, axis=-1) - negative / 2
    pairs = negative.sum(axis=-1) * positive.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((positive * below).sum(axis=-1) / np.where(pairs > 0, pairs, np.nan))


def prevalence(table: FloatArray) -> FloatArray:
    return np.asarray(table[..., CELLS:].sum(axis=-1))


def mean_confidence(table: FloatArray) -> FloatArray:
    negative, positive = by_label(table)
    return np.asarray(((negative + positive) * MID_P).sum(axis=-1))


def curve(table: FloatArray) -> FloatArray:
    """Reliability curve E[Y|f] at the probabilities of the cells."""
    negative, positive = by_label(table)
    return np.asarray(positive / np.maximum(negative + positive, 1e-300))


def decided_positive(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Shares of false and true positives of the decisions ``f >= EDGES_P[j]``."""
    negative, positive = by_label(table)
    return (
        np.asarray(np.cumsum(negative[..., ::-1], axis=-1)[..., ::-1]),
        np.asarray(np.cumsum(positive[..., ::-1], axis=-1)[..., ::-1]),
    )
