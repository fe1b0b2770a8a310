"""How many answers can be read if real models are asked to state their confidence.

    python bench/verbalized.py

Reads recorded answers (``logits/*__verbalized.csv.gz``: id, label, text).
"""

from __future__ import annotations

from record import Cell, options, record, table

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import blindcal as bc
from blindcal.endpoints.query_format import ConfidenceQuestion
from blindcal.items.catalogue import SETS


def read(name: str, labels: Sequence[int], texts: Sequence[str], words: tuple[str, ...]) -> list[Cell]:
    """How many answers of a model state a confidence, why others do not, and the one stated most often."""
    stated = ConfidenceQuestion(words).stated(texts)
    known = np.isfinite(stated.p)
    reasons = ", ".join(f"{why} {count:,}" for why, count in stated.reasons.items())
    if not known.any():
        return [name, known.size, 0.0, reasons, None, None]
    p = stated.p[known]
    values, times = np.unique(np.round(np.maximum(p, 1 - p), 3), return_counts=True)
    often = float(values[times.argmax()]), float(times.max() / times.sum())
    ece = float(bc.binned_ece(np.asarray(labels)[known], p).ece)
    return [name, known.size, float(known.mean()), reasons, often, ece]


def recorded(path: Path) -> list[Cell]:
    """The row of a recorded set of answers; model and data set are in the file's name."""
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    model, data, *_ = path.name.split("__")
    labels, texts = [int(row["label"]) for row in rows], [row["text"] for row in rows]
    return read(f"{model} {data}", labels, texts, SETS[data].words)


def main() -> None:
    """Read all answers, and record the table."""
    arguments = options(__doc__)
    rows = [recorded(path) for path in sorted((arguments.data / "logits").glob("*__verbalized.csv.gz"))]
    columns = {
        "model and set": "{}",
        "answers": "{:,}",
        "read": "{:.1%}",
        "why not the others": "{}",
        "stated most often": "{:.0%}, by {:.0%}",
        "ECE of those read": "{:.4f}",
    }
    record("verbalized", {"read": table(columns, rows)}, arguments, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
