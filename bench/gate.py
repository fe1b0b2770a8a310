"""How often `blindcal check --max-ece` passes models that it should not, and models that it should.

    python bench/gate.py [--repeats 100] [--sizes 500 2000]

Each repeat has a population that the method was not developed on: a new random one, or a real model's score
file. n items are drawn from it and audited with one query each. The limits are the true ECE, where a pass is
an error that ``--confidence 0.95`` allows in 5% of audits, and higher values, where a pass is correct.
Repeat r uses seed r.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from audits import simulated_fit
from populations import Recorded, drawn
from record import Cell, parser, record, table

CONFIDENCES = (0.9, 0.95, 0.99)
ROOM = (0.02, 0.05)  # of the limit above the true ECE


@dataclass(frozen=True, slots=True)
class Place:
    """The input of one repeat; without a score file, a population is drawn."""

    path: Path | None
    n: int
    seed: int


def repeat(place: Place) -> list[float]:
    """The true ECE, its estimate, and the bound of `blindcal check` at each confidence."""
    population = drawn(place.seed) if place.path is None else Recorded(place.path)
    labels, f = population.sample(place.n, np.random.default_rng([place.seed, place.n, 3]))
    fit = simulated_fit(labels, f, seed=place.seed)
    bounds = [fit.at(level=2 * confidence - 1).ece.high for confidence in CONFIDENCES]
    return [population.ece(), float(fit.ece), *(np.nan if bound is None else bound for bound in bounds)]


def row(name: str, n: int, outcomes: Sequence[Sequence[float]]) -> list[Cell]:
    """Shares of passes: at the true ECE by the estimate and each bound, then above it by the 95% bound."""
    truth, estimate, *bounds = np.array(outcomes).T
    errors = [estimate <= truth, *(bound <= truth for bound in bounds)]
    hopes = [bounds[1] <= truth + room for room in ROOM]
    return [name, n, *(float(share.mean()) for share in (*errors, *hopes))]


def main() -> None:
    """Run the study, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=100)
    options.add_argument("--sizes", type=int, nargs="*", default=[500, 2000])
    arguments = options.parse_args()
    files = sorted((arguments.data / "scores").glob("*.csv.gz"))
    cells: dict[str, Sequence[Path | None]] = {"drawn at random": [None]}
    if files:
        cells[f"{len(files)} score files"] = files
    rows = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for n in arguments.sizes:
            for name, paths in cells.items():
                places = [Place(paths[seed % len(paths)], n, seed) for seed in range(arguments.repeats)]
                found = tqdm(
                    pool.map(repeat, places, chunksize=4), total=len(places), desc=name, disable=None
                )
                rows.append(row(name, n, list(found)))
    names = (
        "estimate",
        *(f"{confidence:.0%} bound" for confidence in CONFIDENCES),
        *(f"limit + {room}" for room in ROOM),
    )
    columns = {"population": "{}", "items": "{:,}", **dict.fromkeys(names, "{:.1%}")}
    record("gate", {"passed": table(columns, rows)}, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
