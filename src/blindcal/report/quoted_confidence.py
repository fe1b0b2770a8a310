"""How often the model is right when it is as sure as it often is: the sentence that a page begins with.

"When it says Yes with 90% confidence, it is right 78% of the time." Said of a confidence that readers think
in, if enough items have it; of a model that is nearly sure of most of its answers, about those.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.report.number_format import Number
from blindcal.report.sentences import Sentence, between, has_interval, one_label, word
from blindcal.results.result import AuditResult, Curve, Estimate

QUOTED = (0.9, 0.8, 0.7)  # the confidences a reader thinks in, the most telling first
ENOUGH = 0.05  # share of the items that must be as confident as that to quote it
CROWDED = 1 / 3  # share of the items beyond `END` that makes them what is typical of a model
NOTABLE = 0.1  # share of the items there that is worth a word
END = 0.95
SIDES = ("positive", "negative")
WIDEST = 0.4  # an interval wider than that makes no sentence


def quote(result: AuditResult) -> Sentence | None:
    if one_label(result) is not None:
        return _quote_label(result)
    if result.curve is None:
        return _quote_bin(result)
    return _quote_end(result) or _quote_curve(result, result.curve)


def _quote_label(result: AuditResult) -> Sentence | None:
    """With one label only there is nothing to say about the other: how often it says the right word."""
    side = one_label(result)
    if side is None or result.accuracy.value is None:
        return None
    right: Sentence = (f"Of these questions, all to be answered “{word(result, side)}”, it gets ",)
    right = (*right, Number("accuracy.value"), " right")
    return (*right, " (", *between("accuracy"), ").") if has_interval(result.accuracy) else (*right, ".")


@dataclass(frozen=True, slots=True)
class End:
    """The answers of one side that the model is nearly sure of: how many, and how often they are right."""

    side: str
    share: float
    right: Estimate
    path: str
    sure: Number

    def quoted(self) -> Sentence:
        return (
            Number(f"{self.path}.value", "whole"),
            " of the time (",
            *between(self.path, "whole"),
            ")",
        )


def end_of(result: AuditResult, side: str) -> End | None:
    """One end of the confidence, unless too few items are there or too little is known of them."""
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
    """Of a model that is nearly sure of many of its answers: how often it is right about those."""
    ends = sorted(filter(None, (end_of(result, side) for side in SIDES)), key=lambda one: -one.share)
    if not ends or ends[0].share < CROWDED:
        return None
    said: Sentence = (
        f"When it says “{word(result, ends[0].side)}” with at least ",
        ends[0].sure,
        " confidence, it is right ",
        *ends[0].quoted(),
    )
    if len(ends) > 1:
        said = (*said, f"; when it is as sure of “{word(result, ends[1].side)}”, ", *ends[1].quoted())
    return (*said, ".")


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
