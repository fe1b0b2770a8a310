"""What the estimates of a result are about, in the words of figures, tables and sentences.

With two answers, the confidence is the probability of the positive one. With more, it is that of the answer
given; see METHOD 8. What the page alone says is in its templates.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.estimate.findings import Curve
from blindcal.results.result import AuditResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words for the confidence, for what is observed, and for decisions by a threshold.

    ``confidence``, ``share`` and ``threshold`` are the names of axes, and ``observed`` is the ``share`` in a
    sentence. ``sides`` are the two kinds of items in the distribution of the confidence, as the figure names
    them, ``of_sides`` in a sentence, and ``missing`` if there are none. ``errors`` are the two wrong
    decisions; the one that a higher threshold avoids comes first. ``rates`` are the fields of an
    `OperatingPoint` to draw, with their names, and ``decided`` is a sentence about two of them, by their
    fields. In ``asked_for``, ``{yes}`` and ``{no}`` are the answer words.
    """

    several: bool
    confidence: str
    share: str
    observed: str
    threshold: str
    sides: tuple[str, str]
    of_sides: tuple[str, str]
    missing: tuple[str, str]
    side_share: str
    distribution: str
    errors: tuple[str, str]
    rates: tuple[tuple[str, str], ...]
    decisions: str
    decided: str
    asked_for: str


TWO_ANSWERS = Wording(
    several=False,
    confidence="confidence: P(positive)",
    share="share with a positive label",
    observed="share of positive labels",
    threshold="threshold on P(positive)",
    sides=("label positive", "label negative"),
    of_sides=("positive items", "negative items"),
    missing=("no items with a positive label", "no items with a negative label"),
    side_share="share of the label's items",
    distribution="Distribution of the confidence for items with a positive and with a negative label",
    errors=("false positive", "false negative"),
    rates=(("precision", "precision"), ("recall", "recall"), ("accuracy", "accuracy")),
    decisions="Precision, recall and accuracy at each threshold",
    decided="precision is {precision:.0%} and recall is {recall:.0%}",
    asked_for="“{yes}” or “{no}”",
)
TOP_LABEL = Wording(
    several=True,
    confidence="confidence in the answer given",
    share="share of right answers",
    observed="share of right answers",
    threshold="threshold on the confidence",
    sides=("right answers", "wrong answers"),
    of_sides=("right answers", "wrong answers"),
    missing=("no right answers", "no wrong answers"),
    side_share="share of these answers",
    distribution="Distribution of the confidence in right and in wrong answers",
    errors=("wrong answer", "withheld right answer"),
    rates=(("precision", "right, of those answered"), ("positive_rate", "answered")),
    decisions="Share of right answers, and share of questions answered, at each threshold",
    decided="{positive_rate:.0%} are answered, and {precision:.0%} of these answers are right",
    asked_for="one of those asked for",
)


def wording_of(result: AuditResult) -> Wording:
    """The words for a result."""
    return TOP_LABEL if result.answers else TWO_ANSWERS


def least_confidence(result: AuditResult) -> float:
    """The lowest confidence that an item can have: the likeliest of k answers has at least 1/k."""
    return 1 / len(result.answers) if result.answers else 0.0


def shown_curve(result: AuditResult) -> Curve | None:
    """The reliability curve where there can be items."""
    curve = result.curve
    if curve is None:
        return None
    first = sum(f < least_confidence(result) for f in curve.f)
    low, high = (None if column is None else column[first:] for column in (curve.low, curve.high))
    return Curve(curve.f[first:], curve.value[first:], low, high, curve.level)
