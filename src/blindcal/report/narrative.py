"""A result in sentences: the headline, its caveats, the meaning of each metric and the method's limits.

No sentence claims more than the estimates support: an interval that contains zero gives no direction,
methods without intervals are said to have none, and nothing is claimed that was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from string import ascii_uppercase

from blindcal.estimate.findings import Curve
from blindcal.evidence import FEW_ITEMS
from blindcal.report.number_format import Number
from blindcal.report.quoted_confidence import END, quote, sides, tail_of
from blindcal.report.sentences import (
    Quoted,
    Sentence,
    all_answers,
    few_groups,
    one_label,
    sentence,
    valid_answers,
    word,
)
from blindcal.report.wording import least_confidence
from blindcal.results.result import AuditResult

ALPHA = 0.05
LEAST_RUN = 0.05  # shortest stretch of confidence off the diagonal that is mentioned
TOP = 0.97  # a stretch that reaches this confidence is described without an upper end
OUTSIDE = 0.1  # mean probability of neither answer that is mentioned
LEFT_OPEN = 0.01  # mean range of the probabilities shown that is mentioned
NEAR = 0.015  # a stretch that starts this near to the lowest confidence is described without a lower end

MEANINGS = {
    "ece": "Average gap between confidence and the share of correct answers, over the bins. Lower is better.",
    "accuracy": "Share of correct answers without any bias. Higher is better.",
    "auroc": "Probability that a positive item gets a higher confidence than a negative one; one half is a "
    "coin flip. Higher is better.",
    "brier": "Mean squared difference between confidence and label, which measures calibration and sharpness "
    "together. Lower is better.",
    "log_loss": "Mean negative log-likelihood of the labels, in nats. A confident wrong answer is expensive. "
    "Lower is better.",
}
"""The meaning, in one line, of each metric by which runs are compared, with two answers."""
SEVERAL_MEANINGS = MEANINGS | {
    "auroc": "Probability that a right answer has a higher confidence than a wrong one; one half is a coin "
    "flip. Higher is better.",
    "brier": "Mean squared difference between the confidence in the answer given and whether it is right, "
    "which measures calibration and sharpness together. Lower is better.",
    "log_loss": "Mean negative log-likelihood of being right or wrong, in nats. A confident wrong answer is "
    "expensive. Lower is better.",
}
"""The same with more than two answers, where the confidence is that in the answer given."""


def meanings(result: AuditResult) -> Mapping[str, str]:
    """The meaning of each metric by which runs are compared, for a result."""
    return SEVERAL_MEANINGS if result.answers else MEANINGS


def headline(result: AuditResult) -> tuple[Sentence, ...]:
    """The audit in one to three sentences."""
    if result.ece.value is None:
        return (_nothing(result),)
    return tuple(filter(None, (quote(result), _error(result), _verdict(result))))


def _nothing(result: AuditResult) -> Sentence:
    words = f"“{word(result, 'positive')}” or “{word(result, 'negative')}”"
    if result.answers:
        words = "one of those asked for"
    if result.counts.valid == 0:
        return sentence(
            "Nothing can be said about its calibration: not one of {counts.invalid:count} answers was "
            "{words}.",
            words=words,
        )
    return sentence(
        "Its calibration error could not be estimated: only {valid} answers were {words}, which is too few.",
        valid=valid_answers(result),
        words=words,
    )


def _error(result: AuditResult) -> Sentence:
    if result.ece.has_interval:
        return sentence(
            "Its calibration error is {ece.value} ({ece.level:level} interval: {ece.low} to {ece.high})."
        )
    return sentence(
        "Its calibration error is estimated at {ece.value}. This method gives no interval, so the effect of "
        "chance is unknown."
    )


# The verdict


def _verdict(result: AuditResult) -> Sentence | None:
    over, p = result.overconfidence, result.calibrated_pvalue
    if not over.has_interval:
        return None
    if result.direction != "undecided":
        where = _where(result, over=result.direction == "overconfident")
        return (f"It is {result.direction}", *(where or (" overall",)), ".")
    if p is not None and p < ALPHA:
        lean = result.leaning
        if lean.has_interval and 0 not in lean:
            side = "positive" if (lean.low or 0.0) > 0 else "negative"
            return (f"It leans towards “{word(result, side)}” more than the labels do.",)
        return ("It is not calibrated, but neither over- nor underconfident overall.",)
    if result.ece.high is None:
        return None
    return sentence(
        "Chance alone could produce this error in a perfectly calibrated model; the true error may be as "
        "large as {ece.high}."
    )


def _where(result: AuditResult, *, over: bool) -> Sentence:
    """The answers and the confidence at which the curve is clearly off the diagonal."""
    if result.curve is None or result.curve.low is None or result.curve.high is None:
        return ()
    if result.answers:
        least = least_confidence(result)
        run = _clear_run(result.curve, "positive", over, least)
        if run is None:
            return ()
        return (" in answers ", *_extent(result.curve, run, flipped=False, bottom=least))
    found: list[Sentence] = []
    for side in sides(result):
        if (run := _clear_run(result.curve, side, over)) is not None:
            found.append(
                (f"“{word(result, side)}” ", *_extent(result.curve, run, flipped=side == "negative"))
            )
        elif over and (end := tail_of(result, side, END)) is not None and (end.right.high or 1.0) < END:
            # the stretch is too short for the curve to show, but many answers are there
            found.append((f"“{word(result, side)}” with at least ", end.sure, " confidence"))
    if not found:
        return ()
    return (" when it says ", *(found[0] if len(found) == 1 else (*found[0], ", and ", *found[1])))


def _clear_run(curve: Curve, side: str, over: bool, least: float = 0.5) -> tuple[int, int] | None:
    """First and last point, by rising confidence, of the longest stretch with the band off the diagonal.

    A confidence in the answer of ``side`` is more than ``least``.
    """
    yes = side == "positive"
    places = [k for k, f in enumerate(curve.f) if (f > least if yes else f < least)]
    if not yes:
        places.reverse()
    below = over == yes  # an overconfident Yes is right less often than predicted
    edge = curve.high if below else curve.low
    assert edge is not None

    def off(place: int) -> bool:
        return edge[place] < curve.f[place] if below else edge[place] > curve.f[place]

    runs = [list(run) for clear, run in groupby(places, off) if clear]
    longest = max(runs, key=lambda run: abs(curve.f[run[-1]] - curve.f[run[0]]), default=[0])
    long = abs(curve.f[longest[-1]] - curve.f[longest[0]]) >= LEAST_RUN - 1e-9
    return (longest[0], longest[-1]) if long else None


def _extent(curve: Curve, run: tuple[int, int], *, flipped: bool, bottom: float = 0.5) -> Sentence:
    first, last = run
    flip = "1-" if flipped else ""
    lowest, highest = (abs(flipped - curve.f[place]) for place in run)
    begin, end = Number(f"{flip}curve.f.{first}", "whole"), Number(f"{flip}curve.f.{last}", "whole")
    if highest >= TOP:
        return ("with over ", begin, " confidence") if lowest > bottom + NEAR else ("at any confidence",)
    if lowest <= bottom + NEAR:
        return ("with up to ", end, " confidence")
    return ("with ", begin, " to ", end, " confidence")


# The order of the options


def permuted(result: AuditResult) -> bool:
    """Whether the options of each question were shown in a random order."""
    return result.settings.get("permute") is not None


def position(result: AuditResult) -> Sentence:
    """How far the shares of the answers given are from those of the labels, and what that shows."""
    margins = result.margins
    if margins is None:
        return ()
    found = "For each answer to be given as often as it is right, {margins.moved} of all would have to change"
    if margins.pvalue is None:
        found += "."
    elif margins.pvalue >= ALPHA:
        found += ". That may be due to chance (p-value {margins.pvalue:pvalue})."
    else:
        found += ", more than chance explains (p-value {margins.pvalue:pvalue})."
    if permuted(result):
        found += " The options were shown in a random order, so this is how much their position matters."
    elif result.answers == tuple(ascii_uppercase[: len(result.answers)]):
        found += (
            " Part of it may be due to what the options say: an audit that permutes them shows how much "
            "their position alone matters."
        )
    return sentence(found)


# Caveats


def warnings(result: AuditResult) -> Iterator[Sentence]:
    """The problems that make all estimates doubtful."""
    if result.objection is not None:
        yield sentence(
            "This audit was forced although the probe found a problem: {why}. The estimates may be "
            "meaningless.",
            why=Quoted(result.objection),
        )
    for text in result.warnings:
        yield (Quoted(text),)


def notes(result: AuditResult) -> Iterator[Sentence]:
    """The caveats of this result, the most serious first."""
    if result.unverified is not None:
        yield sentence(
            "The probe could not verify {what}. If it is not what it should be, the estimates are wrong.",
            what=Quoted(result.unverified),
        )
    if not result.complete:
        yield sentence(
            "The run was stopped early ({why}). "
            + (
                "The estimates are about the {counts.items:count} items that have an answer, a random sample "
                "of all {counts.items+counts.unanswered:count}."
                if result.counts.unanswered
                else "Every item has an answer, but some queries were not asked."
            ),
            why=Quoted(result.stopped or "interrupted"),
        )
    if (only := one_label(result)) is not None:
        yield (
            f"Every item has the {only} label. Nothing is known about items with the other label, and "
            "metrics that need both labels are left out.",
        )
    if result.answers and result.accuracy.value in (0.0, 1.0):
        yield (
            f"Every answer given is {'right' if result.accuracy.value else 'wrong'}. Metrics that need right "
            "and wrong answers are left out.",
        )
    if result.counts.items < FEW_ITEMS:
        yield sentence(
            "There are only {counts.items:count} items: {advice}",
            advice="rely on the intervals, not on the estimates."
            if result.ece.has_interval
            else "the estimates are unreliable.",
        )
    if result.repeated is not None:
        other = "another" if result.answers else "the other"
        yield sentence(
            "{repeated.items:count} of {counts.items:count} items have the prompt of another item. They are "
            "answered alike, so the intervals count items with the same prompt as one observation."
            + (
                f" {{repeated.conflicting:count}} items share a prompt with an item of {other} label: check "
                "these labels."
                if result.repeated.conflicting
                else ""
            )
        )
    if few_groups(result):
        yield sentence(
            "The items are in only {counts.groups:count} groups, and the items of a group may be alike: the "
            "intervals are wide because each group counts as one observation."
            if (result.counts.groups or 0) > 1
            else "All items are in one group, and the items of a group may be alike: what holds for other "
            "groups is unknown, and the intervals are as wide as that."
        )
    if result.counts.invalid and result.ece.value is not None:
        yield sentence(
            "{counts.invalid:count} of {all} answers {were}. If they had been valid, the calibration error "
            "of these items would be between {ece_if_invalid.0} and {ece_if_invalid.1}.",
            all=all_answers(result),
            were="could not be read"
            if result.estimator == "stated"
            else "were none of those asked for"
            if result.answers
            else f"were neither “{word(result, 'positive')}” nor “{word(result, 'negative')}”",
        )
    if result.shown is not None and result.shown.outside > OUTSIDE and result.answers:
        yield sentence(
            "On average, {shown.outside} of the probability is on first words that are none of the answers. "
            "The confidence compares only the answers."
        )
    elif result.shown is not None and result.shown.outside > OUTSIDE:
        yield sentence(
            "On average, {shown.outside} of the probability is on first words that are neither “{yes}” nor "
            "“{no}”. The confidence compares only these two.",
            yes=word(result, "positive"),
            no=word(result, "negative"),
        )
    if result.shown is not None and result.shown.open > LEFT_OPEN:
        yield sentence(
            "The endpoint shows so few logprobs that {shown.open} of each probability is left open on "
            "average. The intervals do not cover all that this may change."
        )
    if result.estimator == "shares":
        yield (
            "With few sampled answers per item, sampling noise looks like miscalibration, so the true error "
            "is probably smaller. The estimator “latent” reads the same answers without this bias, at no "
            "cost.",
        )
    if (doubt := _order(result)) is not None:
        yield doubt
    for text in () if result.steadiness is None else result.steadiness.notes:
        yield (Quoted(text),)


def _order(result: AuditResult) -> Sentence | None:
    """The caveat if the confidence may not rank positive items above negative ones."""
    auroc = result.auroc
    if auroc.low is None or auroc.high is None or auroc.low > 0.5:
        return None
    if result.answers:
        return sentence(
            "It is more confident in its wrong answers than in its right ones (AUROC {auroc.low:three} to "
            "{auroc.high:three}). Are the labels in the order of the answers?"
            if auroc.high < 0.5
            else "Its confidence may be no better than a coin flip at telling right answers from wrong ones "
            "(AUROC {auroc.low:three} to {auroc.high:three}). If so, no threshold on it makes the answers "
            "more reliable."
        )
    if auroc.high < 0.5:
        return sentence(
            "It is more confident in “{yes}” where that is wrong than where it is right (AUROC "
            "{auroc.low:three} to {auroc.high:three}). Are the labels or the two answer words swapped?",
            yes=word(result, "positive"),
        )
    return sentence(
        "It may be no better than a coin flip at telling positive items from negative ones (AUROC "
        "{auroc.low:three} to {auroc.high:three}). If so, no threshold makes its answers useful, however "
        "well calibrated they are."
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table of metrics."""

    path: str
    form: str
    name: str
    meaning: str


