"""The paper's table, with our methods: what each method estimates, and its error against the oracle.

A column is a model on a data set, a row a method at a budget. A method of the table is one of
`blindcal.methods`, or one whose answers are read by ``latent`` instead of its own estimator
("sampling+latent"). A run with the largest budget contains all smaller ones: its first queries do not depend
on the budget, so its first K N answers are those of a run with K queries per item.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from blindcal.estimate.findings import Findings
from blindcal.estimate.published.face_value import findings_at_face_value
from blindcal.estimate.truth import given_confidence
from blindcal.evidence import Evidence, estimate
from blindcal.json_form import json_line
from blindcal.methods import METHODS, estimator_of, make_design
from blindcal.records import INVALID, FloatArray, Semantics
from blindcal.reproduce.sources import Source
from blindcal.simulation.simulate import ask_recording
from blindcal.text import csv_text, printable

DASH = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class TableMethod:
    """A method of the table: ``base`` chooses the queries, ``estimator`` reads the answers."""

    base: str
    estimator: str = "own"

    def budgets(self, *, several: bool = False) -> tuple[int, ...]:
        """The numbers of queries per item that have a row in the table.

        With ``several`` answers the plain answer is the first query, and methods without one have no row.
        """
        method = METHODS[self.base]
        if not several:
            return method.budgets
        if method.several is None or not method.tempered or not method.budgets:
            return ()
        return (2,) if method.budgets == (1,) else tuple(k for k in method.budgets if k > 1)

    @property
    def fitted(self) -> bool:
        """Whether a fit reads its answers."""
        return estimator_of(self.base, self.estimator) == "latent"

    @property
    def simulable(self) -> bool:
        """Whether probabilities determine its answers, unlike a confidence stated in words."""
        return METHODS[self.base].simulable

    def semantics(self, asked: Semantics) -> Semantics:
        """The semantics that its answers measure if the targets have the semantics ``asked`` (METHOD 1).

        A stated confidence is compared with the oracle of ``asked``, and an endpoint at its own setting with
        draws at T = 1.
        """
        return "sum" if METHODS[self.base].semantics(asked) in ("sum", "configured") else asked


_ORDER = (
    *("blind", "verbalized", "sampling", "extraction"),
    *("latent", "sampling+latent", "temperature", "repeated"),
)

#: Every method of the table by its name, METHOD or METHOD+ESTIMATOR, in the order of the table.
TABLE_METHODS: Mapping[str, TableMethod] = {
    name: TableMethod(*name.split("+"))
    for name in dict.fromkeys((*_ORDER, *(name for name, method in METHODS.items() if method.budgets)))
}


@dataclass(frozen=True, slots=True)
class Row:
    """A method of the table at a budget."""

    method: str
    queries: int

    @property
    def name(self) -> str:
        """Its name in the table."""
        return f"{self.method}, K={self.queries}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One estimate: the ECE, its signed gaps, and the numbers of queries and of invalid answers."""

    row: Row
    seed: int
    ece: float
    gaps: tuple[float, ...]
    queries: int
    invalid: int


@dataclass(frozen=True, slots=True)
class TableRun:
    """One run of a method on a source, with the largest of ``budgets``, which is read at each of them."""

    source: Source
    method: str
    budgets: tuple[int, ...]
    seed: int
    bins: int = 5

    def measure(self) -> list[Measured]:
        """The estimate of each budget."""
        source, method = self.source, TABLE_METHODS[self.method]
        stated = None if method.simulable else source.stated
        labels = source.labels if stated is None else stated.labels
        design = make_design(
            method.base,
            labels,
            queries=max(self.budgets),
            bins=self.bins,
            seed=self.seed,
            choices=source.choices,
        )
        answers = (
            ask_recording(
                design,
                source.recording,
                source.targets,
                seed=self.seed,
                biased=METHODS[method.base].biased,
            )
            if stated is None
            else stated.answers
        )
        measured = []
        for queries in self.budgets:
            used = answers.rows(slice(queries * labels.size))
            evidence = Evidence(
                method.base,
                design,
                labels,
                used,
                estimator=method.estimator,
                bins=self.bins,
                resamples=0,
                choices=source.choices,
            )
            findings = estimate(evidence, brief=True)
            gaps = tuple(float(each.gap) for each in findings.bins)
            invalid = int((used.answers == INVALID).sum())
            row = Row(self.method, queries)
            measured.append(Measured(row, self.seed, float(findings.ece), gaps, len(used), invalid))
        return measured


