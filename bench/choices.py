"""More than two answers: error of the top-label ECE, coverage of its interval, and false alarms of the test.

    python bench/choices.py [--repeats 20]
    python bench/choices.py --coverage [--audits 200] [--calibrated 40] [--altered 40]

The errors are those on the five choice files with all their items and 10 bins; ``queries`` includes the plain
answer. For the coverage each audit draws n items with replacement from a file, which is then the population,
and asks the plain answer and one query about it. For the false alarms the labels are drawn from the model's
own probabilities, so that it is perfectly calibrated. Altered sets are made from each file: with two answers
merged, a wrong one dropped, other temperatures, or labels that are as often right at each margin as those of
the file, but depend on the excess. Repeat r uses seed r.
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
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

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
#: Sets made from a file; a number is by how much the log-odds of being right fall per unit of excess.
ALTERED = (
    "merged",
    "dropped",
    "tempered by 0.5",
    "tempered by 2",
    "telling 0",
    "telling 1",
    "telling 3",
    "telling 5",
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
def altered(path: Path, how: str) -> tuple[IntArray, FloatArray]:
    """The labels and logits of a file (``how`` is empty), or of a set made from it."""
    labels, logits, rng = load(path).labels, load(path).logits, np.random.default_rng(1)
    n, k = logits.shape
    kind, _, number = how.rpartition(" ")
    if how == "merged":
        merged = np.logaddexp(logits[:, -2:-1], logits[:, -1:])
        return np.minimum(labels, k - 2), np.hstack([logits[:, :-2], merged])
    if how == "dropped":
        wrong = (labels + rng.integers(1, k, n)) % k
        return labels - (wrong < labels), logits[np.arange(k) != wrong[:, None]].reshape(n, k - 1)
    if kind == "tempered by":
        return labels, logits / float(number)
    return (_relabelled(labels, logits, float(number), rng) if kind else labels), logits


def _relabelled(labels: IntArray, logits: FloatArray, telling: float, rng: np.random.Generator) -> IntArray:
    given, ordered = logits.argmax(axis=1), np.sort(logits, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    excess = logsumexp(ordered[:, :-1], axis=1) - ordered[:, -2]
    right = given == labels
    by_margin, known = np.vander(margin / (1 + margin), 5), telling * (excess - excess.mean())

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        s = by_margin @ weights - known
        return float((np.logaddexp(0, s) - right * s).mean()), by_margin.T @ (expit(s) - right) / s.size

    fitted = minimize(loss, np.zeros(5), jac=True).x
    drawn = rng.random(given.size) < expit(by_margin @ fitted - known)
    others = logits + rng.gumbel(size=logits.shape)
    others[np.arange(given.size), given] = -np.inf
    return np.asarray(np.where(drawn, given, others.argmax(axis=1)), np.int64)


@lru_cache
def truths_of(path: Path, how: str) -> Mapping[str, float]:
    """What is true of a file, or of a set made from it."""
    return truths(*altered(path, how))


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit of items drawn from a set, with labels from the model or not."""

    path: Path
    how: str
    n: int
    seed: int
    calibrated: bool


def intervals(audit: Audit) -> list[float]:
    """Whether each interval holds, and the width of the first; or whether 0 is in it, and the p-value."""
    (every_label, every_logit), rng = altered(audit.path, audit.how), np.random.default_rng([audit.seed, 7])
    drawn = rng.integers(every_label.size, size=audit.n)
    labels, logits = every_label[drawn], every_logit[drawn]
    choices = np.isfinite(logits).sum(axis=1)
    if audit.calibrated:
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    design = make_design("latent", labels, queries=2.0, seed=audit.seed, choices=choices)
    answered = ask_choices(design, logits, seed=audit.seed)
    fit = fit_problem(Problem.of_answers(labels, answered, choices=choices), bins=BINS, resamples=RESAMPLES)
    if audit.calibrated:
        return [float(0.0 in fit.ece), float(not fit.calibrated_pvalue >= 0.05)]
    truth = truths_of(audit.path, audit.how)
    held = [float(truth[name] in getattr(fit, field)) for name, field in QUANTITIES.items()]
    return [*held, 2 * fit.ece.half_width]


def coverage(paths: list[Path], options: Namespace) -> Table:
    """A row per file, or way to alter all files, and number of items: how often each interval holds."""
    sets = [(_name(path), "", [path], options.audits, options.calibrated) for path in paths]
    sets += [(f"all five, {how}", how, paths, options.altered, 0) for how in ALTERED]
    jobs = [
        [
            Audit(path, how, n, seed, own)
            for path in mine
            for own in (False, True)
            for seed in range((many, few)[own])
        ]
        for (_, how, mine, many, few), n in product(sets, SIZES)
    ]
    each = iter(run_all(intervals, [job for mine in jobs for job in mine], options))
    rows: list[list[Cell]] = []
    for ((name, *_), n), mine in zip(product(sets, SIZES), jobs, strict=True):
        found = [(job.calibrated, next(each)) for job in mine]
        held, null = ([one for own, one in found if own is kind] for kind in (False, True))
        rows.append(
            [
                name,
                n,
                *np.mean(held, axis=0).tolist(),
                *(np.mean(null, axis=0).tolist() if null else [None] * 2),
            ]
        )
    columns = {"file": "{}", "n": "{:,}"} | dict.fromkeys(QUANTITIES, "{:.1%}")
    columns |= {"mean width of ECE": "{:.3f}", "ECE of a calibrated model holds 0": "{:.1%}"}
    return table(columns | {"test at 5% rejects it": "{:.1%}"}, rows)


def _name(path: Path) -> str:
    return path.name.removesuffix(".csv.gz").replace("__", ", ")


def main() -> None:
    """Run one of the studies, and record its table."""
    options = parser(__doc__, repeats=20, audits=200, calibrated=40, altered=40)
    options.add_argument("--coverage", action="store_true", help="measure intervals instead of errors")
    arguments = options.parse_args()
    paths = sorted((arguments.data / "choices").glob("*.csv.gz"))
    if arguments.coverage:
        repeats = {"for each file and size": arguments.audits, "calibrated": arguments.calibrated}
        repeats["for each altered file and size"] = arguments.altered
        made = coverage(paths, arguments)
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
