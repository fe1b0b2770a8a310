"""What is written: tables in three formats, figures, and one page with all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blindcal.atomic_write import atomic_write
from blindcal.reproduce import table
from blindcal.reproduce.names import file_name
from blindcal.reproduce.table import MethodTable

INDEX, FIGURES = "index.html", "figures"


def write(comparison: MethodTable, out: Path, notes: Sequence[str] = ()) -> Path:
    """Write everything about a comparison into a folder, and return its page: same numbers, same bytes."""
    from blindcal.reproduce import page as reproduced  # draws: slow to import

    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "table.md": table.markdown(comparison),
        "table.tex": table.latex(comparison),
        "cells.csv": table.cells_csv(comparison),
        "estimates.csv": table.estimates_csv(comparison),
    }
    drawn = reproduced.draw(comparison, [file_name(one.model, one.data) for one in comparison.columns])
    reproduced.save(drawn, out / FIGURES)
    page = reproduced.page(comparison, drawn, table.titled(comparison), notes, list(texts))
    for name, text in (texts | {INDEX: page}).items():
        with atomic_write(out / name) as draft:
            draft.write_text(text, encoding="utf-8")
    return out / INDEX
