"""Count millions of answers in a folder of Parquet shards: on Ray, file by file, and in memory.

    python bench/shards.py --results bench/results [--answers 10000000] [--shards 20]

The three must agree to the last digit, in the counts, the estimate and its interval. A JSON line is printed
for each number of queries per item. A test runs this, so it records its table only if ``--results`` is given.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage data

from record import Cell, parser, record, table

import numpy as np
import pyarrow  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet  # type: ignore[import-untyped]
import ray

import blindcal as bc
from blindcal.methods import make_design
from blindcal.records import AnswerTable, IntArray
from blindcal.simulation.simulate import ask, generate

T = TypeVar("T")


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


def study(answers: int, shards: int, queries: float, resamples: int) -> dict[str, Any]:
    """Count in three ways, fit, and time each step."""
    labels, p = generate(round(answers / queries), 0)
    answered = ask(make_design("latent", labels, queries=queries), p)
    rows, several = labels[answered.items], queries > 1
    took: dict[str, float] = {}

    def timed(name: str, compute: Callable[[], T]) -> T:
        begin = time.perf_counter()
        found = compute()
        took[name] = round(time.perf_counter() - begin, 2)
        return found

    def in_memory() -> bc.Counts:
        items = answered.items if several else None
        return bc.Counts.of(rows, answered.shifts, answered.answers, items=items)

    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder), labels, answered, shards, items=several)
        here = timed("counted in memory", in_memory)
        if not several:
            assert timed("counted file by file", lambda: bc.read_counts(folder)) == here
        on_ray = timed("counted on Ray Data", lambda: bc.count_on_ray(ray.data.read_parquet(folder)))
    assert on_ray == here
    fit = timed("fit", lambda: on_ray.latent(resamples=resamples))
    ece = timed("interval", lambda: fit.ece)
    directly = bc.latent(rows, answered.shifts, answered.answers, items=answered.items, resamples=resamples)
    assert directly.ece == ece
    return {
        "answers": len(answered),
        "queries": queries,
        "shards": shards,
        "patterns": int(here.count.size),
        "ece": ece.value,
        "interval": [ece.low, ece.high],
        "equal": True,
        "seconds": took,
    }


def main() -> None:
    """Study each number of queries per item, and record the table if ``--results`` is given."""
    options = parser(__doc__)
    options.set_defaults(results=None)
    options.add_argument("--answers", type=int, default=10_000_000)
    options.add_argument("--shards", type=int, default=20)
    options.add_argument("--queries", type=float, nargs="+", default=[1.0], help="answers per item")
    options.add_argument("--resamples", type=int, default=1000)
    arguments = options.parse_args()
    ray.init(
        address="local",  # never a cluster that is already running here
        num_cpus=arguments.processes,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    found = []
    try:
        for queries in arguments.queries:
            one = study(arguments.answers, arguments.shards, queries, arguments.resamples)
            print(json.dumps(one))
            found.append(one)
    finally:
        ray.shutdown()
    if arguments.results is None:
        return
    times = {name: "{:.1f} s" for one in found for name in one["seconds"]}
    columns = {
        "answers": "{:,}",
        "per item": "{:g}",
        "shards": "{}",
        "patterns": "{:,}",
        "equal": "{}",
        **times,
    }
    rows: list[list[Cell]] = [
        [
            *(one[name] for name in ("answers", "queries", "shards", "patterns")),
            "yes" if one["equal"] else "no",
            *(one["seconds"].get(name) for name in times),
        ]
        for one in found
    ]
    tables = {"counted": table(columns, rows)}
    record("shards", tables, arguments, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
