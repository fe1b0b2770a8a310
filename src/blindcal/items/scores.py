"""Score files: known probabilities of labelled items, as CSV or Parquet, gzip allowed."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindcal.errors import InputError, MissingExtraError
from blindcal.records import FloatArray, IntArray
from blindcal.text import printable


@dataclass(frozen=True, slots=True)
class Scores:
    """The ids, labels and probabilities of a score file, in its order."""

    path: str
    ids: tuple[str, ...]
    labels: IntArray
    p: FloatArray
    column: str


def read_scores(path: Path, column: str = "p") -> Scores:
    """Read the columns id, label and a probability; errors name the file, the row and the column.

    ``column`` falls back to ``p`` in files that hold only that. A missing id is the row's number.
    """
    names, columns = read_table(path)
    column = column if column in names else "p"
    missing = [name for name in ("label", column) if name not in names]
    if missing:
        found = ", ".join(printable(name, 30) for name in names) or "none"
        raise InputError(f"{path}: must have the columns id, label and p; lacks {missing[0]}, has {found}")
    labels, p = columns[names.index("label")], columns[names.index(column)]
    if not labels:
        raise InputError(f"{path}: holds no rows")
    ids = columns[names.index("id")] if "id" in names else [str(row) for row in range(len(labels))]
    return Scores(
        path=str(path),
        ids=tuple(str(one) for one in ids),
        labels=_numbers(path, "label", labels, "0 or 1", (0.0, 1.0)).astype(np.int64),
        p=_numbers(path, column, p, "a number in [0, 1]", None),
        column=column,
    )


def read_table(path: Path) -> tuple[list[str], list[list[object]]]:
    """The names of a file's columns, and their values as they stand."""
    return _parquet(path) if ".parquet" in path.suffixes else _csv(path)


def _numbers(
    path: Path, name: str, values: list[object], rule: str, only: tuple[float, ...] | None
) -> FloatArray:
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            numbers[row] = float(value)  # type: ignore[arg-type]  # anything a file may hold; refused below
        except (TypeError, ValueError):
            numbers[row] = np.nan
    bad = ~np.isin(numbers, only) if only else ~((numbers >= 0) & (numbers <= 1))
    if bad.any():
        row = int(np.argmax(bad))
        shown = printable(str(values[row]), 30)
        raise InputError(f"{path}, row {row + 1}, {name}: must be {rule}, got {shown!r}")
    return numbers


def _csv(path: Path) -> tuple[list[str], list[list[object]]]:
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            rows = [row for row in reader if row]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from None
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise InputError(f"{path}, row {number}: has {len(row)} fields where the header has {len(names)}")
    return names, [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]


def _parquet(path: Path) -> tuple[list[str], list[list[object]]]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(f"{path}: Parquet needs pyarrow: pip install 'blindcal[parquet]'") from None
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                table = parquet.read_table(pyarrow.BufferReader(file.read()))
        else:
            table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({printable(str(error), 200)})") from None
    return table.column_names, [column.to_pylist() for column in table.columns]
