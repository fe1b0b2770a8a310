"""How often each interval on the page holds what it speaks of: the table in docs/report.md.

    python bench/intervals.py [--data ../shared] [--repeats 40]

A set of recorded or published probabilities is taken for the population. Repeat r draws as many items from it
as it has, at most 3,270, with seed r; asks each once; and counts for each figure of the page whether its 95%
interval holds the population's own value. 300 refits.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from blindcal import design
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, IntArray
from blindcal.reproduce import sources
from blindcal.results.figures import Estimation, Figures, figures
from blindcal.results.result import Estimate
from blindcal.simulation import simulate

SETS = {
    "Qwen2.5-Coder-1.5B, BoolQ": "logits/qwen__boolq__logits.csv.gz",
    "gpt-4o-mini, MMLU": "scores/gpt-4o-mini__mmlu_test_direct.csv.gz",
}
BINS = 5
THRESHOLDS = (0.5, 0.7, 0.9)


def audited(labels: IntArray, p: FloatArray, seed: int) -> Figures:
    """What one query an item finds of these items."""
    asking = design.make("latent", labels, seed=seed)
    how = Estimation("latent", asking, BINS, 0.95, resamples=300)
    return figures(how, labels, None, simulate.ask(asking, labels, p, seed=seed))


def spoken_of(found: Figures, labels: IntArray, p: FloatArray) -> Iterator[tuple[str, Estimate, float]]:
    """Every figure with an interval, its name, and what the population has."""
    truth = binned_ece(labels, p, BINS)
    yield "ECE", found.ece, truth.ece
    yield "accuracy", found.accuracy, float(((p >= 0.5) == (labels == 1)).mean())
    for one, gap in zip(found.bins, truth.gaps, strict=True):
        yield f"gap of the bin from {one.low:.1f}", one.gap, float(gap)
    for row in found.operating:
        if min(abs(row.threshold - t) for t in THRESHOLDS) < 1e-6:
            yes = p >= row.threshold
            yield f"precision at {row.threshold:g}", row.precision, float(labels[yes].mean())
            yield f"recall at {row.threshold:g}", row.recall, float(yes[labels == 1].mean())
    for curve in found.costs[1:]:
        for row, cost in zip(found.operating, curve.expected, strict=True):
            if min(abs(row.threshold - t) for t in THRESHOLDS) < 1e-6:
                yes = p >= row.threshold
                wrong, missed = (yes & (labels == 0)).mean(), (~yes & (labels == 1)).mean()
                name = f"cost at {row.threshold:g}, errors {curve.cost_fp:g} and {curve.cost_fn:g}"
                yield name, cost, float(curve.cost_fp * wrong + curve.cost_fn * missed)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    columns: dict[str, dict[str, list[bool]]] = {}
    widths: dict[str, dict[str, list[float]]] = {}
    for name, path in SETS.items():
        source = sources.read(arguments.data / path)
        labels, p = source.labels, np.clip(source.probabilities("pair"), 1e-9, 1 - 1e-9)
        held, width = columns.setdefault(name, defaultdict(list)), widths.setdefault(name, defaultdict(list))
        for seed in range(arguments.repeats):
            drawn = np.random.default_rng(seed).integers(0, labels.size, min(labels.size, 3270))
            for what, estimate, true in spoken_of(audited(labels[drawn], p[drawn], seed), labels, p):
                assert estimate.low is not None
                assert estimate.high is not None
                held[what].append(estimate.low <= true <= estimate.high)
                width[what].append(estimate.high - estimate.low)
    print("| figure |" + "".join(f" {name}: held | mean width |" for name in columns))
    print("|---" * (1 + 2 * len(columns)) + "|")
    for what in next(iter(columns.values())):
        cells = "".join(
            f" {np.mean(columns[name][what]):.1%} | {np.mean(widths[name][what]):.4f} |" for name in columns
        )
        print(f"| {what} |{cells}")


if __name__ == "__main__":
    main()
