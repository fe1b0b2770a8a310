"""Do the intervals of a difference between two models hold it 95 times in 100, paired and not?

    python bench/compared.py [--repeats 200] [--sizes 500 2000] [--only different] [--raw runs/compared.jsonl]

Two models answer questions of one population with known ECE, accuracy, AUROC, Brier score and log loss; their
errors go together, because the same questions are hard for both. Repeat r draws n items (seed r), asks each
model one query an item, and compares: on the same items, and on items of their own. Interrupted, the same
command goes on: the raw file keeps repeats.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import msgspec
import numpy as np
from scipy.special import expit
from tqdm import tqdm

import blindcal
from blindcal import design
from blindcal.estimate.latent import LatentFit
from blindcal.estimate.paired import Difference, differences
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import ask

RESAMPLES = 300


def draw(n: int, rng: np.random.Generator, alike: bool) -> tuple[IntArray, FloatArray, FloatArray]:
    """Labels, and the probabilities of two models; ``alike`` ones differ by noise alone."""
    labels = (rng.random(n) < 0.4).astype(np.int64)
    shared = 1.3 * (2 * labels - 1) + 1.5 * rng.standard_normal(n)
    one = shared + 0.7 * rng.standard_normal(n)
    two = shared + 0.7 * rng.standard_normal(n)
    return labels, np.asarray(expit(one)), np.asarray(expit(two if alike else 0.3 + 2.0 * two))


@cache
def truth(alike: bool) -> dict[str, float]:
    """The population's differences, from many draws."""
    labels, one, two = draw(4_000_000, np.random.default_rng(1), alike)
    found = [figures(labels, f) for f in (one, two)]
    return {name: 0.0 if alike else found[1][name] - found[0][name] for name in found[0]}


def figures(labels: IntArray, f: FloatArray) -> dict[str, float]:
    """What the hidden probabilities say."""
    rank = np.empty(f.size)
    rank[np.argsort(f)] = np.arange(1, f.size + 1)
    positive = labels == 1
    n1 = int(positive.sum())
    return {
        "ece": binned_ece(labels, f, 5).ece,
        "accuracy": float(((f >= 0.5) == positive).mean()),
        "auroc": float((rank[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * (f.size - n1))),
        "brier": float(((f - labels) ** 2).mean()),
        "log_loss": float(-np.log(np.where(positive, f, 1 - f)).mean()),
    }


def fitted(labels: IntArray, f: FloatArray, seed: int) -> LatentFit:
    """One query an item."""
    asked = ask(design.make("latent", labels, seed=seed), labels, f)
    return blindcal.latent(
        labels[asked.items], asked.shifts, asked.answers, 0.0, asked.items, resamples=RESAMPLES, seed=seed
    )


@dataclass(frozen=True)
class Repeat:
    """The differences on the same items, and on two sets of items."""

    seed: int
    items: int
    alike: bool
    paired: tuple[Difference, ...]
    apart: tuple[Difference, ...]


def repeat(seed: int, n: int, alike: bool) -> Repeat:
    """Draw, ask, fit, compare."""
    rng = np.random.default_rng([seed, n])
    labels, one, two = draw(n, rng, alike)
    others, _, elsewhere = draw(n, rng, alike)
    first, second = fitted(labels, one, seed), fitted(labels, two, seed + 10_000)
    apart = fitted(others, elsewhere, seed + 20_000)
    same = np.arange(n)
    paired = differences(first, second, (same, same), seed=seed)
    return Repeat(seed, n, alike, paired, differences(first, apart))


def study(n: int, alike: bool, repeats: int, raw: Path, pool: ProcessPoolExecutor) -> list[Repeat]:
    """All repeats of one population and size; those in the raw file are not run again."""
    kept = [msgspec.json.decode(line, type=Repeat) for line in raw.read_bytes().splitlines()]
    done = [one for one in kept if one.items == n and one.alike == alike and one.seed < repeats]
    seeds = sorted(set(range(repeats)) - {one.seed for one in done})
    with raw.open("ab") as file:
        runs = pool.map(partial(repeat, n=n, alike=alike), seeds)
        for one in tqdm(runs, total=len(seeds), leave=False):
            file.write(msgspec.json.encode(one) + b"\n")
            file.flush()
            done.append(one)
    return done


def rows(n: int, alike: bool, found: list[Repeat]) -> Iterator[str]:
    """A line of the table for each quantity."""
    for k, name in enumerate(one.quantity for one in found[0].paired):
        true = truth(alike)[name]
        cells = []
        for mine in ([one.paired[k] for one in found], [one.apart[k] for one in found]):
            covered = np.mean([one.low <= true <= one.high for one in mine])
            cells.append(f"{covered:.1%} | {np.mean([one.high - one.low for one in mine]):.4f}")
        together = np.mean([one.paired[k].correlation for one in found])
        words = "alike" if alike else "different"
        yield f"| {words} | {n:,} | {name} | {true:+.4f} | {cells[0]} | {together:.2f} | {cells[1]} |"


def main() -> None:
    """Print a row for each population, size and quantity."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="*", default=[500, 2000])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--raw", type=Path, default=Path("runs/compared.jsonl"))
    options = parser.parse_args()
    options.raw.parent.mkdir(parents=True, exist_ok=True)
    options.raw.touch()
    print(
        "| models | items | | difference | paired: covered | mean width | correlation "
        "| apart: covered | mean width |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(options.processes) as pool:
        for alike in (False, True):
            if options.only not in ("alike" if alike else "different"):
                continue
            for n in options.sizes:
                found = study(n, alike, options.repeats, options.raw, pool)
                print("\n".join(rows(n, alike, found)), flush=True)


if __name__ == "__main__":
    main()
