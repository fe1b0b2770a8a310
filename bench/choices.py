"""More than two answers: error of the top-label ECE, coverage of its interval, and false alarms of the test.

    python bench/choices.py [--repeats 20]
    python bench/choices.py --coverage [--audits 200] [--calibrated 40] [--sizes 1000 5000]

The errors are those on the five choice files with all their items and 10 bins; ``queries`` includes the plain
answer. For the coverage each audit draws n items with replacement from a file, which is then the population,
and asks the plain answer and one query about it. For the false alarms the labels are drawn from the model's
own probabilities, so that it is perfectly calibrated. Repeat r uses seed r.
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

from audits import RESAMPLES
from blindcal.estimate.latent.fitting import fit_problem
from blindcal.estimate.problem import Problem
from blindcal.estimate.published.face_value import findings_at_face_value
from blindcal.estimate.truth import given_confidence
from blindcal.items.score_files import ChoiceScores, read_choices
from blindcal.methods import make_design
from blindcal.records import Estimate, FloatArray, IntArray
from blindcal.simulation.simulate import ask_choices, simulate
from record import Cell, Table, parser, record, table

BINS = 10
CALIBRATED = " (calibrated)"
#: Methods, how their answers are read, and queries per item, plain answer included.
ROWS = (
    ("latent", "own", 2.0),
    ("latent", "own", 3.0),
    ("sampling", "own", 2.0),
    ("sampling", "own", 3.0),
    ("sampling", "own", 9.0),
    ("sampling", "latent", 3.0),
)


@dataclass(frozen=True, slots=True)
class Place:
    """One audit: of all items for the errors, else of ``n`` drawn ones, with labels from the model or not."""

    path: Path
    seed: int
    row: tuple[str, str, float] = ROWS[0]
    n: int | None = None
    calibrated: bool = False


@lru_cache
def load(path: Path) -> ChoiceScores:
    """A choice file."""
    return read_choices(path)


def observe(place: Place) -> tuple[float, ...]:
    """The error of the estimate; or whether each interval holds, the interval's width and the p-value."""
    found = load(place.path)
    if place.n is None:
        method, estimator, queries = place.row
        one = simulate(
            method,
            found.labels,
            found.logits,
            estimator=estimator,
            queries=queries,
            bins=BINS,
            repeats=1,
            seed=place.seed,
        )
        return (one.mae,)
    rng = np.random.default_rng([place.seed, 7])
    drawn = rng.integers(found.labels.size, size=place.n)
    labels, logits = found.labels[drawn], found.logits[drawn]
    truth = truths_of(place.path)
    if place.calibrated:
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    choices = found.choices[drawn]
    design = make_design("latent", labels, queries=2.0, seed=place.seed, choices=choices)
    answered = ask_choices(design, logits, seed=place.seed)
    problem = Problem.of_answers(labels, answered, choices=choices)
    audit = fit_problem(problem, bins=BINS, resamples=RESAMPLES)
    if place.calibrated:
        return float(0.0 in audit.ece), float(audit.calibrated_pvalue < 0.05)
    estimates: Mapping[str, Estimate] = {
        "ECE": audit.ece,
        "accuracy": audit.accuracy,
        "overconfidence": audit.overconfidence,
        "Brier score": audit.brier,
        "AUROC": audit.auroc,
    }
    held = (float(truth[name] in one) for name, one in estimates.items())
    return (*held, 2 * audit.ece.half_width)


def truths(labels: IntArray, logits: FloatArray) -> Mapping[str, float]:
    """What is true of these items, as the population."""
    given, f = given_confidence(logits)
    right = (given == labels).astype(np.int64)
    found = findings_at_face_value(right, f, BINS)
    return {
        "ECE": float(found.ece),
        "accuracy": float(right.mean()),
        "overconfidence": float(found.leaning),
        "Brier score": float(found.brier),
        "AUROC": float(found.auroc),
    }


@lru_cache
def truths_of(path: Path) -> Mapping[str, float]:
    """What is true of a file."""
    return truths(load(path).labels, load(path).logits)


def error_table(found: Mapping[Place, tuple[float, ...]], paths: Sequence[Path]) -> Table:
    """A row per method: the mean error on each file, and over all."""
    rows: list[list[Cell]] = []
    for row in ROWS:
        each = [
            float(np.mean([out[0] for at, out in found.items() if (at.row, at.path) == (row, path)]))
            for path in paths
        ]
        name = row[0] if row[1] == "own" else f"{row[0]}, read by latent"
        rows.append([name, row[2], *each, float(np.mean(each))])
    columns = {"method": "{}", "queries": "{:g}"}
    return table(columns | dict.fromkeys([*map(_name, paths), "mean"], "{:.4f}"), rows)


def coverage_table(found: Mapping[Place, tuple[float, ...]], paths: Sequence[Path]) -> Table:
    """A row per file and number of items: how often each interval holds."""
    rows: list[list[Cell]] = []
    for path in paths:
        for n in sorted({at.n for at in found if at.n is not None}):
            mine = np.array(
                [out for at, out in found.items() if (at.path, at.n, at.calibrated) == (path, n, False)]
            )
            own = np.array(
                [out for at, out in found.items() if (at.path, at.n, at.calibrated) == (path, n, True)]
            )
            rows.append([_name(path), n, *mine.mean(axis=0).tolist(), own[:, 0].mean(), own[:, 1].mean()])
    names = ("ECE", "accuracy", "overconfidence", "Brier score", "AUROC")
    columns = {"file": "{}", "n": "{:,}"} | dict.fromkeys(names, "{:.1%}") | {"mean width of ECE": "{:.3f}"}
    columns |= {"ECE of a calibrated model holds 0": "{:.1%}", "test at 5% rejects it": "{:.1%}"}
    return table(columns, rows)


def _name(path: Path) -> str:
    return path.name.removesuffix(".csv.gz").replace("__", ", ")


def main() -> None:
    """Run one of the studies, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20, help="repeats of each error")
    options.add_argument("--coverage", action="store_true", help="measure intervals instead of errors")
    options.add_argument("--audits", type=int, default=200, help="audits per file and size for the coverage")
    options.add_argument("--calibrated", type=int, default=40, help="audits per file and size of the test")
    options.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000])
    arguments = options.parse_args()
    paths = sorted((arguments.data / "choices").glob("*.csv.gz"))
    if not paths:
        raise SystemExit(f"{arguments.data} holds no choices: give their folder with --data")
    if arguments.coverage:
        places = [
            Place(path, seed, n=n, calibrated=own)
            for own, audits in ((False, arguments.audits), (True, arguments.calibrated))
            for seed in range(audits)
            for n in arguments.sizes
            for path in paths
        ]
    else:
        places = [
            Place(path, seed, row) for seed in range(arguments.repeats) for row in ROWS for path in paths
        ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        outcomes = list(tqdm(pool.map(observe, places, chunksize=1), total=len(places), disable=None))
    found = dict(zip(places, outcomes, strict=True))
    if arguments.coverage:
        repeats = {"for each file and size": arguments.audits, "calibrated": arguments.calibrated}
        tables = {"coverage": coverage_table(found, paths)}
        record("choices-coverage", tables, folder=arguments.results, repeats=repeats)
    else:
        tables = {"errors": error_table(found, paths)}
        record("choices", tables, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
