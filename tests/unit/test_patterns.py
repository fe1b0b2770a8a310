"""Counting answers by pattern, against a brute-force reading of each item's answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import norm

from blindcal.estimate.grid import CELLS, EDGES_S, MID_S, edge_of_shift
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.records import AnswerTable, FloatArray, IntArray, Noise


def brute_likelihood(labels: IntArray, asked: AnswerTable, table: FloatArray, jitter: float) -> FloatArray:
    """P(label, answers) of each item: for each cell the product of its answers' chances, then the sum."""
    out = np.empty(labels.size)
    for i, y in enumerate(labels):
        chance = table[y * CELLS : (y + 1) * CELLS].copy()
        for row in np.flatnonzero((asked.items == i) & (asked.answers >= 0) & np.isfinite(asked.shifts)):
            b, temperature = asked.shifts[row], asked.temperatures[row]
            low, high = asked.bounds_or_nan[row]
            edge = int(edge_of_shift(np.array([b]))[0])
            if not np.isnan(low):
                chance *= (EDGES_S[1:] > low) & ((EDGES_S[:-1] < high) | (EDGES_S[:-1] <= low))
                continue
            if temperature > 0:
                positive = expit((MID_S + b) / temperature)
            elif jitter > 0:
                positive = norm.cdf((MID_S - EDGES_S[edge]) / jitter)
            else:
                positive = (np.arange(CELLS) >= edge).astype(float)
            chance *= positive if asked.answers[row] == 1 else 1 - positive
        out[i] = chance.sum()
    return out


def random_queries(
    rng: np.random.Generator, n: int = 30, *, warm: bool = True, shown: bool = False
) -> tuple[IntArray, AnswerTable]:
    """Labels, and answers of items with a fixed log-odds each, so that thresholds do not contradict.

    Some answers show bounds of the log-odds, if these are ``shown``: wide or exact ones.
    """
    rows = int(rng.integers(1, 4 * n))
    items = rng.integers(0, n, rows)
    s = 3 * rng.standard_normal(n)
    shifts = np.where(rng.random(rows) < 0.1, np.inf, -EDGES_S[rng.integers(1, CELLS, rows)])
    temperatures = rng.choice([0.0, 0.3, 1.0], rows) if warm else np.zeros(rows)
    shifted = s[items] + shifts
    with np.errstate(invalid="ignore", divide="ignore"):
        chance = np.where(temperatures > 0, expit(shifted / np.maximum(temperatures, 0.1)), shifted >= 0)
    answers = np.where(rng.random(rows) < 0.1, -1, (rng.random(rows) < chance).astype(np.int64))
    bounds = None
    if shown:
        width = rng.choice([0.0, 0.01, 1.0, 50.0], (rows, 2)) * [-1, 1]
        bounds = np.where(rng.random((rows, 1)) < 0.5, s[items, None] + width, np.nan)
    return rng.integers(0, 2, n), AnswerTable(items, shifts, temperatures, answers, bounds=bounds)


def random_table(rng: np.random.Generator) -> FloatArray:
    return rng.dirichlet(np.ones(2 * CELLS))


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 0.2]), st.booleans())
@settings(max_examples=50)
def test_the_mass_of_a_pattern_is_the_likelihood_of_its_items(
    seed: int, warm: bool, jitter: float, shown: bool
) -> None:
    """Thresholds, samples, shown bounds, mixtures, invalid and forced answers, with and without jitter."""
    rng = np.random.default_rng(seed)
    (labels, asked), table = random_queries(rng, warm=warm, shown=shown), random_table(rng)
    patterns = count_patterns(labels, asked, noise=Noise(jitter))
    assert (patterns.contradictions, patterns.n) == (0, labels.size)
    assert patterns.labels[patterns.of_item].tolist() == labels.tolist()
    brute = brute_likelihood(labels, asked, table, jitter)
    assert patterns.mass(table)[patterns.of_item] == pytest.approx(brute, rel=1e-6, abs=1e-12)
    assert np.bincount(patterns.of_item, minlength=len(patterns)) == pytest.approx(patterns.counts)


