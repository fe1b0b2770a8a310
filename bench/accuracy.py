"""Error of each method's ECE against the oracle, on real models' recorded probabilities.

    python bench/accuracy.py [--repeats 20] [--fit-repeats 3]
    python bench/accuracy.py --methods latent --budgets 1 2 4 --fit-repeats 20    # minutes

``scores/`` has twelve score sets, ``logits/`` four full recordings (pair semantics). Repeat r uses seed r.
With some methods or budgets alone, the errors are shown and not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal as bc
from blindcal.records import FloatArray, IntArray
from blindcal.reproduce import sources
from record import Table, parser, record, table

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
    "blind+latent": (1,),
    "sampling+latent": (1, 2, 4, 8),
    "extraction+latent": (1, 2, 4),
    JITTERED: (1, 2),
}
READ_TWICE = ("blind", "sampling", "extraction")
#: Columns of the table with a row per set.
SHOWN = (
    ("blind", 1),
    ("latent", 1),
    ("sampling+latent", 1),
    ("sampling+latent", 2),
    ("temperature", 2),
    ("latent", 2),
    ("extraction", 4),
    ("extraction", 6),
    ("sampling", 8),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One method at one budget on one file."""

    path: Path
    method: str
    queries: int
    repeats: int


@lru_cache
def load(path: Path) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities of a score file, or of recorded logits under pair semantics."""
    found = sources.read(path)
    return found.labels, found.probabilities("pair")


def fitted(method: str) -> bool:
    """Whether a method needs a fit, which is slow."""
    return "latent" in method or method == "temperature"


def measure(job: Job) -> float:
    """Mean absolute error of a job."""
    labels, p = load(job.path)
    method, _, estimator = job.method.partition("+")
    return bc.simulate(
        "latent" if method == JITTERED else method,
        labels,
        p,
        estimator=estimator or "own",
        queries=job.queries,
        repeats=job.repeats,
        jitter=JITTER if method == JITTERED else 0.0,
    ).mae


def by_budget(paths: Sequence[Path], errors: Mapping[Job, float]) -> Table:
    """A row per method and a column per budget: the mean over the files."""
    budgets = sorted({job.queries for job in errors})
    rows = []
    for method in dict.fromkeys(job.method for job in errors):
        of_budget = [
            [
                error
                for job, error in errors.items()
                if (job.method, job.queries) == (method, k) and job.path in paths
            ]
            for k in budgets
        ]
        rows.append([method, *(float(np.mean(each)) if each else None for each in of_budget)])
    return table({"method": "{}", **{f"K={k}": "{:.4f}" for k in budgets}}, rows)


def summarised(errors: Mapping[Job, float]) -> dict[Job, float]:
    """What the README shows: each method's own estimator and up to four queries per item, ours first."""
    methods = ("latent", "temperature", "blind", "extraction", "sampling")
    return {
        job: error
        for method in methods
        for job, error in errors.items()
        if job.method == method and job.queries <= 4
    }


def by_reading(paths: Sequence[Path], errors: Mapping[Job, float]) -> Table:
    """The same answers, read by the method's own estimator and by maximum likelihood."""

    def mean(method: str, queries: int) -> float | None:
        mine = [
            error
            for job, error in errors.items()
            if (job.method, job.queries) == (method, queries) and job.path in paths
        ]
        return float(np.mean(mine)) if mine else None

    rows = [
        [method, k, mean(method, k), mean(f"{method}+latent", k)]
        for method in READ_TWICE
        for k in METHODS[f"{method}+latent"]
    ]
    columns = {"answers of": "{}", "K": "{}", "its own estimator": "{:.4f}", "`latent`": "{:.4f}"}
    return table(columns, rows)


def by_set(paths: Sequence[Path], errors: Mapping[Job, float]) -> Table:
    """A row per file."""
    of_cell = {(job.path, job.method, job.queries): error for job, error in errors.items()}
    rows = []
    for path in paths:
        labels, p = load(path)
        name = path.name.removesuffix(".csv.gz").removesuffix("__logits").replace("__", ", ")
        found = [of_cell.get((path, *cell)) for cell in SHOWN]
        rows.append([name, labels.size, float(bc.binned_ece(labels, p).ece), *found])
    names = {f"{method}, K={k}": "{:.4f}" for method, k in SHOWN}
    return table({"set": "{}", "items": "{:,}", "oracle": "{:.4f}", **names}, rows)


def main() -> None:
    """Measure, and record the tables."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument(
        "--fit-repeats", type=int, default=3, help="repeats of fits to more than one query per item"
    )
    options.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    options.add_argument("--budgets", type=int, nargs="*", default=list(BUDGETS))
    arguments = options.parse_args()
    scores = sorted((arguments.data / "scores").glob("*.csv.gz"))
    recorded = sorted((arguments.data / "logits").glob("*__logits.csv.gz"))
    if not scores or not recorded:
        raise SystemExit(f"{arguments.data} holds no scores and logits: give their folder with --data")
    jobs = [
        Job(path, method, k, arguments.fit_repeats if fitted(method) and k > 1 else arguments.repeats)
        for method in arguments.methods
        for k in METHODS[method]
        if k in arguments.budgets
        for path in (*scores, *recorded)
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = list(tqdm(pool.map(measure, jobs), total=len(jobs), disable=None))
    errors = dict(zip(jobs, found, strict=True))
    if set(arguments.methods) < set(METHODS) or set(arguments.budgets) < set(BUDGETS):
        for title, paths in (("scores", scores), ("recorded", recorded)):
            print(f"\n{title}\n\n{by_budget(paths, errors).markdown()}", end="")
        return
    record(
        "accuracy",
        {
            "summary": by_budget(scores, summarised(errors)),
            "scores": by_budget(scores, errors),
            "recorded": by_budget(recorded, errors),
            "readings": by_reading(scores, errors),
            "sets": by_set([*scores, *recorded], errors),
        },
        folder=arguments.results,
        repeats={"K=1, and methods without a fit": arguments.repeats, "fits at K>1": arguments.fit_repeats},
    )


if __name__ == "__main__":
    main()