def table_runs(
    source: Source,
    *,
    methods: Sequence[str] = tuple(TABLE_METHODS),
    budgets: Sequence[int] = range(1, 9),
    seeds: Sequence[int] = range(20),
    bins: int = 5,
) -> list[TableRun]:
    """The runs that fill a column; a stated confidence has one, if any confidences were recorded."""
    runs = []
    for name in methods:
        method = TABLE_METHODS[name]
        if method.simulable:
            several = source.choices is not None
            if chosen := tuple(k for k in method.budgets(several=several) if k in budgets):
                runs += [TableRun(source, name, chosen, seed, bins) for seed in seeds]
        elif source.stated is not None:
            runs.append(TableRun(source, name, (1,), 0, bins))
    return runs


def measure_runs(runs: Sequence[TableRun], *, jobs: int = 1) -> Iterator[list[Measured]]:
    """The estimates of each run, in their order; ``jobs`` processes share the work."""
    if jobs <= 1 or len(runs) <= 1:
        yield from map(TableRun.measure, runs)
        return
    # Not forked: forked workers would keep each other's pipes open and outlive this process.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(runs)), context, _follow_parent)
    try:
        yield from pool.map(TableRun.measure, runs)
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """End this worker when its parent ends for any reason; Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Entry:
    """The estimates of a row for a column, one per seed, and the oracle to compare with."""

    measured: tuple[Measured, ...]
    oracle: float
    n: int

    @property
    def estimates(self) -> FloatArray:
        """The estimates of the ECE."""
        return np.array([each.ece for each in self.measured])

    @property
    def errors(self) -> FloatArray:
        """Absolute errors against the oracle."""
        return np.abs(self.estimates - self.oracle)

    @property
    def error(self) -> float:
        """Mean absolute error against the oracle."""
        return float(self.errors.mean())

    @property
    def queries(self) -> float:
        """Queries per item."""
        return float(np.mean([each.queries for each in self.measured])) / self.n

    @property
    def invalid(self) -> float:
        """The share of answers that could not be used."""
        return _invalid_share(self.measured)


def mean_sd(values: FloatArray) -> tuple[float, float | None]:
    """Mean and standard deviation over the seeds; ``None`` for one seed."""
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else None


def _invalid_share(measured: Sequence[Measured]) -> float:
    return sum(each.invalid for each in measured) / max(1, sum(each.queries for each in measured))


def oracle_of(source: Source, bins: int, semantics: Semantics) -> Findings:
    """The oracle (METHOD 1) of a source, and its reliability diagram."""
    if source.choices is None:
        return findings_at_face_value(source.labels, source.probabilities(semantics), bins)
    given, confidence = given_confidence(source.recording.logits)
    return findings_at_face_value((given == source.labels).astype(np.int64), confidence, bins)


@dataclass(frozen=True, repr=False)
class Column:
    """A model on a data set: the oracle of each semantics that is measured, and all estimates."""

    model: str
    data: str
    n: int
    semantics: Semantics
    oracles: dict[Semantics, Findings]
    measured: tuple[Measured, ...]

    def __repr__(self) -> str:
        return f"Column({self.name!r}, {self.n:,} items, {len(self.measured)} estimates)"

    @classmethod
    def of(cls, source: Source, measured: Sequence[Measured], bins: int) -> Column:
        """The column of a source."""
        asked = source.targets.semantics
        wanted = {asked, *(TABLE_METHODS[each.row.method].semantics(asked) for each in measured)}
        oracles = {semantics: oracle_of(source, bins, semantics) for semantics in wanted}
        return cls(source.model, source.data, source.n, asked, oracles, tuple(measured))

    @property
    def name(self) -> str:
        """The model and the data set."""
        return f"{self.model} {self.data}"

    @property
    def oracle(self) -> Findings:
        """The oracle of the column's semantics."""
        return self.oracles[self.semantics]

    def semantics_of(self, method: str) -> Semantics:
        """The semantics that the answers of a method measure."""
        return TABLE_METHODS[method].semantics(self.semantics)

    def left_out(self, method: str) -> float | None:
        """The share of a method's answers, at its largest budget, that could not be used."""
        mine = [each for each in self.measured if each.row.method == method]
        most = max((each.row.queries for each in mine), default=0)
        return _invalid_share([each for each in mine if each.row.queries == most]) if mine else None

    @cached_property
    def entries(self) -> dict[Row, Entry]:
        """Every row with a value; undefined estimates, such as from an empty bin, are left out."""
        rows: dict[Row, list[Measured]] = {}
        for each in sorted(self.measured, key=lambda each: each.seed):
            if np.isfinite(each.ece):
                rows.setdefault(each.row, []).append(each)
        return {
            row: Entry(tuple(measured), float(self.oracles[self.semantics_of(row.method)].ece), self.n)
            for row, measured in rows.items()
        }


