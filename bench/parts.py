"""How often alarms over 20 parts are false, and simultaneous intervals and promises of all parts hold.

    python bench/parts.py [--repeats 60] [--parts 20]

In each audit, all parts come from the same population, so that no part differs from the others: an exactly
calibrated one, or a random one, new for each repeat. Each part is fitted to its own answers, one query per
item. An alarm is false if any part is said to be miscalibrated (where all are calibrated), to differ from the
others, or to be beyond a limit on the ECE that is its true value. Repeat r uses seed r.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import audits
import blindcal as bc
from blindcal.estimate.simultaneous import beyond, holm, level_of_each, outlier_pvalues
from blindcal.records import Estimate
from populations import CHOSEN, drawn
from record import Cell, parser, record, table

LEVEL, ALPHA = 0.95, 0.05
SIZES = (100, 300)
KINDS = ("exactly calibrated", "drawn at random")
PROMISED = 300  # items of each part of which thresholds are promised
REFITS = 1200  # for promises at a level of 1 - 0.05 / 20


@dataclass(frozen=True, slots=True)
class Audit:
    """The input of one repeat: a population, and the number and the size of its parts."""

    kind: str
    n: int
    parts: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether an alarm was raised falsely, and intervals held; ``None`` if there is no such alarm."""

    miscalibrated: bool | None
    differs: bool
    beyond_limit: bool
    ece: bool
    accuracy: bool
    single_ece: float
    width: float


def fits_of(audit: Audit, resamples: int) -> tuple[list[bc.LatentFit], float, float]:
    """The fit of each part, and the true ECE and accuracy of all."""
    population = CHOSEN[-1] if audit.kind == KINDS[0] else drawn(audit.seed)
    audits.RESAMPLES = resamples
    fits = []
    for part in range(audit.parts):
        rng = np.random.default_rng([audit.seed, audit.n, part, 20])
        labels, p = population.sample(audit.n, rng)
        fits.append(audits.simulated_fit(labels, p, seed=1000 * audit.seed + part))
    return fits, population.ece(), population.others()["accuracy"]


def audited(audit: Audit) -> Outcome:
    """One audit's alarms and intervals."""
    fits, ece, accuracy = fits_of(audit, 300)
    each = level_of_each(LEVEL, audit.parts)

    def joint(fit: bc.LatentFit, name: str, near: float, far: float) -> Estimate:
        return beyond(getattr(fit.at(level=near), name), getattr(fit.at(level=far), name), least=0.0)

    eces = [joint(fit, "ece", LEVEL, each) for fit in fits]
    one_sided = [joint(fit, "ece", 2 * LEVEL - 1, 1 - 2 * ALPHA / audit.parts) for fit in fits]
    calibrated = holm([fit.calibrated_pvalue for fit in fits])
    differing = outlier_pvalues(*map(list, zip(*(fit.half_gaps for fit in fits), strict=True)))
    return Outcome(
        min(p for p in calibrated if p is not None) < ALPHA if audit.kind == KINDS[0] else None,
        min(differing) < ALPHA,
        any(one.low is not None and one.low > ece for one in one_sided),
        all(ece in one for one in eces),
        all(accuracy in joint(fit, "accuracy", LEVEL, each) for fit in fits),
        float(np.mean([ece in fit.ece for fit in fits])),
        float(np.mean([2 * one.half_width for one in eces])),
    )


def promised(audit: Audit) -> tuple[int, int, int]:
    """Parts with a promised threshold, those whose promise is broken, and the same if each stands alone."""
    population = drawn(audit.seed)
    f, up = population.many()
    fits, _, _ = fits_of(audit, REFITS)
    wanted = min(0.95, float(up[f >= 0.5].mean()) + 0.05)
    made = broken = 0
    alone = 0
    for fit in fits:
        for confidence in (level_of_each(LEVEL, audit.parts), LEVEL):
            try:
                chosen = fit.choose_threshold(precision=wanted, confidence=confidence)
            except bc.NotIdentifiedError:
                continue
            there = f >= chosen.point.threshold
            short = bool(there.any() and up[there].mean() < wanted)
            if confidence == LEVEL:
                alone += short
            else:
                made, broken = made + 1, broken + short
    return made, broken, alone


def share(values: Sequence[bool | None]) -> float | None:
    """The share of those that are true; ``None`` if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def row(kind: str, n: int, found: Sequence[Outcome]) -> list[Cell]:
    """The row of one population and size."""
    return [
        kind,
        n,
        *(
            share([getattr(one, name) for one in found])
            for name in ("miscalibrated", "differs", "beyond_limit")
        ),
        *(share([getattr(one, name) for one in found]) for name in ("ece", "accuracy")),
        float(np.mean([one.single_ece for one in found])),
        float(np.mean([one.width for one in found])),
    ]


def main() -> None:
    """Run the study, and record its tables."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=60, help="audits of each population and size")
    options.add_argument("--parts", type=int, default=20)
    arguments = options.parse_args()
    seeds = range(arguments.repeats)
    places = [(kind, n) for kind in KINDS for n in SIZES]
    jobs = [Audit(kind, n, arguments.parts, seed) for kind, n in places for seed in seeds]
    promises = [Audit(KINDS[1], PROMISED, arguments.parts, seed) for seed in seeds[: arguments.repeats // 3]]
    with ProcessPoolExecutor(arguments.processes) as pool:
        bar = tqdm(total=len(jobs) + len(promises), disable=None)
        found, kept = [], []
        for one in pool.map(audited, jobs):
            found.append(one)
            bar.update()
        for counted in pool.map(promised, promises):
            kept.append(counted)
            bar.update()
    rows = []
    for place, (kind, n) in enumerate(places):
        mine = found[place * arguments.repeats : (place + 1) * arguments.repeats]
        rows.append(row(kind, n, mine))
    columns = {
        "all parts are": "{}",
        "items per part": "{:,}",
        "any called miscalibrated": "{:.1%}",
        "any said to differ": "{:.1%}",
        "any said to be beyond the limit": "{:.1%}",
        "all ECE intervals hold": "{:.1%}",
        "all accuracy intervals hold": "{:.1%}",
        "an ECE interval by itself": "{:.1%}",
        "mean width": "{:.3f}",
    }
    made, broken, alone = np.array(kept).T if kept else np.zeros((3, 1), np.int64)
    promise: list[Cell] = [len(kept), int(made.sum()), int((broken > 0).sum()), int((alone > 0).sum())]
    heads = (
        "audits",
        "promises, simultaneous",
        "audits with a broken promise",
        "audits with one if each stands alone",
    )
    tables = {
        "alarms": table(columns, rows),
        "promises": table(dict.fromkeys(heads, "{:,}"), [promise]),
    }
    record("parts", tables, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
