"""More than two answers: error of the top-label ECE, coverage of its interval, and false alarms of the test.

    python bench/choices.py [--repeats 20]
    python bench/choices.py --coverage [--audits 200] [--calibrated 40]

The errors are those on the five choice files with all their items and 10 bins; ``queries`` includes the plain
answer. For the coverage each audit draws n items with replacement from a file, which is then the population,
and asks the plain answer and one query about it. For the false alarms the labels are drawn from the model's
own probabilities, so that it is perfectly calibrated. Repeat r uses seed r.
"""

from __future__ import annotations

from record import RESAMPLES, Cell, Table, parser, record, run_all, table

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np

from blindcal.estimate.latent.estimator import fit_problem
from blindcal.estimate.problem import Problem
from blindcal.estimate.published import findings_at_face_value
from blindcal.estimate.truth import given_confidence
from blindcal.items.score_files import ChoiceScores, read_choices
from blindcal.methods import make_design
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import ask_choices, simulate

BINS = 10
SIZES = (1000, 5000)
#: Methods, how their answers are read, and queries per item, plain answer included.
ROWS = (
    ("latent", "own", 2.0),
    ("latent", "own", 3.0),
    ("sampling", "own", 2.0),
    ("sampling", "own", 3.0),
    ("sampling", "own", 9.0),
    ("sampling", "latent", 3.0),
)
QUANTITIES = {
    "ECE": "ece",
    "accuracy": "accuracy",
    "overconfidence": "overconfidence",
    "Brier score": "brier",
    "AUROC": "auroc",
}


@lru_cache
def load(path: Path) -> ChoiceScores:
    """A choice file."""
    return read_choices(path)


def error(job: tuple[tuple[str, str, float], Path, int]) -> float:
    """The error of one estimate from all items."""
    (method, estimator, queries), path, seed = job
    known = load(path)
    return simulate(
        method,
        known.labels,
        known.logits,
        estimator=estimator,
        queries=queries,
        bins=BINS,
        repeats=1,
        seed=seed,
    ).mae


def truths(labels: IntArray, logits: FloatArray) -> Mapping[str, float]:
    """What is true of these items, as the population."""
    given, f = given_confidence(logits)
    right = (given == labels).astype(np.int64)
    known = findings_at_face_value(right, f, BINS)
    return {
        "ECE": float(known.ece),
        "accuracy": float(right.mean()),
        "overconfidence": float(known.leaning),
        "Brier score": float(known.brier),
        "AUROC": float(known.auroc),
    }


@lru_cache
def truths_of(path: Path) -> Mapping[str, float]:
    """What is true of a file."""
    return truths(load(path).labels, load(path).logits)


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit of items drawn from a file, with labels from the model or not."""

    path: Path
    n: int
    seed: int
    calibrated: bool


def intervals(audit: Audit) -> list[float]:
    """Whether each interval holds, and the width of the first; or whether 0 is in it, and the p-value."""
    known, rng = load(audit.path), np.random.default_rng([audit.seed, 7])
    drawn = rng.integers(known.labels.size, size=audit.n)
    labels, logits, choices = known.labels[drawn], known.logits[drawn], known.choices[drawn]
    if audit.calibrated:
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    design = make_design("latent", labels, queries=2.0, seed=audit.seed, choices=choices)
    answered = ask_choices(design, logits, seed=audit.seed)
    fit = fit_problem(Problem.of_answers(labels, answered, choices=choices), bins=BINS, resamples=RESAMPLES)
    if audit.calibrated:
        return [float(0.0 in fit.ece), float(not fit.calibrated_pvalue >= 0.05)]
    truth = truths_of(audit.path)
    held = [float(truth[name] in getattr(fit, field)) for name, field in QUANTITIES.items()]
    return [*held, 2 * fit.ece.half_width]


def coverage(paths: list[Path], audits: Mapping[bool, int], options: Namespace) -> Table:
    """A row per file and number of items: how often each interval holds."""
    rows: list[list[Cell]] = []
    jobs = {
        (path, n): [Audit(path, n, seed, own) for own, many in audits.items() for seed in range(many)]
        for path, n in product(paths, SIZES)
    }
    each = iter(run_all(intervals, [job for mine in jobs.values() for job in mine], options))
    for (path, n), mine in jobs.items():
        found = [(job.calibrated, next(each)) for job in mine]
        parts = (np.mean([one for own, one in found if own is kind], axis=0).tolist() for kind in audits)
        rows.append([_name(path), n, *next(parts), *next(parts)])
    columns = {"file": "{}", "n": "{:,}"} | dict.fromkeys(QUANTITIES, "{:.1%}")
    columns |= {"mean width of ECE": "{:.3f}", "ECE of a calibrated model holds 0": "{:.1%}"}
    return table(columns | {"test at 5% rejects it": "{:.1%}"}, rows)


def _name(path: Path) -> str:
    return path.name.removesuffix(".csv.gz").replace("__", ", ")


def main() -> None:
    """Run one of the studies, and record its table."""
    options = parser(__doc__, repeats=20, audits=200, calibrated=40)
    options.add_argument("--coverage", action="store_true", help="measure intervals instead of errors")
    arguments = options.parse_args()
    paths = sorted((arguments.data / "choices").glob("*.csv.gz"))
    if arguments.coverage:
        audits = {False: arguments.audits, True: arguments.calibrated}
        repeats = {"for each file and size": arguments.audits, "calibrated": arguments.calibrated}
        made = coverage(paths, audits, arguments)
        record("choices-coverage", {"coverage": made}, arguments, repeats=repeats)
        return
    jobs = list(product(ROWS, paths, range(arguments.repeats)))
    errors = np.array(run_all(error, jobs, arguments)).reshape(len(ROWS), len(paths), -1).mean(axis=2)
    rows = [
        [name if way == "own" else f"{name}, read by latent", queries, *each.tolist(), float(each.mean())]
        for (name, way, queries), each in zip(ROWS, errors, strict=True)
    ]
    columns = {"method": "{}", "queries": "{:g}", **dict.fromkeys([*map(_name, paths), "mean"], "{:.4f}")}
    record("choices", {"errors": table(columns, rows)}, arguments)


if __name__ == "__main__":
    main()
