"""Repeated answers at an endpoint's own setting: error of the ECE, beside `temperature` with as many answers.

    python bench/repeated.py [--repeats 6]

All items of the twelve score sets and the four recorded cells. Repeat r uses seed r. bench/study.py counts
how often the intervals hold.
"""

from __future__ import annotations

from record import Cell, options, record, recorded_cells, run_all, score_files, table

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

import blindcal as bc
from accuracy import load


@dataclass(frozen=True, slots=True)
class Audit:
    """One audit of all items of a set."""

    path: Path
    method: str
    queries: int
    seed: int


def error(audit: Audit) -> float:
    """The absolute error of one estimate."""
    labels, p = load(audit.path)
    return bc.simulate(
        audit.method, labels, p, estimator="latent", queries=audit.queries, repeats=1, seed=audit.seed
    ).mae


def main() -> None:
    """Audit, and record the table."""
    arguments = options(__doc__, repeats=6)
    groups = {
        "twelve score sets": score_files(arguments.data),
        "four recorded cells": recorded_cells(arguments.data),
    }
    ways = list(product(("repeated", "temperature"), (2, 3)))
    rows: list[list[Cell]] = []
    for method, k in ways:
        cells: list[Cell] = []
        for paths in groups.values():
            audits = [Audit(path, method, k, seed) for path in paths for seed in range(arguments.repeats)]
            each = np.array(run_all(error, audits, arguments)).reshape(len(paths), -1)
            chance = np.sqrt((each.var(axis=1, ddof=1) / each.shape[1]).sum()) / len(paths)
            cells.append((float(each.mean()), float(chance)))
        rows.append([method, k, *cells])
    columns = {"answers": "{}", "K": "{}", **dict.fromkeys(groups, "{:.4f} ± {:.4f}")}
    record("repeated", {"errors": table(columns, rows)}, arguments)


if __name__ == "__main__":
    main()
