"""How far each method's ECE is from the oracle, on real models' recorded probabilities.

    python bench/accuracy.py [--data ../shared] [--repeats 20] [--markdown docs/accuracy.md]

`scores/` holds twelve score sets, `logits/` four full cells (pair semantics). Repeat r uses seed r.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from blindcal.records import FloatArray, IntArray
from blindcal.reproduce import sources
from blindcal.simulation.simulate import simulate

BUDGETS = (1, 2, 3, 4, 6, 8)
JITTER = 0.2  # on the log-odds: the most seen of llama.cpp with prompt caching and concurrent slots
JITTERED = f"latent, endpoint jitter {JITTER}, ignored"
METHODS: dict[str, tuple[float, ...]] = {
    "blind": (1,),
    "sampling": BUDGETS,
    "extraction": BUDGETS,
    "latent": BUDGETS,
    JITTERED: (1, 2, 3, 4),
    "temperature": (2, 3, 4, 6, 8),
}


def load(path: Path) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities of a score file, or of recorded logits under pair semantics."""
    found = sources.read(path)
    return found.labels, found.probabilities("pair")


def measure(job: tuple[Path, str, float, int]) -> float:
    """Mean absolute error of one method at one budget on one file."""
    path, method, queries, repeats = job
    labels, p = load(path)
    name, jitter = ("latent", JITTER) if method == JITTERED else (method, 0.0)
    return simulate(name, labels, p, queries=queries, repeats=repeats, jitter=jitter).mae


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--budgets", type=float, nargs="*", default=list(BUDGETS))
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    sets = {
        "twelve score sets": sorted((arguments.data / "scores").glob("*.csv.gz")),
        "four recorded cells": sorted((arguments.data / "logits").glob("*__logits.csv.gz")),
    }
    if not any(sets.values()):
        raise SystemExit(f"no score files under {arguments.data}: give their folder with --data")
    lines: list[str] = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for title, paths in sets.items():
            lines += _section(title, paths, arguments, pool)
    if arguments.markdown:
        title = "# Accuracy\n\nMade by `python bench/accuracy.py`.\n\n"
        arguments.markdown.write_text(title + "\n".join(lines))


def _section(
    title: str, paths: list[Path], arguments: argparse.Namespace, pool: ProcessPoolExecutor
) -> list[str]:
    budgets = arguments.budgets
    lines = [
        f"## Mean absolute error to the oracle, {title}, 5 bins, {arguments.repeats} repeats, seeds 0 and up",
        "",
        "| method | " + " | ".join(f"K={k:g}" for k in budgets) + " |",
        "|---" * (len(budgets) + 1) + "|",
    ]
    print("\n".join(lines))
    for method in arguments.methods:
        asked = [k for k in budgets if k in METHODS[method] or (k != int(k) and method == "latent")]
        jobs = [(path, method, k, arguments.repeats) for k in asked for path in paths]
        found = list(tqdm(pool.map(measure, jobs), total=len(jobs), desc=method, leave=False, disable=None))
        mean = {k: np.mean(found[i * len(paths) : (i + 1) * len(paths)]) for i, k in enumerate(asked)}
        lines.append(
            f"| {method} | " + " | ".join(f"{mean[k]:.4f}" if k in mean else "" for k in budgets) + " |"
        )
        print(lines[-1], flush=True)
    return [*lines, ""]


if __name__ == "__main__":
    main()
