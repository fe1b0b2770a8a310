"""What a fractional budget buys: error at K = 1, 1.25, 1.5, 1.75 and 2 on the twelve score sets.

    python bench/fractional.py [--data ../shared] [--repeats 100] [--first 0] [--largest N] [--markdown FILE]

Repeat r uses seed r at every K, so that budgets are compared on the same first queries. ``--raw FILE`` adds
the errors to a file (and takes those already there into the tables): a long study in several sittings.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from blindcal.items.score_files import read_scores
from blindcal.records import FloatArray
from blindcal.simulation.simulate import simulate

BUDGETS = (1.0, 1.25, 1.5, 1.75, 2.0)


def measure(job: tuple[Path, int]) -> list[float]:
    """Absolute errors of one seed on one file, a budget each."""
    path, seed = job
    scores = read_scores(path)
    return [simulate("latent", scores.labels, scores.p, queries=k, repeats=1, seed=seed).mae for k in BUDGETS]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--largest", type=int, default=0, help="leave out sets with more items")
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    paths = sorted((arguments.data / "scores").glob("*.csv.gz"))
    if not paths:
        raise SystemExit(f"no score files under {arguments.data}: give their folder with --data")
    seeds = range(arguments.first, arguments.first + arguments.repeats)
    errors: dict[tuple[str, int], list[float]] = {}
    if arguments.raw and arguments.raw.exists():
        errors = {(name, seed): row for name, seed, row in map(json.loads, arguments.raw.open())}
    if arguments.largest:
        paths = [path for path in paths if read_scores(path).labels.size <= arguments.largest]
    jobs = [(path, seed) for seed in seeds for path in paths if (path.name, seed) not in errors]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = pool.map(measure, jobs, chunksize=4)
        for (path, seed), row in zip(jobs, tqdm(found, total=len(jobs), disable=None), strict=True):
            errors[path.name, seed] = row
    if arguments.raw:
        arguments.raw.write_text("".join(json.dumps([*key, row]) + "\n" for key, row in errors.items()))
    lines = table(errors)
    print("\n".join(lines))
    if arguments.markdown:
        title = "# Fractional budgets\n\nMade by `python bench/fractional.py`.\n\n"
        arguments.markdown.write_text(title + "\n".join(lines) + "\n")


def table(errors: dict[tuple[str, int], list[float]]) -> list[str]:
    """A line a set, then the mean of the sets; the last column is K = 1.5 less the middle of K = 1 and 2."""
    names = sorted({name for name, _ in errors})
    by_set = [np.array([row for (of, _), row in sorted(errors.items()) if of == name]) for name in names]
    lines = [
        "Mean absolute error to the oracle, 5 bins, seeds 0 and up. The last column is the error at K = 1.5",
        "less the straight line between K = 1 and K = 2, with its standard error.",
        "",
        "| set | repeats | " + " | ".join(f"K={k:g}" for k in BUDGETS) + " | K=1.5 off the line |",
        "|---" * (len(BUDGETS) + 3) + "|",
    ]
    for name, own in zip(names, by_set, strict=True):
        title = name.removesuffix(".csv.gz").replace("__", ", ")
        lines.append(_line(title, str(own.shape[0]), own.mean(axis=0), *_bend(own)))
    bends = np.array([_bend(own) for own in by_set])
    mean = np.mean([own.mean(axis=0) for own in by_set], axis=0)
    chance = float(np.sqrt((bends[:, 1] ** 2).sum())) / len(names)
    return [*lines, _line("**mean of the sets**", "", mean, float(bends[:, 0].mean()), chance)]


def _line(title: str, repeats: str, errors: FloatArray, bend: float, chance: float) -> str:
    shown = " | ".join(f"{error:.5f}" for error in errors)
    return f"| {title} | {repeats} | {shown} | {bend:+.5f} ± {chance:.5f} |"


def _bend(errors: FloatArray) -> tuple[float, float]:
    off = errors[:, BUDGETS.index(1.5)] - (errors[:, 0] + errors[:, -1]) / 2
    return float(off.mean()), float(off.std(ddof=1) / np.sqrt(off.size)) if off.size > 1 else float("nan")


if __name__ == "__main__":
    main()
