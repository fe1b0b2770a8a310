"""Answers counted in memory, file by file and on Ray Data: counts, estimate and interval must be equal.

    python bench/shards.py [--answers 10000000] [--shards 20] [--queries 1 2]

One row for each number of queries per item: the time of each way to count, of the fit, and of its interval.
"""

from __future__ import annotations

from record import Cell, parser, record, table

import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage data

import numpy as np
import pyarrow  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet  # type: ignore[import-untyped]
import ray

import blindcal as bc
from blindcal.methods import make_design
from blindcal.records import AnswerTable, IntArray
from blindcal.simulation.simulate import ask, generate

T = TypeVar("T")
STEPS = ("counted in memory", "counted file by file", "counted on Ray Data", "fit", "interval")


def write_shards(folder: Path, labels: IntArray, answered: AnswerTable, shards: int, *, items: bool) -> None:
    """Write the answers as a pipeline would: many files, narrow types."""
    for number, rows in enumerate(np.array_split(np.arange(len(answered)), shards)):
        columns = {
            "label": labels[answered.items[rows]].astype(np.int8),
            "shift": answered.shifts[rows],
            "answer": answered.answers[rows].astype(np.int8),
        }
        if items:
            columns["item"] = answered.items[rows]
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{number:04}.parquet")


def study(answers: int, shards: int, queries: float, resamples: int) -> list[Cell]:
    """Count in three ways, fit, and time each step; the results are equal."""
    labels, p = generate(round(answers / queries), 0)
    answered = ask(make_design("latent", labels, queries=queries), p)
    rows, several = labels[answered.items], queries > 1
    took: dict[str, float] = {}

    def timed(name: str, compute: Callable[[], T]) -> T:
        begin = time.perf_counter()
        result = compute()
        took[name] = time.perf_counter() - begin
        return result

    items = answered.items if several else None
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder), labels, answered, shards, items=several)
        counts = timed(STEPS[0], lambda: bc.Counts.of(rows, answered.shifts, answered.answers, items=items))
        if not several:
            assert timed(STEPS[1], lambda: bc.read_counts(folder)) == counts
        on_ray = timed(STEPS[2], lambda: bc.count_on_ray(ray.data.read_parquet(folder)))
    assert on_ray == counts
    fit = timed(STEPS[3], lambda: on_ray.latent(resamples=resamples))
    ece = timed(STEPS[4], lambda: fit.ece)
    directly = bc.latent(rows, answered.shifts, answered.answers, items=answered.items, resamples=resamples)
    assert directly.ece == ece
    return [len(answered), queries, shards, int(counts.count.size), "yes", *map(took.get, STEPS)]


def main() -> None:
    """Study each number of queries per item, and record the table."""
    options = parser(__doc__, answers=10_000_000, shards=20, resamples=1000)
    options.add_argument("--queries", type=float, nargs="+", default=[1.0], help="answers per item")
    arguments = options.parse_args()
    ray.init(
        address="local",  # never a cluster that is already running here
        num_cpus=arguments.processes,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        rows = [study(arguments.answers, arguments.shards, k, arguments.resamples) for k in arguments.queries]
    finally:
        ray.shutdown()
    columns = {"answers": "{:,}", "per item": "{:g}", "shards": "{}", "patterns": "{:,}", "equal": "{}"}
    shown = table({**columns, **dict.fromkeys(STEPS, "{:.1f} s")}, rows)
    record("shards", {"counted": shown}, arguments, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
