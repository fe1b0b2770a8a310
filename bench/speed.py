"""Processor time of a fit and of the 1,000 refits behind its intervals, on one thread.

python bench/speed.py [--largest 10000000]
"""

from __future__ import annotations

from record import options, record, table

import time

import numpy as np

import blindcal as bc
from blindcal.design import spread_evenly
from blindcal.simulation.simulate import generate


def time_fit(n: int) -> list[float]:
    """Seconds for counting and fitting one query per item, and for 1,000 refits."""
    labels, p = generate(n, 0)
    t = spread_evenly(n, np.random.default_rng(0))
    shifts, answers, items = np.log((1 - t) / t), (p >= t).astype(np.int64), np.arange(n)
    times = [time.process_time()]
    fit = bc.latent(labels, shifts, answers, items=items)
    times.append(time.process_time())
    assert len(fit.draws)
    times.append(time.process_time())
    return np.diff(times).tolist()


def main() -> None:
    """Time fits of several sizes, and record the table."""
    arguments = options(__doc__, largest=10**7)
    time_fit(1000)  # the first fit loads and compiles
    rows = [[n, *time_fit(n)] for n in (10**4, 10**5, 10**6, 10**7) if n <= arguments.largest]
    columns = "items {:,} | count and fit, s {:.2f} | 1,000 refits, s {:.2f}"
    record("speed", {"sizes": table(columns, rows)}, arguments, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
