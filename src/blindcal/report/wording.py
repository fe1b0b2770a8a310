"""What the estimates of a result are about, in the words of figures, tables and sentences.

With two answers, the confidence is the probability of the positive one. With more, it is that of the answer
given; see METHOD 8. What is said of both in the same words is in the `narrative`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blindcal.estimate.findings import Curve
from blindcal.report.sentences import word
from blindcal.results.result import AuditResult

_CONFIGURED = (
    "The confidence is that of the endpoint at its own setting: its temperature, its sampler and whatever "
    "the model thinks before it answers are part of it."
)
_MEANINGS = {
    "ece": "Average gap between confidence and the share of correct answers, over the bins. Lower is better.",
    "accuracy": "Share of correct answers without any bias. Higher is better.",
    "auroc": "Probability that a positive item gets a higher confidence than a negative one; one half is a "
    "coin flip. Higher is better.",
    "brier": "Mean squared difference between confidence and label, which measures calibration and sharpness "
    "together. Lower is better.",
    "log_loss": "Mean negative log-likelihood of the labels, in nats. A confident wrong answer is expensive. "
    "Lower is better.",
}
_SEMANTICS = {
    "pair": "One token stands for each answer. If the model spreads an answer over several spellings, the "
    "others are ignored.",
    "max": "The likeliest spelling of each answer counts, as in greedy decoding, not their sum.",
    "sum": "All spellings of an answer count together, as they do when answers are sampled.",
    "configured": f"{_CONFIGURED} Answers that are neither word are left out.",
    "stated": "Answers without a confidence from one half to certainty are left out of the estimates.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words for the confidence, for what is observed, and for decisions by a threshold.

    ``confidence``, ``share`` and ``threshold`` are the names of axes, and ``observed`` is the ``share`` in a
    sentence. ``sides`` are the two kinds of items in the distribution of the confidence, as the figure names
    them, ``of_sides`` in a sentence, and ``missing`` if there are none. ``errors`` are the two wrong
    decisions; the one that a higher threshold avoids comes first. ``rates`` are the fields of an
    `OperatingPoint` to draw, with their names, and ``decided`` tells two of them, by their fields.
    ``too_high`` says what a bar that points up means. ``meanings`` are those of the metrics by which runs are
    compared, and ``semantics`` what each of them cannot tell.

    In the other sentences, ``{yes}`` and ``{no}`` are the answer words.
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
    too_high: str
    asked_for: str
    invalid: str
    other_label: str
    outside: str
    reversed: str
    unordered: str
    compared: str
    shares: str
    meanings: Mapping[str, str]
    semantics: Mapping[str, str]


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
    too_high="the probability of the positive answer is too high",
    asked_for="“{yes}” or “{no}”",
    invalid="were neither “{yes}” nor “{no}”",
    other_label="the other",
    outside="first words that are neither “{yes}” nor “{no}”. The confidence compares only these two.",
    reversed="It is more confident in “{yes}” where that is wrong than where it is right (AUROC "
    "{auroc.low:three} to {auroc.high:three}). Are the labels or the two answer words swapped?",
    unordered="It may be no better than a coin flip at telling positive items from negative ones (AUROC "
    "{auroc.low:three} to {auroc.high:three}). If so, no threshold makes its answers useful, however well "
    "calibrated they are.",
    compared="two answer words",
    shares="The share of positive answers among an item's samples is taken as its probability. With few "
    "samples, the noise alone looks like miscalibration.",
    meanings=_MEANINGS,
    semantics=_SEMANTICS,
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
    too_high="the confidence is too high",
    asked_for="one of those asked for",
    invalid="were none of those asked for",
    other_label="another",
    outside="first words that are none of the answers. The confidence compares only the answers.",
    reversed="It is more confident in its wrong answers than in its right ones (AUROC {auroc.low:three} to "
    "{auroc.high:three}). Are the labels in the order of the answers?",
    unordered="Its confidence may be no better than a coin flip at telling right answers from wrong ones "
    "(AUROC {auroc.low:three} to {auroc.high:three}). If so, no threshold on it makes the answers more "
    "reliable.",
    compared="answers",
    shares="The share of the samples of an item that repeat the answer given is taken as its probability. "
    "With few samples, the noise alone looks like miscalibration.",
    meanings=_MEANINGS
    | {
        "auroc": "Probability that a right answer has a higher confidence than a wrong one; one half is a "
        "coin flip. Higher is better.",
        "brier": "Mean squared difference between the confidence in the answer given and whether it is "
        "right, which measures calibration and sharpness together. Lower is better.",
        "log_loss": "Mean negative log-likelihood of being right or wrong, in nats. A confident wrong answer "
        "is expensive. Lower is better.",
    },
    semantics=_SEMANTICS
    | {
        "configured": f"{_CONFIGURED} Answers that are none of those asked for are left out.",
        "stated": "Answers without a readable confidence are left out of the estimates.",
    },
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


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table of metrics."""

    path: str
    form: str
    name: str
    meaning: str


