"""Coverage of each interval in the report.

    python bench/intervals.py [--repeats 100]

A set of recorded or published probabilities serves as the population. Repeat r draws 3,270 items from it with
seed r, asks each once, and checks whether each 95% interval of the report contains the population's value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal as bc
from audits import simulated_fit
from blindcal.estimate.findings import Findings
from blindcal.records import Estimate, FloatArray, IntArray
from blindcal.reproduce import sources
from record import Cell, parser, record, table

SETS = {
    "Qwen2.5-Coder-1.5B, BoolQ": "logits/qwen__boolq__logits.csv.gz",
    "gpt-4o-mini, MMLU": "scores/gpt-4o-mini__mmlu_test_direct.csv.gz",
}
ITEMS = 3270
THRESHOLDS = (0.5, 0.7, 0.9)


@lru_cache
def population(path: Path) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities."""
    source = sources.read(path)
    return source.labels, np.clip(source.probabilities("pair"), 1e-9, 1 - 1e-9)


def looked_at(found: Findings, labels: IntArray, p: FloatArray) -> Iterator[tuple[str, Estimate, float]]:
    """The name, the estimate and the population value of each quantity with an interval."""
    truth = bc.binned_ece(labels, p)
    yield "ECE", found.ece, float(truth.ece)
    yield "accuracy", found.accuracy, float(((p >= 0.5) == (labels == 1)).mean())
    for one, gap in zip(found.bins, truth.gaps, strict=True):
        yield f"gap of the bin from {one.low:.1f}", one.gap, float(gap)
    for k, row in enumerate(found.operating):
        if not np.isclose(row.threshold, THRESHOLDS).any():
            continue
        yes = p >= row.threshold
        at = f"at {row.threshold:g}"
        yield f"precision {at}", row.precision, float(labels[yes].mean())
        yield f"recall {at}", row.recall, float(yes[labels == 1].mean())
        for curve in found.costs[1:]:
            wrong, missed = (yes & (labels == 0)).mean(), (~yes & (labels == 1)).mean()
            true = float(curve.cost_fp * wrong + curve.cost_fn * missed)
            yield f"cost {at}, errors {curve.cost_fp:g} and {curve.cost_fn:g}", curve.expected[k], true


def repeat(job: tuple[Path, int]) -> dict[str, tuple[bool, float]]:
    """Whether each interval contains the truth, and its width."""
    path, seed = job
    labels, p = population(path)
    drawn = np.random.default_rng(seed).integers(0, labels.size, ITEMS)
    found = simulated_fit(labels[drawn], p[drawn], seed=seed).findings()
    return {
        name: (true in estimate, 2 * estimate.half_width)
        for name, estimate, true in looked_at(found, labels, p)
    }


def main() -> None:
    """Run the study, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=100)
    arguments = options.parse_args()
    jobs = [(arguments.data / path, seed) for path, seed in product(SETS.values(), range(arguments.repeats))]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = list(tqdm(pool.map(repeat, jobs), total=len(jobs), disable=None))
    columns = {"": "{}"}
    for name in SETS:
        columns |= {f"{name}: held": "{:.1%}", f"{name}: mean width": "{:.4f}"}
    halves = (found[: arguments.repeats], found[arguments.repeats :])
    rows: list[list[Cell]] = [
        [what, *(float(np.mean([one[what][k] for one in half])) for half, k in product(halves, (0, 1)))]
        for what in found[0]
    ]
    tables = {"held": table(columns, rows)}
    record("intervals", tables, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
