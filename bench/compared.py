"""Coverage of the intervals of differences between two models, paired and unpaired.

    python bench/compared.py [--repeats 80] [--items 500]

Two models answer questions of one population with known ECE, accuracy, AUROC, Brier score and log loss. Their
errors are correlated, because the same questions are hard for both; the log-odds of the second are twice as
large. Repeat r draws the items (seed r), asks each model one query per item, and compares the models on the
same items and on different items.
"""

from __future__ import annotations

from record import Cell, options, record, run_all, table

from functools import partial
from typing import TypeAlias

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata

import blindcal as bc
from blindcal.estimate.latent.paired import Difference, differences
from blindcal.records import FloatArray, IntArray
from populations import simulated_fit

NAMES = {
    "ece": "ECE",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "brier": "Brier score",
    "log_loss": "log loss",
}
Differences: TypeAlias = tuple[Difference, ...]


def draw(n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray, FloatArray]:
    """Labels, and the probabilities of two models."""
    labels = (rng.random(n) < 0.4).astype(np.int64)
    shared = 1.3 * (2 * labels - 1) + 1.5 * rng.standard_normal(n)
    first = shared + 0.7 * rng.standard_normal(n)
    second = shared + 0.7 * rng.standard_normal(n)
    return labels, np.asarray(expit(first)), np.asarray(expit(0.3 + 2.0 * second))


def true_values(labels: IntArray, f: FloatArray) -> dict[str, float]:
    """The quantities of many items, from the hidden probabilities."""
    positive = labels == 1
    n1 = int(positive.sum())
    return {
        "ece": float(bc.binned_ece(labels, f).ece),
        "accuracy": float(((f >= 0.5) == positive).mean()),
        "auroc": float((rankdata(f)[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * (f.size - n1))),
        "brier": float(((f - labels) ** 2).mean()),
        "log_loss": float(-np.log(np.where(positive, f, 1 - f)).mean()),
    }


def repeat(seed: int, n: int) -> tuple[Differences, Differences]:
    """The differences on the same items, and on two different sets of items."""
    rng = np.random.default_rng([seed, n])
    labels, one, two = draw(n, rng)
    others, _, elsewhere = draw(n, rng)
    first, second = simulated_fit(labels, one, seed=seed), simulated_fit(labels, two, seed=seed + 10_000)
    apart = simulated_fit(others, elsewhere, seed=seed + 20_000)
    same = np.arange(n)
    return differences(first, second, (same, same), seed=seed), differences(first, apart)


def main() -> None:
    """Run the study, and record its table."""
    arguments = options(__doc__, repeats=80, items=500)
    repeats = run_all(partial(repeat, n=arguments.items), range(arguments.repeats), arguments)
    labels, *models = draw(4_000_000, np.random.default_rng(1))
    one, two = (true_values(labels, f) for f in models)
    rows: list[list[Cell]] = []
    for k, name in enumerate(difference.quantity for difference in repeats[0][0]):
        truth = two[name] - one[name]
        paired, apart = ([each[way][k] for each in repeats] for way in (0, 1))
        held = [float(np.mean([truth in each.difference for each in way])) for way in (paired, apart)]
        width = [float(np.mean([2 * each.difference.half_width for each in way])) for way in (paired, apart)]
        correlation = float(np.mean([each.correlation for each in paired]))
        rows.append([NAMES[name], truth, held[0], width[0], correlation, held[1], width[1]])
    columns = (
        "{} | difference {:+.4f} | paired: covered {:.1%} | paired: mean width {:.4f} | "
        "correlation {:.2f} | apart: covered {:.1%} | apart: mean width {:.4f}"
    )
    record("compared", {"differences": table(columns, rows)}, arguments)


if __name__ == "__main__":
    main()
