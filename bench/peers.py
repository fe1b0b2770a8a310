"""Other packages on the same files: what they print beside what blindcal prints, and how often it holds.

    python bench/peers.py [--repeats 2000] [--items 3000]

The packages are those of the dependency group `peers`. Verdicts of judges: repeat r draws, with seed r, a
file of items with a verdict each and labels for some, from the true rates of a row. *Apart* is the largest
difference of any repeat between what blindcal and the other package compute; pass rates above 1 count as 1.
*Held* is how often the 95% interval contains the true pass rate, and *width* its mean width.
"""

from __future__ import annotations

from record import options, record, run_all, table

from dataclasses import dataclass
from typing import Any

import numpy as np
from judgekeeper.metrics import agreement
from ppi_py import ppi_mean_ci, ppi_mean_pointestimate
from truescore.correct import ppi_estimate

from blindcal.estimate.verdicts import judge
from blindcal.records import Estimate

JUDGES = ((0.7, 0.9, 0.8), (0.9, 0.97, 0.6), (0.5, 0.95, 0.95), (0.8, 0.6, 0.5), (0.95, 0.98, 0.5))
"""True pass rates, TPR and TNR."""
LABELS = (50, 200, 600)
WORDS = np.array(["fail", "pass"])
RATES = {"tpr": "tpr", "tnr": "tnr", "kappa": "kappa", "agreement": "accuracy"}
"""Figures of a judge, and what judgekeeper calls them."""


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """The verdicts and labels of one repeat."""

    rates: tuple[float, float, float]
    labels: int
    items: int
    seed: int


def compared(file: JudgedFile) -> tuple[float, ...]:
    """How far the packages are apart, and whether each interval holds and its width."""
    rate, tpr, tnr = file.rates
    rng, n = np.random.default_rng([file.seed, file.labels, round(1000 * rate)]), file.labels
    truth = (rng.random(file.items) < rate).astype(np.int64)
    verdicts = (rng.random(file.items) < np.where(truth == 1, tpr, 1 - tnr)).astype(np.int64)
    ours = judge(verdicts, np.where(np.arange(file.items) < n, truth, -1), seed=file.seed)
    theirs: dict[str, Any] = agreement(
        WORDS[truth[:n]].tolist(), WORDS[verdicts[:n]].tolist(), "pass", "fail"
    )
    scored = ppi_estimate(verdicts, truth[:n], np.arange(n))
    split = truth[:n].astype(float), verdicts[:n].astype(float), verdicts[n:].astype(float)
    (point,) = ppi_mean_pointestimate(*split)
    (low,), (high,) = ppi_mean_ci(*split, alpha=0.05)
    ends = (ours.pass_rate, Estimate(scored.point, scored.low, scored.high), Estimate(point, low, high))
    return (
        max(_apart(getattr(ours, name), theirs[other]) for name, other in RATES.items()),
        _apart(ours.pass_rate, min(scored.point, 1.0)),
        _apart(ours.pass_rate, min(float(point), 1.0)),
        *(float(rate in each) for each in ends),
        *(2 * each.half_width for each in ends),
    )


def _apart(ours: Estimate, theirs: float | None) -> float:
    if ours.value is None or theirs is None:
        return 0.0 if ours.value is theirs else np.inf
    return abs(ours.value - theirs)


def main() -> None:
    """Compare the packages, and record the tables."""
    chosen = options(__doc__, repeats=2000, items=3000)
    places = [(rates, labels) for rates in JUDGES for labels in LABELS]
    files = [
        JudgedFile(rates, labels, chosen.items, seed)
        for rates, labels in places
        for seed in range(chosen.repeats)
    ]
    each = np.array(run_all(compared, files, chosen, chunk=50)).reshape(len(places), chosen.repeats, -1)
    most, mean = each[:, :, :3].max(axis=1), each[:, :, 3:].mean(axis=1)
    judged = [("{:g}, {:g}, {:g}".format(*rates), labels) for rates, labels in places]
    names = ("blindcal", "truescore", "ppi-python")
    about: dict[str, str] = {"pass rate, TPR, TNR": "{}", "labels": "{}"}
    tables = {
        "judges-apart": table(
            {
                **about,
                "TPR, TNR, kappa, agreement: judgekeeper": "{:.1e}",
                "pass rate: truescore": "{:.1e}",
                "pass rate: ppi-python": "{:.1e}",
            },
            [(*row, *apart.tolist()) for row, apart in zip(judged, most, strict=True)],
        ),
        "judges-held": table(
            about
            | {f"held: {name}": "{:.1%}" for name in names}
            | {f"width: {name}": "{:.3f}" for name in names},
            [(*row, *rates.tolist()) for row, rates in zip(judged, mean, strict=True)],
        ),
    }
    record("peers", tables, chosen)


if __name__ == "__main__":
    main()
