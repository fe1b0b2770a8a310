"""How often does `blindcal check --max-ece` pass a model that it should not, and one that it should?

    python bench/gate.py [--scores ../shared/scores] [--replicates 200] [--sizes 500 2000]

Each replicate has a population that nobody has looked at: a new random one, or (with --scores) a real model's
score file. n items are drawn from it and audited with one query each, and the ECE is held to limits: its very
own true value, where a pass is an error that --confidence 0.95 allows one time in twenty; and that value and
some more, where a pass is what one hopes for.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal
from blindcal import design
from blindcal.simulation.simulate import ask
from populations import Population, Recorded, drawn

CONFIDENCES = (0.9, 0.95, 0.99)
ROOM = (0.02, 0.05)  # above the true ECE
RESAMPLES = 300


def replicate(place: tuple[Path | None, int, int]) -> list[float]:
    """The true ECE, its estimate, and the bound at each confidence, as `blindcal.results.check` has it."""
    path, n, seed = place
    population = drawn(seed) if path is None else Recorded(path)
    truth = population.ece(5, 1_000_000) if isinstance(population, Population) else population.ece(5)
    labels, f = population.sample(n, np.random.default_rng([seed, n, 3]))
    asked = ask(design.make("latent", labels, seed=seed), labels, f)
    fit = blindcal.latent(
        labels[asked.items], asked.shifts, asked.answers, items=asked.items, resamples=RESAMPLES
    )
    return [truth, fit.ece(5), *(fit.interval("ece", 2 * c - 1, bins=5).high for c in CONFIDENCES)]


def row(name: str, n: int, outcomes: list[list[float]]) -> str:
    """Shares of passes: at the truth by the estimate and by each bound, then with room by the 95% bound."""
    truth, estimate, *bounds = np.array(outcomes).T
    errors = [(estimate <= truth).mean(), *((bound <= truth).mean() for bound in bounds)]
    hopes = [(bounds[1] <= truth + room).mean() for room in ROOM]
    return f"| {name} | {n} | " + " | ".join(f"{share:.1%}" for share in (*errors, *hopes)) + " |"


def main() -> None:
    """Run the study and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="*", default=[500, 2000])
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    paths: list[Path | None] = [None]
    name = "drawn at random"
    if arguments.scores is not None:
        paths = [*sorted(arguments.scores.glob("*.csv.gz"))]
        name = f"{len(paths)} score files"
    sure = " | ".join(f"{c:.0%} bound" for c in CONFIDENCES)
    lines = [
        f"| population | items | estimate | {sure} | "
        + " | ".join(f"limit + {room}" for room in ROOM)
        + " |",
        "|---" * (3 + len(CONFIDENCES) + len(ROOM)) + "|",
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for n in arguments.sizes:
            places = [(paths[seed % len(paths)], n, seed) for seed in range(arguments.replicates)]
            found = pool.map(replicate, places, chunksize=4)
            lines.append(row(name, n, list(tqdm(found, total=len(places), leave=False, desc=name))))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
