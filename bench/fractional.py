"""What a fractional budget buys: error at K = 1, 1.25, 1.5, 1.75 and 2 on the twelve score sets.

    python bench/fractional.py [--repeats 10]

Repeat r uses seed r at every K, so that budgets are compared on the same first queries. The last column is
the error at K = 1.5 minus the straight line between K = 1 and K = 2, with its standard error.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal as bc
from blindcal.items.score_files import read_scores
from blindcal.records import FloatArray
from record import Cell, Table, parser, record, table

BUDGETS = (1.0, 1.25, 1.5, 1.75, 2.0)


def measure(job: tuple[Path, int]) -> list[float]:
    """Absolute errors of one seed on one file, one per budget."""
    path, seed = job
    scores = read_scores(path)
    return [
        bc.simulate("latent", scores.labels, scores.p, queries=k, repeats=1, seed=seed).mae for k in BUDGETS
    ]


def bend(errors: FloatArray) -> tuple[float, float]:
    """The error at K = 1.5 minus that on the line, and its standard error."""
    off = errors[:, BUDGETS.index(1.5)] - (errors[:, 0] + errors[:, -1]) / 2
    return float(off.mean()), float(off.std(ddof=1) / np.sqrt(off.size)) if off.size > 1 else float("nan")


def by_set(names: list[str], errors: list[FloatArray]) -> Table:
    """A row per set, then the mean of the sets."""
    rows: list[list[Cell]] = [
        [name, *own.mean(axis=0).tolist(), bend(own)] for name, own in zip(names, errors, strict=True)
    ]
    bends = np.array([bend(own) for own in errors])
    mean = np.mean([own.mean(axis=0) for own in errors], axis=0)
    chance = float(np.sqrt((bends[:, 1] ** 2).sum())) / len(names)
    rows.append(["**mean of the sets**", *mean.tolist(), (float(bends[:, 0].mean()), chance)])
    columns = {
        "set": "{}",
        **{f"K={k:g}": "{:.5f}" for k in BUDGETS},
        "K=1.5 off the line": "{:+.5f} ± {:.5f}",
    }
    return table(columns, rows)


def main() -> None:
    """Run the study, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=10)
    arguments = options.parse_args()
    paths = sorted((arguments.data / "scores").glob("*.csv.gz"))
    if not paths:
        raise SystemExit(f"no score files under {arguments.data}: give their folder with --data")
    jobs = [(path, seed) for path in paths for seed in range(arguments.repeats)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = np.array(list(tqdm(pool.map(measure, jobs), total=len(jobs), disable=None)))
    names = [path.name.removesuffix(".csv.gz").replace("__", ", ") for path in paths]
    tables = {"sets": by_set(names, np.split(found, len(paths)))}
    record("fractional", tables, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
