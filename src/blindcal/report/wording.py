"""Words and numbers on a page, each number tied to its place in result.json or watch.json.

A number is named by a *path* such as ``bins.3.gap.low``; ``1-path`` and ``path+path`` also work. It becomes a
``<data>`` element with its path and its full value, which readers can check against the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from string import Formatter
from typing import Any

import msgspec
from markupsafe import Markup

from blindcal.estimate.findings import Curve
from blindcal.estimate.streams.alarms import AlarmName
from blindcal.estimation import FEW_GROUPS
from blindcal.records import Estimate, level_percent
from blindcal.results.judge_result import JudgeResult
from blindcal.results.result import AnswerCounts, AuditResult
from blindcal.results.watch_result import WatchResult
from blindcal.text import visible

UNKNOWN = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
_PLAIN = math.log(1e6)  # evidence above this is written as a power of ten


def percent(value: float) -> str:
    """A share in per cent: one decimal, two below one per cent."""
    digits = 1 if abs(value) >= 0.00995 or value == 0 else 2
    if 0 < abs(value) < 0.00005:
        return "below 0.01%"
    return f"{abs(value):.{digits}%}"


def signed(value: float) -> str:
    points = round(value * 100, 1)
    return f"{MINUS if points < 0 else '+' if points > 0 else ''}{abs(points):.1f}"


def pvalue(value: float) -> str:
    """A p-value, down to "below 0.001"."""
    return "below 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def duration(value: float) -> str:
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def decimal(value: float, digits: int) -> str:
    """A decimal number with a typographic minus sign, and none before zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", MINUS)


OBSERVED: dict[AlarmName, str] = {
    "endpoint": "repeated queries",
    "questions": "answers",
    "calibration": "labelled answers",
}


def evidence_text(log_evidence: float) -> str:
    """An e-value, given its natural logarithm: ``0.37``, ``25.1``, ``10^12``."""
    if log_evidence > _PLAIN:
        return f"10^{log_evidence / math.log(10):.0f}"
    value = math.exp(log_evidence)
    return "below 0.001" if value < 0.001 else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def gap_text(gap: Estimate) -> str:
    """A gap in percentage points, with its interval: ``+8.1 points (+2.0 to +14.2)``."""
    if gap.value is None:
        return "not known yet"
    between = f" ({100 * gap.low:+.1f} to {100 * gap.high:+.1f})" if gap.has_interval else ""  # type: ignore[operator]
    return f"{100 * gap.value:+.1f} points{between}"


FORMS: dict[str, Callable[[Any], str]] = {
    "percent": percent,
    "whole": lambda value: f"{value:.0%}",
    "level": level_percent,
    "signed": signed,
    "pvalue": pvalue,
    "count": lambda value: f"{value:,}",
    "dollars": lambda value: f"${value:,.4f}",
    "seconds": duration,
    "two": lambda value: decimal(value, 2),
    "three": lambda value: decimal(value, 3),
    "four": lambda value: decimal(value, 4),
    "points": lambda value: decimal(100 * value, 1),
    "short": lambda value: f"{value:g}".replace("-", MINUS),
    "mean": lambda value: f"{value:.3g}",
    "digits": str,
}


