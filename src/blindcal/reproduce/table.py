"""The paper's table, with our methods: what each method estimates, and its error against the oracle.

A column is a model on a data set, a row a method at a budget. The table can be written as Markdown, as LaTeX
(booktabs), and as CSV with one line per cell or one line per estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from blindcal.estimate.face_value import findings_at_face_value
from blindcal.estimate.findings import Findings
from blindcal.estimate.truth import given_confidence
from blindcal.records import FloatArray, Semantics
from blindcal.reproduce.cells import TABLE_METHODS, Found, Measured
from blindcal.reproduce.sources import Source
from blindcal.text import csv_text, printable

DASH = "\N{EN DASH}"


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
class Entry:
    """The estimates of a method for a column, one per seed, and the oracle to compare with, if known."""

    estimates: tuple[float, ...]
    oracle: float | None
    gaps: tuple[float, ...]
    gap_sds: tuple[float, ...]
    asked: float
    invalid: float

    @property
    def mean(self) -> float:
        """Mean estimate."""
        return float(np.mean(self.estimates))

    @property
    def sd(self) -> float | None:
        """Standard deviation over the seeds; ``None`` for one seed."""
        return float(np.std(self.estimates, ddof=1)) if len(self.estimates) > 1 else None

    @property
    def errors(self) -> FloatArray | None:
        """Absolute errors against the oracle."""
        return None if self.oracle is None else np.abs(np.array(self.estimates) - self.oracle)

    @property
    def error(self) -> float | None:
        """Mean absolute error against the oracle."""
        return None if self.errors is None else float(self.errors.mean())

    @property
    def error_sd(self) -> float | None:
        """Standard deviation of the absolute error over the seeds."""
        errors = self.errors
        return None if errors is None or errors.size < 2 else float(errors.std(ddof=1))


def oracle_of(source: Source, bins: int, semantics: Semantics) -> Findings:
    """The oracle (METHOD 1) of a source, and its reliability diagram."""
    if source.choices is None:
        return findings_at_face_value(source.labels, source.probabilities(semantics), bins)
    given, confidence = given_confidence(source.recording.logits)
    return findings_at_face_value((given == source.labels).astype(np.int64), confidence, bins)


@dataclass(frozen=True, repr=False)
class Column:
    """A model on a data set: its known oracles, and all estimates."""

    model: str
    data: str
    n: int
    semantics: Semantics
    oracles: dict[Semantics, Findings]
    found: Found

    def __repr__(self) -> str:
        return f"Column({self.name!r}, {self.n:,} items, {len(self.found)} cells)"

    @property
    def name(self) -> str:
        """The model and the data set."""
        return f"{self.model} {self.data}"

    @property
    def oracle(self) -> Findings | None:
        """The oracle of the column's semantics; ``None`` if the probabilities are not known."""
        return self.oracles.get(self.semantics)

    def left_out(self, method: str) -> float | None:
        """The share of a method's answers, at its largest budget, that could not be used."""
        most = max((cell.queries for cell in self.found if cell.method == method), default=None)
        mine = [one for cell, one in self.found.items() if (cell.method, cell.queries) == (method, most)]
        return sum(one.invalid for one in mine) / max(1, sum(one.queries for one in mine)) if mine else None

    @cached_property
    def entries(self) -> dict[Row, Entry]:
        """Every row with a value; undefined estimates, such as from an empty bin, are left out."""
        rows: dict[Row, list[Measured]] = {}
        for cell in sorted(self.found, key=lambda cell: cell.seed):
            if np.isfinite(self.found[cell].ece):
                rows.setdefault(Row(cell.method, cell.queries), []).append(self.found[cell])
        return {row: self._entry(row, measured) for row, measured in rows.items()}

    def _entry(self, row: Row, measured: Sequence[Measured]) -> Entry:
        oracle = self.oracles.get(TABLE_METHODS[row.method].semantics(self.semantics))
        asked = sum(one.queries for one in measured)
        gaps = np.array([one.gaps for one in measured])
        return Entry(
            tuple(one.ece for one in measured),
            None if oracle is None else float(oracle.ece),
            tuple(gaps.mean(axis=0).tolist()),
            tuple(gaps.std(axis=0).tolist()),
            asked / len(measured) / self.n,
            sum(one.invalid for one in measured) / max(1, asked),
        )


def oracles_of(source: Source, asked: Semantics, found: Found, bins: int) -> dict[Semantics, Findings]:
    """The oracles of the semantics ``asked``, and of those that the methods in ``found`` measure."""
    wanted: set[Semantics] = {asked} | {TABLE_METHODS[cell.method].semantics(asked) for cell in found}
    return {semantics: oracle_of(source, bins, semantics) for semantics in wanted}


def column_of(source: Source, found: Found, bins: int) -> Column:
    """The column of a source whose probabilities are known."""
    asked = source.targets.semantics
    return Column(source.model, source.data, source.n, asked, oracles_of(source, asked, found, bins), found)


@dataclass(frozen=True, repr=False)
class MethodTable:
    """All columns over the same bins and seeds."""

    columns: tuple[Column, ...]
    bins: int
    seeds: tuple[int, ...]

    def __repr__(self) -> str:
        return f"MethodTable({len(self.columns)} columns, {len(self.rows)} rows, {len(self.seeds)} seeds)"

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every row that any column has, in the order of the methods."""
        there = {row for column in self.columns for row in column.entries}
        order = list(TABLE_METHODS)
        return tuple(sorted(there, key=lambda row: (order.index(row.method), row.queries)))

    def mean_error(self, row: Row) -> float | None:
        """Mean absolute error of a row over the columns; ``None`` if it is unknown in any of them."""
        errors = [column.entries[row].error if row in column.entries else None for column in self.columns]
        there = [error for error in errors if error is not None]
        return float(np.mean(there)) if there and len(there) == len(errors) else None


def estimates_table(comparison: MethodTable) -> list[list[str]]:
    """The paper's table: mean estimates and their spread over the seeds."""
    oracles = [column.oracle for column in comparison.columns]
    lines = [
        ["", *(column.name for column in comparison.columns)],
        ["oracle", *(_spread(None if one is None else float(one.ece)) for one in oracles)],
    ]
    for row in comparison.rows:
        entries = [column.entries.get(row) for column in comparison.columns]
        lines.append([row.name, *(DASH if one is None else _spread(one.mean, one.sd) for one in entries)])
    return lines


