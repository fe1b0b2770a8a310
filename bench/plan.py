"""Promises of `blindcal plan` against the outcomes of many simulated audits.

    python bench/plan.py [--audits 20] [--first 0] [--raw FILE] [--markdown docs/plan-promises.md]

Audit r of a cell draws its items with seed r. Shapes are the named ones and two of real models, smoothed from
their recorded probabilities. ``--raw FILE`` keeps the outcomes, and takes those already there into the table.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal
from blindcal import design
from blindcal.items.score_files import read_scores
from blindcal.planning import shapes
from blindcal.planning.forecast import forecast
from blindcal.simulation.simulate import ask

RESAMPLES = 300
DATA = Path(__file__).parents[2] / "shared" / "scores"
REAL = {
    "gpt-4o-mini mmlu": "gpt-4o-mini__mmlu_test_direct.csv.gz",
    "gpt3-davinci boolq": "gpt3-davinci__boolq_0shot.csv.gz",
}
#: Method, queries an item, items.
CELLS = (
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


@lru_cache
def shape_of(name: str) -> shapes.Shape:
    """A named shape, or one of a real model."""
    if name in shapes.PRESETS:
        return shapes.preset(name)
    scores = read_scores(DATA / REAL[name])
    return shapes.of_scores(name, scores.labels, scores.p)


def outcome(job: tuple[str, str, float, int, int]) -> list[float]:
    """Interval, estimate and p-value of one simulated audit."""
    name, method, queries, n, seed = job
    labels, p = shape_of(name).sample(n, np.random.default_rng([seed, n]))
    asked = ask(design.make(method, labels, queries=queries, seed=seed), labels, p, seed=seed)
    fit = blindcal.latent(
        labels[asked.items],
        asked.shifts,
        asked.answers,
        asked.temperatures,
        asked.items,
        resamples=RESAMPLES,
    )
    between = fit.interval("ece")
    return [between.low, between.high, fit.ece(5), fit.calibrated_pvalue()]


def main() -> None:
    """Audit, promise and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    names = [*shapes.PRESETS, *(name for name, file in REAL.items() if (DATA / file).is_file())]
    seeds = range(arguments.first, arguments.first + arguments.audits)
    found: dict[tuple[str, str, float, int, int], list[float]] = {}
    if arguments.raw and arguments.raw.exists():
        for line in arguments.raw.open():
            name, method, queries, n, seed, *row = json.loads(line)
            found[name, method, queries, n, seed] = row
    jobs = [(name, *cell, seed) for seed in seeds for cell in CELLS for name in names]
    jobs = [job for job in jobs if job not in found]
    with ProcessPoolExecutor(arguments.processes) as pool:
        outcomes = pool.map(outcome, jobs, chunksize=8)
        for job, row in zip(jobs, tqdm(outcomes, total=len(jobs), disable=None), strict=True):
            found[job] = row
            if arguments.raw:
                with arguments.raw.open("a") as file:
                    file.write(json.dumps([*job, *row]) + "\n")
    lines = table(found, names)
    print("\n".join(lines))
    if arguments.markdown:
        title = "# Promises against outcomes\n\nMade by `python bench/plan.py`.\n\n"
        arguments.markdown.write_text(title + "\n".join(lines) + "\n")


def table(found: dict[tuple[str, str, float, int, int], list[float]], names: list[str]) -> list[str]:
    """A line a cell: promise, outcome and their ratio."""
    least = min(sum(key[:4] == (name, *cell) for key in found) for name in names for cell in CELLS)
    lines = [
        f"Half-widths of 95% intervals, mean errors and power: promised, and the mean of {least} audits or "
        f"more ({RESAMPLES} refits each, seeds 0 and up).",
        "The ratio is promise / outcome, with the standard error of the outcome.",
        "",
        "| shape | method | K | n | half-width promised | seen | ratio | error promised | seen "
        "| power promised | seen |",
        "|---" * 11 + "|",
    ]
    ratios = []
    for name in names:
        for method, queries, n in CELLS:
            rows = np.array([row for key, row in found.items() if key[:4] == (name, method, queries, n)])
            promised = forecast(shape_of(name), method, n, queries)
            assert promised.half_width is not None
            half = (rows[:, 1] - rows[:, 0]) / 2
            ratios.append(promised.half_width / half.mean())
            chance = half.std(ddof=1) / np.sqrt(half.size) / half.mean()
            error = np.abs(rows[:, 2] - promised.ece).mean()
            lines.append(
                f"| {name} | {method} | {queries:g} | {n} | {promised.half_width:.4f} | {half.mean():.4f} "
                f"| {ratios[-1]:.2f} ± {chance:.2f} | {promised.error:.4f} | {error:.4f} "
                f"| {promised.power:.2f} | {(rows[:, 3] < 0.05).mean():.2f} |"
            )
    off = np.abs(np.array(ratios) - 1)
    lines += [
        "",
        f"{(off <= 0.15).sum()} of {off.size} promised widths are within 15% of the outcome; the mean ratio "
        f"is {np.mean(ratios):.2f}, the largest deviation {off.max():.0%}.",
    ]
    return lines


if __name__ == "__main__":
    main()
