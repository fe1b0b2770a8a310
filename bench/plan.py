"""Forecasts of `blindcal plan` against the outcomes of simulated audits.

    python bench/plan.py [--repeats 5]

Repeat r draws its items with seed r. Shapes are the named ones and two of real models, smoothed from their
recorded probabilities.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from audits import simulated_fit
from blindcal.items.score_files import read_scores
from blindcal.planning import shapes
from blindcal.planning.forecast import half_width
from blindcal.records import FloatArray
from record import Cell, parser, record, table

REAL = {
    "gpt-4o-mini mmlu": "gpt-4o-mini__mmlu_test_direct.csv.gz",
    "gpt3-davinci boolq": "gpt3-davinci__boolq_0shot.csv.gz",
}
#: Method, queries per item, items.
AUDITS: tuple[tuple[str, float, int], ...] = (
    ("latent", 1, 500),
    ("latent", 1, 3000),
    ("latent", 1, 20000),
    ("latent", 1.5, 3000),
    ("latent", 2, 3000),
    ("latent", 4, 3000),
    ("temperature", 3, 3000),
    ("latent", 2, 20000),
    ("temperature", 3, 20000),
)
NEAR = 0.15  # largest relative deviation of a half-width that counts as near its forecast


@dataclass(frozen=True, slots=True)
class Job:
    """One simulated audit."""

    scores: Path
    shape: str
    method: str
    queries: float
    n: int
    seed: int


@lru_cache
def shape_of(scores: Path, name: str) -> shapes.Shape:
    """A named shape, or one of a real model."""
    if name in shapes.PRESETS:
        return shapes.preset(name)
    found = read_scores(scores / REAL[name])
    return shapes.of_scores(name, found.labels, found.p)


def outcome(job: Job) -> float:
    """The interval's half-width."""
    labels, p = shape_of(job.scores, job.shape).sample(job.n, np.random.default_rng([job.seed, job.n]))
    fit = simulated_fit(labels, p, method=job.method, queries=job.queries, seed=job.seed)
    return float(fit.ece.half_width)


def row(job: Job, expected: float, seen: FloatArray) -> list[Cell]:
    """The forecast next to the mean outcome."""
    mean = float(seen.mean())
    chance = float(seen.std(ddof=1) / np.sqrt(seen.size) / mean)
    return [job.shape, job.method, job.queries, job.n, expected, mean, (expected / mean, chance)]


def expected_width(job: Job) -> float:
    """The forecast half-width."""
    width = half_width(shape_of(job.scores, job.shape), job.method, job.n, job.queries)
    assert width is not None
    return width


def main() -> None:
    """Forecast, audit, and record the tables."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    arguments = options.parse_args()
    scores = arguments.data / "scores"
    names = [*shapes.PRESETS, *(name for name, file in REAL.items() if (scores / file).is_file())]
    jobs = [
        Job(scores, name, *audit, seed)
        for name in names
        for audit in AUDITS
        for seed in range(arguments.repeats)
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        seen = np.array(list(tqdm(pool.map(outcome, jobs), total=len(jobs), disable=None)))
    parts = seen.reshape(-1, arguments.repeats)
    planned = jobs[:: arguments.repeats]
    expected = np.array([expected_width(job) for job in planned])
    rows = [row(*each) for each in zip(planned, expected.tolist(), parts, strict=True)]
    ratios = expected / parts.mean(axis=1)
    off = np.abs(ratios - 1)
    summary = [int((off <= NEAR).sum()), off.size, float(ratios.mean()), float(off.max())]
    columns = {
        "shape": "{}",
        "method": "{}",
        "K": "{:g}",
        "items": "{:,}",
        "half-width forecast": "{:.4f}",
        "half-width seen": "{:.4f}",
        "ratio": "{:.2f} ± {:.2f}",
    }
    near = {
        f"half-widths within {NEAR:.0%}": "{}",
        "of": "{}",
        "mean ratio": "{:.2f}",
        "largest deviation": "{:.0%}",
    }
    tables = {"cells": table(columns, rows), "summary": table(near, [summary])}
    record("plan", tables, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
