"""The truth to compare an audit with: white-box probabilities from a score file."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindcal.data import Items
from blindcal.errors import InputError
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, IntArray
from blindcal.result import Estimate, Oracle
from blindcal.text import printable

_COLUMNS = {"pair": "p", "max": "p_max", "sum": "p_sum"}


@dataclass(frozen=True, slots=True)
class Truth:
    """The true probability of every item of an audit, in the items' order."""

    path: str
    column: str
    p: FloatArray

    def compare(self, labels: IntArray, ece: Estimate, bins: int) -> Oracle:
        """The true ECE in the audit's bins, and how far the estimate is from it."""
        true = binned_ece(labels, self.p, bins)
        value = float("nan") if ece.value is None else ece.value
        inside = None if ece.low is None or ece.high is None else bool(ece.low <= true.ece <= ece.high)
        return Oracle(self.path, self.column, true.ece, value - true.ece, inside, tuple(true.gaps.tolist()))


def read_truth(path: Path, items: Items, semantics: str, method: str) -> Truth:
    """Read the column of a score file that holds what this audit measures (METHOD 1)."""
    wanted = _COLUMNS["sum" if method == "temperature" else semantics]
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            column = wanted if wanted in columns else "p"
            if not {"id", "label", column} <= set(columns):
                raise InputError(f"{path}: a score file has the columns id, label and p")
            scores = {row["id"]: (row["label"], row[column]) for row in rows}
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV ({error})") from None
    p = np.empty(len(items))
    for number, item in enumerate(items):
        label, score = scores.get(item.id, (None, None))
        if score is None:
            raise InputError(f"{path}: has no score for item {printable(item.id, 60)!r}")
        if label not in (str(item.label), f"{item.label}.0"):
            raise InputError(
                f"{path}: item {printable(item.id, 60)!r} has label {printable(str(label), 20)!r} there "
                f"and {item.label} in the items: are these scores of other questions?"
            )
        try:
            p[number] = float(score)
        except ValueError:
            p[number] = np.nan
        if not 0 <= p[number] <= 1:
            raise InputError(
                f"{path}: {column} of item {printable(item.id, 60)!r} must be a probability, "
                f"not {printable(score, 20)!r}"
            )
    return Truth(str(path), column, p)
