"""How often is a promised precision kept on everything not audited? Real models, simulated endpoints.

    python bench/promises.py [--data ../shared] [--repeats 40] [--only gpt]

Repeat r audits a random 1,500 items (seed r) with one query an item and asks for a precision; the rest of the
set, tens of thousands of items, tells what the chosen threshold really does. bench/deployed.py does the same
over HTTP, on parts of the sets.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal
from blindcal import design
from blindcal.errors import NotIdentifiedError
from blindcal.records import FloatArray, IntArray
from blindcal.reproduce import sources
from blindcal.simulation.simulate import ask

AUDITED = 1500
CONFIDENCES = (0.95, None)
#: A file under the data's folder, and the precision that is asked for.
CELLS = {
    "scores/Llama-3.1-70B__mmlu_test.csv.gz": 0.9,
    "scores/Starling-LM-7B-alpha__halueval_dialogue.csv.gz": 0.9,
    "logits/qwen__mmlu__logits.csv.gz": 0.4,
    "scores/gpt-4o-mini__mmlu_test_direct.csv.gz": 0.85,
}


@dataclass(frozen=True)
class Promise:
    """A threshold with what it was said to do and what it does beyond the audit."""

    threshold: float
    low: float
    high: float
    precision: float
    recall: float


def promises(labels: IntArray, p: FloatArray, wanted: float, seed: int) -> list[Promise | None]:
    """What one audit promises with each confidence; ``None`` where no threshold could be promised."""
    order = np.random.default_rng([seed, 6]).permutation(labels.size)
    ours, theirs = order[:AUDITED], order[AUDITED:]
    asked = ask(design.make("latent", labels[ours], seed=seed), labels[ours], p[ours])
    fit = blindcal.latent(
        labels[ours][asked.items], asked.shifts, asked.answers, 0.0, asked.items, resamples=300, seed=seed
    )
    return [deployed(fit, wanted, confidence, labels[theirs], p[theirs]) for confidence in CONFIDENCES]


def deployed(
    fit: blindcal.LatentFit, wanted: float, confidence: float | None, labels: IntArray, p: FloatArray
) -> Promise | None:
    """The promise, and what became of it on other items."""
    try:
        point = fit.operating_point(precision=wanted, confidence=confidence)
    except NotIdentifiedError:
        return None
    right = labels[p >= point.threshold]
    low, high = point.precision_interval
    found = float(right.sum() / labels.sum())
    return Promise(point.threshold, low, high, float(right.mean()) if right.size else 1.0, found)


def main() -> None:
    """Print a row for each set and kind of promise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| model and set | precision asked for | promised | kept | precision | recall | interval holds |")
    print("|---|---|---|---|---|---|---|")
    for name, wanted in CELLS.items():
        if options.only not in name:
            continue
        source = sources.read(options.data / name)
        labels, p = source.labels, source.probabilities("pair")
        seeds = tqdm(range(options.repeats), desc=source.name, leave=False)
        tried = [promises(labels, p, wanted, seed) for seed in seeds]
        for confidence, mine in zip(CONFIDENCES, zip(*tried, strict=True), strict=True):
            made = [one for one in mine if one is not None]
            wish = "the estimate" if confidence is None else f"{confidence:.0%} sure"
            print(
                f"| {source.name} | {wanted:g}, {wish} | {len(made)} of {len(mine)} | "
                f"{sum(one.precision >= wanted for one in made)} | "
                f"{np.mean([one.precision for one in made]):.3f} | "
                f"{np.mean([one.recall for one in made]):.3f} | "
                f"{sum(one.low <= one.precision <= one.high for one in made)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
