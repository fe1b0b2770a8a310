"""Confidences in the fields of records: which probability they are, and in which unit they are written.

A field holds the probability of the positive answer, the confidence in the answer that another field gives,
or a map of probabilities by answer; several fields hold the probability of an answer each.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from blindcal.errors import InputError
from blindcal.items.record_files import Record
from blindcal.records import GIVEN, Message
from blindcal.text import printable

BOOLEANS: Mapping[str, int] = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
"""Words that stand for labels without being named."""
_PREFIX = re.compile(r".*[^A-Za-z0-9]")  # of the names of several fields, such as p_A and p_B
_SCALE = 10  # the highest mark of many scales: percentages without a sign exceed it
_ROUNDED = 0.02  # probabilities of all answers may add up to so much more or less than 1
_UNIT = "write the unit with {percent}: true or false, or convert the file"


def given_message(name: str, answer: int, p: float, shown: Sequence[float] = ()) -> Message:
    """The message of an item, for `Item.given`; the id in it tells items with the same confidence apart."""
    return Message(GIVEN, msgspec.json.encode((name, answer, p, shown)).decode())


def is_positive(word: str) -> bool:
    return BOOLEANS.get(word.lower()) == 1


def are_booleans(words: Iterable[str]) -> bool:
    return all(word.lower() in BOOLEANS for word in words)


@lru_cache(maxsize=8)
def confidence_fields(named: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in named.split(","))


def answer_values(record: Record, named: str) -> dict[str, Any] | None:
    """What a record gives as the confidence in each answer; ``None`` if it is a single number."""
    names = confidence_fields(named)
    missing = [name for name in names if name not in record]
    if missing:
        raise InputError(
            f"field {printable(missing[0], 40)!r} is missing (the record has: "
            f"{printable(', '.join(record), 120)})",
            remedy="name the right one with {confidence_field}",
            options={"confidence_field": ...},
        )
    if len(names) > 1:
        prefix = _PREFIX.match(names[0])
        shared = prefix is not None and all(name.startswith(prefix[0]) for name in names)
        return {name.removeprefix(prefix[0]) if shared and prefix else name: record[name] for name in names}
    value = record[named.strip()]
    if isinstance(value, str) and value.lstrip().startswith("{"):  # a cell of CSV
        try:
            value = json.loads(value)
        except ValueError:
            raise InputError(f"field {printable(named, 40)!r} is not JSON") from None
    if not isinstance(value, Mapping):
        return None
    return {str(name): number for name, number in value.items() if number is not None}


def fraction(value: Any, name: str, *, percent: bool) -> float:
    """A confidence as a number from 0 to 1."""
    number, signed = _number(value, name)
    number = number / 100 if signed or percent else number
    if not 0 <= number <= 1:
        rule = "a percentage" if percent else "a probability from 0 to 1"
        raise InputError(f"field {printable(name, 40)!r} must be {rule}, not {printable(str(value), 40)!r}")
    return number


def _number(value: Any, name: str) -> tuple[float, bool]:
    """A confidence as it is written, and whether with a sign of per cent."""
    text = "" if value is None else str(value).strip()
    signed = text.endswith("%")
    try:
        number = float("x" if isinstance(value, bool) else text.rstrip("% "))
    except ValueError:
        number = math.nan
    if math.isnan(number):
        shown = "empty" if text in ("", "None") else f"{printable(text, 40)!r}"
        raise InputError(
            f"field {printable(name, 40)!r} must be a confidence such as 0.87 or 87%, and is {shown}",
            remedy="fill it in, or leave the record out",
        )
    return number, signed


def of_all_answers(
    values: Mapping[str, float], answers: tuple[str, ...]
) -> tuple[int, float] | tuple[int, float, list[float]]:
    """The likeliest answer, its probability and those of all; of two, only that of the first, positive one.

    Two answers without names are such as yes and no. What is no answer, such as another token, is left out.
    """
    said: dict[str, float] = {}
    for name, p in values.items():
        word = next((word for word in answers or BOOLEANS if word.casefold() == name.casefold()), None)
        if word is not None:
            said[word] = said.get(word, 0.0) + p
    total = sum(said.values())
    if total > 1 + _ROUNDED:
        raise InputError(
            f"the probabilities of its answers add up to {total:.4g}, not to 1",
            remedy="audit each alone, with one {confidence_field}, if they are about different questions",
            options={"confidence_field": ...},
        )
    if not total and len(said) != 1:
        raise InputError("all of its answers have probability 0", remedy="leave the record out")
    # what is left belongs to none of them, unless only one is named
    scale = total if total < 1 - _ROUNDED and len(said) > 1 else 1.0
    if len(answers) > 2:
        shown = [min(1.0, said.get(answer, 0.0) / scale) for answer in answers]
        return shown.index(max(shown)), max(shown), shown
    positive = answers[0] if answers else next(filter(is_positive, said), "")
    p = said[positive] if positive in said else scale - total
    return int(p >= scale / 2), min(1.0, p / scale)


@dataclass
class Survey:
    """What the confidences of a whole file look like, from which follow their unit and the answers."""

    named: str
    low: float = math.inf
    high: float = -math.inf
    signed: str = ""  # where the first value with a sign of per cent is
    plain: str = ""  # and the first without one
    between: str = ""  # the first strictly between 0 and 1
    answers: dict[str, None] = field(default_factory=dict)  # those that the values are of, in order

    def add(self, where: str, record: Record) -> None:
        values = answer_values(record, self.named)
        if values is not None:
            self.answers |= dict.fromkeys(values)
        for name, value in ({self.named: record[self.named.strip()]} if values is None else values).items():
            number, signed = _number(value, name)
            self.low, self.high = min(self.low, number), max(self.high, number)
            if signed:
                self.signed = self.signed or where
            else:
                self.plain = self.plain or where
                if 0 < number < 1:
                    self.between = self.between or where

    @property
    def percent(self) -> bool:
        """Whether the values are percentages; raises `InputError` if they are no probabilities."""
        about, options = f"field {printable(self.named, 60)!r}", {"percent": ...}
        ends = f"{about} runs from {self.low:.4g} to {self.high:.4g}"
        if self.low < 0 or self.high > 100:
            how = (
                "p = exp(x) for the logarithm of a probability"
                if self.high <= 0
                else ("p = 1 / (1 + exp(-x)) for the log-odds of one answer, softmax for the logits of all")
            )
            raise InputError(
                f"{ends}: these are logits or scores, not probabilities", remedy=f"convert them: {how}"
            )
        if self.signed and self.plain:
            raise InputError(
                f"{about} mixes percentages ({self.signed}) and numbers without a sign ({self.plain})",
                remedy="write all of them the same way",
            )
        if self.signed or self.high <= 1:
            return bool(self.signed)
        if self.between:
            raise InputError(
                f"{ends}, and mixes fractions ({self.between}) and larger numbers",
                remedy=_UNIT,
                options=options,
            )
        if self.high <= _SCALE:
            raise InputError(
                f"{ends}: these are marks on a scale, or percentages", remedy=_UNIT, options=options
            )
        return True
