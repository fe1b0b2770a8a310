"""The numbers behind every figure as CSV, exactly as result.json has them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from blindcal.records import Estimate
from blindcal.results.result import AuditResult
from blindcal.text import csv_cell

Cell = str | float | int | None


def write_curves(result: AuditResult, folder: str | Path) -> list[Path]:
    """Write one table per figure that a result has numbers for; an empty cell is an unknown value.

    An estimate takes three columns: ``ece``, ``ece_low`` and ``ece_high``.
    """
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[Cell]]]] = {
        "calibration-curve": _table(result.bins),
        "operating": _table(result.operating),
        "parts": _table(result.parts),
    }
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
        rows = zip(found.edges[:-1], found.edges[1:], found.negatives, found.positives, strict=True)
        tables["confidence"] = ("low", "high", "negatives", "positives"), rows
    written = []
    for name, (header, lines) in tables.items():
        if header:
            path = into / f"{name}.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                table = csv.writer(file)
                table.writerow(header)
                table.writerows(
                    [csv_cell(one) if isinstance(one, str) else one for one in row] for row in lines
                )
            written.append(path)
    return written


def _table(records: Sequence[Any]) -> tuple[list[str], list[list[Cell]]]:
    """One row per record, one column per field."""
    rows: list[dict[str, Cell]] = []
    for record in records:
        row: dict[str, Cell] = {}
        for field in fields(record):
            value = getattr(record, field.name)
            if isinstance(value, Estimate):
                row |= {
                    field.name: value.value,
                    f"{field.name}_low": value.low,
                    f"{field.name}_high": value.high,
                }
            else:
                row[field.name] = value
        rows.append(row)
    return list(rows[0]) if rows else [], [list(row.values()) for row in rows]
