"""The calibration error of items that a recalibration map has not seen, before and after the map.

    python bench/recalibrated.py

Each repeat audits some items of a recorded model by one method, and maps the true probabilities of all its
other items, up to 10,000. In brackets is the noise of the ECE after the map: that of labels drawn from the
mapped probabilities themselves, plus the mean distance of the fit's draws of the map from the map.
"""

from __future__ import annotations

from record import Cell, parser, record, run_all, table

from itertools import product
from pathlib import Path

import numpy as np

from blindcal.estimate.grid import MID_P
from blindcal.estimate.measures import isotonic
from blindcal.estimate.truth import binned_ece
from blindcal.items.score_files import read_scores
from blindcal.results.recalibration import Recalibration
from populations import simulated_fit
from study import TO_CHOOSE, TO_REPORT

SIZES = (500, 2000)
METHODS = ("logprobs", "latent")
HELD_OUT = 10_000
BINS = 10


def errors(job: tuple[Path, str, int, int]) -> list[float]:
    """The ECE of held-out items before and after the map, and the noise of the latter."""
    path, method, n, seed = job
    scores, rng = read_scores(path), np.random.default_rng([seed, n])
    order = rng.permutation(scores.labels.size)
    n = min(n, order.size // 2)
    audited, rest = order[:n], order[n : n + HELD_OUT]
    fit = simulated_fit(scores.labels[audited], scores.p[audited], method=method, seed=seed, resamples=40)
    recalibrated = Recalibration.of_fit(fit, "")
    labels, p = scores.labels[rest], scores.p[rest]
    mapped = recalibrated(p)
    drawn = [float(binned_ece(rng.random(p.size) < mapped, mapped, BINS).ece) for _ in range(20)]
    draws = [np.interp(p, MID_P, each) for each in isotonic(fit.smooth.draws)]
    return [
        float(binned_ece(labels, p, BINS).ece),
        float(binned_ece(labels, mapped, BINS).ece),
        float(np.mean(drawn)) + float(np.abs(draws - mapped).mean()),
    ]


def main() -> None:
    """Measure every file with every method and size."""
    options = parser(__doc__, repeats=4).parse_args()
    paths = [options.data / "scores" / f"{name}.csv.gz" for name in sorted((*TO_CHOOSE, *TO_REPORT))]
    places = list(product(paths, METHODS, SIZES))
    jobs = [(*place, seed) for place in places for seed in range(options.repeats)]
    found = np.array(run_all(errors, jobs, options)).reshape(len(paths), -1, options.repeats, 3).mean(axis=2)
    rows: list[list[Cell]] = []
    for path, each in zip(paths, found, strict=True):
        after: list[Cell] = [(float(row[1]), float(row[2])) for row in each]
        rows.append([path.name.removesuffix(".csv.gz").replace("__", ", "), float(each[0, 0]), *after])
    titles = [f"{method}, n={n:,}" for method, n in product(METHODS, SIZES)]
    columns = {"file": "{}", "before": "{:.4f}"} | dict.fromkeys(titles, "{:.4f} ({:.4f})")
    record("recalibrated", {"ece": table(columns, rows)}, options, seeds="seeds from 0")


if __name__ == "__main__":
    main()
