"""The first sentence of a report: how often the model is right at a confidence that is typical of it.

"When it says Yes with 90% confidence, it is right 78% of the time." The confidence is a round number if
enough items are near it. For a model that is nearly certain of many answers, the sentence is about those.
With more than two answers, it is about the answer given: "When it is 90% confident in its answer, ...".
"""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.estimate.findings import Curve
from blindcal.records import Estimate
from blindcal.report.number_format import Number
from blindcal.report.sentences import Sentence, one_label, sentence, word
from blindcal.results.result import AuditResult

QUOTED = (0.9, 0.8, 0.7)  # round confidences, the most informative first
ENOUGH = 0.05  # share of the items that must be near a confidence for it to be quoted
END = 0.95
CROWDED = 1 / 3  # share of the items beyond `END` that makes them typical of a model
NOTABLE = 0.1  # share of the items beyond `END` that is worth mentioning
TWO_SIDES = ("positive", "negative")
WIDEST = 0.4  # no sentence quotes a wider interval


def quote(result: AuditResult) -> Sentence | None:
    """The sentence, unless too little is known for one."""
    if (side := one_label(result)) is not None:
        return _quote_label(result, side)
    if result.curve is None:
        return _quote_bin(result)
    return _quote_end(result) or _quote_curve(result, result.curve)


def sides(result: AuditResult) -> tuple[str, ...]:
    """The sides of one half on which a model can be confident: both for two answers, else the upper one."""
    return TWO_SIDES[:1] if result.answers else TWO_SIDES


def _beginning(result: AuditResult, side: str, confident: Sentence) -> Sentence:
    """The first half of a sentence about how often it is right."""
    if result.classwise:
        return ("When it gives an answer ", *confident, " probability, that answer is right ")
    if result.answers:
        return ("When it is ", *confident, " confident in its answer, it is right ")
    return (f"When it says “{word(result, side)}” with ", *confident, " confidence, it is right ")


def _quote_label(result: AuditResult, side: str) -> Sentence | None:
    """If all items have the same label: how often the model gives the correct answer."""
    if result.accuracy.value is None:
        return None
    right = "The correct answer to every question is “{word}”. It gets {accuracy.value} right"
    interval = " ({accuracy.low} to {accuracy.high})" if result.accuracy.has_interval else ""
    return sentence(f"{right}{interval}.", word=word(result, side))


@dataclass(frozen=True, slots=True)
class End:
    """The near-certain answers of one side: their share of all items, and how often they are right."""

    side: str
    share: float
    right: Estimate
    path: str
    sure: Number

    def quoted(self) -> Sentence:
        """How often they are right, with the interval."""
        value, low, high = (Number(f"{self.path}.{end}", "whole") for end in ("value", "low", "high"))
        return (value, " of the time (", low, " to ", high, ")")


def end_of(result: AuditResult, side: str) -> End | None:
    """The near-certain answers of one side, unless they are too few or their interval is too wide."""
    if result.confidence is None:
        return None
    yes = side == "positive"
    edges = result.confidence.edges[:-1] if yes else [1 - edge for edge in result.confidence.edges[1:]]
    share = sum(of for edge, of in zip(edges, _shares(result), strict=True) if edge >= END - 1e-9)
    at, name, flip = (END, "precision", "") if yes else (1 - END, "negative_precision", "1-")
    row = next((k for k, one in enumerate(result.operating) if abs(one.threshold - at) < 1e-6), None)
    if row is None or share < NOTABLE:
        return None
    right: Estimate = getattr(result.operating[row], name)
    if right.low is None or right.high is None or right.high - right.low > WIDEST:
        return None
    sure = Number(f"{flip}operating.{row}.threshold", "whole")
    return End(side, share, right, f"operating.{row}.{name}", sure)


def _quote_end(result: AuditResult) -> Sentence | None:
    """If the model is nearly certain of many answers: how often these are right."""
    ends = sorted(filter(None, (end_of(result, side) for side in sides(result))), key=lambda one: -one.share)
    if not ends or ends[0].share < CROWDED:
        return None
    first, *others = ends
    found = _beginning(result, first.side, ("at least ", first.sure)) + first.quoted()
    for other in others:
        found += (f"; when it is as confident in “{word(result, other.side)}”, it is right ", *other.quoted())
    return (*found, ".")


def _quote_curve(result: AuditResult, curve: Curve) -> Sentence | None:
    at = _quoted_confidence(result)
    if at is None or curve.low is None or curve.high is None:
        return None
    place = min(range(len(curve.f)), key=lambda k: abs(curve.f[k] - at))
    if curve.high[place] - curve.low[place] > WIDEST:
        return None
    yes = at > 0.5 or bool(result.answers)
    flip, ends = ("", ("low", "high")) if yes else ("1-", ("high", "low"))
    f, value, low, high = (Number(f"{flip}curve.{name}.{place}", "whole") for name in ("f", "value", *ends))
    side = "positive" if yes or result.answers else "negative"
    return (*_beginning(result, side, (f,)), value, " of the time (", low, " to ", high, ").")


def _quoted_confidence(result: AuditResult) -> float | None:
    """The P(positive) to quote: a round one if enough items are near it, else that of the fullest bin."""
    if result.confidence is None:
        return None
    shares = _shares(result)
    fullest = max(range(len(shares)), key=lambda k: shares[k])
    for confidence in QUOTED:
        there = round(confidence * len(shares))  # the edge between the two nearest bins
        # a lower confidence is quoted only if it is typical of the model
        enough = ENOUGH if confidence == QUOTED[0] else max(ENOUGH, shares[fullest])
        if sum(shares[there - 1 : there + 1]) >= enough:
            return confidence
        if not result.answers and sum(shares[-there - 1 :][:2]) >= enough:
            return 1 - confidence
        if fullest in (0, len(shares) - 1):  # the items are at the very end, far from the middle of the bin
            return 0.01 if fullest == 0 else 0.99
    at = round((result.confidence.edges[fullest] + result.confidence.edges[fullest + 1]) / 2, 2)
    return 0.51 if at == 0.5 and not result.answers else at


def _shares(result: AuditResult) -> list[float]:
    """Share of all items in each bin of the confidence."""
    assert result.confidence is not None
    positive = result.counts.positive_labels / max(result.counts.items, 1)
    if result.answers:  # the histogram is about right and wrong answers
        right = result.accuracy.value
        positive = 1 / len(result.answers) if result.classwise or right is None else right
    return [
        (1 - positive) * n + positive * p
        for n, p in zip(result.confidence.negatives, result.confidence.positives, strict=True)
    ]


def _quote_bin(result: AuditResult) -> Sentence | None:
    """For methods without a curve: a sentence about the fullest bin on one side of one half."""
    sided = [
        k
        for k, one in enumerate(result.bins)
        if one.share and one.predicted is not None and (one.low >= 0.5 or one.high <= 0.5 or result.answers)
    ]
    if not sided:
        return None
    k = max(sided, key=lambda k: result.bins[k].share or 0.0)
    yes = result.bins[k].low >= 0.5 or bool(result.answers)
    flip = "" if yes else "1-"
    predicted, observed = (Number(f"{flip}bins.{k}.{name}", "whole") for name in ("predicted", "observed"))
    beginning = _beginning(result, "positive" if yes else "negative", ("about ", predicted))
    return (*beginning, observed, " of the time.")
