"""Full BoolQ and full binarised MMLU, audited over HTTP from recorded logits, beside the same from files.

    python bench/replayed.py [--only boolq]                          `latent`, one query an item, its interval
    python bench/replayed.py --table [--budgets 8] [--only boolq]    every row of the table, every budget
    python bench/replayed.py --table --budgets 2 --only mmlu --runs .runs    kept: it goes on

The server answers from a real model's recorded logits as an opaque API would. The same seed from files, which
asks no server, must give the same ECE to the last digit.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import blindcal
from blindcal.items import catalogue
from blindcal.reproduce import from_endpoint as audited
from blindcal.reproduce import sources, table
from blindcal.reproduce.cells import WAYS, Cache, CellSelection, compute
from blindcal.reproduce.sources import Source
from blindcal.simulation import replay
from blindcal.simulation.recording import RecordedTexts
from blindcal.simulation.simulate import simulate


@contextmanager
def served(source: Source, shared: Path, port: int = 0) -> Iterator[blindcal.Settings]:
    """A recorded model behind HTTP, and how to ask it; a run is taken up at the same port alone."""
    data, spoken = shared / "data", None
    if _spoke(source):
        words = (source.targets.positive[0].text, source.targets.negative[0].text)
        texts = shared / "logits" / f"{source.model}__{source.data}__verbalized.csv.gz"
        spoken = RecordedTexts.load(texts, words)
    with (
        catalogue.open_items(source.data, data_dir=data) as questions,
        replay.running(source.recording, questions, port=port, spoken=spoken) as server,
    ):
        yield blindcal.Settings(
            model=source.recording.name,
            base_url=server.base_url,
            data_dir=str(data),
            positive_ids=(source.targets.positive[0].id,),
            negative_ids=(source.targets.negative[0].id,),
            send_seed=True,
        )


def _spoke(source: Source) -> bool:
    """Whether it was recorded of every item what the model says of its confidence."""
    return source.stated is not None and source.stated.p.size == source.n


def one_query(source: Source, shared: Path) -> None:
    """`latent` with one query an item: the estimate, its interval, and whether `simulate` agrees."""
    begin = time.perf_counter()
    with served(source, shared) as settings, tempfile.TemporaryDirectory() as out:
        ece = blindcal.audit(source.data, settings, out=out).ece
    took = time.perf_counter() - begin
    direct = simulate("latent", source.labels, source.probabilities("pair"), repeats=1)
    same = "yes" if ece.value == direct.estimates[0] else "NO"
    print(
        f"| {source.name} | {source.n:,} | {direct.oracle:.4f} | {ece.value:.6f} | "
        f"{direct.estimates[0]:.6f} | {same} | {ece.low:.4f} to {ece.high:.4f} | {took:.0f} |",
        flush=True,
    )


def whole_table(
    source: Source, shared: Path, wanted: CellSelection, cache: Cache, runs: Path | None, port: int
) -> None:
    """Every row at every budget: how many cells there are, and how many agree to the last digit."""
    begin = time.perf_counter()
    if not _spoke(source):
        wanted = replace(wanted, ways=tuple(way for way in wanted.ways if way != "verbalized"))
    with ExitStack() as stack:
        out = runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = stack.enter_context(served(source, shared, port if runs else 0))
        column, _ = audited.measure(source.data, settings, wanted, out / source.name, data=source.data)
    took = time.perf_counter() - begin
    (direct,) = compute([(source, wanted)], cache)
    same = [column.found.get(cell) == value for cell, value in direct.items() if cell in column.found]
    worst = max(abs(column.found[cell].ece - direct[cell].ece) for cell in column.found)
    asked = audited.planned(wanted, source.n)
    print(
        f"| {source.name} | {source.n:,} | {max(wanted.budgets)} | {asked:,} | {len(same)} | {sum(same)} | "
        f"{worst:.1g} | {table.known(source, wanted.bins, 'pair').ece:.4f} | {took:.0f} |",
        flush=True,
    )


def main() -> None:
    """Print a row for each recorded cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--only", default="")
    parser.add_argument("--table", action="store_true", help="every row, not latent alone")
    parser.add_argument("--budgets", type=int, default=8, help="with --table: up to so many queries an item")
    parser.add_argument(
        "--method", action="append", choices=list(WAYS), help="with --table: only these rows; repeat for more"
    )
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--runs", type=Path, help="with --table: keep what was asked here, and go on with it")
    parser.add_argument("--port", type=int, default=18432, help="with --runs: where the server answers")
    arguments = parser.parse_args()
    if arguments.table:
        print("| cell | items | K up to | queries | cells | equal | largest difference | oracle | seconds |")
    else:
        print("| cell | items | oracle | over HTTP | `simulate` | equal | 95% interval | seconds |")
    print("|---" * (9 if arguments.table else 8) + "|")
    ways = tuple(arguments.method or WAYS)
    wanted = CellSelection(ways, tuple(range(1, arguments.budgets + 1)), seeds=(0,))
    for path in sources.find([arguments.data / "logits"]):
        if arguments.only in path.name:
            source, folder = sources.read(path), arguments.data
            if arguments.table:
                whole_table(source, folder, wanted, Cache(arguments.cache), arguments.runs, arguments.port)
            else:
                one_query(source, folder)


if __name__ == "__main__":
    main()
