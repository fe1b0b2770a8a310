"""The grid covers the line, and a joint table on it says of items what counting them one by one does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindcal.estimate import grid
from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, HALF, MID_P, MID_S
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, IntArray

SEEDS = st.integers(0, 10**6)


def test_cells_cover_every_probability_once() -> None:
    """Edges rise strictly from 0 to 1, and each cell holds its own representative."""
    assert (EDGES_P[0], EDGES_P[-1]) == (0, 1)
    for mid, edges in ((MID_P, EDGES_P), (MID_S, EDGES_S)):
        assert edges.size == CELLS + 1
        assert ((mid > edges[:-1]) & (mid < edges[1:])).all()
    assert np.isfinite(MID_S).all()
    assert (grid.WIDTH_S > 0).all()


@pytest.mark.parametrize("bins", [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20])
def test_usual_bins_are_unions_of_cells(bins: int) -> None:
    """Every edge of the usual binnings is an edge of a cell, so that no cell is shared."""
    share = grid.GRID.memberships(bins)
    assert (np.isclose(share, 0) | np.isclose(share, 1)).all()
    assert np.abs(EDGES_P[:, None] - np.arange(bins + 1) / bins).min(axis=0).max() < 1e-12


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_the_edge_of_a_threshold_is_the_nearest_inner_one(thresholds: list[float]) -> None:
    """By looking at all of them."""
    edges = grid.edge_of_threshold(np.array(thresholds))
    for t, edge in zip(thresholds, edges, strict=True):
        assert 1 <= edge <= CELLS - 1
        assert abs(EDGES_P[edge] - t) == pytest.approx(np.abs(EDGES_P[1:-1] - t).min(), abs=1e-15)


def test_shifts_and_thresholds_name_the_same_edges() -> None:
    """b = -logit(t): every inner edge is found from either, and infinite shifts go outermost."""
    inner = np.arange(1, CELLS)
    assert grid.edge_of_threshold(EDGES_P[inner]).tolist() == inner.tolist()
    assert grid.edge_of_shift(-EDGES_S[inner]).tolist() == inner.tolist()
    outermost = [1, 1, CELLS - 1, CELLS - 1]
    assert grid.edge_of_shift(np.array([np.inf, 1e3, -1e3, -np.inf])).tolist() == outermost


def items(seed: int, n: int = 60) -> tuple[FloatArray, IntArray, IntArray]:
    """A table, and the (label, cell) of the n items that it counts; a few of them tie."""
    rng = np.random.default_rng(seed)
    labels, cells = rng.integers(0, 2, n), rng.integers(0, CELLS, n) // 10 * 10
    return np.bincount(labels * CELLS + cells, minlength=2 * CELLS) / n, labels, cells


@given(SEEDS, st.sampled_from([1, 2, 3, 4, 5, 8, 10, 15, 20]))
@settings(max_examples=40)
def test_quantities_are_means_over_the_items(seed: int, bins: int) -> None:
    """Gaps and ECE of the usual bins, scores, and the rates of decisions at each threshold."""
    table, y, cells = items(seed)
    f, s = MID_P[cells], MID_S[cells]
    known = binned_ece(y, f, bins)
    assert grid.gaps(table, bins) == pytest.approx(known.gaps, abs=1e-12)
    assert float(grid.ece(table, bins)) == pytest.approx(known.ece.value, abs=1e-12)
    assert float(grid.accuracy(table)) == pytest.approx(np.mean((s >= 0) == (y == 1)))
    assert float(grid.brier(table)) == pytest.approx(np.mean((f - y) ** 2))
    losses = np.where(y == 1, np.log1p(np.exp(-s)), np.log1p(np.exp(s)))
    assert float(grid.log_loss(table)) == pytest.approx(losses.mean())
    assert float(grid.prevalence(table)) == pytest.approx(y.mean())
    assert float(grid.mean_confidence(table)) == pytest.approx(f.mean())
    pairs = [(a > b) + 0.5 * (a == b) for a in cells[y == 1] for b in cells[y == 0]]
    assert float(grid.auroc(table)) == pytest.approx(np.mean(pairs))
    false, true = grid.decided_positive(table)
    for j in (0, 1, CELLS // 3, HALF, CELLS - 1):
        assert false[j] == pytest.approx(np.mean((f >= EDGES_P[j]) & (y == 0)))
        assert true[j] == pytest.approx(np.mean((f >= EDGES_P[j]) & (y == 1)))


def test_stacks_of_tables_are_taken_at_once() -> None:
    """Every quantity of a stack is the stack of the quantities; with one label there is no AUROC."""
    tables = np.stack([*(items(seed)[0] for seed in range(4)), np.eye(2 * CELLS)[3]])
    each = (grid.accuracy, grid.auroc, grid.brier, grid.log_loss, grid.tce, grid.curve, grid.cell_gaps)
    for quantity in each:
        alone = np.stack([quantity(table) for table in tables])
        assert quantity(tables) == pytest.approx(alone, nan_ok=True)
    assert grid.gaps(tables, 7) == pytest.approx(np.stack([grid.gaps(table, 7) for table in tables]))
    assert np.isnan(grid.auroc(tables)).tolist() == [False] * 4 + [True]
