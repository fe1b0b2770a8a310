"""How often 95% intervals contain the truth, and how often the test of perfect calibration rejects.

    python bench/coverage.py [--sizes 300 1000] [--repeats 100]
    python bench/coverage.py --chosen [--sizes 500 3000] [--repeats 100]

Each repeat draws n items from a population with known truth, asks each item once with `latent`, and fits.
Repeat r uses seed r. The method was not developed on these populations: a new random one in every repeat, a
new one with a narrow confidence, and real models' score files, from which n items are drawn. With
``--chosen`` they are six shapes chosen by hand, and three more for the power of the test.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from audits import simulated_fit
from blindcal.records import Estimate
from populations import ALTERNATIVES, CHOSEN, Population, Recorded, drawn, narrow
from record import Cell, Table, parser, record, table

DRAWN = "drawn at random"
NARROW = "narrow confidence"
QUANTITIES = ("accuracy", "auroc", "brier", "mean_confidence")
CURVE_AT = (0.1, 0.25, 0.5, 0.75, 0.9)  # quantiles of the confidence at which the curve's band is checked


@dataclass(frozen=True, slots=True)
class Place:
    """The input of one repeat; ``source`` is a score file or the name of a population."""

    source: Path | str
    n: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One repeat; ``others`` are the shares of other intervals that contain the truth, NaN if unknown."""

    truth: float
    ece: Estimate
    pvalue: float
    others: Mapping[str, float]


def population_of(place: Place) -> Population | Recorded:
    """The population of a repeat; the random ones are different for every seed."""
    if isinstance(place.source, Path):
        return Recorded(place.source)
    makers = {DRAWN: drawn, NARROW: narrow}
    if place.source in makers:
        return makers[place.source](place.seed)
    return next(one for one in (*CHOSEN, *ALTERNATIVES) if one.name == place.source)


@lru_cache
def truth_of(name: str) -> tuple[float, dict[str, float]]:
    """The true ECE and other quantities of a population chosen by hand."""
    population = next(one for one in (*CHOSEN, *ALTERNATIVES) if one.name == name)
    calibrated = name == "exactly calibrated"
    return 0.0 if calibrated else population.ece(), population.others()


def observe(place: Place) -> Outcome:
    """Draw, ask and fit once."""
    population = population_of(place)
    if place.source in (DRAWN, NARROW) or isinstance(population, Recorded):
        truth, others = population.ece(), population.others()
    else:
        truth, others = truth_of(population.name)
    labels, f = population.sample(place.n, np.random.default_rng([place.seed, place.n]))
    fit = simulated_fit(labels, f, seed=place.seed)
    held = {name: float(others[name] in getattr(fit, name)) for name in QUANTITIES}
    held["curve"] = np.nan  # the true curve of a score file is unknown
    if isinstance(population, Population):
        at = np.quantile(f, CURVE_AT)
        band, true = fit.curve_at(at), population.curve(at)
        held["curve"] = float(((np.array(band.low) <= true) & (true <= np.array(band.high))).mean())
    return Outcome(truth, fit.ece, fit.calibrated_pvalue, held)


def study(
    cells: Mapping[str, Sequence[Path | str]], sizes: Sequence[int], repeats: int, processes: int
) -> dict[tuple[str, int], list[Outcome]]:
    """All repeats of each cell at each size; a cell with several files cycles through them."""
    found = {}
    with ProcessPoolExecutor(processes) as pool:
        for n in sizes:
            for name, sources in cells.items():
                places = [Place(sources[seed % len(sources)], n, seed) for seed in range(repeats)]
                outcomes = pool.map(observe, places, chunksize=4)
                found[name, n] = list(tqdm(outcomes, total=repeats, desc=f"{name}, {n}", disable=None))
    return found


def ece_table(found: Mapping[tuple[str, int], Sequence[Outcome]]) -> Table:
    """Coverage of the ECE's interval, and how often the test rejects."""
    rows: list[list[Cell]] = []
    for (name, n), outcomes in found.items():
        ends = [(one.truth, one.ece.low, one.ece.high, float(one.ece), one.pvalue) for one in outcomes]
        truth, low, high, estimate, pvalue = np.array(ends, float).T
        shares = (((low <= truth) & (truth <= high)), low > truth, high < truth)
        means = [float(share.mean()) for share in shares]
        sizes = [float((high - low).mean()), float((estimate - truth).mean())]
        rows.append([name, n, float(truth.mean()), *means, *sizes, float((pvalue < 0.05).mean())])
    columns = {
        "population": "{}",
        "items": "{:,}",
        "mean ECE": "{:.4f}",
        "covered": "{:.1%}",
        "all above": "{:.1%}",
        "all below": "{:.1%}",
        "mean width": "{:.4f}",
        "mean error": "{:+.4f}",
        "p < 0.05": "{:.1%}",
    }
    return table(columns, rows)


def others_table(found: Mapping[tuple[str, int], Sequence[Outcome]]) -> Table:
    """Coverage of the other intervals."""
    rows: list[list[Cell]] = []
    for (name, n), outcomes in found.items():
        shares = np.mean([[one.others[name] for name in (*QUANTITIES, "curve")] for one in outcomes], axis=0)
        rows.append([name, n, *(None if np.isnan(share) else float(share) for share in shares)])
    names = ("accuracy", "AUROC", "Brier score", "mean confidence", "curve")
    return table({"population": "{}", "items": "{:,}", **dict.fromkeys(names, "{:.1%}")}, rows)


def main() -> None:
    """Run the study, and record its tables."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=100)
    options.add_argument("--sizes", type=int, nargs="*")
    options.add_argument("--chosen", action="store_true", help="populations chosen by hand")
    arguments = options.parse_args()
    if arguments.chosen:
        name, sizes = "coverage-chosen", arguments.sizes or [500, 3000]
        cells: dict[str, Sequence[Path | str]] = {one.name: [one.name] for one in (*CHOSEN, *ALTERNATIVES)}
    else:
        name, sizes = "coverage", arguments.sizes or [300, 1000]
        files = sorted((arguments.data / "scores").glob("*.csv.gz"))
        cells = {DRAWN: [DRAWN], NARROW: [NARROW]}
        if files:
            cells[f"{len(files)} score files"] = files
    found = study(cells, sizes, arguments.repeats, arguments.processes)
    tables = {"ece": ece_table(found), "others": others_table(found)}
    record(name, tables, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
