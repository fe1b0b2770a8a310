"""What a joint table implies, against items drawn from it and counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindcal.estimate.grid import CELLS, EDGES_P, HALF, MID_P, MID_S
from blindcal.estimate.latent import functionals as of
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, IntArray


def items(seed: int, n: int = 60) -> tuple[FloatArray, IntArray, IntArray]:
    """A table, and the (label, cell) of the n items that it counts."""
    rng = np.random.default_rng(seed)
    labels, cells = rng.integers(0, 2, n), rng.integers(0, CELLS, n)
    table = np.bincount(labels * CELLS + cells, minlength=2 * CELLS) / n
    return table, labels, cells


seeds = st.integers(0, 10**6)


@given(seeds, st.sampled_from([1, 2, 3, 4, 5, 8, 10, 15, 20]))
@settings(max_examples=40)
def test_gaps_are_the_binned_gaps_of_the_items(seed: int, bins: int) -> None:
    """On the usual binnings a table's gaps and ECE are those of its items at their cells' middles."""
    table, labels, cells = items(seed)
    known = binned_ece(labels, MID_P[cells], bins)
    assert of.gaps(table, bins) == pytest.approx(known.gaps, abs=1e-12)
    assert float(of.ece(table, bins)) == pytest.approx(known.ece.value, abs=1e-12)


@given(seeds)
@settings(max_examples=40)
def test_scores_are_means_over_the_items(seed: int) -> None:
    """Accuracy, Brier score, log loss, prevalence and mean confidence are plain means."""
    table, y, cells = items(seed)
    f, s = MID_P[cells], MID_S[cells]
    assert float(of.accuracy(table)) == pytest.approx(np.mean((s >= 0) == (y == 1)))
    assert float(of.brier(table)) == pytest.approx(np.mean((f - y) ** 2))
    assert float(of.log_loss(table)) == pytest.approx(
        np.mean(np.where(y == 1, np.log1p(np.exp(-s)), np.log1p(np.exp(s))))
    )
    assert float(of.prevalence(table)) == pytest.approx(y.mean())
    assert float(of.mean_confidence(table)) == pytest.approx(f.mean())


@given(seeds)
@settings(max_examples=40)
def test_auroc_compares_every_pair(seed: int) -> None:
    """The share of (positive, negative) pairs in the right order, ties for one half."""
    table, y, cells = items(seed, 25)
    cells = cells // 40 * 40  # ties
    table = np.bincount(y * CELLS + cells, minlength=2 * CELLS) / y.size
    pairs = [(a > b) + 0.5 * (a == b) for a in cells[y == 1] for b in cells[y == 0]]
    if pairs:
        assert float(of.auroc(table)) == pytest.approx(np.mean(pairs))
    else:
        assert np.isnan(of.auroc(table))


@given(seeds)
@settings(max_examples=40)
def test_decisions_count_the_items_at_or_above_each_threshold(seed: int) -> None:
    """False and true positives at each edge, one threshold at a time."""
    table, y, cells = items(seed)
    false, true = of.decided_positive(table)
    for j in (0, 1, CELLS // 3, HALF, CELLS - 1):
        above = MID_P[cells] >= EDGES_P[j]
        assert false[j] == pytest.approx(np.mean(above & (y == 0)))
        assert true[j] == pytest.approx(np.mean(above & (y == 1)))


def test_stacks_of_tables_are_taken_at_once() -> None:
    """Every functional of a stack is the stack of the functionals."""
    tables = np.stack([items(seed)[0] for seed in range(4)])
    for one in (of.accuracy, of.auroc, of.brier, of.log_loss, of.tce, of.curve, of.cell_gaps):
        assert one(tables) == pytest.approx(np.stack([one(table) for table in tables]), nan_ok=True)
    assert of.gaps(tables, 7) == pytest.approx(np.stack([of.gaps(table, 7) for table in tables]))


def test_a_calibrated_table_has_no_error() -> None:
    """Where each cell's labels are as its confidence says, every error vanishes and the curve is f."""
    share = np.random.default_rng(0).dirichlet(np.ones(CELLS))
    table = np.concatenate([share * (1 - MID_P), share * MID_P])
    assert float(of.ece(table, 5)) == pytest.approx(0, abs=1e-12)
    assert float(of.tce(table)) == pytest.approx(0, abs=1e-12)
    assert of.curve(table) == pytest.approx(MID_P)
