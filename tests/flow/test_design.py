"""Designs: reproducible from a seed and from any history, even, finite, and never more than was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindcal.design import BlindDesign, Design, best_splits
from blindcal.errors import InputError
from blindcal.estimate.grid import CELLS, MID_P
from blindcal.estimate.latent.model import working_table
from blindcal.estimate.patterns import count_patterns
from blindcal.methods import METHODS, count_queries, estimator_of, make_design
from blindcal.records import INVALID, AnswerTable, FloatArray, IntArray, Round
from blindcal.simulation.simulate import ask, generate, log_odds, respond

CASES = [
    ("latent", 1.0),
    ("latent", 0.4),
    ("latent", 2.3),
    ("blind", 1.0),
    ("sampling", 3.0),
    ("sampling", 1.5),
    ("extraction", 3.0),
    ("temperature", 2.0),
    ("temperature", 2.5),
    ("repeated", 2.0),
    ("repeated", 3.3),
]


def rounds_of(design: Design, p: FloatArray) -> list[tuple[Round, IntArray]]:
    """All rounds with their answers."""
    rng = np.random.default_rng(0)
    answered, rounds = AnswerTable.empty(), []
    while (asked := design.next_round(answered)) is not None:
        answers = respond(log_odds(p), asked, rng)
        rounds.append((asked, answers))
        answered = answered.with_round(asked, answers)
        assert len(rounds) < 100
    return rounds


def same(first: Round, second: Round | None) -> bool:
    names = ("items", "shifts", "temperatures")
    return second is not None and all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in names
    )


@pytest.mark.parametrize(("method", "queries"), CASES)
def test_every_round_can_be_made_again_from_the_answers_before_it(method: str, queries: float) -> None:
    """A new design with the same seed and the same history hands out the very same next round."""
    labels, p = generate(300, 1)
    answered = AnswerTable.empty()
    for asked, answers in rounds_of(make_design(method, labels, queries=queries, seed=5), p):
        again = make_design(method, labels, queries=queries, seed=5).next_round(answered)
        assert same(asked, again)
        answered = answered.with_round(asked, answers)
    assert make_design(method, labels, queries=queries, seed=5).next_round(answered) is None


@pytest.mark.parametrize(("method", "queries"), CASES)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 250])
def test_rows_are_finite_and_as_many_as_asked_for(method: str, queries: float, n: int) -> None:
    """Every row names an item, a finite shift and a temperature; the total is the number of queries."""
    labels, p = generate(n, 2)
    rounds = rounds_of(make_design(method, labels, queries=queries, bins=5), p)
    total = 0
    for asked, _ in rounds:
        assert len(asked) == asked.items.size == asked.shifts.size == asked.temperatures.size > 0
        assert ((asked.items >= 0) & (asked.items < n)).all()
        assert np.isfinite(asked.shifts).all()
        assert (np.isfinite(asked.temperatures) & (asked.temperatures >= 0)).all()
        total += len(asked)
    if method == "blind":
        assert total == n - -(-n // 5)
    else:
        assert total == max(1, round(queries * n))
    assert total == count_queries(method, n, queries, 5)


@pytest.mark.parametrize("queries", [1.0, 1.6, 3.0])
def test_a_round_of_latent_asks_an_item_at_most_once(queries: float) -> None:
    """Within a round no item is asked twice, and the first query of each comes before any second."""
    labels, p = generate(301, 3)
    seen = np.zeros(301, int)
    for asked, _ in rounds_of(make_design("latent", labels, queries=queries), p):
        assert np.unique(asked.items).size == len(asked)
        np.add.at(seen, asked.items, 1)
        assert seen.max() <= 1 or seen.min() >= 1


@given(st.integers(50, 400), st.floats(0.1, 0.9), st.integers(0, 99))
@settings(max_examples=25)
def test_dither_is_even_within_each_label(n: int, share: float, seed: int) -> None:
    """The pilot: each label's thresholds lie evenly on (0, 1), one in each of its slices."""
    labels = (np.random.default_rng(seed).random(n) < share).astype(np.int64)
    asked = make_design("latent", labels, seed=seed).next_round(AnswerTable.empty())
    assert asked is not None
    assert len(asked) == round(n / 4)
    thresholds = 1 / (1 + np.exp(asked.shifts))
    for y in (0, 1):
        mine = np.sort(thresholds[labels[asked.items] == y])
        if mine.size:
            # the k-th of m lies in [(k-1)/m, k/m], up to half a cell of rounding to the grid
            slices = np.arange(mine.size) / mine.size
            assert (mine >= slices - 0.5 * 1.2 / 480 - 1e-9).all()
            assert (mine <= slices + 1 / mine.size + 0.5 * 1.2 / 480 + 1e-9).all()


def test_the_second_round_looks_where_answers_vary() -> None:
    """After a pilot on a crowd near 0.9, more thresholds are asked near 0.9 than an even spread would."""
    rng = np.random.default_rng(0)
    p = rng.beta(90, 10, 2000)
    labels = (rng.random(2000) < p).astype(np.int64)
    rounds = rounds_of(make_design("latent", labels), p)
    assert [len(asked) for asked, _ in rounds] == [500, 1500]
    thresholds = 1 / (1 + np.exp(rounds[1][0].shifts))
    near = np.mean(np.abs(thresholds - 0.9) < 0.1)
    assert near > 0.5  # an even spread has .2
    assert np.mean(thresholds < 0.5) > 0.05  # but a fifth stays even, against a misleading pilot


