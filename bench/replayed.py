"""Audits of recorded models over HTTP and from files, which must agree to the last digit.

    python bench/replayed.py [--only boolq] [--whole boolq] [--budgets 4]

The server answers from a real model's recorded logits as an opaque API would. `latent` audits all of BoolQ
and of binarised MMLU (by subject) with one query per item, seed 0. For the sets that ``--whole`` names, every
row of the reproduced table is measured as well, up to ``--budgets`` queries per item.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import blindcal as bc
from blindcal.items import catalogue
from blindcal.items.record_format import RecordFormat
from blindcal.report.page import PAGE_FILE
from blindcal.reproduce import from_endpoint, sources
from blindcal.reproduce.cells import TABLE_METHODS, Cache, CellSelection, compute
from blindcal.reproduce.sources import Source
from blindcal.simulation import replay
from blindcal.simulation.recording import RecordedTexts
from record import Cell, parser, record, table


@contextmanager
def served(source: Source, shared: Path) -> Iterator[bc.Settings]:
    """Serve a recorded model over HTTP, and yield the settings to audit it."""
    data, spoken = str(shared / "data"), None
    if _spoke(source):
        words = (source.targets.positive[0].text, source.targets.negative[0].text)
        texts = shared / "logits" / f"{source.model}__{source.data}__verbalized.csv.gz"
        spoken = RecordedTexts.load(texts, words)
    questions = catalogue.open_items(source.data, RecordFormat(data_dir=data))
    with replay.running(replay.Server(source.recording, questions, spoken=spoken)) as server:
        yield bc.Settings(
            model=source.recording.name,
            base_url=server.base_url,
            data_dir=data,
            positive_ids=(source.targets.positive[0].id,),
            negative_ids=(source.targets.negative[0].id,),
            send_seed=True,
            by_field="subject" if source.data == "mmlu" else None,
        )


def _spoke(source: Source) -> bool:
    """Whether a stated confidence was recorded for every item."""
    return source.stated is not None and source.stated.p.size == source.n


def one_query(source: Source, shared: Path) -> list[Cell]:
    """`latent` with one query per item: the estimate, its interval, and whether `simulate` agrees."""
    begin = time.perf_counter()
    with served(source, shared) as settings, tempfile.TemporaryDirectory() as out:
        result = bc.audit(source.data, settings, out=out)
        took = time.perf_counter() - begin
        size = (Path(out) / PAGE_FILE).stat().st_size
    direct = bc.simulate("latent", source.labels, source.probabilities("pair"), repeats=1)
    ece = result.ece
    assert ece.low is not None
    assert ece.high is not None
    return [
        source.name,
        source.n,
        len(result.parts) or None,
        direct.oracle,
        float(ece),
        direct.estimates[0],
        "yes" if ece.value == direct.estimates[0] else "NO",
        (ece.low, ece.high),
        result.seconds,
        took - result.seconds,
        size / 1000,
    ]


def whole_table(source: Source, shared: Path, wanted: CellSelection) -> list[Cell]:
    """Every row at every budget: how many cells there are, and how many agree to the last digit."""
    if not _spoke(source):
        wanted = replace(wanted, methods=tuple(name for name in wanted.methods if name != "verbalized"))
    with tempfile.TemporaryDirectory() as folder, served(source, shared) as settings:
        out = Path(folder)
        column, _ = from_endpoint.measure(source.data, settings, wanted, out / "runs", data=source.data)
        (direct,) = compute([(source, wanted)], Cache(out / "cache"))
    same = [column.found.get(cell) == value for cell, value in direct.items() if cell in column.found]
    worst = max(abs(column.found[cell].ece - direct[cell].ece) for cell in column.found)
    asked = from_endpoint.planned(wanted, source.n)
    return [source.name, source.n, max(wanted.budgets), asked, len(same), sum(same), worst]


ONE_QUERY = {
    "model and set": "{}",
    "items": "{:,}",
    "parts": "{}",
    "oracle": "{:.4f}",
    "over HTTP": "{:.6f}",
    "`simulate`": "{:.6f}",
    "equal": "{}",
    "95% interval": "{:.4f} to {:.4f}",
    "asked in": "{:.0f} s",
    "everything else": "{:.0f} s",
    "page": "{:,.0f} kB",
}
WHOLE_TABLE = {
    "model and set": "{}",
    "items": "{:,}",
    "K up to": "{}",
    "queries": "{:,}",
    "cells": "{}",
    "equal": "{}",
    "largest difference": "{:.1g}",
}


def main() -> None:
    """Audit each recorded model, and record the tables."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="part of a file's name")
    options.add_argument("--whole", default="boolq", help="part of a file's name")
    options.add_argument("--budgets", type=int, default=4)
    arguments = options.parse_args()
    found = [
        sources.read(path)
        for path in sources.find([arguments.data / "logits"])
        if arguments.only in path.name
    ]
    wanted = CellSelection(tuple(TABLE_METHODS), tuple(range(1, arguments.budgets + 1)), seeds=(0,))
    audits = [one_query(source, arguments.data) for source in found]
    cells = [
        whole_table(source, arguments.data, wanted) for source in found if arguments.whole in source.name
    ]
    tables = {"one_query": table(ONE_QUERY, audits), "whole": table(WHOLE_TABLE, cells)}
    record("replayed", tables, folder=arguments.results, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
