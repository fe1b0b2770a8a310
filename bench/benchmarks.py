"""All tables and figures of docs/benchmarks.md, from recorded models.

    python bench/benchmarks.py [--seeds 2]

Methods without a fit use 20 seeds, methods with a fit ``--seeds``.
"""

from __future__ import annotations

from record import ROOT, Cell, Table, parser, record, table

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from blindcal.records import IntArray, Semantics, Targets
from blindcal.report.style import file_bytes
from blindcal.reproduce import page, sources
from blindcal.reproduce.sources import Source
from blindcal.reproduce.table import (
    TABLE_METHODS,
    Column,
    Entry,
    Measured,
    MethodTable,
    TableRun,
    is_fitted,
    measure_runs,
    oracle_of,
    table_runs,
)

PLAIN_SEEDS = tuple(range(20))
SIZES = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000)
BINS = (2, 3, 5, 8, 10, 15, 20)
ONCE = ("blind", "latent")
FOUR = "{:.4f}"
SPREAD = "{:.4f} ± {:.4f}"


@dataclass(frozen=True, slots=True)
class Study:
    """The runs of each source, and a column of what they measured."""

    work: tuple[list[TableRun], ...]
    columns: tuple[Column, ...] = ()

    @property
    def comparison(self) -> MethodTable:
        """The table of a study in which all sources have the same cells."""
        seeds = {run.seed for run in self.work[0] if is_fitted(run.method)}
        return MethodTable(self.columns, self.work[0][0].bins, len(seeds))


def studies(data: Path, seeds: tuple[int, ...]) -> dict[str, Study]:
    """All studies to compute, by name."""
    recorded = [sources.read(path) for path in sources.find([data / "logits"])]
    once = partial(runs_of, methods=ONCE, budgets=(1,))
    spelled = partial(once, methods=(*ONCE, "sampling+latent"))
    work = {
        "recorded": [runs_of(source, seeds, PLAIN_SEEDS) for source in recorded],
        "spelled": [spelled(source.spelled("max"), seeds, PLAIN_SEEDS) for source in recorded],
        "bins": [once(source, seeds, PLAIN_SEEDS, bins=bins) for bins in BINS for source in recorded],
        "sizes": [],
    }
    for seed in dict.fromkeys(seeds + PLAIN_SEEDS):
        fitted = (seed,) if seed in seeds else ()
        for source in recorded:
            order = np.random.default_rng([seed, 8]).permutation(source.n)
            parts = [part_of(source, np.sort(order[:size])) for size in SIZES if size < source.n]
            work["sizes"] += [once(part, fitted, (seed,)) for part in parts]
    return {name: Study(tuple(each)) for name, each in work.items()}


def runs_of(
    source: Source,
    seeds: tuple[int, ...],
    plain_seeds: tuple[int, ...],
    *,
    methods: Sequence[str] = TABLE_METHODS,
    budgets: Sequence[int] = range(1, 9),
    bins: int = 5,
) -> list[TableRun]:
    """The runs of a source, with other seeds for methods without a fit, which are cheap and vary most."""
    fitted = [name for name in methods if is_fitted(name)]
    plain = [name for name in methods if name not in fitted]
    every = tuple(dict.fromkeys(seeds + plain_seeds))
    return [
        *table_runs(source, methods=fitted, budgets=budgets, seeds=seeds, bins=bins),
        *table_runs(source, methods=plain, budgets=budgets, seeds=every, bins=bins),
    ]


def part_of(source: Source, items: IntArray) -> Source:
    """The same model on some of the items."""
    kept = source.recording
    recording = replace(
        kept,
        ids=tuple(kept.ids[int(k)] for k in items),
        logits=kept.logits[items],
        rest=kept.rest[items],
        others_first=kept.others_first[items],
    )
    p = None if source.p is None else source.p[items]
    return replace(source, labels=source.labels[items], recording=recording, p=p, stated=None)


def computed(planned: dict[str, Study], jobs: int) -> dict[str, Study]:
    """The studies with all columns, computed together."""
    runs = [run for study in planned.values() for work in study.work for run in work]
    measured = iter(tqdm(measure_runs(runs, jobs=jobs), total=len(runs), unit="run", disable=None))

    def column(work: list[TableRun]) -> Column:
        cells: list[Measured] = [cell for _ in work for cell in next(measured)]
        return Column(work[0].source, tuple(cells), work[0].bins)

    return {name: replace(study, columns=tuple(map(column, study.work))) for name, study in planned.items()}


# The paper's table


def spread(value: float | None, sd: float | None) -> Cell:
    """A number, with its standard deviation if there is one."""
    return value if value is None or sd is None else (value, sd)


def by_row(comparison: MethodTable, cell: Callable[[Entry], Cell]) -> list[list[Cell]]:
    """A row per method and budget, and a cell per column."""
    return [
        [row.name, *(cell(one.entries[row]) if row in one.entries else None for one in comparison.columns)]
        for row in comparison.rows
    ]


