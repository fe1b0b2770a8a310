"""The paper's table with our methods: what each estimates, and its error against the oracle.

A column is a model on a data set, a row a method at a budget. A method is one of `blindcal.methods`, or one
whose answers are read by ``latent`` instead ("sampling+latent"). The first queries do not depend on the
budget, so the first K N answers of the largest run are those of a run with K queries per item.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from blindcal.design import Design
from blindcal.estimate.findings import Findings
from blindcal.estimate.published import findings_at_face_value
from blindcal.methods import METHODS, estimator_of
from blindcal.records import INVALID, AnswerTable, FloatArray, Semantics
from blindcal.reproduce.sources import Source
from blindcal.simulation.simulate import ask_recording, audit_known
from blindcal.text import csv_text, printable

DASH = "\N{EN DASH}"
TABLE_METHODS = (
    *("blind", "verbalized", "sampling", "extraction"),
    *("latent", "sampling+latent", "temperature", "repeated"),
)
"""Methods as METHOD or METHOD+ESTIMATOR, in the order of the table."""


class Row(NamedTuple):
    """A method at a budget."""

    method: str
    queries: int

    @property
    def name(self) -> str:
        return f"{self.method}, K={self.queries}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An estimate: the ECE, its signed gaps, and the numbers of queries and invalid answers."""

    row: Row
    seed: int
    ece: float
    gaps: tuple[float, ...]
    queries: int
    invalid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """A run of a method on a source with the largest of ``budgets``, read at each of them."""

    source: Source
    method: str
    budgets: tuple[int, ...]
    seed: int
    bins: int = 5

    def measure(self) -> list[Measured]:
        source, (base, estimator) = self.source, _base_and_estimator(self.method)
        stated = None if METHODS[base].simulable else source.stated

        def answer(design: Design, seed: int) -> AnswerTable:
            if stated is not None:
                return stated.answers
            biased = METHODS[base].biased
            return ask_recording(design, source.recording, source.targets, seed=seed, biased=biased)

        audits = audit_known(
            base,
            source.labels if stated is None else stated.labels,
            answer,
            budgets=self.budgets,
            estimator=estimator,
            bins=self.bins,
            seed=self.seed,
        )
        return [
            Measured(
                row=Row(self.method, queries),
                seed=self.seed,
                ece=float(findings.ece),
                gaps=tuple(float(each.gap) for each in findings.bins),
                queries=len(used),
                invalid=int((used.answers == INVALID).sum()),
            )
            for queries, (used, findings) in zip(self.budgets, audits, strict=True)
        ]


def _base_and_estimator(method: str) -> tuple[str, str]:
    base, _, estimator = method.partition("+")
    return base, estimator or "own"


def is_fitted(method: str) -> bool:
    """Whether a method's answers are read by a fit."""
    return estimator_of(*_base_and_estimator(method)) == "latent"


def table_runs(
    source: Source,
    *,
    methods: Sequence[str] = TABLE_METHODS,
    budgets: Sequence[int] = range(1, 9),
    seeds: Sequence[int] = range(20),
    bins: int = 5,
) -> list[TableRun]:
    """The runs that fill a column; stated confidences have one, if any were recorded."""
    runs = []
    for name in methods:
        method = METHODS[_base_and_estimator(name)[0]]
        chosen = tuple(k for k in method.budgets if k in budgets)
        repeats = seeds
        if not method.simulable:
            chosen, repeats = (1,), [0] if source.stated is not None else []
        if chosen:
            run = partial(TableRun, source=source, method=name, budgets=chosen, bins=bins)
            runs += [run(seed=seed) for seed in repeats]
    return runs


def measure_runs(runs: Sequence[TableRun], *, jobs: int = 1) -> Iterator[list[Measured]]:
    """The estimates of each run, in order, computed by ``jobs`` processes."""
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
    # End this worker however its parent ends; Ctrl-C is left to the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Entry:
    """Estimates of a row in a column, one per seed, and the oracle to compare with."""

    measured: tuple[Measured, ...]
    oracle: float

    @property
    def ece(self) -> tuple[float, float | None]:
        """Mean estimate, and its standard deviation."""
        return _mean_sd(np.array([each.ece for each in self.measured]))

    @property
    def error(self) -> tuple[float, float | None]:
        """Mean absolute error against the oracle, and its standard deviation."""
        return _mean_sd(np.array([abs(each.ece - self.oracle) for each in self.measured]))


def _mean_sd(values: FloatArray) -> tuple[float, float | None]:
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else None


def oracle_of(source: Source, bins: int, semantics: Semantics) -> Findings:
    """The oracle (METHOD 1) of a source, with its reliability diagram."""
    return findings_at_face_value(source.labels, source.probabilities(semantics), bins)


