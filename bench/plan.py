"""Forecasts of `blindcal plan` against the outcomes of simulated audits.

    python bench/plan.py [--repeats 5]

Repeat r draws its items with seed r. Shapes are the default and two of real models, smoothed from their
recorded probabilities.
"""

from __future__ import annotations

from record import options, record, run_all, table

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np

from blindcal.items.score_files import read_scores
from blindcal.planning.forecast import OVERCONFIDENT, Shape, half_width, shape_of_scores
from populations import simulated_fit

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
def shape_of(scores: Path, name: str) -> Shape:
    """The default shape, or one of a real model."""
    if name == OVERCONFIDENT.name:
        return OVERCONFIDENT
    known = read_scores(scores / REAL[name])
    return shape_of_scores(name, known.labels, known.p)


def outcome(job: Job) -> float:
    """The interval's half-width."""
    labels, p = shape_of(job.scores, job.shape).sample(job.n, np.random.default_rng([job.seed, job.n]))
    fit = simulated_fit(labels, p, method=job.method, queries=job.queries, seed=job.seed)
    return float(fit.ece.half_width)


def main() -> None:
    """Forecast, audit, and record the tables."""
    arguments = options(__doc__, repeats=5)
    scores, seeds = arguments.data / "scores", range(arguments.repeats)
    names = [OVERCONFIDENT.name, *(name for name, file in REAL.items() if (scores / file).is_file())]
    planned = list(product(names, AUDITS))
    jobs = [Job(scores, name, *audit, seed) for name, audit in planned for seed in seeds]
    widths = np.array(run_all(outcome, jobs, arguments)).reshape(len(planned), -1)
    rows, ratios = [], []
    for (name, (method, queries, n)), seen in zip(planned, widths, strict=True):
        expected = half_width(shape_of(scores, name), method, n, queries)
        assert expected is not None
        mean = float(seen.mean())
        chance = float(seen.std(ddof=1) / np.sqrt(seen.size) / mean)
        ratios.append(expected / mean)
        rows.append([name, method, queries, n, expected, mean, (ratios[-1], chance)])
    off = np.abs(np.array(ratios) - 1)
    summary = [int((off <= NEAR).sum()), off.size, float(np.mean(ratios)), float(off.max())]
    columns = (
        "shape {} | method {} | K {:g} | items {:,} | half-width forecast {:.4f} | "
        "half-width seen {:.4f} | ratio {:.2f} ± {:.2f}"
    )
    near = {
        f"half-widths within {NEAR:.0%}": "{}",
        "of": "{}",
        "mean ratio": "{:.2f}",
        "largest deviation": "{:.0%}",
    }
    record("plan", {"cells": table(columns, rows), "summary": table(near, [summary])}, arguments)


if __name__ == "__main__":
    main()
