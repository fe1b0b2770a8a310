"""How often a promised precision is kept on items that were not audited: real models, simulated endpoints.

    python bench/promises.py [--repeats 60] [--only gpt]

Repeat r audits 1,500 random items (seed r) with one query per item and chooses a threshold for a precision;
the rest of the set, tens of thousands of items, shows what the threshold really does. bench/deployed.py does
the same over HTTP, on a smaller set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal as bc
from audits import simulated_fit
from blindcal.records import Estimate, FloatArray, IntArray
from blindcal.reproduce import sources
from record import Cell, parser, record, table

AUDITED = 1500
CONFIDENCES = (0.95, None)
#: A file in the data folder, and the required precision.
WISHES = {
    "scores/Llama-3.1-70B__mmlu_test.csv.gz": 0.9,
    "scores/Starling-LM-7B-alpha__halueval_dialogue.csv.gz": 0.9,
    "logits/qwen__mmlu__logits.csv.gz": 0.4,
    "scores/gpt-4o-mini__mmlu_test_direct.csv.gz": 0.85,
}


@dataclass(frozen=True, slots=True)
class Promise:
    """The promised precision of a threshold, and its precision and recall on the other items."""

    promised: Estimate
    precision: float
    recall: float


@lru_cache
def population(path: Path) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities."""
    source = sources.read(path)
    return source.labels, source.probabilities("pair")


def promises(job: tuple[Path, float, int]) -> list[Promise | None]:
    """What one audit promises at each confidence; ``None`` if it finds no such threshold."""
    path, wanted, seed = job
    labels, p = population(path)
    order = np.random.default_rng([seed, 6]).permutation(labels.size)
    ours, theirs = order[:AUDITED], order[AUDITED:]
    fit = simulated_fit(labels[ours], p[ours], seed=seed)
    return [deployed(fit, wanted, confidence, labels[theirs], p[theirs]) for confidence in CONFIDENCES]


def deployed(
    fit: bc.LatentFit, wanted: float, confidence: float | None, labels: IntArray, p: FloatArray
) -> Promise | None:
    """The promise, and its outcome on other items."""
    try:
        chosen = fit.choose_threshold(precision=wanted, confidence=confidence)
    except bc.NotIdentifiedError:
        return None
    right = labels[p >= chosen.point.threshold]
    precision = float(right.mean()) if right.size else 1.0
    return Promise(chosen.point.precision, precision, float(right.sum() / labels.sum()))


def row(name: str, wanted: float, confidence: float | None, tried: Sequence[Promise | None]) -> list[Cell]:
    """The row of one kind of promise on one set."""
    made = [one for one in tried if one is not None]
    wish = "the estimate" if confidence is None else f"{confidence:.0%} sure"
    means: list[Cell] = [
        float(np.mean(each)) for each in zip(*((one.precision, one.recall) for one in made), strict=True)
    ]
    kept = sum(one.precision >= wanted for one in made)
    held = sum(one.precision in one.promised for one in made)
    return [name, f"{wanted:g}, {wish}", len(made), kept, held, *(means or [None, None])]


def main() -> None:
    """Run the study, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=60)
    options.add_argument("--only", default="", help="part of a file's name")
    arguments = options.parse_args()
    wishes = {arguments.data / path: wanted for path, wanted in WISHES.items() if arguments.only in path}
    jobs = [(path, wanted, seed) for path, wanted in wishes.items() for seed in range(arguments.repeats)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = list(tqdm(pool.map(promises, jobs), total=len(jobs), disable=None))
    rows = []
    for number, (path, wanted) in enumerate(wishes.items()):
        tried = found[number * arguments.repeats : (number + 1) * arguments.repeats]
        for confidence, mine in zip(CONFIDENCES, zip(*tried, strict=True), strict=True):
            rows.append(row(" ".join(sources.names(path)), wanted, confidence, mine))
    columns = {
        "model and set": "{}",
        "precision asked for": "{}",
        "promised": "{}",
        "kept": "{}",
        "interval holds": "{}",
        "mean precision": "{:.3f}",
        "mean recall": "{:.3f}",
    }
    record("promises", {"kept": table(columns, rows)}, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
