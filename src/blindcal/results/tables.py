"""The numbers of a result, and the answers of a run, as tables or frames.

A table is a dictionary of columns of equal length, with ``None`` for an unknown value. An estimate takes
three columns: ``ece``, ``ece_low`` and ``ece_high``.
"""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from blindcal.atomic_write import atomic_write
from blindcal.errors import InputError, MissingExtraError
from blindcal.estimate.findings import Findings
from blindcal.records import INVALID, PLAIN, Estimate, FloatArray
from blindcal.text import csv_cell

if TYPE_CHECKING:
    from blindcal.store.run_store import Store

FrameLibrary: TypeAlias = Literal["pandas", "polars"]
LIBRARIES: tuple[FrameLibrary, ...] = get_args(FrameLibrary)

Columns: TypeAlias = dict[str, list[Any]]
TableName: TypeAlias = Literal[
    "metrics", "bins", "curve", "confidence", "risk", "operating", "costs", "parts", "by_answer", "confusion"
]
ANSWERS_FILE = "answers.csv"
_DIGITS = {"temperature": "g", "seconds": ""}  # digits in answers.csv; nine elsewhere


def tables_of(findings: Findings, answers: Sequence[str] = ()) -> dict[str, Columns]:
    """All tables with numbers in them; ``answers`` are the words if there are more than two."""
    curve, shares = findings.curve, findings.confidence
    rows: dict[str, Iterable[dict[str, Any]]] = {
        # every metric, known or not, so that all results have the same rows
        "metrics": (
            {"metric": name, **{end: getattr(metric, end) for end in ("value", "low", "high", "level")}}
            for name, metric in findings.metrics.items()
        ),
        "bins": map(_row, findings.bins),
        "curve": ()
        if curve is None
        else (
            {"f": f, "value": value, "low": low, "high": high}
            for f, value, low, high in zip_longest(curve.f, curve.value, curve.low or (), curve.high or ())
        ),
        "confidence": ()
        if shares is None
        else (
            {"low": low, "high": high, "negatives": negatives, "positives": positives}
            for (low, high), negatives, positives in zip(
                pairwise(shares.edges), shares.negatives, shares.positives, strict=True
            )
        ),
        "risk": map(_row, findings.risk),
        "operating": map(_row, findings.operating),
        "costs": (
            {"cost_fp": costs.cost_fp, "cost_fn": costs.cost_fn, "threshold": point.threshold}
            | _cells("expected", cost)
            for costs in findings.costs
            for point, cost in zip(findings.operating, costs.expected, strict=True)
        ),
        "parts": map(_row, findings.parts),
        "by_answer": map(_row, findings.by_answer),
        "confusion": (
            {"label": label, **dict(zip(answers, counts, strict=True))}
            for label, counts in zip(answers, findings.confusion, strict=False)
        ),
    }
    tables = {name: list(listed) for name, listed in rows.items()}
    return {
        name: {column: [row[column] for row in listed] for column in listed[0]}
        for name, listed in tables.items()
        if listed
    }


