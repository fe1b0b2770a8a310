"""Counts from Parquet files, from SQL, from Ray Data and from finished runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pyarrow  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from blindcal.errors import InputError
from blindcal.results import answer_counts
from blindcal.simulation.simulate import generate
from fitting import asked


def table(n: int = 1200, queries: float = 1.0) -> dict[str, np.ndarray]:
    labels, p = generate(n, 7)
    answered = asked(labels, p, queries)
    return {
        "label": labels[answered.items],
        "shift": answered.shifts,
        "answer": answered.answers,
        "item": answered.items,
    }


def write(path: Path, columns: dict[str, np.ndarray], rows: slice | np.ndarray = slice(None)) -> None:
    some = {name: column[rows] for name, column in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(some), path)


def test_counts_come_back_from_parquet(tmp_path: Path) -> None:
    """What is written is read back as it was, several answers per item and infinite shifts included."""
    columns = table(queries=2)
    columns["shift"][:50] = np.inf
    counts = answer_counts.of_columns(columns)
    answer_counts.write_counts(counts, tmp_path / "counts.parquet")
    assert answer_counts.read_counts(tmp_path / "counts.parquet") == counts


def test_a_folder_is_counted_as_one(tmp_path: Path) -> None:
    """Shards with all of an item in one file count as the whole table does."""
    columns = table(queries=2)
    for shard in range(5):
        write(tmp_path / f"{shard}.parquet", columns, columns["item"] % 5 == shard)
    assert answer_counts.read_counts(tmp_path) == answer_counts.of_columns(columns)


def test_rows_without_items_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One query per item is counted a batch at a time, whatever the batch; nulls are invalid answers."""
    columns = table()
    del columns["item"]
    columns["answer"] = np.where(np.arange(1200) % 9 == 0, np.nan, columns["answer"])
    expected = answer_counts.of_columns(columns)
    nullable = pyarrow.array(columns["answer"], from_pandas=True)
    pyarrow.parquet.write_table(pyarrow.table({**columns, "answer": nullable}), tmp_path / "a.parquet")
    monkeypatch.setattr(answer_counts, "_BATCH", 100)
    assert answer_counts.read_counts(tmp_path / "a.parquet") == expected


def test_a_sql_group_by_is_a_table_of_counts() -> None:
    """SQL that groups by what was asked and answered gives the counts of its rows."""
    columns = table()
    rows = zip(*(columns[name].tolist() for name in ("label", "shift", "answer")), strict=True)
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE TABLE answers (label INTEGER, shift REAL, answer INTEGER)")
        db.executemany("INSERT INTO answers VALUES (?, ?, ?)", rows)
        query = db.execute(
            "SELECT label, shift, answer, COUNT(*) AS count FROM answers GROUP BY label, shift, answer"
        )
        names = [one[0] for one in query.description]
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
