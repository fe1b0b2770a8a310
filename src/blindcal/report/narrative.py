"""What a result means, in sentences: the headline and what must be known before it is believed.

Nothing is said that the figures do not bear: where an interval holds both signs there is no direction, where
a method has no interval that is said, and where nothing was measured nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from blindcal.report.number_format import Number
from blindcal.report.quoted_confidence import END, SIDES, end_of, quote
from blindcal.report.sentences import Quoted, Sentence, between, has_interval, one_label, word
from blindcal.results.result import FEW, AuditResult, Curve

ALPHA = 0.05
LEAST_RUN = 0.05  # of confidence over which the curve must be off to be spoken of
TOP = 0.97  # a run that reaches this confidence reaches "above"
BOTTOM = 0.515  # one that begins below this one begins at one half


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know before the figures are believed."""

    kind: Literal["bad", "caution"]
    words: Sentence


def headline(result: AuditResult) -> tuple[Sentence, ...]:
    """The audit in one to three sentences."""
    if result.ece.value is None:
        return (_nothing(result),)
    return tuple(filter(None, (quote(result), _error(result), _verdict(result))))


def _nothing(result: AuditResult) -> Sentence:
    counts = result.counts
    if counts.positive + counts.negative == 0:
        return (
            "Nothing can be said about its calibration: not one of ",
            Number("counts.invalid", "count"),
            f" answers was “{word(result, 'positive')}” or “{word(result, 'negative')}”.",
        )
    return (
        "Its calibration error could not be estimated: only ",
        Number("counts.positive+counts.negative", "count"),
        f" answers were “{word(result, 'positive')}” or “{word(result, 'negative')}”: too few for it.",
    )


def _error(result: AuditResult) -> Sentence:
    if has_interval(result.ece):
        sure: Sentence = (" (", Number("level", "whole"), " sure: ", *between("ece"), ").")
        return ("Its calibration error is ", Number("ece.value"), *sure)
    return (
        "Its calibration error is estimated at ",
        Number("ece.value"),
        "; this method cannot say how far chance alone may move that figure.",
    )


# The verdict


def _verdict(result: AuditResult) -> Sentence | None:
    over, p = result.overconfidence, result.calibrated_pvalue
    if not has_interval(over):
        return None
    if result.direction != "undecided":
        where = _where(result, over=result.direction == "overconfident")
        return (f"It is {result.direction}", *(where or (" on the whole",)), ".")
    if p is not None and p < ALPHA:
        lean = result.leaning
        if lean.value is not None and lean.low is not None and lean.high is not None:
            if lean.low > 0:
                return (f"It leans towards “{word(result, 'positive')}” more than the labels do.",)
            if lean.high < 0:
                return (f"It leans towards “{word(result, 'negative')}” more than the labels do.",)
        return ("It is not calibrated, but neither over- nor underconfident on the whole.",)
    if result.ece.high is None:
        return None
    return (
        "That is no more than chance makes of a perfectly calibrated model; it may still be as large as ",
        Number("ece.high"),
        ".",
    )


def _where(result: AuditResult, *, over: bool) -> Sentence:
    """On which answers, from which confidence on, the curve is clearly off."""
    if result.curve is None or result.curve.low is None or result.curve.high is None:
        return ()
    found: list[Sentence] = []
    for side in SIDES:
        if (run := _clear_run(result.curve, side, over)) is not None:
            found.append(
                (f"“{word(result, side)}” ", *_extent(result.curve, run, flipped=side == "negative"))
            )
        elif over and (end := end_of(result, side)) is not None and (end.right.high or 1.0) < END:
            # a run too short to see, but most of its answers are there
            found.append((f"“{word(result, side)}” with at least ", end.sure, " confidence"))
    if not found:
        return ()
    return (" when it says ", *(found[0] if len(found) == 1 else (*found[0], ", and ", *found[1])))


