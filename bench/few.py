"""Coverage of every interval with few items, few groups or a run that was stopped early.

    python bench/few.py [--repeats 200]

Repeat r draws a population with seed r, items from it, asks each item once with `latent`, and checks whether
each 95% interval contains the population's value. The populations are new random ones, such ones in groups of
30 items that are alike, and real models' score files in turn. A stopped run has asked a random part of the
first round of a run with 3,000 items.
"""

from __future__ import annotations

from record import Table, options, record, run_all, score_files, table

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import blindcal as bc
from blindcal.errors import NotIdentifiedError
from blindcal.estimate.latent.estimator import fit_problem
from blindcal.estimate.latent.operating import QUANTITIES, Rates
from blindcal.estimate.problem import Problem
from blindcal.estimate.truth import bin_index
from blindcal.methods import make_design
from blindcal.records import AnswerTable, Estimate, FloatArray
from blindcal.simulation.simulate import ask, log_odds, respond
from populations import Population, Recorded, drawn, grouped, true_values

SCALARS = (
    *("accuracy", "overconfidence", "leaning", "auroc", "brier", "log_loss", "mean_confidence"),
    *("tce", "ece"),
)
THRESHOLDS = (0.1, 0.25, 0.5, 0.75, 0.9)
CURVE_AT = (0.1, 0.25, 0.5, 0.75, 0.9)  # quantiles of the confidence at which the curve's band is checked
GROUP = 30
WHOLE = 3000
SIZES = {"drawn": (10, 20, 50), "scores": (50,), "stopped": (21, 100, 420), "grouped": (1, 2, 3, 5)}
MANY = 50_000  # draws behind the true values
REFITS = 200
NAMES = {
    "drawn": "drawn at random",
    "scores": "score files",
    "grouped": "drawn, in groups",
    "stopped": "drawn, stopped",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The input of one repeat; ``size`` is the number of items, of groups or of answers."""

    kind: str
    size: int
    seed: int
    files: tuple[Path, ...]


def population_of(place: Place) -> Population | Recorded:
    """The population of single items."""
    if place.kind == "scores":
        return Recorded(place.files[place.seed % len(place.files)])
    return grouped(place.seed).items if place.kind == "grouped" else drawn(place.seed)


def audited(place: Place) -> tuple[bc.LatentFit, FloatArray]:
    """The fit of one audit, and the probabilities of its items."""
    rng, groups = np.random.default_rng([place.seed, place.size]), None
    if place.kind == "grouped":
        labels, f, groups = grouped(place.seed).sample(place.size, GROUP, rng)
    else:
        population = population_of(place)
        labels, f = population.sample(WHOLE if place.kind == "stopped" else place.size, rng)
    design = make_design("latent", labels, seed=place.seed)
    if place.kind == "stopped":
        asked = design.next_round(AnswerTable.empty())
        assert asked is not None
        first = np.isin(np.arange(len(asked)), rng.permutation(len(asked))[: place.size])
        some = asked.rows(first)
        answers = AnswerTable.empty().with_round(some, respond(log_odds(f), some, rng))
    else:
        answers = ask(design, f, seed=place.seed)
    return fit_problem(Problem.of_answers(labels, answers, groups), resamples=REFITS), f[
        np.unique(answers.items)
    ]


def looked_at(place: Place, fit: bc.LatentFit, asked: FloatArray) -> Iterator[tuple[str, Estimate, float]]:
    """The kind, the estimate and the population's value of every quantity with an interval."""
    population = population_of(place)
    f, up = population.many(MANY) if isinstance(population, Population) else population.many()
    gaps = np.bincount(bin_index(f, 5), f - up, minlength=5) / f.size
    true = {"ece": float(np.abs(gaps).sum()), **true_values(f, up)}
    if isinstance(population, Population):
        true["tce"] = float(np.abs(f - up).mean())
    for name in SCALARS:
        with suppress(NotIdentifiedError):  # the items have one label
            yield name, getattr(fit, name), true.get(name, np.nan)
    for one, gap in zip(fit.bins, gaps, strict=True):
        yield "gaps", one.gap, float(gap)
    if np.unique(fit.patterns.labels).size < 2:
        return
    if isinstance(population, Population):
        at = np.quantile(asked, CURVE_AT)
        band = fit.curve_at(at)
        assert band.low is not None
        assert band.high is not None
        for low, high, value in zip(band.low, band.high, population.curve(at), strict=True):
            yield "curve", Estimate(None, low, high), float(value)
    right, wrong = (np.array([chance[f >= t].sum() / f.size for t in THRESHOLDS]) for chance in (up, 1 - up))
    points = fit.operating_at(THRESHOLDS)
    for name in QUANTITIES:
        for point, value in zip(points, getattr(Rates(right, wrong, up.mean()), name), strict=True):
            yield "decisions", getattr(point, name), float(value)


def observe(place: Place) -> dict[str, float]:
    """The share of the intervals of each kind that hold, and whether a direction is claimed or wrong."""
    fit, asked = audited(place)
    found: dict[str, list[bool]] = {}
    for kind, estimate, true in looked_at(place, fit, asked):
        if estimate.has_interval and np.isfinite(true):
            found.setdefault(kind, []).append(true in estimate)
            if kind == "overconfidence":
                found["claimed"] = [0.0 not in estimate]
                found["wrong"] = [0.0 not in estimate and float(estimate) * true < 0]
    return {kind: float(np.mean(held)) for kind, held in found.items()}


def held_table(found: dict[tuple[str, int], list[dict[str, float]]]) -> Table:
    """A row per cell: how often each interval holds."""
    kinds = {
        **{"ECE": "ece", "TCE": "tce", "accuracy": "accuracy", "overconfidence": "overconfidence"},
        **{"leaning": "leaning", "AUROC": "auroc", "Brier score": "brier", "log loss": "log_loss"},
        **{"mean confidence": "mean_confidence", "bins": "gaps", "curve": "curve", "decisions": "decisions"},
        **{"direction claimed": "claimed", "wrong direction": "wrong"},
    }
    rows = []
    for (kind, size), outcomes in found.items():
        many = {"grouped": f"{size} of {GROUP}", "stopped": f"{size} of {WHOLE:,}"}.get(kind, str(size))
        shares = [[one[name] for one in outcomes if name in one] for name in kinds.values()]
        rows.append([NAMES[kind], many, *(float(np.mean(one)) if one else None for one in shares)])
    return table({"population": "{}", "items": "{}", **dict.fromkeys(kinds, "{:.1%}")}, rows)


def main() -> None:
    """Run the study, and record its table."""
    arguments = options(__doc__, repeats=200)
    files = tuple(score_files(arguments.data))
    cells = [(kind, size) for kind, sizes in SIZES.items() for size in sizes]
    places = [Place(*cell, seed, files) for cell in cells for seed in range(arguments.repeats)]
    each = run_all(observe, places, arguments, chunk=4)
    many = arguments.repeats
    by_cell = {cell: each[k * many : (k + 1) * many] for k, cell in enumerate(cells)}
    record("few", {"held": held_table(by_cell)}, arguments)


if __name__ == "__main__":
    main()
