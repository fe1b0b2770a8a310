"""Sentences about a result in pieces: text, and numbers that are looked up when shown."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import TypeAlias

from blindcal.report.number_format import Number
from blindcal.results.result import AuditResult


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


def one_label(result: AuditResult) -> str | None:
    """The label of all items, if they all have the same one."""
    return {0: "negative", result.counts.items: "positive"}.get(result.counts.positive_labels)
