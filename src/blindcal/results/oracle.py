"""The truth to compare an audit with: white-box probabilities from a score file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate.truth import binned_ece
from blindcal.items.files import Items
from blindcal.items.scores import read_scores
from blindcal.records import FloatArray, IntArray
from blindcal.results.result import Estimate, Oracle
from blindcal.text import printable

# What a model states has no truth of its own: it is held against the probability of its answer.
_COLUMNS = {"pair": "p", "max": "p_max", "sum": "p_sum", "stated": "p"}


@dataclass(frozen=True, slots=True)
class Truth:
    """The true probability of every item of an audit, in the items' order."""

    path: str
    column: str
    p: FloatArray

    def compare(self, labels: IntArray, ece: Estimate, bins: int) -> Oracle:
        """The true ECE in the audit's bins, and how far the estimate is from it."""
        true = binned_ece(labels, self.p, bins)
        difference = None if ece.value is None else ece.value - true.ece
        inside = None if ece.low is None or ece.high is None else bool(ece.low <= true.ece <= ece.high)
        return Oracle(self.path, self.column, true.ece, difference, inside, tuple(true.gaps.tolist()))


def read_truth(path: Path, items: Items, semantics: str) -> Truth:
    """Read the column of a score file that holds what this audit measures (METHOD 1)."""
    found = read_scores(path, _COLUMNS[semantics])
    scores = dict(zip(found.ids, zip(found.labels.tolist(), found.p.tolist(), strict=True), strict=True))
    p = np.empty(len(items))
    for number, item in enumerate(items):
        label, score = scores.get(item.id, (None, None))
        if score is None:
            raise InputError(f"{path}: has no score for item {printable(item.id, 60)!r}")
        if label != item.label:
            raise InputError(
                f"{path}: item {printable(item.id, 60)!r} has label {label} there "
                f"and {item.label} in the items: are these scores of other questions?"
            )
        p[number] = score
    return Truth(str(path), found.column, p)
