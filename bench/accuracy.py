"""Error of each method's ECE against the oracle, on real models' recorded probabilities.

    python bench/accuracy.py [--repeats 20] [--fit-repeats 3]
    python bench/accuracy.py --methods latent --budgets 1 2 4 --fit-repeats 20    # minutes

``scores/`` has twelve score sets, ``logits/`` four full recordings (pair semantics). Repeat r uses seed r.
With some methods or budgets alone, the errors are shown and not recorded.
"""

from __future__ import annotations

from record import Table, parser, record, recorded_cells, run_all, score_files, table

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

import blindcal as bc
from blindcal.records import FloatArray, IntArray
from blindcal.reproduce import sources

BUDGETS = (1, 2, 3, 4, 6, 8)
JITTER = 0.2  # on the log-odds: the largest seen with llama.cpp, prompt caching and concurrent slots
JITTERED = f"latent, endpoint jitter {JITTER}, ignored"
#: Budgets of each method; "+latent" reads its answers by maximum likelihood.
METHODS: dict[str, tuple[int, ...]] = {
    "blind": (1,),
    "sampling": BUDGETS,
    "extraction": BUDGETS,
    "latent": BUDGETS,
    "temperature": BUDGETS[1:],
    "repeated": (2, 3),
    "blind+latent": (1,),
    "sampling+latent": (1, 2, 4, 8),
    "extraction+latent": (1, 2, 4),
    JITTERED: (1, 2),
}
READ_TWICE = ("blind", "sampling", "extraction")
#: Methods of the table in the README, ours first.
OWN = ("latent", "temperature", "blind", "extraction", "sampling")
#: Columns of the table with a row per set.
BY_SET = (
    *(("blind", 1), ("latent", 1), ("sampling+latent", 1), ("sampling+latent", 2), ("temperature", 2)),
    *(("latent", 2), ("extraction", 4), ("extraction", 6), ("sampling", 8)),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One method at one budget on one file."""

    path: Path
    method: str
    queries: int
    repeats: int


@lru_cache
def load(path: Path) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities of a score file, or of recorded logits under pair semantics."""
    source = sources.read(path)
    return source.labels, source.probabilities("pair")


def measure(cell: Cell) -> float:
    """Mean absolute error of a cell."""
    labels, p = load(cell.path)
    method, _, estimator = cell.method.partition("+")
    return bc.simulate(
        "latent" if method == JITTERED else method,
        labels,
        p,
        estimator=estimator or "own",
        queries=cell.queries,
        repeats=cell.repeats,
        jitter=JITTER if method == JITTERED else 0.0,
    ).mae


def mean_error(
    errors: Mapping[Cell, float], paths: Sequence[Path], method: str, queries: int
) -> float | None:
    """The mean over some files; ``None`` if the method was not measured at this budget."""
    each = [
        error
        for cell, error in errors.items()
        if (cell.method, cell.queries) == (method, queries) and cell.path in paths
    ]
    return float(np.mean(each)) if each else None


def by_budget(
    errors: Mapping[Cell, float], paths: Sequence[Path], methods: Iterable[str], budgets: Iterable[int]
) -> Table:
    """A row per method and a column per budget: the mean over the files."""
    rows = [[name, *(mean_error(errors, paths, name, k) for k in budgets)] for name in methods]
    return table({"method": "{}", **{f"K={k}": "{:.4f}" for k in budgets}}, rows)


def by_reading(errors: Mapping[Cell, float], paths: Sequence[Path]) -> Table:
    """The same answers, read by the method's own estimator and by maximum likelihood."""
    rows = [
        [name, k, *(mean_error(errors, paths, read, k) for read in (name, f"{name}+latent"))]
        for name in READ_TWICE
        for k in METHODS[f"{name}+latent"]
    ]
    columns = {"answers of": "{}", "K": "{}", "its own estimator": "{:.4f}", "`latent`": "{:.4f}"}
    return table(columns, rows)


def by_set(errors: Mapping[Cell, float], paths: Sequence[Path]) -> Table:
    """A row per file."""
    rows = []
    for path in paths:
        labels, p = load(path)
        name = path.name.removesuffix(".csv.gz").removesuffix("__logits").replace("__", ", ")
        shown = [mean_error(errors, [path], *column) for column in BY_SET]
        rows.append([name, labels.size, float(bc.binned_ece(labels, p).ece), *shown])
    names = {f"{method}, K={k}": "{:.4f}" for method, k in BY_SET}
    return table({"set": "{}", "items": "{:,}", "oracle": "{:.4f}", **names}, rows)


def main() -> None:
    """Measure, and record the tables."""
    # fits to more than one query per item are slow, and have repeats of their own
    options = parser(__doc__, repeats=20, fit_repeats=3)
    options.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    options.add_argument("--budgets", type=int, nargs="*", default=list(BUDGETS))
    arguments = options.parse_args()
    scores, recorded = score_files(arguments.data), recorded_cells(arguments.data)

    def repeats(method: str, k: int) -> int:
        fitted = "latent" in method or method in ("temperature", "repeated")
        return int(arguments.fit_repeats if fitted and k > 1 else arguments.repeats)

    cells = [
        Cell(path, method, k, repeats(method, k))
        for method in arguments.methods
        for k in METHODS[method]
        if k in arguments.budgets
        for path in (*scores, *recorded)
    ]
    errors = dict(zip(cells, run_all(measure, cells, arguments), strict=True))
    tables = {
        name: by_budget(errors, paths, arguments.methods, arguments.budgets)
        for name, paths in (("scores", scores), ("recorded", recorded))
    }
    if set(arguments.methods) < set(METHODS) or set(arguments.budgets) < set(BUDGETS):
        for name, shown in tables.items():
            print(f"\n{name}\n\n{shown.markdown()}", end="")
        return
    tables |= {
        "summary": by_budget(errors, scores, OWN, (1, 2, 3, 4)),
        "readings": by_reading(errors, scores),
        "sets": by_set(errors, [*scores, *recorded]),
    }
    repeated = {"K=1, and methods without a fit": arguments.repeats, "fits at K>1": arguments.fit_repeats}
    record("accuracy", tables, arguments, repeats=repeated)


if __name__ == "__main__":
    main()
