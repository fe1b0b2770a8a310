"""How often `blindcal check --max-ece` passes models that it should not, and models that it should.

    python bench/gate.py [--repeats 100]

Each repeat has a population that the method was not developed on: a new random one, or a real model's score
file. n items are drawn from it and audited with one query each. The limits are the true ECE, where a pass is
an error that ``--confidence 0.95`` allows in 5% of audits, and higher values, where a pass is correct.
Repeat r uses seed r.
"""

from __future__ import annotations

from record import Cell, options, record, run_all, score_files, table

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from populations import Recorded, drawn, simulated_fit

SIZES = (500, 2000)
CONFIDENCES = (0.9, 0.95, 0.99)
ROOM = (0.02, 0.05)  # of the limit above the true ECE


def bounds(job: tuple[Path | None, int, int]) -> list[float]:
    """The true ECE, its estimate, and the bound of `blindcal check` at each confidence."""
    path, n, seed = job
    population = drawn(seed) if path is None else Recorded(path)
    labels, f = population.sample(n, np.random.default_rng([seed, n, 3]))
    fit = simulated_fit(labels, f, seed=seed)
    highs = [fit.at(level=2 * confidence - 1).ece.high for confidence in CONFIDENCES]
    return [population.ece(), float(fit.ece), *(np.nan if high is None else high for high in highs)]


def main() -> None:
    """Run the study, and record its table."""
    arguments = options(__doc__, repeats=100)
    files = score_files(arguments.data)
    kinds: dict[str, Sequence[Path | None]] = {"drawn at random": [None], f"{len(files)} score files": files}
    rows: list[list[Cell]] = []
    for n, (name, paths) in product(SIZES, kinds.items()):
        jobs = [(paths[seed % len(paths)], n, seed) for seed in range(arguments.repeats)]
        truth, estimate, *highs = np.array(run_all(bounds, jobs, arguments, chunk=4)).T
        wrong = [estimate <= truth, *(high <= truth for high in highs)]
        right = [highs[1] <= truth + room for room in ROOM]
        rows.append([name, n, *(float(passed.mean()) for passed in (*wrong, *right))])
    names = (
        "estimate",
        *(f"{confidence:.0%} bound" for confidence in CONFIDENCES),
        *(f"limit + {room}" for room in ROOM),
    )
    columns = {"population": "{}", "items": "{:,}", **dict.fromkeys(names, "{:.1%}")}
    record("gate", {"passed": table(columns, rows)}, arguments)


if __name__ == "__main__":
    main()