def _row(record: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in fields(record):
        row |= _cells(field.name, getattr(record, field.name))
    return row


def _cells(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Estimate):
        return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
    return {name: value}


# Answers


def answer_table(store: Store, words: tuple[str, ...] = ()) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """The column names, and a row per answer in the order of the queries.

    ``words`` name more than two answers: then ``about`` (the answer with the shift) replaces ``threshold``,
    and there is a column for the bias of each answer. ``low`` and ``high`` bound the log-odds, if answers
    show any.
    """
    bounds = store.shown_bounds(sum(map(len, store.rounds())))
    names = ["id", "label", "group", "round", "about" if words else "threshold", "shift", "temperature"]
    names += ["answer", "text", "seconds", *(() if bounds is None else ("low", "high"))]
    return [*names, *(f"bias_{word}" for word in words)], _answer_rows(store, words, bounds)


def _answer_rows(
    store: Store, words: tuple[str, ...], bounds: FloatArray | None
) -> Iterator[tuple[Any, ...]]:
    items, first = store.items(), 0
    labels, shown = items.labels.tolist(), [] if bounds is None else bounds.tolist()
    answer_words = {INVALID: "invalid", **dict(enumerate(words or ("negative", "positive")))}
    for number, asked in enumerate(store.rounds(), 1):
        numbers, shifts, temperatures = (
            column.tolist() for column in (asked.items, asked.shifts, asked.temperatures)
        )
        for query, answer, text, seconds in store.texts(first, len(asked)):
            place = query - first
            item, shift = numbers[place], shifts[place]
            tested: float | str | None = 1 / (1 + math.exp(min(shift, 700)))
            if words:
                about = PLAIN if asked.about is None else int(asked.about[place])
                tested = None if about == PLAIN else words[about]
            added = () if asked.biases is None else asked.biases[place].tolist()
            yield (
                *(items.ids[item], words[labels[item]] if words else labels[item], items.groups[item]),
                *(number, tested, shift, temperatures[place], answer_words[answer], text, seconds),
                *(None if math.isnan(bound) else bound for bound in (shown[query] if shown else ())),
                *(None if math.isinf(bias) else bias for bias in added),
            )
        first += len(asked)


def write_answers(store: Store, path: Path, words: tuple[str, ...] = ()) -> None:
    names, rows = answer_table(store, words)
    digits = [_DIGITS.get(name, ".9g") for name in names]
    with atomic_write(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(map(csv_cell, names))
        table.writerows(
            [
                format(cell, form)
                if isinstance(cell, float)
                else csv_cell(cell)
                if isinstance(cell, str)
                else cell
                for cell, form in zip(row, digits, strict=True)
            ]
            for row in rows  # csv writes nothing for None
        )


# Frames


def frame(
    columns: Mapping[str, Sequence[Any]], library: FrameLibrary | None = None, *, texts: Collection[str] = ()
) -> Any:
    """A ``DataFrame`` of pandas, else polars; ``texts`` names columns of text, even if all are ``None``."""
    name, module = _imported(library)
    kinds = {column: "text" if column in texts else _kind(values) for column, values in columns.items()}
    if name == "polars":
        types = {"text": "String", "bool": "Boolean", "whole": "Int64", "real": "Float64"}
        schema = {column: getattr(module, types[kind]) for column, kind in kinds.items()}
        return module.DataFrame(dict(columns), schema=schema)
    series = {column: _series(module, values, kinds[column]) for column, values in columns.items()}
    return module.DataFrame(series)


def _imported(library: str | None) -> tuple[str, Any]:
    if library is not None and library not in LIBRARIES:
        raise InputError(f"library: must be one of {', '.join(LIBRARIES)}, got {library!r}")
    wanted = LIBRARIES if library is None else (library,)
    for name in wanted:
        try:
            return name, importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # it is installed, but lacks a dependency
                raise
    raise MissingExtraError(
        f"a frame needs {' or '.join(wanted)}, which {'is' if library else 'are'} not installed",
        remedy=" or ".join(f"pip install {name}" for name in wanted),
    )


def _kind(values: Sequence[Any]) -> str:
    types = {type(value) for value in values if value is not None}
    if str in types:
        return "text"
    if types and types <= {bool}:
        return "bool"
    return "whole" if types and types <= {int} else "real"


def _series(pandas: Any, values: Sequence[Any], kind: str) -> Any:
    if kind == "text":  # the type of text depends on the version of pandas; that of an empty column must not
        return pandas.Series(values, dtype=None if any(values) else "object")
    complete, gaps = {
        "real": ("float64", "float64"),
        "whole": ("int64", "Int64"),
        "bool": ("bool", "boolean"),
    }[kind]
    return pandas.Series(values, dtype=gaps if None in values else complete)