def estimates(comparison: MethodTable) -> Table:
    """The estimates of each method, and the oracle."""
    oracle: list[Cell] = ["oracle", *(float(one.oracle.ece) for one in comparison.columns)]
    columns = {"": "{}", **{one.name: SPREAD for one in comparison.columns}}
    return table(columns, [oracle, *by_row(comparison, lambda one: spread(*one.ece))])


def errors(comparison: MethodTable) -> Table:
    """The errors against the oracle."""
    rows = by_row(comparison, lambda one: spread(*one.error))
    means = [comparison.mean_error(row) for row in comparison.rows]
    columns = {"": "{}", **{one.name: SPREAD for one in comparison.columns}, "mean": FOUR}
    return table(columns, [[*row, mean] for row, mean in zip(rows, means, strict=True)])


def unused(comparison: MethodTable) -> Table:
    """The share of answers that are neither word, or state no confidence, at the largest budget."""
    shares = {name: [one.left_out(name) for one in comparison.columns] for name in TABLE_METHODS}
    rows = [[name, *each] for name, each in shares.items() if any(each)]
    return table({"": "{}", **{one.name: "{:.1%}" for one in comparison.columns}}, rows)


# The error against N and M


def by_part(study: Study, part: str, place: Callable[[TableRun], int]) -> Table:
    """Mean error of both one-query methods: a row per size or number of bins, two columns per source."""
    found: dict[tuple[int, str, str], list[float]] = {}
    for work, column in zip(study.work, study.columns, strict=True):
        oracle = float(column.oracle.ece)
        for cell in column.measured:
            key = (place(work[0]), column.name, cell.row.method)
            found.setdefault(key, []).append(abs(cell.ece - oracle))
    names = dict.fromkeys(column.name for column in study.columns)
    heads = [(name, method) for name in names for method in ONCE]
    rows = []
    for at in sorted({at for at, _, _ in found}):
        said = [found.get((at, *head)) for head in heads]
        rows.append([at, *(None if one is None else float(np.mean(one)) for one in said)])
    return table({part: "{:,}", **{f"{name}, `{method}`": FOUR for name, method in heads}}, rows)


# Spellings


EVERY: tuple[Semantics, ...] = ("sum", "max", "pair")


def _oracles(source: Source, bins: int) -> dict[Semantics, float]:
    asked = source.targets
    pair = replace(source, targets=Targets(asked.positive[:1], asked.negative[:1]))
    return {one: float(oracle_of(pair if one == "pair" else source, bins, one).ece) for one in EVERY}


def spellings(study: Study) -> Table:
    """How much the three semantics differ."""
    rows: list[list[Cell]] = []
    for work in study.work:
        source = work[0].source
        total, largest = source.probabilities("sum"), source.probabilities("max")
        differ = float(((total >= 0.5) != (largest >= 0.5)).mean())
        apart = float(np.abs(total - largest).max())
        rows.append([source.name, *_oracles(source, 5).values(), differ, apart])
    columns = {"": "{}", **{f"ECE {one}": FOUR for one in EVERY}}
    return table(
        {**columns, "sides differ, sum and max": "{:.2%}", "largest |f sum - f max|": "{:.3f}"}, rows
    )


def spelling_errors(study: Study) -> Table:
    """Errors against the oracle of each of the three semantics if all spellings are biased."""
    rows: list[list[Cell]] = []
    for work, column in zip(study.work, study.columns, strict=True):
        source = work[0].source
        oracle = _oracles(source, 5)
        for method in (*ONCE, "sampling+latent"):
            values = np.array([cell.ece for cell in column.measured if cell.row.method == method])
            held = [float(np.abs(values - oracle[one]).mean()) for one in ("max", "sum", "pair")]
            rows.append([f"{source.name}, `{method}`", *held])
    heads = ("against max", "against sum", "against pair")
    return table({"all spellings biased": "{}", **dict.fromkeys(heads, FOUR)}, rows)


def main() -> None:
    """Measure, draw the figures, and record the tables."""
    options = parser(__doc__, seeds=2)  # of the methods that fit
    options.add_argument("--figures", type=Path, default=ROOT / "docs" / "images" / "benchmarks")
    arguments = options.parse_args()
    measured = computed(studies(arguments.data, tuple(range(arguments.seeds))), arguments.processes)
    whole = measured["recorded"].comparison
    arguments.figures.mkdir(parents=True, exist_ok=True)
    for drawing in page.draw(whole):
        (arguments.figures / f"{drawing.name}.svg").write_bytes(file_bytes(drawing.figure, "svg"))
    tables = {
        "estimates": estimates(whole),
        "errors": errors(whole),
        "unused": unused(whole),
        "sizes": by_part(measured["sizes"], "N", lambda run: run.source.n),
        "bins": by_part(measured["bins"], "M", lambda run: run.bins),
        "spellings": spellings(measured["spelled"]),
        "spelling_errors": spelling_errors(measured["spelled"]),
    }
    repeats = {"published methods": len(PLAIN_SEEDS), "methods that fit": arguments.seeds}
    record("benchmarks", tables, arguments, repeats=repeats)


if __name__ == "__main__":
    main()
