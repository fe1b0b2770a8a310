"""How often a promised precision is kept: real models, simulated endpoints.

    python bench/promises.py [--repeats 60]

Repeat r audits 1,500 items (seed r), drawn with replacement from a set, with one query per item. The whole
set shows what the chosen threshold really does. The rules of promises were chosen on other sets.
"""

from __future__ import annotations

from record import Cell, options, record, run_all, table

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import blindcal as bc
from accuracy import load
from blindcal.records import Estimate
from blindcal.reproduce import sources
from blindcal.simulation.simulate import log_odds
from populations import simulated_fit

AUDITED = 1500
#: A file in the data folder, and the required precision.
SETS = {
    "scores/Mistral-7B-Instruct-v0.3__mmlu_test_direct.csv.gz": 0.8,
    "scores/OpenHermes-2-Mistral-7B__truthfulqa_binary.csv.gz": 0.6,
    "scores/zephyr-7b-beta__halueval_dialogue.csv.gz": 0.85,
    "scores/gpt-4o-mini__mmlu_test_direct.csv.gz": 0.85,
    "scores/gpt3-davinci__boolq_0shot.csv.gz": 0.85,
    "scores/Meta-Llama-3-8B-Instruct__boolq_0shot_1500.csv.gz": 0.9,
}
#: How a threshold is chosen: the confidence with which it must reach the precision.
WAYS = {"95% sure": 0.95, "by the estimate": None}


@dataclass(frozen=True, slots=True)
class Promise:
    """The promised precision of a threshold, and its true precision and recall."""

    promised: Estimate
    precision: float
    recall: float


def promises(job: tuple[Path, float, int]) -> list[Promise | None]:
    """What an audit promises in each of the `WAYS`; ``None`` if there is no such threshold."""
    path, wanted, seed = job
    labels, p = load(path)
    ours = np.random.default_rng([seed, 6]).integers(labels.size, size=AUDITED)
    fit = simulated_fit(labels[ours], p[ours], seed=seed)
    made: list[Promise | None] = []
    for confidence in WAYS.values():
        try:
            chosen = fit.choose_threshold(precision=wanted, confidence=confidence)
        except bc.NotIdentifiedError:
            made.append(None)
            continue
        right = labels[log_odds(p) >= -chosen.point.shift]
        precision = float(right.mean()) if right.size else 1.0
        made.append(Promise(chosen.point.precision, precision, float(right.sum() / labels.sum())))
    return made


def main() -> None:
    """Run the study, and record its table."""
    arguments = options(__doc__, repeats=60)
    jobs = [
        (arguments.data / path, wanted, seed)
        for path, wanted in SETS.items()
        for seed in range(arguments.repeats)
    ]
    each = iter(run_all(promises, jobs, arguments))
    rows: list[list[Cell]] = []
    for path, wanted in SETS.items():
        tried = [next(each) for _ in range(arguments.repeats)]
        for way, mine in zip(WAYS, zip(*tried, strict=True), strict=True):
            made = [promise for promise in mine if promise is not None]
            kept = sum(promise.precision >= wanted for promise in made)
            held = sum(promise.precision in promise.promised for promise in made)
            means = np.mean(
                [(promise.precision, promise.recall) for promise in made] or [(np.nan,) * 2], axis=0
            )
            name = " ".join(sources.names(arguments.data / path))
            rows.append(
                [name, wanted, way, len(made), kept, held, *(means.tolist() if made else [None, None])]
            )
    columns = (
        "model and set {} | precision asked for {:g} | threshold chosen {} | promised {} | kept {} | "
        "interval holds {} | mean precision {:.3f} | mean recall {:.3f}"
    )
    record("promises", {"kept": table(columns, rows)}, arguments)


if __name__ == "__main__":
    main()