class Numbers:
    def __init__(self, result: AuditResult | JudgeResult | WatchResult) -> None:
        self._tree = msgspec.to_builtins(result)

    def value(self, path: str) -> Any:
        """The value at a path; ``None`` if there is none."""
        name, _, key = path.partition(".")
        if isinstance(named := self._tree.get(name), dict) and key in named:
            return named[key]  # the key may be any text
        if "+" in path:
            return sum(self.value(each) for each in path.split("+"))
        if path.startswith("1-"):
            rest = self.value(path[2:])
            return None if rest is None else 1 - rest
        value = self._tree
        for step in path.split("."):
            if value is None:
                return None
            value = value[int(step)] if isinstance(value, list | tuple) else value.get(step)
        return value

    def show(self, path: str, form: str = "percent") -> Markup:
        """One number as an HTML element, or a dash if it is unknown."""
        value = self.value(path)
        if value is None:
            return Markup('<span class="none" title="unknown">{}</span>').format(UNKNOWN)
        return Markup('<data value="{}" data-path="{}" data-form="{}">{}</data>').format(
            repr(value), path, form, FORMS[form](value)
        )

    def between(self, path: str, form: str = "percent") -> Markup:
        """The interval of an estimate in parentheses; empty if it has none."""
        low, high = f"{path}.low", f"{path}.high"
        if self.value(low) is None or self.value(high) is None:
            return Markup("")
        return Markup('<span class="between">({} to {})</span>').format(
            self.show(low, form), self.show(high, form)
        )

    def estimate(self, path: str, form: str = "percent") -> Markup:
        return (self.show(f"{path}.value", form) + Markup(" ") + self.between(path, form)).strip()

    def sentence(self, template: str, **words: str) -> Markup:
        """Fill a template: ``{name}`` is one of ``words``, any other ``{path:form}`` is a number."""
        filled = Markup()
        for text, path, form, _ in Formatter().parse(template):
            filled += text
            if path in words:
                filled += visible(words[path])
            elif path is not None:
                filled += self.show(path, form or "percent")
        return filled


def word(result: AuditResult, side: str) -> str:
    """The answer word of a side, from the settings or else the targets."""
    tokens = result.targets.positive if side == "positive" else result.targets.negative
    return str(result.settings.get(side) or (tokens[0].text.strip() if tokens else side))


def item_count(counts: AnswerCounts) -> str:
    """The number of estimated items; in a stopped run, also that of all: "420 of 3,000"."""
    whole = f" of {counts.items + counts.unanswered:,}" if counts.unanswered else ""
    return f"{counts.items:,}{whole}"


def few_groups(result: AuditResult) -> bool:
    groups = result.counts.groups
    return groups is not None and groups < FEW_GROUPS and result.ece.has_interval


def valid_answers(result: AuditResult) -> str:
    """The path of the number of valid answers."""
    each = "+".join(f"counts.each.{k}" for k in range(len(result.counts.each)))
    return each or "counts.positive+counts.negative"


def one_label(result: AuditResult) -> str | None:
    """The label that all items share; ``None`` if they differ or there are more than two answers."""
    if result.answers:
        return None
    return {0: "negative", result.counts.items: "positive"}.get(result.counts.positive_labels)


# With two answers, the confidence is P(positive); with more, it is that of the answer given (METHOD 8).


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words for the confidence, for what is observed, and for decisions by a threshold.

    ``confidence``, ``share`` and ``threshold`` name axes. A higher threshold avoids the first of the
    ``errors``. ``rates`` are fields of `OperatingPoint` with their names, and ``decided`` is about two.
    """

    several: bool
    confidence: str
    share: str
    threshold: str
    sides: tuple[str, str]
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
    share="share of positive labels",
    threshold="threshold on P(positive)",
    sides=("positive items", "negative items"),
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
    threshold="threshold on the confidence",
    sides=("right answers", "wrong answers"),
    side_share="share of these answers",
    distribution="Distribution of the confidence in right and in wrong answers",
    errors=("wrong answer", "withheld right answer"),
    rates=(("precision", "right, of those answered"), ("positive_rate", "answered")),
    decisions="Share of right answers, and share of questions answered, at each threshold",
    decided="{positive_rate:.0%} are answered, and {precision:.0%} of these answers are right",
    asked_for="one of those asked for",
)


def wording_of(result: AuditResult | WatchResult) -> Wording:
    several = result.state.several if isinstance(result, WatchResult) else bool(result.answers)
    return TOP_LABEL if several else TWO_ANSWERS


def least_confidence(result: AuditResult) -> float:
    """The lowest confidence that an item can have: 1/k for the likeliest of k answers."""
    return 1 / len(result.answers) if result.answers else 0.0


def shown_curve(result: AuditResult) -> Curve | None:
    """The reliability curve from the lowest possible confidence up."""
    curve = result.curve
    if curve is None:
        return None
    first = sum(f < least_confidence(result) for f in curve.f)
    low, high = (None if column is None else column[first:] for column in (curve.low, curve.high))
    return Curve(curve.f[first:], curve.value[first:], low, high, curve.level)