def _clear_run(curve: Curve, side: str, over: bool) -> tuple[int, int] | None:
    """First and last place, by rising confidence, of the longest stretch with the band off the diagonal."""
    assert curve.low is not None
    assert curve.high is not None
    places = [k for k, f in enumerate(curve.f) if (f > 0.5 if side == "positive" else f < 0.5)]
    if side == "negative":
        places.reverse()
    below = over == (side == "positive")  # an overconfident Yes happens less often than it is predicted

    def off(place: int) -> bool:
        assert curve.low is not None
        assert curve.high is not None
        f = curve.f[place]
        return curve.high[place] < f if below else curve.low[place] > f

    runs = [list(run) for clear, run in groupby(places, off) if clear]
    longest = max(runs, key=lambda run: abs(curve.f[run[-1]] - curve.f[run[0]]), default=[0])
    long = abs(curve.f[longest[-1]] - curve.f[longest[0]]) >= LEAST_RUN - 1e-9
    return (longest[0], longest[-1]) if long else None


def _extent(curve: Curve, run: tuple[int, int], *, flipped: bool) -> Sentence:
    first, last = run
    flip = "1-" if flipped else ""
    lowest, highest = (abs(flipped - curve.f[place]) for place in run)
    begin, end = Number(f"{flip}curve.f.{first}", "whole"), Number(f"{flip}curve.f.{last}", "whole")
    if highest >= TOP:
        return ("with over ", begin, " confidence") if lowest > BOTTOM else ("at any confidence",)
    if lowest <= BOTTOM:
        return ("with up to ", end, " confidence")
    return ("with ", begin, " to ", end, " confidence")


# What to know before it is believed


def notes(result: AuditResult) -> tuple[Note, ...]:
    """What limits this very result, the gravest first."""
    found: list[Note] = []
    counts = result.counts
    if result.probe is not None and result.probe.get("forced"):
        why = Quoted(str(result.probe.get("objection") or result.probe.get("reason")))
        found.append(
            Note(
                "bad",
                (
                    "This audit was forced although the probe objected: ",
                    why,
                    ". It may measure nothing.",
                ),
            )
        )
    if not result.complete:
        found.append(
            Note(
                "caution",
                (
                    "The run was stopped early (",
                    Quoted(result.stopped or "interrupted"),
                    "). ",
                    Number("counts.unanswered", "count"),
                    " of ",
                    Number("counts.items", "count"),
                    " items have no answer; the figures cover the others, which are a random part.",
                ),
            )
        )
    if (only := one_label(result)) is not None:
        found.append(
            Note(
                "caution",
                (
                    f"Every item has the {only} label. How the model treats the other kind is not known, and "
                    "what needs both kinds is left out.",
                ),
            )
        )
    if counts.items < FEW:
        advice = (
            "read the intervals, not the figures." if has_interval(result.ece) else "the figures say little."
        )
        found.append(
            Note("caution", ("There are only ", Number("counts.items", "count"), f" items: {advice}"))
        )
    if counts.invalid and result.ece.value is not None:
        found.append(
            Note(
                "caution",
                (
                    Number("counts.invalid", "count"),
                    " of ",
                    Number("counts.positive+counts.negative+counts.invalid", "count"),
                    f" answers {_unread(result)}. Whatever they would have been, the calibration error "
                    "of these items is between ",
                    Number("ece_if_invalid.0"),
                    " and ",
                    Number("ece_if_invalid.1"),
                    ".",
                ),
            )
        )
    if result.estimator == "shares":
        found.append(
            Note(
                "caution",
                (
                    "With so few draws an item, chance alone looks like miscalibration: the true error is "
                    "likely smaller. The option “--estimator latent” reads the same answers without that, "
                    "at no cost.",
                ),
            )
        )
    if (doubt := _order(result)) is not None:
        found.append(Note("caution", doubt))
    return tuple(found)


def _unread(result: AuditResult) -> str:
    return "could not be read" if result.estimator == "stated" else "were neither answer word"


