"""The numbers behind every figure as CSV, exactly as in result.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from blindcal.atomic_write import atomic_write
from blindcal.records import Estimate
from blindcal.results.result import AuditResult
from blindcal.text import csv_text

Cell = str | float | int | None


def write_curves(result: AuditResult, folder: str | Path) -> list[Path]:
    """Write one table per figure that a result has numbers for; an empty cell is an unknown value.

    An estimate takes three columns: ``ece``, ``ece_low`` and ``ece_high``.
    """
    into = Path(folder)
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[Cell]]]] = {
        "calibration-curve": _table(result.bins),
        "operating": _table(result.operating),
        "parts": _table(result.parts),
        "answers": _table(result.by_answer),
    }
    if result.confusion:
        counted = zip(result.answers, result.confusion, strict=True)
        tables["confusion"] = ("label", *result.answers), [[word, *row] for word, row in counted]
    if result.costs:
        names = ("cost_fp", "cost_fn", "threshold", "expected", "expected_low", "expected_high")
        tables["cost"] = (
            names,
            [
                (one.cost_fp, one.cost_fn, row.threshold, cost.value, cost.low, cost.high)
                for one in result.costs
                for row, cost in zip(result.operating, one.expected, strict=True)
            ],
        )
    if (curve := result.curve) is not None:
        nothing = (None,) * len(curve.f)
        columns = (curve.f, curve.value, curve.low or nothing, curve.high or nothing)
        tables["reliability"] = ("f", "value", "low", "high"), zip(*columns, strict=True)
    if (found := result.confidence) is not None:
        columns = (found.edges[:-1], found.edges[1:], found.negatives, found.positives)
        tables["confidence"] = ("low", "high", "negatives", "positives"), zip(*columns, strict=True)
    written = []
    for name, (header, rows) in tables.items():
        if header:
            written.append(into / f"{name}.csv")
            with atomic_write(written[-1]) as draft:
                draft.write_text(csv_text(header, rows), encoding="utf-8", newline="")
    return written


def _table(records: Sequence[Any]) -> tuple[list[str], list[list[Cell]]]:
    """One row per record, one column per field, and three columns per estimate."""
    rows = [dict(_cells(record)) for record in records]
    return list(rows[0]) if rows else [], [list(row.values()) for row in rows]


def _cells(record: Any) -> Iterator[tuple[str, Cell]]:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Estimate):
            for end, number in (("", value.value), ("_low", value.low), ("_high", value.high)):
                yield field.name + end, number
        else:
            yield field.name, value
