"""The numbers of a result as tables: columns of equal length by name, ``None`` for an unknown value.

An estimate takes three columns: ``ece``, ``ece_low`` and ``ece_high``. CSV files and frames are made from
these tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeAlias

from blindcal.estimate.findings import Findings
from blindcal.records import Estimate

Columns: TypeAlias = dict[str, list[Any]]
TableName: TypeAlias = Literal[
    "metrics", "bins", "curve", "confidence", "operating", "costs", "parts", "by_answer", "confusion"
]
"""A table is called what the result calls its content."""


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
