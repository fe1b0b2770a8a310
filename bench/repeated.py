"""Repeated answers at an endpoint's own setting: error of the ECE and coverage of its interval.

    python bench/repeated.py [--repeats 6] [--audits 10]

The errors are those on the twelve score sets and the four recorded cells, with all their items, beside
`temperature` with as many answers. For the coverage each audit draws 1,500 items from such a set, which is
then the population. Repeat r uses seed r.
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
from audits import RESAMPLES
from blindcal.estimate.latent.fitting import fit_problem
from blindcal.estimate.problem import Problem
from blindcal.methods import make_design
from blindcal.records import FloatArray, IntArray
from blindcal.reproduce import sources
from blindcal.simulation.simulate import ask
from record import Cell, Table, parser, record, table

ITEMS = 1500
EVEN, HEAT = "repeated", "temperature"
#: Answers per item of each row.
ERRORS = {EVEN: (2, 3), HEAT: (2, 3)}
COVERED = {EVEN: (2, 3)}


@dataclass(frozen=True, slots=True)
class Place:
    """One audit; ``items`` are drawn from the set, all of them asked if ``None``."""

    path: Path
    kind: str
    queries: int
    seed: int
    items: int | None = None


@lru_cache
def load(path: Path) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities of a score file, or of recorded logits."""
    found = sources.read(path)
    return found.labels, found.probabilities("pair")


def observe(place: Place) -> tuple[float, bool, float]:
    """The error of the estimate, whether its interval contains the truth, and the interval's width."""
    labels, p = load(place.path)
    truth = float(bc.binned_ece(labels, p).ece)
    if place.items is not None:
        drawn = np.random.default_rng([place.seed, 7]).integers(labels.size, size=place.items)
        labels, p = labels[drawn], p[drawn]
    answers = ask(make_design(place.kind, labels, queries=place.queries, seed=place.seed), p, seed=place.seed)
    found = fit_problem(
        Problem.of_answers(labels, answers), resamples=0 if place.items is None else RESAMPLES
    ).ece
    return abs(float(found) - truth), truth in found, 2 * found.half_width if found.has_interval else 0.0


def error_table(
    found: Mapping[Place, tuple[float, bool, float]], groups: Mapping[str, Sequence[Path]]
) -> Table:
    """A row per kind and number of answers: the mean error on each group of sets, with its chance error."""
    rows: list[list[Cell]] = []
    for kind, budgets in ERRORS.items():
        for k in budgets:
            cells: list[Cell] = []
            for paths in groups.values():
                each = [
                    [
                        one[0]
                        for place, one in found.items()
                        if (place.kind, place.queries, place.path) == (kind, k, path)
                    ]
                    for path in paths
                ]
                chance = np.sqrt(sum(np.var(own, ddof=1) / len(own) for own in each)) / len(each)
                cells.append((float(np.mean(each)), float(chance)))
            rows.append([kind, k, *cells])
    return table({"answers": "{}", "K": "{}", **dict.fromkeys(groups, "{:.4f} ± {:.4f}")}, rows)


def coverage_table(found: Mapping[Place, tuple[float, bool, float]]) -> Table:
    """A row per kind and number of answers: how often the interval holds the truth, and its mean width."""
    rows: list[list[Cell]] = []
    for kind, budgets in COVERED.items():
        for k in budgets:
            mine = [one for place, one in found.items() if (place.kind, place.queries) == (kind, k)]
            held = [one[1] for one in mine]
            rows.append(
                [
                    kind,
                    k,
                    (sum(held), len(held)),
                    float(np.mean(held)),
                    float(np.mean([one[2] for one in mine])),
                ]
            )
    columns = {"answers": "{}", "K": "{}", "held": "{} of {}", "share": "{:.1%}", "mean width": "{:.4f}"}
    return table(columns, rows)


def main() -> None:
    """Run both studies, and record their tables."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=6, help="repeats of each error")
    options.add_argument("--audits", type=int, default=10, help="audits per set for the coverage")
    arguments = options.parse_args()
    groups = {
        "twelve score sets": sorted((arguments.data / "scores").glob("*.csv.gz")),
        "four recorded cells": sorted((arguments.data / "logits").glob("*__logits.csv.gz")),
    }
    paths = [path for group in groups.values() for path in group]
    if not all(groups.values()):
        raise SystemExit(f"{arguments.data} holds no scores and logits: give their folder with --data")
    errors = [
        Place(path, kind, k, seed)
        for kind, budgets in ERRORS.items()
        for k in budgets
        for path in paths
        for seed in range(arguments.repeats)
    ]
    covered = [
        Place(path, kind, k, seed, ITEMS)
        for kind, budgets in COVERED.items()
        for k in budgets
        for path in paths
        for seed in range(arguments.audits)
    ]
    places = [*errors, *covered]
    with ProcessPoolExecutor(arguments.processes) as pool:
        outcomes = list(tqdm(pool.map(observe, places, chunksize=4), total=len(places), disable=None))
    found = dict(zip(places, outcomes, strict=True))
    record(
        "repeated",
        {
            "errors": error_table({place: found[place] for place in errors}, groups),
            "coverage": coverage_table({place: found[place] for place in covered}),
        },
        folder=arguments.results,
        repeats={"errors": arguments.repeats, "coverage, for each set": arguments.audits},
    )


if __name__ == "__main__":
    main()