@dataclass(frozen=True, repr=False)
class Column:
    """A model on a data set, with all estimates."""

    source: Source
    measured: tuple[Measured, ...]
    bins: int = 5

    @property
    def name(self) -> str:
        return self.source.name

    @cached_property
    def oracle(self) -> Findings:
        """The oracle for the source's own targets."""
        return oracle_of(self.source, self.bins, self.source.targets.semantics)

    def semantics_of(self, method: str) -> Semantics:
        """The semantics that a method measures (METHOD 1).

        A stated confidence is compared with the oracle of the targets, an endpoint at its own setting with
        draws at T = 1.
        """
        asked = self.source.targets.semantics
        measured = METHODS[_base_and_estimator(method)[0]].semantics(asked)
        return "sum" if measured in ("sum", "configured") else asked

    def left_out(self, method: str) -> float | None:
        """Share of a method's answers that were unusable, at its largest budget; ``None`` if it has none."""
        mine = [each for each in self.measured if each.row.method == method]
        most = max((each.row.queries for each in mine), default=0)
        return _invalid_share([each for each in mine if each.row.queries == most]) if mine else None

    @cached_property
    def entries(self) -> dict[Row, Entry]:
        """All rows with a value; undefined estimates, as from an empty bin, are left out."""
        rows: dict[Row, list[Measured]] = {}
        for each in sorted(self.measured, key=lambda each: each.seed):
            if np.isfinite(each.ece):
                rows.setdefault(each.row, []).append(each)
        wanted = {row: self.semantics_of(row.method) for row in rows}
        oracles = {each: float(oracle_of(self.source, self.bins, each).ece) for each in wanted.values()}
        return {row: Entry(tuple(measured), oracles[wanted[row]]) for row, measured in rows.items()}

    def queries_of(self, row: Row) -> float:
        return float(np.mean([each.queries for each in self.entries[row].measured])) / self.source.n


def _invalid_share(measured: Sequence[Measured]) -> float:
    return sum(each.invalid for each in measured) / max(1, sum(each.queries for each in measured))


@dataclass(frozen=True, repr=False)
class MethodTable:
    """Columns with the same bins and number of seeds."""

    columns: tuple[Column, ...]
    bins: int
    seeds: int

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every row that any column has, in the order of the methods."""
        rows = {row for column in self.columns for row in column.entries}
        return tuple(sorted(rows, key=lambda row: (TABLE_METHODS.index(row.method), row.queries)))

    def mean_error(self, row: Row) -> float | None:
        """Mean absolute error over the columns; ``None`` if any of them lacks the row."""
        errors = [column.entries[row].error[0] for column in self.columns if row in column.entries]
        return float(np.mean(errors)) if errors and len(errors) == len(self.columns) else None

    def mean_queries(self, row: Row) -> float:
        """Mean queries per item over the columns, all of which must have the row."""
        return float(np.mean([column.queries_of(row) for column in self.columns]))


def tables(comparison: MethodTable) -> dict[str, list[list[str]]]:
    """Lines of cells by title: estimates, errors, and shares of unusable answers if there are any."""
    columns, seeds = comparison.columns, comparison.seeds
    header = ["", *(column.name for column in columns)]
    estimates = [header, ["oracle", *(_spread(float(column.oracle.ece)) for column in columns)]]
    errors = [[*header, "mean"]]
    for row in comparison.rows:
        entries = [column.entries.get(row) for column in columns]
        estimates.append([row.name, *(_spread(*each.ece) if each else DASH for each in entries)])
        shown = (_spread(*each.error) if each else DASH for each in entries)
        errors.append([row.name, *shown, _spread(comparison.mean_error(row))])
    unused = [header]
    for method in TABLE_METHODS:
        shares = [column.left_out(method) for column in columns]
        if any(shares):
            unused.append([method, *(DASH if share is None else f"{share:.1%}" for share in shares)])
    repeats = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "seed 0"
    over = f"{comparison.bins} bins, {repeats}"
    error_title = f"Absolute error against the oracle of what each method measures, {over}; last, the mean."
    unused_title = "Share of answers that are neither word or state no confidence: the others are used."
    titled = {f"ECE, {over}.": estimates, error_title: errors, unused_title: unused}
    return {title: lines for title, lines in titled.items() if len(lines) > 1}


def _spread(value: float | None, sd: float | None = None) -> str:
    if value is None:
        return DASH
    return f"{value:.4f}" if sd is None else f"{value:.4f} ± {sd:.4f}"


def markdown(comparison: MethodTable) -> str:
    parts = []
    for title, lines in tables(comparison).items():
        cells = ([printable(cell, 120).replace("|", "\\|") for cell in line] for line in lines)
        first, *rest = (f"| {' | '.join(line)} |" for line in cells)
        parts.append("\n".join([title, "", first, "|---" * len(lines[0]) + "|", *rest, ""]))
    return "\n".join(parts)


def cells(comparison: MethodTable) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for column in comparison.columns:
        for row, entry in column.entries.items():
            (ece, ece_sd), (error, error_sd) = entry.ece, entry.error
            records.append(
                {
                    "model": column.source.model,
                    "data": column.source.data,
                    "items": column.source.n,
                    "method": row.method,
                    "K": row.queries,
                    "seeds": len(entry.measured),
                    "semantics": column.semantics_of(row.method),
                    "oracle": entry.oracle,
                    "ece": ece,
                    "ece_sd": ece_sd,
                    "error": error,
                    "error_sd": error_sd,
                    "queries_per_item": column.queries_of(row),
                    "invalid_share": _invalid_share(entry.measured),
                }
            )
    return records


def cells_csv(comparison: MethodTable) -> str:
    """The cells as CSV, one per line."""
    records = cells(comparison)
    return csv_text(list(records[0]), [list(each.values()) for each in records]) if records else ""
