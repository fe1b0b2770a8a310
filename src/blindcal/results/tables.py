"""The numbers of a result as tables: columns of equal length by name, ``None`` for an unknown value.

An estimate takes three columns: ``ece``, ``ece_low`` and ``ece_high``. CSV files are made from these tables,
and frames of pandas or polars, whichever is installed; neither is required.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from blindcal.atomic_write import atomic_write
from blindcal.errors import InputError, MissingExtraError
from blindcal.estimate.findings import Findings
from blindcal.records import Estimate
from blindcal.text import csv_text

FrameLibrary: TypeAlias = Literal["pandas", "polars"]
LIBRARIES: tuple[FrameLibrary, ...] = get_args(FrameLibrary)

Columns: TypeAlias = dict[str, list[Any]]
TableName: TypeAlias = Literal[
    "metrics", "bins", "curve", "confidence", "operating", "costs", "parts", "by_answer", "confusion"
]
"""A table is called what the result calls its content."""
FILES = {
    "bins": "calibration-curve",
    "operating": "operating",
    "parts": "parts",
    "by_answer": "answers",
    "confusion": "confusion",
    "costs": "cost",
    "curve": "reliability",
    "confidence": "confidence",
}
"""The file of each table that has one: the name of its figure."""


def tables_of(found: Findings, answers: Sequence[str] = ()) -> dict[str, Columns]:
    """Every table that there are numbers for; ``answers`` are the words if there are more than two."""
    made = {
        "metrics": _metrics(found),
        "bins": _columns(found.bins),
        "curve": _curve(found),
        "confidence": _confidence(found),
        "operating": _columns(found.operating),
        "costs": _costs(found),
        "parts": _columns(found.parts),
        "by_answer": _columns(found.by_answer),
        "confusion": _confusion(found, answers),
    }
    return {name: columns for name, columns in made.items() if any(columns.values())}


def _metrics(found: Findings) -> Columns:
    """One row per metric, whether it is known or not, so that every result has the same rows."""
    names, each = list(found.metrics), list(found.metrics.values())
    ends = ("value", "low", "high", "level")
    return {"metric": names, **{end: [getattr(one, end) for one in each] for end in ends}}


def _curve(found: Findings) -> Columns:
    if (curve := found.curve) is None:
        return {}
    nothing = (None,) * len(curve.f)
    columns = {"f": curve.f, "value": curve.value, "low": curve.low or nothing, "high": curve.high or nothing}
    return {name: list(column) for name, column in columns.items()}


def _confidence(found: Findings) -> Columns:
    if (shown := found.confidence) is None:
        return {}
    edges = shown.edges
    columns = {"low": edges[:-1], "high": edges[1:], "negatives": shown.negatives}
    return {name: list(column) for name, column in (columns | {"positives": shown.positives}).items()}


def _costs(found: Findings) -> Columns:
    rows = [
        (one.cost_fp, one.cost_fn, point.threshold, cost.value, cost.low, cost.high)
        for one in found.costs
        for point, cost in zip(found.operating, one.expected, strict=True)
    ]
    names = ("cost_fp", "cost_fn", "threshold", "expected", "expected_low", "expected_high")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _confusion(found: Findings, answers: Sequence[str]) -> Columns:
    if not found.confusion:
        return {}
    counts = zip(answers, zip(*found.confusion, strict=True), strict=True)
    return {"label": list(answers), **{word: list(column) for word, column in counts}}


def _columns(records: Sequence[Any]) -> Columns:
    """One row per record, one column per field, and three columns per estimate."""
    rows = [dict(_cells(record)) for record in records]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _cells(record: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Estimate):
            for end, number in (("", value.value), ("_low", value.low), ("_high", value.high)):
                yield field.name + end, number
        else:
            yield field.name, value


def write_tables(found: Findings, answers: Sequence[str], folder: str | Path) -> list[Path]:
    """Write the table behind each figure as CSV; an empty cell is an unknown value."""
    tables = tables_of(found, answers)
    written = []
    for name, file in FILES.items():
        if (columns := tables.get(name)) is not None:
            written.append(Path(folder) / f"{file}.csv")
            with atomic_write(written[-1]) as draft:
                rows = zip(*columns.values(), strict=True)
                draft.write_text(csv_text(list(columns), rows), encoding="utf-8", newline="")
    return written


def frame(
    columns: Mapping[str, Sequence[Any]], library: FrameLibrary | None = None, *, texts: Collection[str] = ()
) -> Any:
    """A ``DataFrame`` of these columns; ``None`` in them is an unknown value.

    Without a ``library``, it is one of pandas if that is installed, otherwise one of polars. ``texts`` names
    columns of text that may hold no text at all.

    Raises
    ------
    MissingExtraError
        If the library is not installed, or neither is.
    """
    name, module = _imported(library)
    kinds = {column: "text" if column in texts else _kind(values) for column, values in columns.items()}
    if name == "polars":
        types = {"text": "String", "bool": "Boolean", "whole": "Int64", "real": "Float64"}
        schema = {column: getattr(module, types[kind]) for column, kind in kinds.items()}
        return module.DataFrame(dict(columns), schema=schema)
    return module.DataFrame(
        {column: _series(module, values, kinds[column]) for column, values in columns.items()}
    )


def _imported(library: str | None) -> tuple[str, Any]:
    if library is not None and library not in LIBRARIES:
        raise InputError(f"library: must be one of {', '.join(LIBRARIES)}, got {library!r}")
    wanted = LIBRARIES if library is None else (library,)
    for name in wanted:
        try:
            return name, importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # it is there, but lacks something itself
                raise
    raise MissingExtraError(
        f"a frame needs {' or '.join(wanted)}, which {'is' if library else 'are'} not installed",
        remedy=" or ".join(f"pip install {name}" for name in wanted),
    )


def _kind(values: Sequence[Any]) -> str:
    """The type of a column, by the values in it that are known."""
    types = {type(value) for value in values if value is not None}
    if str in types:
        return "text"
    if types and types <= {bool}:
        return "bool"
    return "whole" if types and types <= {int} else "real"


def _series(pandas: Any, values: Sequence[Any], kind: str) -> Any:
    missing = any(value is None for value in values)
    if kind == "real":
        return pandas.Series(values, dtype="float64")
    if kind == "whole":
        return pandas.Series(values, dtype="Int64" if missing else "int64")
    if kind == "bool":
        return pandas.Series(values, dtype="boolean" if missing else "bool")
    # the type of text depends on the version of pandas; a column without any has none to find it by
    return pandas.Series(values, dtype=None if any(values) else "object")
