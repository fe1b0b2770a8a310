"""The first sentence of a report: how often the model is right where it is confident.

"When it says “Yes” with at least 90% confidence, as it does for 34% of the questions, it is right 78% of the
time (74% to 82%)." The sentence is about all answers from a confidence up, not about one point of the curve:
a point at the edge of where a model answers may be far off, and hardly any answer is there. The confidence is
the highest round one that is common, and whose interval is narrow; of two answers, the more frequent one is
quoted. If there is none, the sentence is about all answers: how often they are right, and how confident the
model is on average.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.estimate.findings import OperatingPoint
from blindcal.records import Estimate
from blindcal.report.number_format import Number
from blindcal.report.sentences import Sentence, one_label, sentence, word
from blindcal.results.result import AuditResult

END = 0.95
QUOTED = (END, 0.9, 0.8, 0.7, 0.6)  # round confidences, the most informative first
COMMON = 1 / 3  # share of the items that must have at least a confidence for it to be quoted
FULL = 0.2  # share of the items that must be in a bin for it to be quoted
NOTABLE = 0.1  # share that is worth mentioning
WIDEST = 0.2  # no sentence quotes a wider interval
TWO_SIDES = ("positive", "negative")


def quote(result: AuditResult) -> Sentence | None:
    """The sentence, unless too little is known for one."""
    if (side := one_label(result)) is not None:
        return _quote_label(result, side)
    return _quote_tail(result) or _quote_bin(result) or _quote_all(result)


def sides(result: AuditResult) -> tuple[str, ...]:
    """The sides of one half on which a model can be confident: both for two answers, else the upper one."""
    return TWO_SIDES[:1] if result.answers else TWO_SIDES


def _beginning(result: AuditResult, side: str, confident: Sentence) -> Sentence:
    """The first part of a sentence about how often it is right."""
    if result.answers:
        return ("When it is ", *confident, " confident in its answer, ")
    return (f"When it says “{word(result, side)}” with ", *confident, " confidence, ")


def _quote_label(result: AuditResult, side: str) -> Sentence | None:
    """If all items have the same label: how often the model gives the correct answer."""
    if result.accuracy.value is None:
        return None
    right = "The correct answer to every question is “{word}”. It gets {accuracy.value} right"
    interval = " ({accuracy.low} to {accuracy.high})" if result.accuracy.has_interval else ""
    return sentence(f"{right}{interval}.", word=word(result, side))


@dataclass(frozen=True, slots=True)
class Tail:
    """The answers of one side from a confidence up: their share of all items, and how often they are right.

    ``row`` is that of the operating point which decides so, ``confidence`` the round number.
    """

    side: str
    confidence: float
    share: float
    right: Estimate
    row: int

    @property
    def _flip(self) -> str:
        return "" if self.side == "positive" else "1-"

    @property
    def sure(self) -> Number:
        """The confidence."""
        return Number(f"{self._flip}operating.{self.row}.threshold", "whole")

    @property
    def often(self) -> Number:
        """The share of all items."""
        return Number(f"{self._flip}operating.{self.row}.positive_rate.value", "whole")

    def quoted(self) -> Sentence:
        """How often they are right, with the interval."""
        path = f"operating.{self.row}.{'precision' if self.side == 'positive' else 'negative_precision'}"
        value, low, high = (Number(f"{path}.{end}", "whole") for end in ("value", "low", "high"))
        return (value, " of the time (", low, " to ", high, ")")


def tail_of(result: AuditResult, side: str, confidence: float, least: float = NOTABLE) -> Tail | None:
    """The answers of a side from a confidence up, unless they are too few or their interval is too wide."""
    yes = side == "positive"
    at = confidence if yes else 1 - confidence

    def near(point: OperatingPoint) -> bool:
        return abs(point.threshold - at) < 1e-6

    row = next((k for k, point in enumerate(result.operating) if near(point)), None)
    if row is None or (rate := result.operating[row].positive_rate.value) is None:
        return None
    share = rate if yes else 1 - rate
    right = result.operating[row].precision if yes else result.operating[row].negative_precision
    if share < least or right.low is None or right.high is None or right.high - right.low > WIDEST:
        return None
    return Tail(side, confidence, share, right, row)


def quoted_tail(result: AuditResult) -> Tail | None:
    """The answers that the sentence is about; ``None`` if it is about all answers."""
    for confidence in QUOTED:
        found = [tail for side in sides(result) if (tail := tail_of(result, side, confidence, COMMON))]
        if found:
            return max(found, key=lambda tail: tail.share)
    return None


def _quote_tail(result: AuditResult) -> Sentence | None:
    """How often the model is right from a confidence up that is common."""
    if (tail := quoted_tail(result)) is None:
        return None
    often = ("as it is for " if result.answers else "as it does for ", tail.often, " of the questions, ")
    return (
        *_beginning(result, tail.side, ("at least ", tail.sure)),
        *often,
        "it is right ",
        *tail.quoted(),
        ".",
    )


def _quote_bin(result: AuditResult) -> Sentence | None:
    """For methods without intervals: a sentence about the fullest bin on one side of one half."""
    if result.ece.has_interval:
        return None
    sided = [
        k
        for k, one in enumerate(result.bins)
        if one.predicted is not None
        and (one.share or 0.0) >= FULL
        and (one.low >= 0.5 or one.high <= 0.5 or result.answers)
    ]
    if not sided:
        return None
    k = max(sided, key=lambda k: result.bins[k].share or 0.0)
    yes = result.bins[k].low >= 0.5 or bool(result.answers)
    flip = "" if yes else "1-"
    predicted, observed = (Number(f"{flip}bins.{k}.{name}", "whole") for name in ("predicted", "observed"))
    beginning = _beginning(result, "positive" if yes else "negative", ("about ", predicted))
    return (*beginning, "it is right ", observed, " of the time.")


def _quote_all(result: AuditResult) -> Sentence | None:
    """How often all answers are right, and how confident the model is on average."""
    if result.accuracy.value is None or result.overconfidence.value is None:
        return None
    interval = " ({accuracy.low:whole} to {accuracy.high:whole})" if result.accuracy.has_interval else ""
    return sentence(
        f"It is right {{accuracy.value:whole}} of the time{interval}, and {{mean}} confident on average.",
        mean=Number("accuracy.value+overconfidence.value", "whole"),
    )