@given(st.integers(0, 10**6))
@settings(max_examples=15)
def test_spread_is_the_adjoint_of_mass_and_the_posterior_is_bayes_rule(seed: int) -> None:
    """<mass(table), w> = <table, spread(w)> for every table and weights; sums is mass column by column."""
    rng = np.random.default_rng(seed)
    patterns = count_patterns(*random_queries(rng, shown=True))
    tables = np.stack([random_table(rng) for _ in range(3)])
    weights = rng.random((3, len(patterns)))
    left = (patterns.mass(tables) * weights).sum(axis=1)
    assert left == pytest.approx((tables * patterns.spread(weights)).sum(axis=1), rel=1e-6, abs=1e-12)
    assert patterns.sums(tables.T) == pytest.approx(patterns.mass(tables).T, abs=1e-12)
    bayes = (tables[0] * patterns.spread(np.eye(len(patterns)))).reshape(-1, 2, CELLS).sum(axis=1)
    bayes /= bayes.sum(axis=1, keepdims=True)
    assert patterns.posterior(tables[0], slice(None)) == pytest.approx(bayes, abs=1e-9)


def one_item(edges: list[int], answers: list[int], label: int = 1) -> Patterns:
    zeros = np.zeros(len(edges), np.int64)
    asked = AnswerTable(zeros, -EDGES_S[edges], np.zeros(len(edges)), np.array(answers))
    return count_patterns(np.array([label]), asked)


def test_contradictions_are_counted_and_read_as_lying_between() -> None:
    """An item answered negative below and positive above lies, by the endpoint's noise, in between."""
    patterns = one_item([150, 400], [0, 1])
    assert patterns.contradictions == 1
    assert (patterns.start.tolist(), patterns.stop.tolist()) == ([CELLS + 150], [CELLS + 400])


@pytest.mark.parametrize("edge", [1, 2, CELLS // 2, CELLS - 2, CELLS - 1])
@pytest.mark.parametrize("label", [0, 1])
def test_both_answers_at_one_threshold_leave_the_cells_beside_it(edge: int, label: int) -> None:
    """The item lies at the threshold itself: the cells on its two sides, of its own label only."""
    patterns, at = one_item([edge] * 2, [0, 1], label), label * CELLS + edge
    assert (patterns.start.tolist(), patterns.stop.tolist()) == ([at - 1], [at + 1])


def test_the_number_of_patterns_does_not_grow_with_items() -> None:
    """One threshold per item: at most two answers a label and an edge, however many items."""
    rng = np.random.default_rng(0)
    n = 200_000
    shifts = -EDGES_S[rng.integers(1, CELLS, n)]
    labels, answers = rng.integers(0, 2, n), rng.integers(0, 2, n)
    patterns = count_patterns(labels, AnswerTable(np.arange(n), shifts, np.zeros(n), answers))
    assert len(patterns) <= 4 * CELLS
    assert patterns.n == n


def test_a_reading_is_the_one_cell_that_holds_it() -> None:
    """An exact reading fills one cell, on an edge the one above it; infinite ones the outermost."""
    s = np.array(
        [-np.inf, -50.0, EDGES_S[7], np.nextafter(EDGES_S[7], -np.inf), MID_S[200], EDGES_S[-2], np.inf]
    )
    table = AnswerTable(np.arange(7), np.zeros(7), np.zeros(7), (s >= 0).astype(np.int64))
    patterns = count_patterns(np.zeros(7, np.int64), replace(table, bounds=np.column_stack([s, s])))
    assert patterns.start[patterns.of_item].tolist() == [0, 0, 7, 6, 200, CELLS - 1, CELLS - 1]
    assert (patterns.stop - patterns.start == 1).all()


def test_the_mass_of_a_cell_is_exact_however_small() -> None:
    """A single cell of a table has its own probability, not the rounding error of a sum over all cells."""
    table = np.full(2 * CELLS, 1.0 / (2 * CELLS))
    table[CELLS - 1] = 1e-40
    pattern = Patterns(start=np.array([CELLS - 1]), stop=np.array([CELLS]), counts=np.ones(1))
    assert pattern.mass(table).tolist() == [1e-40]
    assert pattern.sums(table[:, None]).tolist() == [[1e-40]]
    assert pattern.spread(np.array([1e40])).tolist() == [0.0] * (CELLS - 1) + [1e40] + [0.0] * CELLS
