"""What a result means, in sentences: the headline and what must be known before it is believed.

A sentence is a list of pieces: plain text, and numbers that are looked up in the result when it is shown.
Nothing is said that the figures do not bear: where an interval holds both signs there is no direction, where
a method has no interval that is said, and where nothing was measured nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

from blindcal.report.numbers import Number
from blindcal.results.result import FEW, AuditResult, Curve, Estimate


@dataclass(frozen=True, slots=True)
class Quoted:
    """What somebody else said, in their own words."""

    text: str


Piece: TypeAlias = str | Number | Quoted
Sentence: TypeAlias = tuple[Piece, ...]

ALPHA = 0.05
QUOTED = (0.9, 0.8, 0.7)  # the confidences a reader thinks in, the most telling first
ENOUGH = 0.05  # share of the items that must be as confident as that to quote it
WIDEST = 0.4  # an interval wider than that makes no sentence
LEAST_RUN = 0.05  # of confidence over which the curve must be off to be spoken of
TOP = 0.97  # a run that reaches this confidence reaches "above"
BOTTOM = 0.515  # one that begins below this one begins at one half


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know before the figures are believed."""

    kind: Literal["bad", "caution"]
    words: Sentence


def word(result: AuditResult, side: str) -> str:
    """The answer word of a side, as it was asked for."""
    tokens = result.targets.positive if side == "positive" else result.targets.negative
    return str(result.settings.get(side) or (tokens[0].text.strip() if tokens else side))


def headline(result: AuditResult) -> tuple[Sentence, ...]:
    """The audit in one to three sentences."""
    if result.ece.value is None:
        return (_nothing(result),)
    return tuple(filter(None, (_quote(result), _error(result), _verdict(result))))


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
    words: Sentence = ("Its calibration error is ", Number("ece.value"))
    if _has_interval(result.ece):
        return (*words, " (", Number("level", "whole"), " sure: ", *_range("ece"), ").")
    return (*words, "; this method cannot say how far chance alone may move that figure.")


def _range(path: str, form: str = "percent") -> Sentence:
    return Number(f"{path}.low", form), " to ", Number(f"{path}.high", form)


# "When it says Yes with 90% confidence it is right 78% of the time"


def _quote(result: AuditResult) -> Sentence | None:
    if _one_label(result) is not None:
        return _quote_label(result)
    return _quote_bin(result) if result.curve is None else _quote_curve(result, result.curve)


def _quote_label(result: AuditResult) -> Sentence | None:
    """With one label only there is nothing to say about the other: how often it says the right word."""
    side = _one_label(result)
    if side is None or result.accuracy.value is None:
        return None
    right: Sentence = (f"Of these questions, all to be answered “{word(result, side)}”, it gets ",)
    right = (*right, Number("accuracy.value"), " right")
    return (*right, " (", *_range("accuracy"), ").") if _has_interval(result.accuracy) else (*right, ".")


def _quote_curve(result: AuditResult, curve: Curve) -> Sentence | None:
    at = _quoted_confidence(result)
    if at is None or curve.low is None or curve.high is None:
        return None
    place = min(range(len(curve.f)), key=lambda k: abs(curve.f[k] - at))
    if curve.high[place] - curve.low[place] > WIDEST:
        return None
    yes = at > 0.5
    flip = "" if yes else "1-"
    low, high = (f"{flip}curve.{end}.{place}" for end in (("low", "high") if yes else ("high", "low")))
    return (
        f"When it says “{word(result, 'positive' if yes else 'negative')}” with ",
        Number(f"{flip}curve.f.{place}", "whole"),
        " confidence, it is right ",
        Number(f"{flip}curve.value.{place}", "whole"),
        " of the time (",
        Number(low, "whole"),
        " to ",
        Number(high, "whole"),
        ").",
    )


def _quoted_confidence(result: AuditResult) -> float | None:
    """The P(positive) to quote: what a reader thinks in if enough items have it, else where most are."""
    if result.confidence is None:
        return None
    shares = _shares(result)
    fullest = max(range(len(shares)), key=lambda k: shares[k])
    for confidence in QUOTED:
        there = round(confidence * len(shares))  # the bins on both sides of it
        # of a lower confidence only what is typical of the model is worth a headline
        enough = ENOUGH if confidence == QUOTED[0] else max(ENOUGH, shares[fullest])
        if sum(shares[there - 1 : there + 1]) >= enough:
            return confidence
        if sum(shares[-there - 1 :][:2]) >= enough:
            return 1 - confidence
        if fullest in (0, len(shares) - 1):  # crowded at an end: half a bin is far from where they are
            return 0.01 if fullest == 0 else 0.99
    at = round((result.confidence.edges[fullest] + result.confidence.edges[fullest + 1]) / 2, 2)
    return 0.51 if at == 0.5 else at


def _shares(result: AuditResult) -> list[float]:
    """Share of all items in each bin of the confidence."""
    assert result.confidence is not None
    positive = result.counts.positive_labels / max(result.counts.items, 1)
    return [
        (1 - positive) * n + positive * p
        for n, p in zip(result.confidence.negatives, result.confidence.positives, strict=True)
    ]


def _quote_bin(result: AuditResult) -> Sentence | None:
    """For methods without a curve: the fullest bin that lies on one side."""
    sided = [
        k
        for k, one in enumerate(result.bins)
        if one.share and one.predicted is not None and (one.low >= 0.5 or one.high <= 0.5)
    ]
    if not sided:
        return None
    k = max(sided, key=lambda k: result.bins[k].share or 0.0)
    yes = result.bins[k].low >= 0.5
    flip = "" if yes else "1-"
    return (
        f"Where it says “{word(result, 'positive' if yes else 'negative')}” with ",
        Number(f"{flip}bins.{k}.predicted", "whole"),
        " confidence on average, it is right ",
        Number(f"{flip}bins.{k}.observed", "whole"),
        " of the time.",
    )


# The verdict


def _verdict(result: AuditResult) -> Sentence | None:
    over, p = result.overconfidence, result.calibrated_pvalue
    if not _has_interval(over):
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
    found = [
        (f"“{word(result, side)}” ", *_extent(result.curve, run, flipped=side == "negative"))
        for side in ("positive", "negative")
        if (run := _clear_run(result.curve, side, over)) is not None
    ]
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
    if (only := _one_label(result)) is not None:
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
            "read the intervals, not the figures." if _has_interval(result.ece) else "the figures say little."
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
                    " answers were neither answer word. Whatever they would have been, the calibration error "
                    "of these items is between ",
                    Number("ece_if_invalid.0"),
                    " and ",
                    Number("ece_if_invalid.1"),
                    ".",
                ),
            )
        )
    return tuple(found)


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


def _one_label(result: AuditResult) -> str | None:
    """The label of all items, if they have but one."""
    return {0: "negative", result.counts.items: "positive"}.get(result.counts.positive_labels)


def _has_interval(estimate: Estimate) -> bool:
    return estimate.low is not None and estimate.high is not None