@dataclass(frozen=True, repr=False)
class MethodTable:
    """All columns over the same bins and ``seeds`` seeds."""

    columns: tuple[Column, ...]
    bins: int
    seeds: int

    def __repr__(self) -> str:
        return f"MethodTable({len(self.columns)} columns, {len(self.rows)} rows, {self.seeds} seeds)"

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every row that any column has, in the order of the methods."""
        rows = {row for column in self.columns for row in column.entries}
        order = list(TABLE_METHODS)
        return tuple(sorted(rows, key=lambda row: (order.index(row.method), row.queries)))

    def mean_error(self, row: Row) -> float | None:
        """Mean absolute error of a row over the columns; ``None`` if any of them lacks it."""
        errors = [column.entries[row].error for column in self.columns if row in column.entries]
        return float(np.mean(errors)) if errors and len(errors) == len(self.columns) else None

    def mean_queries(self, row: Row) -> float:
        """Mean queries per item of a row over the columns, all of which have it."""
        return float(np.mean([column.entries[row].queries for column in self.columns]))


@dataclass(frozen=True, slots=True)
class TitledTable:
    """A title, and lines of cells; the first line is the header."""

    title: str
    lines: list[list[str]]


def tables(comparison: MethodTable) -> list[TitledTable]:
    """Estimates, errors against the oracle, and the share of unusable answers if there are any."""
    columns, seeds = comparison.columns, comparison.seeds
    names = [column.name for column in columns]
    estimates = [["", *names], ["oracle", *(_spread(float(column.oracle.ece)) for column in columns)]]
    errors = [["", *names, "mean"]]
    for row in comparison.rows:
        entries = [column.entries.get(row) for column in columns]
        estimates.append(
            [row.name, *(DASH if e is None else _spread(*mean_sd(e.estimates)) for e in entries)]
        )
        cells = [DASH if e is None else _spread(*mean_sd(e.errors)) for e in entries]
        errors.append([row.name, *cells, _spread(comparison.mean_error(row))])
    unused = [["", *names]]
    for method in TABLE_METHODS:
        shares = [column.left_out(method) for column in columns]
        if any(shares):
            unused.append([method, *(DASH if share is None else f"{share:.1%}" for share in shares)])
    repeats = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "seed 0"
    over = f"{comparison.bins} bins, {repeats}"
    title = f"Absolute error against the oracle of what each method measures, {over}"
    titled = [
        TitledTable(f"ECE, {over}.", estimates),
        TitledTable(f"{title}; last, the mean over the columns.", errors),
        TitledTable(_LEFT_OUT, unused),
    ]
    return titled if len(unused) > 1 else titled[:2]


_LEFT_OUT = (
    "Share of answers that are neither word or state no confidence: what is estimated rests on the others."
)


def _spread(value: float | None, sd: float | None = None) -> str:
    if value is None:
        return DASH
    return f"{value:.4f}" if sd is None else f"{value:.4f} ± {sd:.4f}"


def markdown(comparison: MethodTable) -> str:
    """The tables as Markdown, each below its title."""
    return "\n".join(f"{each.title}\n\n{_markdown(each.lines)}\n" for each in tables(comparison))


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rows = [
        "| " + " | ".join(printable(cell, 120).replace("|", "\\|") for cell in line) + " |" for line in lines
    ]
    return "\n".join([rows[0], "|---" * len(lines[0]) + "|", *rows[1:]])


_CELL = (
    *("model", "data", "items", "method", "K", "seeds", "semantics", "oracle", "ece", "ece_sd"),
    *("error", "error_sd", "queries_per_item", "invalid_share"),
)


def cells_csv(comparison: MethodTable) -> str:
    """One line per cell of the table."""
    return csv_text(_CELL, _cell_lines(comparison), end="\n")


def cells_json(comparison: MethodTable) -> str:
    """One JSON object per cell of the table, each on its own line."""
    lines = (dict(zip(_CELL, line, strict=True)) for line in _cell_lines(comparison))
    return "".join(json_line(line).decode() + "\n" for line in lines)


def _cell_lines(comparison: MethodTable) -> Iterator[tuple[object, ...]]:
    for column in comparison.columns:
        for row in comparison.rows:
            if (entry := column.entries.get(row)) is not None:
                yield (
                    *(column.model, column.data, column.n, row.method, row.queries, len(entry.measured)),
                    *(column.semantics_of(row.method), entry.oracle, *mean_sd(entry.estimates)),
                    *(*mean_sd(entry.errors), entry.queries, entry.invalid),
                )


def estimates_csv(comparison: MethodTable) -> str:
    """One line per estimate, with its gaps."""
    gaps = [f"gap_{m + 1}" for m in range(comparison.bins)]
    lines = [
        (column.model, column.data, each.row.method, each.row.queries, each.seed, each.ece, *each.gaps)
        for column in comparison.columns
        for each in sorted(column.measured, key=lambda each: (each.row.method, each.row.queries, each.seed))
    ]
    return csv_text(("model", "data", "method", "K", "seed", "ece", *gaps), lines, end="\n")
