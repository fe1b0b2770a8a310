"""Every answer of a run as a row: in answers.csv, and in a frame."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.atomic_write import atomic_write
from blindcal.records import INVALID, PLAIN, FloatArray, Round
from blindcal.results.tables import Columns
from blindcal.store.run_store import Store
from blindcal.text import csv_cell

ANSWERS_FILE = "answers.csv"
ANSWER_COLUMNS = (
    *("id", "label", "group", "round", "threshold", "shift", "temperature"),
    *("answer", "text", "seconds"),
)
BOUND_COLUMNS = ("low", "high")
"""Further columns if answers show bounds of the log-odds."""
BIAS_COLUMN = "bias_"
"""Begins the names of the columns with what was added to each answer, if there are more than two."""
_TWO_ANSWERS = ("negative", "positive")
_DIGITS = {"temperature": "g", "seconds": ""}  # of numbers in CSV; nine elsewhere


@dataclass(frozen=True, slots=True)
class AnswerRows:
    """The answers of a run as rows, in the order of the queries; ``None`` is an unknown value.

    Labels are 0 and 1. With ``words``, if there are more than two answers, labels and answers are these
    words, and the column ``about``, the answer with the shift, replaces ``threshold``.
    """

    store: Store
    words: tuple[str, ...]
    bounds: FloatArray | None

    @classmethod
    def of(cls, store: Store, words: tuple[str, ...] = ()) -> AnswerRows:
        """Those of a run file."""
        return cls(store, words, store.answered().bounds)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return (
            *("about" if self.words and name == "threshold" else name for name in ANSWER_COLUMNS),
            *(() if self.bounds is None else BOUND_COLUMNS),
            *(BIAS_COLUMN + word for word in self.words),
        )

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        rounds, words, bounds = self.store.rounds(), self.words, self.bounds
        firsts = np.cumsum([0, *(len(asked) for asked in rounds)])
        said = {INVALID: "invalid", **dict(enumerate(words or _TWO_ANSWERS))}
        for row, (query, answer, text, seconds) in enumerate(self.store.texts()):
            which = int(np.searchsorted(firsts, query, side="right")) - 1
            asked, place = rounds[which], query - int(firsts[which])
            name, label, group = self.store.item(int(asked.items[place]))
            shift, temperature = float(asked.shifts[place]), float(asked.temperatures[place])
            shown = () if bounds is None else bounds[row].tolist()
            added = () if asked.biases is None else asked.biases[place].tolist()
            yield (
                *(name, words[label] if words else label, group, which + 1),
                *(_about(asked, place, words) if words else _threshold(shift), shift, temperature),
                *(said[answer], text, seconds),
                *(None if math.isnan(bound) else bound for bound in shown),
                *(None if math.isinf(bias) else bias for bias in added),
            )

    def columns(self) -> Columns:
        """The answers in columns."""
        columns: Columns = {name: [] for name in self.names}
        for row in self:
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
        return columns


def write_answers(store: Store, path: Path, words: tuple[str, ...] = ()) -> None:
    """Write every answer of a run as CSV that is safe to open in a spreadsheet."""
    rows = AnswerRows.of(store, words)
    with atomic_write(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(map(csv_cell, rows.names))
        digits = [_DIGITS.get(name, ".9g") for name in rows.names]
        for row in rows:
            table.writerow(map(_cell, row, digits))


def _cell(value: Any, digits: str) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        return csv_cell(value)
    return format(value, digits) if isinstance(value, float) else value


def _threshold(shift: float) -> float:
    """The threshold that a shift asks about."""
    return 1 / (1 + math.exp(min(shift, 700)))


def _about(asked: Round, place: int, words: tuple[str, ...]) -> str | None:
    """The answer that a query shifts; none for a plain question."""
    about = PLAIN if asked.about is None else int(asked.about[place])
    return None if about == PLAIN else words[about]
