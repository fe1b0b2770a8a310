"""Time of a fit with 1,000 refits, against sorting the data 1,000 times and another library's bootstrap.

    python bench/speed.py [--largest 10000000]

`uncertainty-calibration` needs the probabilities and gets them; the time of its 100 resamples is multiplied
by ten. Everything runs on one thread.
"""

from __future__ import annotations

from record import Cell, parser, record, table

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import blindcal as bc
from blindcal.design import spread_evenly
from blindcal.records import AnswerTable
from blindcal.simulation.simulate import generate

MMLU = 56_168


@dataclass(frozen=True, slots=True)
class FitTimes:
    """Seconds for counting and fitting, for 1,000 refits, and for intervals and p-value after that."""

    fit: float
    refits: float
    rest: float


def seconds(call: Callable[[], object], times: int = 1) -> float:
    """The shortest processor time of a call, as other load can only add to it."""
    best = np.inf
    for _ in range(times):
        begin = time.process_time()
        call()
        best = min(best, time.process_time() - begin)
    return float(best)


def time_fit(n: int) -> FitTimes:
    """How long a fit of one query per item takes."""
    labels, p = generate(n, 0)
    t = spread_evenly(n, np.random.default_rng(0))
    answers = AnswerTable(np.arange(n), np.log((1 - t) / t), np.zeros(n), (p >= t).astype(np.int64))
    rows = labels[answers.items]
    fits: list[bc.LatentFit] = []
    fitting = seconds(
        lambda: fits.append(bc.latent(rows, answers.shifts, answers.answers, items=answers.items))
    )
    refitting = seconds(lambda: fits[0].draws)
    return FitTimes(
        fitting, refitting, seconds(lambda: (fits[0].ece, fits[0].auroc, fits[0].calibrated_pvalue))
    )


def peer(n: int) -> float | None:
    """Seconds of 1,000 bootstrap resamples of `uncertainty-calibration`, extrapolated from 100."""
    try:
        import calibration
    except ImportError:
        return None
    labels, p = generate(n, 0)
    return 10 * seconds(lambda: calibration.get_calibration_error_uncertainties(p, labels, p=1))


def main() -> None:
    """Time everything, and record the tables."""
    options = parser(__doc__)
    options.add_argument("--largest", type=int, default=10**7, help="most items")
    arguments = options.parse_args()
    _, p = generate(MMLU, 0)
    sorting = 1000 * seconds(lambda: np.sort(p), 20)
    ours = time_fit(MMLU)
    whole = ours.fit + ours.refits
    other = peer(MMLU)
    rows: list[list[Cell]] = [
        ["sorting the probabilities 1,000 times", sorting, sorting / whole],
        ["`latent`: count and fit", ours.fit, ours.fit / whole],
        ["`latent`: 1,000 refits", ours.refits, ours.refits / whole],
        ["**`latent`: one fit and 1,000 refits**", whole, 1.0],
        ["`latent`: intervals of ECE and AUROC, p-value", ours.rest, ours.rest / whole],
    ]
    if other is not None:
        rows.append(["`uncertainty-calibration`: 1,000 resamples", other, other / whole])
    sizes = [n for n in (10**4, 10**5, 10**6, 10**7) if n <= arguments.largest]
    by_size = [[n, found.fit, found.refits] for n in sizes for found in [time_fit(n)]]
    record(
        "speed",
        {
            "peers": table({f"n = {MMLU:,}": "{}", "seconds": "{:.2f}", "ratio": "{:.2f}"}, rows),
            "sizes": table(
                {"items": "{:,}", "count and fit, s": "{:.2f}", "1,000 refits, s": "{:.2f}"}, by_size
            ),
        },
        arguments,
        repeats=1,
        seeds="seed 0",
    )


if __name__ == "__main__":
    main()
