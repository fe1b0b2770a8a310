"""Counted answers stand for the answers themselves, however they are split, ordered, added up and stored."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blindcal as bc
from blindcal.design import BlindDesign
from blindcal.errors import InputError
from blindcal.records import AnswerTable, IntArray
from blindcal.results import answer_counts
from blindcal.simulation.simulate import generate
from fitting import asked, columns, fitted


def counted(labels: IntArray, answered: AnswerTable) -> bc.Counts:
    rows = labels[answered.items]
    return bc.Counts.of(rows, answered.shifts, answered.answers, answered.temperatures, answered.items)


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
@given(rows=ROWS, bits=st.integers(0, 1023), where=st.integers(0, 10), swap=st.booleans())
def test_every_pattern_is_counted(
    rows: list[tuple[int, float, float, int]], bits: int, where: int, swap: bool
) -> None:
    """Counts hold what counting item by item finds, each pattern once; parts add up to them in any order."""
    labels = np.array([bits >> k & 1 for k in range(10)])
    answered = AnswerTable(*(np.array(column) for column in zip(*rows, strict=True)))
    counts = counted(labels, answered)
    of_item: dict[int, list[tuple[float, float, int]]] = {}
    for item, *answer in rows:
        of_item.setdefault(item, []).append(tuple(answer))  # type: ignore[arg-type]
    expected = Counter((int(labels[item]), tuple(sorted(answers))) for item, answers in of_item.items())
    patterns = Counter[object]()
    for k, count in enumerate(counts.count.tolist()):
        mine = counts.pattern == k
        known = (counts.shift[mine], counts.temperature[mine], counts.answer[mine])
        answers = sorted((float(s), float(t), int(a)) for s, t, a in zip(*known, strict=True))
        patterns[int(counts.label[k]), tuple(answers)] += count
    assert patterns == expected
    assert (counts.count.size, counts.items, counts.queries) == (len(expected), len(of_item), len(rows))
    split = [answered.rows(mine) for mine in (answered.items < where, answered.items >= where) if mine.any()]
    parts = [counted(labels, part) for part in split]
    assert bc.Counts.total(parts[::-1] if swap else parts) == counts


@pytest.mark.parametrize(("method", "queries"), [("latent", 1), ("latent", 2.5), ("temperature", 3)])
def test_a_fit_of_counts_is_the_fit_of_the_answers(method: str, queries: float) -> None:
    """From four shards' counts or from the answers one by one: the same estimate, interval and p-value."""
    labels, p = generate(2000, 5)
    answered = asked(labels, p, queries, method)
    whole = fitted(labels, answered, resamples=100)
    shards = [counted(labels, answered.rows(answered.items % 4 == shard)) for shard in range(4)]
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


# -- tables of answers -----------------------------------------------------------------------------------


def table(n: int = 1200, queries: float = 1.0) -> dict[str, np.ndarray]:
    labels, p = generate(n, 7)
    items, shifts, _, answers = columns(asked(labels, p, queries))
    return {"label": labels[items], "shift": shifts, "answer": answers, "item": items}


def write(path: Path, columns: dict[str, np.ndarray], rows: slice | np.ndarray = slice(None)) -> None:
    some = {name: column[rows] for name, column in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(some), path)


def test_counts_come_back_from_parquet(tmp_path: Path) -> None:
    """With several answers per item and infinite shifts; a folder of shards counts as one table."""
    columns = table(queries=2)
    columns["shift"][:50] = np.inf
    counts = answer_counts.of_columns(columns)
    answer_counts.write_counts(counts, tmp_path / "counts.parquet")
    assert answer_counts.read_counts(tmp_path / "counts.parquet") == counts
    (tmp_path / "shards").mkdir()
    for shard in range(5):
        write(tmp_path / "shards" / f"{shard}.parquet", columns, columns["item"] % 5 == shard)
    assert answer_counts.read_counts(tmp_path / "shards") == counts


def test_rows_without_items_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One query per item is counted a batch at a time, whatever the batch; nulls are invalid answers."""
    columns = table()
    del columns["item"]
    columns["answer"] = np.where(np.arange(1200) % 9 == 0, np.nan, columns["answer"])
    nullable = pyarrow.array(columns["answer"], from_pandas=True)
    pyarrow.parquet.write_table(pyarrow.table({**columns, "answer": nullable}), tmp_path / "a.parquet")
    monkeypatch.setattr(answer_counts, "_BATCH", 100)
    assert answer_counts.read_counts(tmp_path / "a.parquet") == answer_counts.of_columns(columns)


def test_a_sql_group_by_is_a_table_of_counts() -> None:
    """SQL that groups by what was asked and answered gives the counts of its rows."""
    columns = table()
    rows = zip(*(columns[name].tolist() for name in ("label", "shift", "answer")), strict=True)
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE TABLE answers (label INTEGER, shift REAL, answer INTEGER)")
        db.executemany("INSERT INTO answers VALUES (?, ?, ?)", rows)
        query = db.execute("SELECT label, shift, answer, COUNT(*) AS count FROM answers GROUP BY 1, 2, 3")
        names = [column[0] for column in query.description]
        grouped = dict(zip(names, zip(*query, strict=True), strict=True))
    assert answer_counts.of_columns(grouped) == answer_counts.of_columns(columns)


def test_tables_that_cannot_be_counted_are_named(tmp_path: Path) -> None:
    """An empty folder, a missing column, a wrong value, no Parquet: the message says which file and why."""
    with pytest.raises(InputError, match=r"holds no \.parquet files"):
        answer_counts.read_counts(tmp_path)
    columns = table()
    write(tmp_path / "a.parquet", {"label": columns["label"], "shift": columns["shift"]})
    with pytest.raises(InputError, match=r"a\.parquet: .* must have the column answer; it has label, shift"):
        answer_counts.read_counts(tmp_path)
    write(tmp_path / "a.parquet", {**columns, "label": columns["label"] + 1})
    with pytest.raises(InputError, match=r"a\.parquet: labels: must be 0 or 1, got 2"):
        answer_counts.read_counts(tmp_path)
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read as Parquet"):
        answer_counts.read_counts(tmp_path)
