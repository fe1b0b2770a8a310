"""How often a promised precision is kept: real models, simulated endpoints.

    python bench/promises.py [--repeats 60] [--only gpt] [--sets report]

Repeat r audits 1,500 items (seed r), drawn with replacement from a set, with one query per item. The whole
set shows what the chosen threshold really does. The rules of promises were chosen on the sets of ``--sets
choose``, and are reported on the others. bench/deployed.py checks promises over HTTP, on a smaller set.
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
from blindcal.simulation.simulate import log_odds
from record import Cell, parser, record, table

AUDITED = 1500
#: A file in the data folder, and the required precision.
REPORT = {
    "scores/Mistral-7B-Instruct-v0.3__mmlu_test_direct.csv.gz": 0.8,
    "scores/OpenHermes-2-Mistral-7B__truthfulqa_binary.csv.gz": 0.6,
    "scores/zephyr-7b-beta__halueval_dialogue.csv.gz": 0.85,
    "scores/gpt-4o-mini__mmlu_test_direct.csv.gz": 0.85,
    "scores/gpt3-davinci__boolq_0shot.csv.gz": 0.85,
    "scores/Meta-Llama-3-8B-Instruct__boolq_0shot_1500.csv.gz": 0.9,
}
CHOOSE = {
    "scores/Llama-3.1-70B__mmlu_test.csv.gz": 0.95,
    "scores/Llama-3.1-8B-Instruct__mmlu_test_direct.csv.gz": 0.85,
    "scores/Mistral-7B-Instruct-v0.2__truthfulqa_binary.csv.gz": 0.6,
    "scores/Starling-LM-7B-alpha__halueval_dialogue.csv.gz": 0.9,
    "scores/gpt2-xl__boolq_0shot.csv.gz": 0.7,
    "scores/gpt3-curie__rte_train_0shot.csv.gz": 0.6,
    "logits/qwen__boolq__logits.csv.gz": 0.85,
    "logits/qwen__mmlu__logits.csv.gz": 0.4,
}
#: How a threshold is chosen: the confidence with which it must reach the precision.
WAYS = {"95% sure": 0.95, "by the estimate": None}


@dataclass(frozen=True, slots=True)
class Promise:
    """The promised precision of a threshold, and its true precision and recall."""

    promised: Estimate
    precision: float
    recall: float


@lru_cache
def population(path: Path) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities."""
    source = sources.read(path)
    return source.labels, source.probabilities("pair")


def promises(job: tuple[Path, float, int]) -> list[Promise | None]:
    """What an audit promises in each of the `WAYS`; ``None`` if there is no such threshold."""
    path, wanted, seed = job
    labels, p = population(path)
    ours = np.random.default_rng([seed, 6]).integers(labels.size, size=AUDITED)
    fit = simulated_fit(labels[ours], p[ours], seed=seed)
    return [kept(fit, wanted, confidence, labels, p) for confidence in WAYS.values()]


def kept(
    fit: bc.LatentFit, wanted: float, confidence: float | None, labels: IntArray, p: FloatArray
) -> Promise | None:
    """The promise, and what its threshold does on all items."""
    try:
        chosen = fit.choose_threshold(precision=wanted, confidence=confidence)
    except bc.NotIdentifiedError:
        return None
    right = labels[log_odds(p) >= -chosen.point.shift]
    precision = float(right.mean()) if right.size else 1.0
    return Promise(chosen.point.precision, precision, float(right.sum() / labels.sum()))


def row(name: str, wanted: float, way: str, tried: Sequence[Promise | None]) -> list[Cell]:
    """The row of one kind of promise on one set."""
    made = [one for one in tried if one is not None]
    means: list[Cell] = [
        float(np.mean(each)) for each in zip(*((one.precision, one.recall) for one in made), strict=True)
    ]
    held = sum(one.precision >= wanted for one in made)
    inside = sum(one.precision in one.promised for one in made)
    return [name, wanted, way, len(made), held, inside, *(means or [None, None])]


def main() -> None:
    """Run the study, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=60)
    options.add_argument("--only", default="", help="part of a file's name")
    options.add_argument("--sets", choices=("report", "choose"), default="report")
    arguments = options.parse_args()
    sets = REPORT if arguments.sets == "report" else CHOOSE
    wishes = {arguments.data / path: wanted for path, wanted in sets.items() if arguments.only in path}
    jobs = [(path, wanted, seed) for path, wanted in wishes.items() for seed in range(arguments.repeats)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = list(tqdm(pool.map(promises, jobs), total=len(jobs), disable=None))
    rows = []
    for number, (path, wanted) in enumerate(wishes.items()):
        tried = found[number * arguments.repeats : (number + 1) * arguments.repeats]
        for way, mine in zip(WAYS, zip(*tried, strict=True), strict=True):
            rows.append(row(" ".join(sources.names(path)), wanted, way, mine))
    columns = {
        "model and set": "{}",
        "precision asked for": "{:g}",
        "threshold chosen": "{}",
        "promised": "{}",
        "kept": "{}",
        "interval holds": "{}",
        "mean precision": "{:.3f}",
        "mean recall": "{:.3f}",
    }
    record("promises", {"kept": table(columns, rows)}, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
