"""The truth to compare an audit with: white-box probabilities from a score or logit file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate.truth import binned_ece, drawn_answer_ece, top_label_ece
from blindcal.items.question_files import Items
from blindcal.items.score_files import ChoiceScores, Scores, prompt_digest, read_choices, read_scores
from blindcal.records import Estimate, IntArray, Targets
from blindcal.results.result import Oracle
from blindcal.text import printable, spoken

# A stated confidence is compared with the probability of the answer, for it has no truth of its own. Answers
# at an endpoint's own setting, of which scores know nothing, are compared with draws at T = 1.
_COLUMNS = {"pair": "p", "max": "p_max", "sum": "p_sum", "configured": "p_sum", "stated": "p"}


@dataclass(frozen=True, slots=True)
class Truth:
    """The scores of the items of an audit; item k is in row ``rows[k]`` of the file.

    ``other_model`` is the scored model, if it has another name. ``drawn`` says that the answers, of more than
    two, are drawn rather than the likeliest ones.
    """

    scores: Scores | ChoiceScores
    rows: IntArray
    other_model: str | None = None
    drawn: bool = False

    def compare(self, labels: IntArray, ece: Estimate, bins: int, targets: Targets | None = None) -> Oracle:
        """The true ECE, and how far the estimate is from it (METHOD 8 for k answers)."""
        scores = self.scores
        if isinstance(scores, ChoiceScores):
            column = "drawn answer" if self.drawn else "top-label"
            true_ece = drawn_answer_ece if self.drawn else top_label_ece
            truth = true_ece(labels, scores.logits[self.rows], bins)
        else:
            scores = scores if targets is None else scores.about(targets)
            column, truth = scores.column, binned_ece(labels, scores.p[self.rows], bins)
        true = float(truth.ece)
        return Oracle(
            path=scores.path,
            column=column,
            ece=true,
            difference=None if ece.value is None else ece.value - true,
            inside_interval=true in ece if ece.has_interval else None,
            gaps=tuple(truth.gaps.tolist()),
            other_model=self.other_model,
        )


def read_truth(
    path: Path,
    items: Items,
    model: str,
    semantics: str = "pair",
    words: tuple[str, ...] | None = None,
    *,
    drawn: bool = False,
) -> Truth:
    """Read the probabilities of the items of an audit under its semantics (METHOD 1).

    The file may name ``model`` otherwise, but must have the same prompts. ``words`` are the answer words of a
    logit file.
    """
    if not items.answers:
        return _truth(path, read_scores(path, _COLUMNS[semantics], words), items, model)
    scores = read_choices(path)
    if tuple(map(spoken, scores.answers)) != tuple(map(spoken, items.answers)):
        has, wanted = (printable(", ".join(words), 80) for words in (scores.answers, items.answers))
        raise InputError(f"{path}: has the logits of {has}, and the answers of the items are {wanted}")
    return _truth(path, scores, items, model, drawn=drawn)


def _truth(
    path: Path, scores: Scores | ChoiceScores, items: Items, model: str, *, drawn: bool = False
) -> Truth:
    places = {name: row for row, name in enumerate(scores.ids)}
    rows = np.empty(len(items), np.int64)
    other_model = None
    for number, item in enumerate(items):
        name, row = printable(item.id, 60), places.get(item.id)
        if row is None:
            raise InputError(f"{path}: has no score for item {name!r}")
        label = int(scores.labels[row])
        if label != item.label:
            order = ", or of their options in another order" if items.answers else ""
            raise InputError(
                f"{path}: item {name!r} has label {label} there and {item.label} in the items: are these "
                f"scores of other questions{order}?"
            )
        digest, _, scored = scores.asked[row].partition(" ") if scores.asked else ("", "", "")
        if scored and digest != prompt_digest(item):
            raise InputError(
                f"{path}: item {name!r} was scored with another prompt",
                remedy="score the items with the same template, system message and API",
            )
        if scored and not f"{scored} ".startswith(f"{model} "):
            other_model = scored
        rows[number] = row
    return Truth(scores, rows, other_model, drawn)