def _order(result: AuditResult) -> Sentence | None:
    """What to know where confidence does not put positive items above negative ones."""
    auroc, yes = result.auroc, word(result, "positive")
    if auroc.low is None or auroc.high is None or auroc.low > 0.5:
        return None
    sure: Sentence = (" (AUROC ", *between("auroc", "three"), ").")
    if auroc.high < 0.5:
        return (
            f"It leans towards “{yes}” where that is wrong rather than where it is right",
            *sure,
            " Are the labels or the two answer words the wrong way round?",
        )
    return (
        "It may tell right from wrong no better than a coin",
        *sure,
        " Then no threshold makes its answers useful, however well calibrated they are.",
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table of metrics."""

    path: str
    form: str
    name: str
    meaning: str


def metrics(result: AuditResult) -> Sequence[Metric]:
    """Every metric and what it means in one line."""
    yes = word(result, "positive")
    return (
        Metric(
            "ece",
            "percent",
            "Calibration error (ECE)",
            "How far confidence is from the share of right answers, on average over the bins. Zero is "
            "perfect.",
        ),
        Metric(
            "tce",
            "percent",
            "Unbinned calibration error",
            "The same at every single confidence instead of in bins, for all questions like these. Errors "
            "that cancel within a bin count.",
        ),
        Metric(
            "overconfidence",
            "signed",
            "Overconfidence, points",
            "Mean confidence in the answer given, minus the share of right answers. Above zero: too sure.",
        ),
        Metric(
            "leaning",
            "signed",
            f"Leaning towards “{yes}”, points",
            f"Mean probability of “{yes}”, minus the share of items for which it is right.",
        ),
        Metric("accuracy", "percent", "Accuracy", "How often the plain answer, without any bias, is right."),
        Metric(
            "auroc",
            "three",
            "AUROC",
            "The chance that a positive item gets more confidence than a negative one; a coin gets one half.",
        ),
        Metric(
            "brier",
            "four",
            "Brier score",
            "Mean squared distance between confidence and label: calibration and sharpness in one. Lower is "
            "better.",
        ),
        Metric(
            "log_loss",
            "four",
            "Log loss",
            "Mean surprise at the labels, in nats. One sure and wrong answer costs a lot. Lower is better.",
        ),
    )


def limits(result: AuditResult) -> tuple[str, ...]:
    """What the method cannot do, in plain words."""
    own = {
        "blind": (
            "The published estimator reads each threshold from a small part of the items and lets the middle "
            "of a bin stand for its confidence: with few items, or a model that is nearly always very sure, "
            "it is off by several points, and it has no interval."
        ),
        "shares": (
            "The share of an item's sampled answers is taken for its probability. With few samples that "
            "alone looks like miscalibration."
        ),
        "flips": (
            "Each item's probability is the middle of what a few bisections left open, not the probability "
            "itself."
        ),
        "stated": (
            "What a model says about its confidence is text like any other. It is often a round number, and "
            "it is not the probability with which the model gives its answer."
        ),
    }.get(result.estimator)
    told = {
        "pair": (
            "One token stands for each answer. If the model spreads an answer over several spellings, the "
            "others are not seen."
        ),
        "max": "Of the spellings of an answer the likeliest counts, as in greedy decoding; not their sum.",
        "sum": "All spellings of an answer count together, as a sampled answer does.",
        "stated": "Answers that state no confidence from one half to certainty are left out of the figures.",
    }.get(result.semantics)
    general = (
        "Calibration belongs to a model, a prompt and a set of questions together. With another prompt, or "
        "other questions, it is another number.",
        ""
        if result.estimator == "stated"
        else "Only the two answer words are compared: what the model would say without the bias, in free "
        "text, is not audited.",
        "The labels are taken for the truth. Wrong labels look like miscalibration.",
    )
    smooth = (
        "The hidden confidence is estimated as a smooth distribution. A spike or a step narrower than the "
        "answers can resolve is drawn as a gentle one; the intervals allow for that, the curve itself does "
        "not show it.",
        "The intervals are for other questions like these. They do not cover an endpoint that changes its "
        "model or its settings meanwhile.",
    )
    return tuple(filter(None, (*general, told, own, *(smooth if result.estimator == "latent" else ()))))