def metrics(result: AuditResult) -> Sequence[Metric]:
    """Every metric and its meaning in one line."""
    meaning, yes = meanings(result), word(result, "positive")
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
    words = "answers" if result.answers else "two answer words"
    general = (
        "Calibration is a property of a model, a prompt and a set of questions together. Another prompt or "
        "other questions may give another result.",
        ""
        if result.semantics in ("configured", "stated")
        else f"Only the {words} are compared, as the first word of the answer. What the model would write in "
        "free text is not audited."
        if result.shown is not None
        else f"Only the {words} are compared. What the model would write in free text, without the bias, is "
        "not audited.",
        "The labels are assumed to be correct. Wrong labels look like miscalibration.",
    )
    semantics = _SEMANTICS_LIMITS | (_SEVERAL_LIMITS if result.answers else {})
    own = _ESTIMATOR_LIMITS[result.estimator]
    if result.answers and result.estimator == "shares":
        own = (_SEVERAL_SHARES,)
    return tuple(filter(None, (*general, semantics.get(result.semantics), *own)))


_SEMANTICS_LIMITS = {
    "pair": "One token stands for each answer. If the model spreads an answer over several spellings, the "
    "others are ignored.",
    "max": "The likeliest spelling of each answer counts, as in greedy decoding, not their sum.",
    "sum": "All spellings of an answer count together, as they do when answers are sampled.",
    "configured": "The confidence is that of the endpoint at its own setting: its temperature, its sampler "
    "and whatever the model thinks before it answers are part of it. Answers that are neither word are left "
    "out.",
    "stated": "Answers without a confidence from one half to certainty are left out of the estimates.",
}
_SEVERAL_LIMITS = {
    "configured": "The confidence is that of the endpoint at its own setting: its temperature, its sampler "
    "and whatever the model thinks before it answers are part of it. Answers that are none of those asked "
    "for are left out.",
    "stated": "Answers without a readable confidence are left out of the estimates.",
}
_SEVERAL_SHARES = (
    "The share of the samples of an item that repeat the answer given is taken as its probability. With few "
    "samples, the noise alone looks like miscalibration."
)
_ESTIMATOR_LIMITS = {
    "blind": (
        "The published estimator uses a small part of the items for each threshold, and the middle of each "
        "bin as its confidence. With few items, or for a model that is nearly always very confident, it can "
        "be off by several points. It has no interval.",
    ),
    "shares": (
        "The share of positive answers among an item's samples is taken as its probability. With few "
        "samples, the noise alone looks like miscalibration.",
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
