"""The grid: cells cover the line, usual bins are unions of cells, thresholds fall on edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindcal.estimate import grid


def test_cells_cover_every_probability_once() -> None:
    """Edges rise strictly from 0 to 1, and each cell holds its own representative."""
    assert grid.EDGES_P[0] == 0
    assert grid.EDGES_P[-1] == 1
    assert (np.diff(grid.EDGES_P) > 0).all()
    assert (grid.EDGES_P.size, grid.MID_P.size, grid.MID_S.size) == (grid.CELLS + 1, grid.CELLS, grid.CELLS)
    for mid, edges in ((grid.MID_P, grid.EDGES_P), (grid.MID_S, grid.EDGES_S)):
        assert ((mid > edges[:-1]) & (mid < edges[1:])).all()
    assert np.isfinite(grid.MID_S).all()
    assert (grid.WIDTH_S > 0).all()


@pytest.mark.parametrize("bins", [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20])
def test_usual_bins_are_unions_of_cells(bins: int) -> None:
    """Every edge of the usual binnings is an edge of a cell, so that no cell is shared."""
    share = grid.memberships(bins)
    assert (np.isclose(share, 0) | np.isclose(share, 1)).all()
    edges = np.arange(bins + 1) / bins
    assert np.abs(grid.EDGES_P[:, None] - edges).min(axis=0).max() < 1e-12


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_the_nearest_edge_is_found(t: list[float]) -> None:
    """The edge of a threshold is the inner one nearest to it, by looking at all of them."""
    found = grid.edge_of_threshold(np.array(t))
    inner = grid.EDGES_P[1:-1]
    for one, edge in zip(t, found, strict=True):
        assert 1 <= edge <= grid.CELLS - 1
        assert abs(grid.EDGES_P[edge] - one) == pytest.approx(np.abs(inner - one).min(), abs=1e-15)


def test_shifts_and_thresholds_name_the_same_edges() -> None:
    """b = -logit(t): every inner edge is found from either, and infinite shifts go outermost."""
    inner = np.arange(1, grid.CELLS)
    assert grid.edge_of_threshold(grid.EDGES_P[inner]).tolist() == inner.tolist()
    assert grid.edge_of_shift(-grid.EDGES_S[inner]).tolist() == inner.tolist()
    assert grid.edge_of_shift(np.array([np.inf, 1e3, -1e3, -np.inf])).tolist() == [
        1,
        1,
        grid.CELLS - 1,
        grid.CELLS - 1,
    ]
