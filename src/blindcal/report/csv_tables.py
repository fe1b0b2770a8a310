"""The numbers behind every figure as CSV, exactly as in result.json."""

from __future__ import annotations

from pathlib import Path

from blindcal.atomic_write import atomic_write
from blindcal.results.result import AuditResult
from blindcal.results.tables import tables_of
from blindcal.text import csv_text

#: The file of each table that has one: the name of its figure.
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


def write_curves(result: AuditResult, folder: str | Path) -> list[Path]:
    """Write one table per figure that a result has numbers for; an empty cell is an unknown value."""
    tables = tables_of(result, result.answers)
    written = []
    for name, file in FILES.items():
        if (columns := tables.get(name)) is not None:
            written.append(Path(folder) / f"{file}.csv")
            with atomic_write(written[-1]) as draft:
                rows = zip(*columns.values(), strict=True)
                draft.write_text(csv_text(list(columns), rows), encoding="utf-8", newline="")
    return written
