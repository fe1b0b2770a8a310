"""Counts of answers in Parquet files, a Ray dataset or a finished run.

A table of answers has the columns ``label``, ``shift`` and ``answer`` (1 or 0; -1 or null if invalid).
Optional columns are ``temperature`` (default 0), ``item`` (an id; by default each row is its own item),
``count`` (the number of items behind a row, as from ``GROUP BY``), and ``low`` and ``high`` (bounds of the
log-odds; NaN or null if none).
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blindcal.atomic_write import atomic_write
from blindcal.errors import InputError, MissingExtraError
from blindcal.estimate.counts import Counts
from blindcal.results.run import Run
from blindcal.text import printable

if TYPE_CHECKING:
    from ray.data import Dataset

NEEDED, OPTIONAL = ("label", "shift", "answer"), ("temperature", "item", "count", "low", "high")
_BATCH = 1_000_000  # rows of a file to count at a time


def of_columns(columns: Mapping[str, Any]) -> Counts:
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        has = ", ".join(printable(str(name), 30) for name in columns) or "none"
        raise InputError(f"a table of answers must have the column {missing[0]}; it has {has}")
    shown = [np.asarray(columns[name], np.float64) for name in ("low", "high") if name in columns]
    if len(shown) == 1:
        raise InputError("a table of answers must have both columns low and high, or none of them")
    return Counts.of(
        columns["label"],
        columns["shift"],
        columns["answer"],
        columns.get("temperature", 0.0),
        columns.get("item"),
        columns.get("count"),
        bounds=np.column_stack(shown) if shown else None,
    )


def of_run(run: Run) -> Counts:
    if run.choices is not None:
        raise InputError(f"{run.folder}: answers are counted for two answers only, and it has more")
    asked = run.answered
    return Counts.of(
        run.labels[asked.items],
        asked.shifts,
        asked.answers,
        asked.temperatures,
        asked.items,
        bounds=asked.bounds,
    )


def read_counts(path: str | Path) -> Counts:
    """Count the answers in Parquet files, a file or a folder; an item's rows must be in one file."""
    path = Path(path)
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: holds no .parquet files")
    return Counts.total(part for file in files for part in _parts(file))


def write_counts(counts: Counts, path: str | Path) -> None:
    """Write counts as a Parquet table that ``read_counts`` reads back."""
    arrow, parquet = _pyarrow(path)
    columns = {
        "item": counts.pattern,
        "count": counts.count[counts.pattern],
        "label": counts.label[counts.pattern],
        "shift": counts.shift,
        "temperature": counts.temperature,
        "answer": counts.answer,
        **({} if np.isnan(counts.low).all() else {"low": counts.low, "high": counts.high}),
    }
    with atomic_write(Path(path)) as draft:
        parquet.write_table(arrow.table(columns), draft)


def count_on_ray(answers: Dataset) -> Counts:
    """Count a Ray dataset of answers on its workers, which send back only the counts."""
    names = answers.columns() or []
    wanted = [name for name in (*NEEDED, *OPTIONAL) if name in names]
    answers = answers.select_columns(wanted) if all(name in names for name in NEEDED) else answers
    if "item" in names:
        counted = (
            answers.map_batches(_with_shard).groupby("shard", num_partitions=_SHARDS).map_groups(_count_block)
        )
    else:
        counted = answers.map_batches(_count_block, batch_size=None)
    return Counts.total(pickle.loads(row["counts"]) for row in counted.iter_rows())


_SHARDS = 16


def _with_shard(batch: dict[str, Any]) -> dict[str, Any]:
    shards = [zlib.crc32(str(item).encode()) % _SHARDS for item in batch["item"].tolist()]
    return {**batch, "shard": np.array(shards, np.int64)}


def _count_block(batch: dict[str, Any]) -> dict[str, Any]:
    return {"counts": [pickle.dumps(of_columns(batch))]}


def _parts(path: Path) -> Iterator[Counts]:
    arrow, parquet = _pyarrow(path)
    try:
        with parquet.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in (*NEEDED, *OPTIONAL)]
            tables: Iterable[Any] = (
                [file.read(names)] if "item" in names else file.iter_batches(_BATCH, columns=names)
            )
            for table in tables:
                if table.num_rows:
                    columns = zip(table.schema.names, table.columns, strict=True)
                    yield of_columns(
                        {name: column.to_numpy(zero_copy_only=False) for name, column in columns}
                    )
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({printable(str(error), 200)})") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _pyarrow(path: str | Path) -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]  # ships no types
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(f"{path}: Parquet needs pyarrow: pip install 'blindcal[parquet]'") from None
    return pyarrow, parquet
