"""The pieces of sentences about a result: text, and numbers that are looked up when shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from blindcal.report.number_format import Number
from blindcal.results.result import AuditResult


@dataclass(frozen=True, slots=True)
class Quoted:
    """Text that somebody else wrote, shown verbatim."""

    text: str


Piece: TypeAlias = str | Number | Quoted
Sentence: TypeAlias = tuple[Piece, ...]


def word(result: AuditResult, side: str) -> str:
    """The answer word of a side, as it was asked for."""
    tokens = result.targets.positive if side == "positive" else result.targets.negative
    return str(result.settings.get(side) or (tokens[0].text.strip() if tokens else side))


def between(path: str, form: str = "percent") -> Sentence:
    """The two ends of an interval."""
    return Number(f"{path}.low", form), " to ", Number(f"{path}.high", form)


def one_label(result: AuditResult) -> str | None:
    """The label of all items, if they all have the same one."""
    return {0: "negative", result.counts.items: "positive"}.get(result.counts.positive_labels)
