"""The truth to compare an audit with: white-box probabilities from a score or logit file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate.truth import binned_ece, drawn_answer_ece, top_label_ece
from blindcal.items.files import Items
from blindcal.items.score_files import ChoiceScores, Scores, prompt_digest, read_choices, read_scores
from blindcal.records import Estimate, FloatArray, IntArray, Targets
from blindcal.results.result import Oracle
from blindcal.text import printable, spoken

# A stated confidence has no truth of its own: it is compared with the probability of the answer. Scores know
# nothing of an endpoint's own setting: what it answers is compared with draws at T = 1.
_COLUMNS = {"pair": "p", "max": "p_max", "sum": "p_sum", "configured": "p_sum", "stated": "p"}


@dataclass(frozen=True, slots=True)
class Truth:
    """The scores of the items of an audit; item k is in row ``rows[k]`` of the file.

    ``other_model`` is the model that was scored, if the file names another than that of the audit.
    """

    scores: Scores
    rows: IntArray
    other_model: str | None = None

    @property
    def p(self) -> FloatArray:
        """The true probability of every item, in the items' order."""
        return self.scores.p[self.rows]

    def compare(self, labels: IntArray, ece: Estimate, bins: int, targets: Targets | None = None) -> Oracle:
        """The true ECE in the audit's bins, and how far the estimate is from it.

        ``targets`` are the tokens that were asked about, if there is one per side. If a logit file has them,
        their probability is the truth.
        """
        about = self if targets is None else replace(self, scores=self.scores.about(targets))
        found = binned_ece(labels, about.p, bins)
        return _oracle(self, about.scores.column, float(found.ece), found.gaps, ece)


@dataclass(frozen=True, slots=True)
class ChoiceTruth:
    """The logits of the items of an audit with several answers; otherwise as `Truth`.

    With ``drawn``, the answers given are drawn, not the likeliest ones.
    """

    scores: ChoiceScores
    rows: IntArray
    other_model: str | None = None
    drawn: bool = False

    def compare(self, labels: IntArray, ece: Estimate, bins: int, targets: Targets | None = None) -> Oracle:  # noqa: ARG002 - the file has one column per answer
        """The true ECE in the audit's bins, and how far the estimate is from it (METHOD 8)."""
        logits = self.scores.logits[self.rows]
        found = (drawn_answer_ece if self.drawn else top_label_ece)(labels, logits, bins)
        return _oracle(self, "drawn answer" if self.drawn else "top-label", float(found.ece), found.gaps, ece)


def _oracle(truth: Truth | ChoiceTruth, column: str, true: float, gaps: FloatArray, ece: Estimate) -> Oracle:
    difference = None if ece.value is None else ece.value - true
    inside = true in ece if ece.has_interval else None
    return Oracle(
        path=truth.scores.path,
        column=column,
        ece=true,
        difference=difference,
        inside_interval=inside,
        gaps=tuple(gaps.tolist()),
        other_model=truth.other_model,
    )


def read_truth(
    path: Path, items: Items, semantics: str, model: str, words: tuple[str, ...] | None = None
) -> Truth:
    """Read the probabilities under the audit's semantics (METHOD 1) from a score or logit file.

    ``model`` is the audited one: the file may name it otherwise, but must not have other prompts. ``words``
    are the answer words of a logit file.
    """
    found = read_scores(path, _COLUMNS[semantics], words)
    return Truth(found, *_rows(path, found, items, model))


def read_choice_truth(path: Path, items: Items, model: str, *, drawn: bool = False) -> ChoiceTruth:
    """Read the logits of every answer from a choice file, for items with more than two answers."""
    found = read_choices(path)
    if tuple(map(spoken, found.answers)) != tuple(map(spoken, items.answers)):
        has, wanted = (printable(", ".join(words), 80) for words in (found.answers, items.answers))
        raise InputError(f"{path}: has the logits of {has}, and the answers of the items are {wanted}")
    return ChoiceTruth(found, *_rows(path, found, items, model), drawn)


def _rows(path: Path, found: Scores | ChoiceScores, items: Items, model: str) -> tuple[IntArray, str | None]:
    """The row of each item in a file, and the model that was scored if the file names another one."""
    places = {name: row for row, name in enumerate(found.ids)}
    rows = np.empty(len(items), np.int64)
    other_model = None
    for number, item in enumerate(items):
        row = places.get(item.id)
        if row is None:
            raise InputError(f"{path}: has no score for item {printable(item.id, 60)!r}")
        label = int(found.labels[row])
        if label != item.label:
            order = ", or of their options in another order" if items.answers else ""
            raise InputError(
                f"{path}: item {printable(item.id, 60)!r} has label {label} there "
                f"and {item.label} in the items: are these scores of other questions{order}?"
            )
        digest, _, scored = found.asked[row].partition(" ") if found.asked else ("", "", "")
        if scored and digest != prompt_digest(item):
            raise InputError(
                f"{path}: item {printable(item.id, 60)!r} was scored with another prompt",
                remedy="score the items with the same template, system message and API",
            )
        if scored and not f"{scored} ".startswith(f"{model} "):
            other_model = scored
        rows[number] = row
    return rows, other_model
