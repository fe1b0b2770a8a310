"""Coverage of the intervals of differences between two models, paired and unpaired.

    python bench/compared.py [--repeats 80] [--items 500]

Two models answer questions of one population with known ECE, accuracy, AUROC, Brier score and log loss. Their
errors are correlated, because the same questions are hard for both; the log-odds of the second are twice as
large. Repeat r draws the items (seed r), asks each model one query per item, and compares the models on the
same items and on different items.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.special import expit
from tqdm import tqdm

import blindcal as bc
from audits import simulated_fit
from blindcal.estimate.latent.paired import Difference, differences
from blindcal.records import FloatArray, IntArray
from record import Cell, parser, record, table


def draw(n: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray, FloatArray]:
    """Labels, and the probabilities of two models."""
    labels = (rng.random(n) < 0.4).astype(np.int64)
    shared = 1.3 * (2 * labels - 1) + 1.5 * rng.standard_normal(n)
    one = shared + 0.7 * rng.standard_normal(n)
    two = shared + 0.7 * rng.standard_normal(n)
    return labels, np.asarray(expit(one)), np.asarray(expit(0.3 + 2.0 * two))


def truth() -> dict[str, float]:
    """The population's differences, from many draws."""
    labels, *models = draw(4_000_000, np.random.default_rng(1))
    one, two = (known(labels, f) for f in models)
    return {name: two[name] - one[name] for name in one}


def known(labels: IntArray, f: FloatArray) -> dict[str, float]:
    """The true quantities, from the hidden probabilities."""
    rank = np.empty(f.size)
    rank[np.argsort(f)] = np.arange(1, f.size + 1)
    positive = labels == 1
    n1 = int(positive.sum())
    return {
        "ece": float(bc.binned_ece(labels, f).ece),
        "accuracy": float(((f >= 0.5) == positive).mean()),
        "auroc": float((rank[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * (f.size - n1))),
        "brier": float(((f - labels) ** 2).mean()),
        "log_loss": float(-np.log(np.where(positive, f, 1 - f)).mean()),
    }


@dataclass(frozen=True, slots=True)
class Repeat:
    """The differences on the same items, and on two different sets of items."""

    paired: tuple[Difference, ...]
    apart: tuple[Difference, ...]


def repeat(seed: int, n: int) -> Repeat:
    """Draw, ask, fit and compare once."""
    rng = np.random.default_rng([seed, n])
    labels, one, two = draw(n, rng)
    others, _, elsewhere = draw(n, rng)
    first, second = simulated_fit(labels, one, seed=seed), simulated_fit(labels, two, seed=seed + 10_000)
    apart = simulated_fit(others, elsewhere, seed=seed + 20_000)
    same = np.arange(n)
    return Repeat(differences(first, second, (same, same), seed=seed), differences(first, apart))


def rows(found: Sequence[Repeat]) -> Iterator[list[Cell]]:
    """A row per quantity."""
    true = truth()
    for k, name in enumerate(one.quantity for one in found[0].paired):
        cells: list[float] = []
        for mine in ([one.paired[k] for one in found], [one.apart[k] for one in found]):
            covered = np.mean([true[name] in one.difference for one in mine])
            cells += [float(covered), float(np.mean([2 * one.difference.half_width for one in mine]))]
        together = float(np.mean([one.paired[k].correlation for one in found]))
        yield [_WORDS[name], true[name], *cells[:2], together, *cells[2:]]


_WORDS = {
    "ece": "ECE",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "brier": "Brier score",
    "log_loss": "log loss",
}


def main() -> None:
    """Run the study, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=80)
    options.add_argument("--items", type=int, default=500)
    arguments = options.parse_args()
    seeds = range(arguments.repeats)
    with ProcessPoolExecutor(arguments.processes) as pool:
        runs = pool.map(partial(repeat, n=arguments.items), seeds)
        found = list(tqdm(runs, total=len(seeds), disable=None))
    columns = {
        "": "{}",
        "difference": "{:+.4f}",
        "paired: covered": "{:.1%}",
        "paired: mean width": "{:.4f}",
        "correlation": "{:.2f}",
        "apart: covered": "{:.1%}",
        "apart: mean width": "{:.4f}",
    }
    tables = {"differences": table(columns, list(rows(found)))}
    record("compared", tables, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