def errors_table(comparison: MethodTable) -> list[list[str]]:
    """Mean absolute errors against the oracle and their spread, with their mean over the columns."""
    lines = [["", *(column.name for column in comparison.columns), "mean"]]
    for row in comparison.rows:
        entries = [column.entries.get(row) for column in comparison.columns]
        said = [DASH if e is None else _spread(e.error, e.error_sd) for e in entries]
        lines.append([row.name, *said, _spread(comparison.mean_error(row))])
    return lines


def left_out_table(comparison: MethodTable) -> list[list[str]]:
    """The share of unusable answers: a line per method that has any, at its largest budget."""
    lines = [["", *(column.name for column in comparison.columns)]]
    for method in TABLE_METHODS:
        shares = [column.left_out(method) for column in comparison.columns]
        if any(shares):
            lines.append([method, *(DASH if share is None else f"{share:.1%}" for share in shares)])
    return lines


def _spread(value: float | None, sd: float | None = None) -> str:
    if value is None:
        return DASH
    return f"{value:.4f}" if sd is None else f"{value:.4f} ± {sd:.4f}"


@dataclass(frozen=True, slots=True)
class TitledTable:
    """A title, and lines of cells; the first line is the header."""

    title: str
    lines: list[list[str]]


def tables(comparison: MethodTable) -> list[TitledTable]:
    """Estimates, errors if an oracle is known, and the share of unusable answers if there are any."""
    count = len(comparison.seeds)
    repeats = f"mean ± standard deviation over {count} seeds" if count > 1 else f"seed {comparison.seeds[0]}"
    over = f"{comparison.bins} bins, {repeats}"
    found = [TitledTable(f"ECE, {over}.", estimates_table(comparison))]
    if any(column.oracle is not None for column in comparison.columns):
        title = f"Absolute error against the oracle of what each method measures, {over}"
        found.append(TitledTable(f"{title}; last, the mean over the columns.", errors_table(comparison)))
    unused = left_out_table(comparison)
    if len(unused) > 1:
        found.append(TitledTable(_LEFT_OUT, unused))
    return found


_LEFT_OUT = (
    "Share of answers that are neither word or state no confidence: what is estimated rests on the others."
)


def markdown(comparison: MethodTable) -> str:
    """The tables as Markdown, each below its title."""
    return "\n".join(f"{one.title}\n\n{_markdown(one.lines)}\n" for one in tables(comparison))


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rows = [
        "| " + " | ".join(printable(cell, 120).replace("|", "\\|") for cell in line) + " |" for line in lines
    ]
    return "\n".join([rows[0], "|---" * len(lines[0]) + "|", *rows[1:]])


def latex(comparison: MethodTable) -> str:
    """The tables as LaTeX; they need the package booktabs."""
    return "% \\usepackage{booktabs}\n" + "\n".join(map(_latex, tables(comparison)))


def _latex(table: TitledTable) -> str:
    rows = [" & ".join(map(_escaped, line)) + r" \\" for line in table.lines]
    body = "\n".join([rows[0], r"\midrule", *rows[1:]])
    columns = "l" + "r" * (len(table.lines[0]) - 1)
    title = _escaped(table.title)
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{title}}}\n\\begin{{tabular}}{{{columns}}}\n"
        f"\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    DASH: "--",
}


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text, 200))


_CELL = (
    *("model", "data", "items", "method", "K", "seeds", "semantics", "oracle", "ece", "ece_sd"),
    *("error", "error_sd", "queries_per_item", "invalid_share"),
)


def cells_csv(comparison: MethodTable) -> str:
    """One line per cell of the table."""
    return csv_text(_CELL, _cell_lines(comparison), end="\n")


def cells_json(comparison: MethodTable) -> str:
    """One JSON object per cell of the table, each on its own line."""
    from blindcal.json_form import json_line  # cells are computed where msgspec is not installed

    lines = (dict(zip(_CELL, line, strict=True)) for line in _cell_lines(comparison))
    return "".join(json_line(line).decode() + "\n" for line in lines)


def _cell_lines(comparison: MethodTable) -> Iterator[tuple[object, ...]]:
    for column in comparison.columns:
        for row in comparison.rows:
            if (one := column.entries.get(row)) is not None:
                semantics = TABLE_METHODS[row.method].semantics(column.semantics)
                yield (
                    *(column.model, column.data, column.n, row.method, row.queries, len(one.estimates)),
                    *(semantics, one.oracle, one.mean, one.sd, one.error, one.error_sd),
                    *(one.asked, one.invalid),
                )


def estimates_csv(comparison: MethodTable) -> str:
    """One line per estimate, with its gaps."""
    gaps = [f"gap_{m + 1}" for m in range(comparison.bins)]
    lines = [
        (column.model, column.data, cell.method, cell.queries, cell.seed, one.ece, *one.gaps)
        for column in comparison.columns
        for cell, one in sorted(
            column.found.items(), key=lambda each: (each[0].method, each[0].queries, each[0].seed)
        )
    ]
    return csv_text(("model", "data", "method", "K", "seed", "ece", *gaps), lines, end="\n")
