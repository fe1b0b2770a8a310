"""The numbers of a result, and the answers of a run, as tables or frames.

A table is a dictionary of columns of equal length, with ``None`` for an unknown value. An estimate takes
three columns: ``ece``, ``ece_low`` and ``ece_high``.
"""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

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
    "metrics", "bins", "curve", "confidence", "operating", "costs", "parts", "by_answer", "confusion"
]
ANSWERS_FILE = "answers.csv"
_DIGITS = {"temperature": "g", "seconds": ""}  # digits in answers.csv; nine elsewhere


def tables_of(findings: Findings, answers: Sequence[str] = ()) -> dict[str, Columns]:
    """All tables with numbers in them; ``answers`` are the words if there are more than two."""
    made = {
        "metrics": _metrics(findings),
        "bins": _columns(findings.bins),
        "curve": _curve(findings),
        "confidence": _confidence(findings),
        "operating": _columns(findings.operating),
        "costs": _costs(findings),
        "parts": _columns(findings.parts),
        "by_answer": _columns(findings.by_answer),
        "confusion": _confusion(findings, answers),
    }
    return {name: columns for name, columns in made.items() if any(columns.values())}


def _metrics(findings: Findings) -> Columns:
    """One row per metric, known or not, so that every result has the same rows."""
    each = findings.metrics
    ends = ("value", "low", "high", "level")
    return {"metric": list(each), **{end: [getattr(one, end) for one in each.values()] for end in ends}}


def _curve(findings: Findings) -> Columns:
    if (curve := findings.curve) is None:
        return {}
    unknown = (None,) * len(curve.f)
    columns = {"f": curve.f, "value": curve.value, "low": curve.low or unknown, "high": curve.high or unknown}
    return {name: list(column) for name, column in columns.items()}


def _confidence(findings: Findings) -> Columns:
    if (shares := findings.confidence) is None:
        return {}
    low, high = shares.edges[:-1], shares.edges[1:]
    columns = {"low": low, "high": high, "negatives": shares.negatives, "positives": shares.positives}
    return {name: list(column) for name, column in columns.items()}


def _costs(findings: Findings) -> Columns:
    rows = [
        (curve.cost_fp, curve.cost_fn, point.threshold, cost.value, cost.low, cost.high)
        for curve in findings.costs
        for point, cost in zip(findings.operating, curve.expected, strict=True)
    ]
    names = ("cost_fp", "cost_fn", "threshold", "expected", "expected_low", "expected_high")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _confusion(findings: Findings, answers: Sequence[str]) -> Columns:
    if not findings.confusion:
        return {}
    counts = zip(answers, zip(*findings.confusion, strict=True), strict=True)
    return {"label": list(answers), **{word: list(column) for word, column in counts}}


def _columns(records: Sequence[Any]) -> Columns:
    rows = [dict(_cells(record)) for record in records]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _cells(record: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Estimate):
            for end, number in (("", value.value), ("_low", value.low), ("_high", value.high)):
                yield field.name + end, number
        else:
            yield field.name, value


# Answers


def answer_table(store: Store, words: tuple[str, ...] = ()) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """The column names, and a row per answer in the order of the queries.

    ``words`` name more than two answers: then ``about`` (the answer with the shift) replaces ``threshold``,
    and there is a column for the bias of each answer. ``low`` and ``high`` bound the log-odds, if answers
    show any.
    """
    bounds = store.answered().bounds
    names = ["id", "label", "group", "round", "about" if words else "threshold", "shift", "temperature"]
    names += ["answer", "text", "seconds", *(() if bounds is None else ("low", "high"))]
    return [*names, *(f"bias_{word}" for word in words)], _answer_rows(store, words, bounds)


def _answer_rows(
    store: Store, words: tuple[str, ...], bounds: FloatArray | None
) -> Iterator[tuple[Any, ...]]:
    rounds = store.rounds()
    firsts = np.cumsum([0, *(len(asked) for asked in rounds)])
    answer_words = {INVALID: "invalid", **dict(enumerate(words or ("negative", "positive")))}
    for row, (query, answer, text, seconds) in enumerate(store.texts()):
        which = int(np.searchsorted(firsts, query, side="right")) - 1
        asked, place = rounds[which], query - int(firsts[which])
        name, label, group = store.item(int(asked.items[place]))
        shift, temperature = float(asked.shifts[place]), float(asked.temperatures[place])
        tested: float | str | None = 1 / (1 + math.exp(min(shift, 700)))
        if words:
            about = PLAIN if asked.about is None else int(asked.about[place])
            tested = None if about == PLAIN else words[about]
        shown = () if bounds is None else bounds[row].tolist()
        added = () if asked.biases is None else asked.biases[place].tolist()
        yield (
            *(name, words[label] if words else label, group, which + 1, tested, shift, temperature),
            *(answer_words[answer], text, seconds),
            *(None if math.isnan(bound) else bound for bound in shown),
            *(None if math.isinf(bias) else bias for bias in added),
        )


def write_answers(store: Store, path: Path, words: tuple[str, ...] = ()) -> None:
    names, rows = answer_table(store, words)
    digits = [_DIGITS.get(name, ".9g") for name in names]
    with atomic_write(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(map(csv_cell, names))
        table.writerows(map(_cell, row, digits) for row in rows)


def _cell(value: Any, digits: str) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        return csv_cell(value)
    return format(value, digits) if isinstance(value, float) else value


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