def test_the_best_split_explains_the_most_variance() -> None:
    """The gain of a pattern is the most variance of f that any threshold removes, by trying all of them."""
    labels, p = generate(30, 8)
    answered = ask(make_design("latent", labels, queries=2), p)
    patterns = count_patterns(labels, answered)
    table = working_table(patterns)
    splits = best_splits(patterns, table)
    posterior = patterns.posterior(table, slice(None))

    def variance(weights: FloatArray) -> float:
        """Of f under the weights, times their sum."""
        total = weights.sum()
        return float(weights @ MID_P**2 - (weights @ MID_P) ** 2 / total) if total > 1e-9 else 0.0

    for k in range(0, len(patterns), 7):
        w = posterior[k]
        cells = np.arange(CELLS)
        gains = [
            variance(w) - variance(np.where(cells < edge, w, 0)) - variance(np.where(cells >= edge, w, 0))
            for edge in range(1, CELLS)
        ]
        assert splits.gain[k] == pytest.approx(max(gains), rel=1e-4, abs=1e-9)
        assert gains[splits.low[k] - 1] >= 0.7 * max(gains)
        assert gains[splits.high[k] - 1] >= 0.7 * max(gains)


def test_invalid_answers_do_not_stop_a_design() -> None:
    """If every answer is invalid the rounds still come, and end."""
    labels, _ = generate(100, 9)
    for method, queries in CASES:
        design = make_design(method, labels, queries=queries)
        answered = AnswerTable.empty()
        while (asked := design.next_round(answered)) is not None:
            answered = answered.with_round(asked, np.full(len(asked), INVALID))
        assert len(answered) == count_queries(method, 100, queries, 5)


def test_a_later_stage_waits_for_the_earlier_one() -> None:
    """Each stage is designed as if its items were alone, and starts when the one before is answered."""
    labels, p = generate(90, 3)
    first, second = np.arange(0, 90, 3), np.arange(1, 90, 3)
    answered = ask(make_design("latent", labels, queries=2, seed=1, stages=[first, second]), p)
    alone = ask(make_design("latent", labels[first], queries=2, seed=1), p[first])
    size = len(alone)
    assert first[alone.items].tolist() == answered.items[:size].tolist()
    assert alone.shifts.tolist() == answered.shifts[:size].tolist()
    later = ask(make_design("latent", labels[second], queries=2, seed=1 + 2**32), p[second])
    assert second[later.items].tolist() == answered.items[size:].tolist()
    assert later.shifts.tolist() == answered.shifts[size:].tolist()
    with pytest.raises(InputError, match="blind splits all its items at once"):
        make_design("blind", labels, stages=[first, second])


def test_latent_reads_the_answers_of_all_but_what_is_stated() -> None:
    """`latent` reads what comes as answers of one word."""
    assert {estimator_of(name, "latent") for name in METHODS if name != "verbalized"} == {"latent"}
    with pytest.raises(InputError, match="latent reads answers of one word, and verbalized gets free text"):
        estimator_of("verbalized", "latent")


@given(st.integers(1, 300), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=30)
def test_subsets_of_blind_differ_by_at_most_one(n: int, bins: int, seed: int) -> None:
    """The thresholds are the paper's edges; t = 0 is not asked and every other item once."""
    design = make_design("blind", np.arange(n) % 2, bins=bins, seed=seed)
    assert isinstance(design, BlindDesign)
    thresholds = design.thresholds()
    sizes = np.bincount(np.rint(thresholds * bins).astype(int), minlength=bins)
    assert sizes.max() - sizes.min() <= 1
    asked = design.next_round(AnswerTable.empty())
    if asked is None:
        assert (thresholds == 0).all()
        return
    assert asked.items.tolist() == np.flatnonzero(thresholds > 0).tolist()
    assert 1 / (1 + np.exp(asked.shifts)) == pytest.approx(thresholds[asked.items])


BAD = [
    ({"method": "guess"}, "method: must be one of decisions, logprobs, given, latent, .*, got 'guess'"),
    ({"queries": 0}, "queries: must be a positive number, got 0"),
    ({"queries": float("nan")}, "queries: must be a positive number, got nan"),
    ({"queries": float("inf")}, "queries: must be a positive number, got inf"),
    ({"method": "extraction", "queries": 1.5}, "queries: extraction asks a whole number .* got 1.5"),
    ({"method": "verbalized", "queries": 2}, "queries: verbalized asks each item once, got 2"),
    ({"method": "logprobs", "queries": 3}, "logprobs reads each item once at most"),
    ({"method": "blind", "bins": 0}, "bins: must be a whole number of at least 1, got 0"),
    ({"labels": []}, "labels: must not be empty"),
    ({"labels": [0, 1, 5]}, r"labels: must be 0 or 1, got .*5.* at position 2"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    """The error names the argument, the rule and the value."""
    arguments = {"method": "latent", "labels": [0, 1], **change}
    with pytest.raises(InputError, match=message):
        make_design(**arguments)  # type: ignore[arg-type]  # on purpose
