"""Sentences about a result in pieces: text, and numbers that are looked up when shown."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import TypeAlias

from blindcal.evidence import FEW_GROUPS
from blindcal.report.number_format import Number
from blindcal.results.result import AnswerCounts, AuditResult


@dataclass(frozen=True, slots=True)
class Quoted:
    """Text from outside, shown verbatim."""

    text: str


Piece: TypeAlias = str | Number | Quoted
Sentence: TypeAlias = tuple[Piece, ...]


def word(result: AuditResult, side: str) -> str:
    """The answer word of a side, from the settings or else the targets."""
    tokens = result.targets.positive if side == "positive" else result.targets.negative
    return str(result.settings.get(side) or (tokens[0].text.strip() if tokens else side))


def sentence(template: str, **pieces: Piece) -> Sentence:
    """Split a template: ``{name}`` is one of ``pieces``, any other ``{path:form}`` is a number."""
    found: list[Piece] = []
    for text, path, form, _ in Formatter().parse(template):
        found.append(text)
        if path is not None:
            found.append(pieces[path] if path in pieces else Number(path, form or "percent"))
    return tuple(found)


def item_count(counts: AnswerCounts) -> str:
    """How many items the estimates are about, and of how many in a run that was stopped: "420 of 3,000"."""
    whole = f" of {counts.items + counts.unanswered:,}" if counts.unanswered else ""
    return f"{counts.items:,}{whole}"


def few_groups(result: AuditResult) -> bool:
    """Whether the items are in so few groups that the intervals say little."""
    groups = result.counts.groups
    return groups is not None and groups < FEW_GROUPS and result.ece.has_interval


def valid_answers(result: AuditResult) -> Number:
    """The number of valid answers."""
    each = "+".join(f"counts.each.{k}" for k in range(len(result.counts.each)))
    return Number(each or "counts.positive+counts.negative", "count")


def all_answers(result: AuditResult) -> Number:
    """The number of answers, valid or not."""
    return Number(f"{valid_answers(result).path}+counts.invalid", "count")


def one_label(result: AuditResult) -> str | None:
    """The label of all items, if they all have the same one of two."""
    if result.answers:
        return None
    return {0: "negative", result.counts.items: "positive"}.get(result.counts.positive_labels)
