"""Counted answers stand for the answers themselves, however they are split, ordered and added up."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blindcal as bc
from blindcal.design import BlindDesign
from blindcal.errors import InputError
from blindcal.records import AnswerTable, IntArray
from blindcal.simulation.simulate import generate
from fitting import asked, columns, fitted


def counted(labels: IntArray, answered: AnswerTable) -> bc.Counts:
    rows = labels[answered.items]
    return bc.Counts.of(rows, answered.shifts, answered.answers, answered.temperatures, answered.items)


def by_hand(labels: IntArray, rows: list[tuple[int, float, float, int]]) -> Counter[object]:
    """Items by what they showed, counted one at a time."""
    shown: dict[int, list[tuple[float, float, int]]] = {}
    for item, shift, heat, answer in rows:
        shown.setdefault(item, []).append((shift, heat, answer))
    return Counter((int(labels[item]), tuple(sorted(said))) for item, said in shown.items())


def as_counter(counts: bc.Counts) -> Counter[object]:
    found: Counter[object] = Counter()
    for k in range(counts.count.size):
        mine = counts.pattern == k
        columns = (counts.shift[mine], counts.temperature[mine], counts.answer[mine])
        said = tuple(sorted((float(s), float(t), int(a)) for s, t, a in zip(*columns, strict=True)))
        found[(int(counts.label[k]), said)] += int(counts.count[k])
    return found


ROWS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from([-1.5, -0.0, 0.0, 2.0, np.inf]),
        st.sampled_from([0.0, 1.0]),
        st.sampled_from([-1, 0, 1]),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(rows=ROWS, bits=st.integers(0, 1023))
def test_every_pattern_is_counted(rows: list[tuple[int, float, float, int]], bits: int) -> None:
    """Counts hold exactly what counting item by item finds, each pattern once."""
    labels = np.array([bits >> k & 1 for k in range(10)])
    items, shifts, heats, answers = (np.array(column) for column in zip(*rows, strict=True))
    counts = bc.Counts.of(labels[items], shifts, answers, heats, items)
    expected = by_hand(labels, rows)
    assert as_counter(counts) == expected
    assert counts.count.size == len(expected)
    assert counts.items == np.unique(items).size
    assert counts.queries == len(rows)


@settings(max_examples=50, deadline=None)
@given(rows=ROWS, bits=st.integers(0, 1023), where=st.integers(0, 10), swap=st.booleans())
def test_parts_add_up_in_any_order(
    rows: list[tuple[int, float, float, int]], bits: int, where: int, swap: bool
) -> None:
    """Items split in two, counted apart and added up are the items counted together."""
    labels = np.array([bits >> k & 1 for k in range(10)])
    items, shifts, heats, answers = (np.array(column) for column in zip(*rows, strict=True))

    def count(mine: np.ndarray) -> bc.Counts:
        return bc.Counts.of(labels[items[mine]], shifts[mine], answers[mine], heats[mine], items[mine])

    parts = [count(mine) for mine in (items < where, items >= where) if mine.any()]
    assert bc.Counts.total(parts[::-1] if swap else parts) == count(np.full(len(rows), True))


@pytest.mark.parametrize(("method", "queries"), [("latent", 1), ("latent", 2.5), ("temperature", 3)])
def test_a_fit_of_counts_is_the_fit_of_the_answers(method: str, queries: float) -> None:
    """From four shards' counts or from the answers one by one: the same estimate, interval and p-value."""
    labels, p = generate(2000, 5)
    answered = asked(labels, p, queries, method)
    whole = fitted(labels, answered, resamples=100)
    shards = []
    for shard in range(4):
        mine = answered.items % 4 == shard
        part = AnswerTable(*(column[mine] for column in columns(answered)))
        shards.append(counted(labels, part))
    fit = bc.Counts.total(shards).latent(resamples=100)
    assert fit.ece.has_interval
    assert fit.findings() == whole.findings()
    assert (fit.items, fit.queries, fit.invalid) == (whole.items, whole.queries, whole.invalid)


def test_blind_of_counts_is_blind_of_the_answers() -> None:
    """The published estimator reads the same from counts, the subset that is not asked included."""
    labels, p = generate(3001, 1)
    thresholds = BlindDesign(labels.size, 7, 0).thresholds()
    answers = (p >= thresholds).astype(np.int64)
    answers[::50] = -1
    with np.errstate(divide="ignore"):
        shifts = -np.log(thresholds / (1 - thresholds))
    from_counts = bc.Counts.of(labels, shifts, answers).blind(bins=7)
    directly = bc.blind(labels, thresholds, answers, bins=7)
    # sums over counts round otherwise than sums over items
    assert from_counts.gaps == pytest.approx(directly.gaps, abs=1e-12)
    assert from_counts.subset_sizes.tolist() == directly.subset_sizes.tolist()
    assert (from_counts.invalid, from_counts.invalid_bound) == (directly.invalid, directly.invalid_bound)
    assert directly.invalid > 0


def test_counts_made_elsewhere_are_taken() -> None:
    """A table grouped by (label, shift, temperature, answer) is as good as the rows behind it."""
    labels, p = generate(3000, 2)
    answered = asked(labels, p)
    rows = zip(
        labels[answered.items].tolist(), answered.shifts.tolist(), answered.answers.tolist(), strict=True
    )
    table = Counter(rows)
    label, shift, answer = zip(*table, strict=True)
    assert bc.Counts.of(label, shift, answer, counts=list(table.values())) == counted(labels, answered)


def test_what_cannot_be_counted_is_refused() -> None:
    """Wrong counts, counts beside groups, and several answers for blind: each is named."""
    with pytest.raises(InputError, match=r"whole number of at least 1, got 1\.5 at position 1"):
        bc.Counts.of([0, 1], [0, 0], [0, 1], counts=[1, 1.5])
    with pytest.raises(InputError, match=r"counts: must be the same for all queries of one item"):
        bc.Counts.of([0, 0], [0, 1], [0, 1], items=[7, 7], counts=[1, 2])
    with pytest.raises(InputError, match="cannot belong to groups"):
        bc.latent([0, 1], [0, 0], [0, 1], groups=[0, 0], counts=[1, 2])
    with pytest.raises(InputError, match="blind needs one threshold per item"):
        bc.Counts.of([0, 0], [0, 1], [0, 1], items=[7, 7]).blind()
    with pytest.raises(InputError, match="nothing to add up"):
        bc.Counts.total([])
