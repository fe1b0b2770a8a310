"""Ten million answers in a folder of Parquet shards: counted on Ray, by streaming, and on one machine.

    python bench/shards.py --answers 10000000 --shards 20

The three must agree to the last digit, in the counts, the estimate and its interval.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small fits; threads only get in their way
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere

import numpy as np
import pyarrow  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet  # type: ignore[import-untyped]
import ray

import blindcal as bc
from blindcal import design
from blindcal.records import AnswerTable, IntArray
from blindcal.results import answer_counts as counting
from blindcal.simulation.simulate import ask, generate

T = TypeVar("T")


def write_shards(folder: Path, labels: IntArray, answered: AnswerTable, shards: int, *, items: bool) -> None:
    """Lay the answers out as a pipeline would leave them: many files, narrow types."""
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
    """Count three ways, and say how long each took."""
    labels, p = generate(round(answers / queries), 0)
    answered = ask(design.make("latent", labels, queries=queries), labels, p)
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
        here = timed("one machine, in memory", in_memory)
        if not several:
            assert timed("one machine, file by file", lambda: counting.read_counts(folder)) == here
        on_ray = timed("Ray Data", lambda: counting.count_on_ray(ray.data.read_parquet(folder)))
    assert on_ray == here
    fit = timed("fit", lambda: on_ray.latent(resamples=resamples))
    between = timed("interval", lambda: fit.interval("ece"))
    directly = bc.latent(rows, answered.shifts, answered.answers, items=answered.items, resamples=resamples)
    assert directly.ece() == fit.ece()
    assert directly.interval("ece") == between
    return {
        "answers": len(answered),
        "queries": queries,
        "shards": shards,
        "patterns": int(here.count.size),
        "ece": fit.ece(),
        "interval": [between.low, between.high],
        "equal": True,
        "seconds": took,
    }


def main() -> None:
    """Print one JSON line for each number of queries an item."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--queries", type=float, nargs="+", default=[1.0], help="answers an item")
    parser.add_argument("--resamples", type=int, default=1000)
    options = parser.parse_args()
    ray.init(
        address="local",  # never another one that happens to run here
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        for queries in options.queries:
            print(json.dumps(study(options.answers, options.shards, queries, options.resamples)))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