def metrics(result: AuditResult) -> Sequence[Metric]:
    """Every metric and its meaning in one line."""
    meaning, yes = wording_of(result).meanings, word(result, "positive")
    leaning = Metric(
        "leaning",
        "signed",
        f"Leaning towards “{yes}”, points",
        f"Mean probability of “{yes}”, minus the share of items for which it is correct.",
    )
    return (
        Metric("ece", "percent", "Calibration error (ECE)", meaning["ece"]),
        Metric(
            "tce",
            "percent",
            "Unbinned calibration error",
            "The same at every single confidence instead of in bins, for the population of similar "
            "questions. Errors that cancel within a bin count here.",
        ),
        Metric(
            "overconfidence",
            "signed",
            "Overconfidence, points",
            "Mean confidence in the answer given, minus the share of correct answers. Positive means too "
            "confident.",
        ),
        *(() if result.answers else (leaning,)),
        Metric("accuracy", "percent", "Accuracy", meaning["accuracy"]),
        Metric("auroc", "three", "AUROC", meaning["auroc"]),
        Metric("brier", "four", "Brier score", meaning["brier"]),
        Metric("log_loss", "four", "Log loss", meaning["log_loss"]),
    )


def limits(result: AuditResult) -> tuple[str, ...]:
    """What the method cannot do."""
    words = wording_of(result)
    audited = f"Only the {words.compared} are compared"
    if result.semantics in ("configured", "stated"):
        audited = ""
    elif result.shown is not None:
        audited += (
            ", as the first word of the answer. What the model would write in free text is not audited."
        )
    else:
        audited += ". What the model would write in free text, without the bias, is not audited."
    shown = (
        "Calibration is a property of a model, a prompt and a set of questions together. Another prompt or "
        "other questions may give another result.",
        audited,
        "The labels are assumed to be correct. Wrong labels look like miscalibration.",
        words.semantics.get(result.semantics, ""),
        *((words.shares,) if result.estimator == "shares" else _ESTIMATOR_LIMITS[result.estimator]),
    )
    return tuple(filter(None, shown))


_ESTIMATOR_LIMITS = {
    "blind": (
        "The published estimator uses a small part of the items for each threshold, and the middle of each "
        "bin as its confidence. With few items, or for a model that is nearly always very confident, it can "
        "be off by several points. It has no interval.",
    ),
    "flips": (
        "Each item's probability is the midpoint of what a few bisection steps left open, not the exact "
        "probability.",
    ),
    "stated": (
        "A stated confidence is text like any other. It is often a round number, and it is not the "
        "probability with which the model gives its answer.",
    ),
    "latent": (
        "The hidden confidence is estimated as a smooth distribution. A spike or a step narrower than the "
        "answers can resolve is smoothed out. The intervals allow for that, but the curve does not show it.",
        "The intervals are for the population of similar questions. They do not cover an endpoint that "
        "changes its model or its settings during the audit, of which only a clear change is noticed.",
    ),
}
