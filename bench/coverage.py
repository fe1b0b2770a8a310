"""Do the 95% intervals hold the truth 95 times in 100, and is the p-value uniform when it should be?

    python bench/coverage.py [--replicates 400] [--processes 2] [--markdown docs/coverage.md]
    python bench/coverage.py --unseen ../shared/scores [--sizes 300 1000 3000] [--replicates 400]

Each replicate draws n items from a population with known ECE, asks one query an item as `latent` does,
fits, and looks whether the interval covers. Replicate r of a cell uses seed r. With ``--unseen`` the
populations are ones that the method was not settled on: a new random one in every replicate, one whose
confidence is narrow, and real models' score files, of which n items are drawn; and the other quantities of an
audit are looked at as well.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.special import expit, logit
from tqdm import tqdm

import blindcal
from blindcal import design
from blindcal.simulation.simulate import ask
from populations import POPULATIONS, Population, Recorded, drawn, narrow

SIZES = (500, 3000, 20000)
RESAMPLES = 300  # fewer than the default 1,000, to keep the study under an hour
#: Alternatives at TCE 0.05 for the power of the test: a slope, an intercept, a wave.
ALTERNATIVES = (
    Population("slope", lambda rng, n: 1.5 * rng.standard_normal(n), lambda f: expit(0.693 * logit(f))),
    Population("intercept", lambda rng, n: 1.5 * rng.standard_normal(n), lambda f: expit(logit(f) - 0.322)),
    Population(
        "wave",
        lambda rng, n: logit(np.clip(rng.beta(1.0, 1.0, n), 1e-12, 1 - 1e-12)),
        lambda f: f + 0.0785 * np.sin(2 * np.pi * f),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """One replicate."""

    truth: float
    low: float
    high: float
    estimate: float
    pvalue: float
    others: dict[str, float]  # whether each other interval covers; of the curve, at how many of 5 points


def observe(
    population: Population | Recorded, truth: float, others: dict[str, float], n: int, seed: int
) -> Outcome:
    """Draw, ask, fit."""
    labels, f = population.sample(n, np.random.default_rng([seed, n]))
    asked = ask(design.make("latent", labels, seed=seed), labels, f)
    fit = blindcal.latent(
        labels[asked.items], asked.shifts, asked.answers, items=asked.items, resamples=RESAMPLES
    )
    interval = fit.interval("ece", bins=5)
    held: dict[str, float] = {name: value in fit.interval(name) for name, value in others.items()}
    if isinstance(population, Population):
        band, at = fit.curve(), np.quantile(f, [0.1, 0.25, 0.5, 0.75, 0.9])
        low, high = (np.interp(at, band.f, end) for end in (band.low, band.high))
        truly = population.curve(at)
        held["curve"] = float(((low <= truly) & (truly <= high)).mean())
    else:
        held["curve"] = np.nan  # what a file's curve is at a point, nobody knows
    return Outcome(truth, interval.low, interval.high, fit.ece(5), fit.calibrated_pvalue(), held)


def replicate(place: tuple[str, float, int, int]) -> Outcome:
    """A replicate of one of the populations chosen by hand."""
    name, truth, n, seed = place
    return observe(next(p for p in (*POPULATIONS, *ALTERNATIVES) if p.name == name), truth, {}, n, seed)


def replicate_unseen(place: tuple[Path | Callable[[int], Population], int, int]) -> Outcome:
    """A replicate of a score file, or of a population that only this seed has."""
    source, n, seed = place
    population = Recorded(source) if isinstance(source, Path) else source(seed)
    truth = population.ece(5, 1_000_000) if isinstance(population, Population) else population.ece(5)
    return observe(population, truth, population.others(), n, seed)


def unseen(
    folder: Path, sizes: list[int], replicates: int, pool: ProcessPoolExecutor
) -> Iterator[tuple[str, int, list[Outcome]]]:
    """The random populations together, the narrow ones and the score files, at each size."""
    files = sorted(folder.glob("*.csv.gz"))
    cells: dict[str, Sequence[Path | Callable[[int], Population]]] = {
        "drawn at random, a new one each time": [drawn],
        "narrow confidence, a new one each time": [narrow],
        f"{len(files)} score files": files,
    }
    for n in sizes:
        for name, sources in cells.items():
            if sources:
                places = [(sources[seed % len(sources)], n, seed) for seed in range(replicates)]
                bar = tqdm(
                    pool.map(replicate_unseen, places, chunksize=4), total=replicates, leave=False, desc=name
                )
                yield name, n, list(bar)


def main() -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=400)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--only", default="")
    parser.add_argument("--unseen", type=Path, metavar="SCORES", help="populations that were not looked at")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    lines = [
        f"95% intervals for the population's ECE (5 bins), {arguments.replicates} repeats.",
        "",
        "| population | ECE | n | covered | all above | all below | mean width | mean error | p < 0.05 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    with ProcessPoolExecutor(arguments.processes) as pool:
        if arguments.unseen:
            found = list(_shown(unseen(arguments.unseen, arguments.sizes, arguments.replicates, pool)))
            print("\nShare of the 95% intervals of other quantities that cover:\n")
            print("| population | n | " + " | ".join(found[0][2][0].others) + " |")
            print("|---" * (2 + len(found[0][2][0].others)) + "|")
            for name, n, outcomes in found:
                shares = np.mean([list(o.others.values()) for o in outcomes], axis=0)
                shown = ["" if np.isnan(share) else f"{share:.1%}" for share in shares]
                print(f"| {name} | {n} | " + " | ".join(shown) + " |")
            return
        for n in arguments.sizes:
            for population in (*POPULATIONS, *(ALTERNATIVES if n == 3000 else ())):
                if arguments.only not in population.name:
                    continue
                truth = 0.0 if population.name == "exactly calibrated" else population.ece()
                repeats = arguments.replicates // (2 if population in ALTERNATIVES else 1)
                places = [(population.name, truth, n, seed) for seed in range(repeats)]
                bar = tqdm(
                    pool.map(replicate, places, chunksize=4),
                    total=len(places),
                    leave=False,
                    desc=population.name,
                )
                row = _row(population.name, n, list(bar))
                lines.append(row)
                print(row, flush=True)
    if arguments.markdown:
        title = "# Coverage\n\nMade by `python bench/coverage.py` (one query an item; seeds 0 and up).\n\n"
        arguments.markdown.write_text(title + "\n".join(lines) + "\n")


def _shown(cells: Iterator[tuple[str, int, list[Outcome]]]) -> Iterator[tuple[str, int, list[Outcome]]]:
    """The same, each printed when it is there."""
    for name, n, outcomes in cells:
        print(_row(name, n, outcomes), flush=True)
        yield name, n, outcomes


def _row(name: str, n: int, outcomes: list[Outcome]) -> str:
    columns = [[o.truth, o.low, o.high, o.estimate, o.pvalue] for o in outcomes]
    truth, low, high, estimate, pvalue = np.array(columns).T
    covered = (low <= truth) & (truth <= high)
    return (
        f"| {name} | {truth.mean():.4f} | {n} | {covered.mean():.1%} | {(low > truth).mean():.1%} | "
        f"{(high < truth).mean():.1%} | {(high - low).mean():.4f} | {(estimate - truth).mean():+.4f} | "
        f"{(pvalue < 0.05).mean():.1%} |"
    )


if __name__ == "__main__":
    main()
