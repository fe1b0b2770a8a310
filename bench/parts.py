"""How often alarms over 20 parts are false, and simultaneous intervals and promises of all parts hold.

    python bench/parts.py [--repeats 60] [--parts 20]

In each audit, all parts come from the same population, so that no part differs from the others: an exactly
calibrated one, or a random one, new for each repeat. Each part is fitted to its own answers, one query per
item. An alarm is false if any part is said to be miscalibrated (where all are calibrated), to differ from the
others, or to be beyond a limit on the ECE that is its true value. Repeat r uses seed r.
"""

from __future__ import annotations

from record import RESAMPLES, options, record, run_all, table

from dataclasses import dataclass
from itertools import product

import numpy as np

import blindcal as bc
from blindcal.estimate.uncertainty import beyond, holm, level_of_each, outlier_pvalues
from blindcal.records import Estimate
from populations import CHOSEN, drawn, simulated_fit

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

    @property
    def calibrated(self) -> bool:
        return self.kind == KINDS[0]


def fits_of(audit: Audit, resamples: int) -> tuple[list[bc.LatentFit], float, float]:
    """The fit of each part, and the true ECE and accuracy of all."""
    population, fits = CHOSEN[-1] if audit.calibrated else drawn(audit.seed), []
    for part in range(audit.parts):
        rng = np.random.default_rng([audit.seed, audit.n, part, 20])
        labels, p = population.sample(audit.n, rng)
        fits.append(simulated_fit(labels, p, seed=1000 * audit.seed + part, resamples=resamples))
    return fits, population.ece(), population.others()["accuracy"]


def audited(audit: Audit) -> list[float]:
    """Whether each alarm is raised and all intervals hold, how often one interval does, and the width."""
    fits, ece, accuracy = fits_of(audit, RESAMPLES)
    each = level_of_each(LEVEL, audit.parts)

    def joint(fit: bc.LatentFit, name: str, near: float, far: float) -> Estimate:
        return beyond(getattr(fit.at(level=near), name), getattr(fit.at(level=far), name), least=0.0)

    eces = [joint(fit, "ece", LEVEL, each) for fit in fits]
    one_sided = [joint(fit, "ece", 2 * LEVEL - 1, 1 - 2 * ALPHA / audit.parts) for fit in fits]
    calibrated = [p for p in holm([fit.calibrated_pvalue for fit in fits]) if p is not None]
    differing = outlier_pvalues(*map(list, zip(*(fit.half_gaps for fit in fits), strict=True)))
    return [
        min(calibrated) < ALPHA if audit.calibrated else np.nan,
        min(differing) < ALPHA,
        any(estimate.low is not None and estimate.low > ece for estimate in one_sided),
        all(ece in estimate for estimate in eces),
        all(accuracy in joint(fit, "accuracy", LEVEL, each) for fit in fits),
        float(np.mean([ece in fit.ece for fit in fits])),
        float(np.mean([2 * estimate.half_width for estimate in eces])),
    ]


def promised(audit: Audit) -> list[int]:
    """Parts with a promised threshold, those whose promise is broken, and the same if each stands alone."""
    f, up = drawn(audit.seed).many()
    fits, _, _ = fits_of(audit, REFITS)
    wanted = min(0.95, float(up[f >= 0.5].mean()) + 0.05)
    made = broken = alone = 0
    for fit, together in product(fits, (True, False)):
        confidence = level_of_each(LEVEL, audit.parts) if together else LEVEL
        try:
            chosen = fit.choose_threshold(precision=wanted, confidence=confidence)
        except bc.NotIdentifiedError:
            continue
        accepted = f >= chosen.point.threshold
        short = bool(accepted.any() and up[accepted].mean() < wanted)
        made, broken, alone = made + together, broken + (short and together), alone + (short and not together)
    return [made, broken, alone]


def main() -> None:
    """Run the study, and record its tables."""
    arguments = options(__doc__, repeats=60, parts=20)
    rows = []
    for kind, n in product(KINDS, SIZES):
        audits = [Audit(kind, n, arguments.parts, seed) for seed in range(arguments.repeats)]
        means = np.mean(run_all(audited, audits, arguments), axis=0)
        rows.append([kind, n, *(None if np.isnan(mean) else float(mean) for mean in means)])
    columns = (
        "all parts are {} | items per part {:,} | any called miscalibrated {:.1%} | "
        "any said to differ {:.1%} | any said to be beyond the limit {:.1%} | "
        "all ECE intervals hold {:.1%} | all accuracy intervals hold {:.1%} | "
        "an ECE interval by itself {:.1%} | mean width {:.3f}"
    )
    audits = [Audit(KINDS[1], PROMISED, arguments.parts, seed) for seed in range(arguments.repeats // 3)]
    made, broken, alone = np.array(run_all(promised, audits, arguments)).reshape(-1, 3).T
    counts = [made.size, int(made.sum()), int((broken > 0).sum()), int((alone > 0).sum())]
    heads = (
        "audits",
        "promises, simultaneous",
        "audits with a broken promise",
        "audits with one if each stands alone",
    )
    tables = {"alarms": table(columns, rows), "promises": table(dict.fromkeys(heads, "{:,}"), [counts])}
    record("parts", tables, arguments)


if __name__ == "__main__":
    main()
