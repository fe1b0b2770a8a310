"""The options of a multiple-choice question: its field ``choices``, and how a prompt shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blindcal.errors import InputError
from blindcal.items.answers import LETTERS, MOST_ANSWERS, json_list, read_label, too_many
from blindcal.records import Message
from blindcal.text import encodable, printable

CHOICES_FIELD = "choices"
QUESTION_TEMPLATE = "{question}\n{choices}\nReply only with the letter of the right answer."
"""The prompt of records that have a question and choices, if there is no template."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of one item, as the record has them, and the ``order`` in which they are shown.

    ``names`` are those that the source gives the options, if it does: labels are then among them.
    """

    texts: tuple[str, ...]
    order: tuple[int, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: Any) -> Choices:
        """The options in a record: a list of texts, in CSV as JSON.

        Some sets on the Hub have two lists, ``{"text": [...], "label": [...]}``.
        """
        found: Any = given
        names: tuple[str, ...] = ()
        if isinstance(given, str):
            found = json_list(given)
        elif isinstance(given, dict) and set(given) == {"text", "label"} and isinstance(given["label"], list):
            found, names = given["text"], tuple(str(one).strip() for one in given["label"])
        if not isinstance(found, list) or not all(isinstance(one, str | int | float) for one in found):
            shown = printable(str(given), 60)
            raise InputError(f"field 'choices' must be a list of texts, in CSV as JSON, not {shown!r}")
        if len(found) < 2:
            raise InputError(
                f"field 'choices' must have at least two options, not {len(found)}",
                remedy="add the others, or remove the record",
            )
        if len(found) > MOST_ANSWERS:
            raise too_many("field 'choices'", len(found))
        texts = tuple(encodable(str(one)).strip() for one in found)
        if "" in texts:
            raise InputError(
                f"field 'choices': option {texts.index('') + 1} is empty", remedy="fill it in, or remove it"
            )
        if names and (len(names) != len(texts) or len(set(names)) != len(names)):
            raise InputError("field 'choices' must have one label per text, each a different one")
        return cls(texts, tuple(range(len(texts))), names)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def shown(self) -> tuple[str, ...]:
        """The texts in the order in which they are shown."""
        return tuple(self.texts[k] for k in self.order)

    def __str__(self) -> str:
        """The options as lines: ``A. text``."""
        return _lettered(self.shown)

    def label(self, value: Any, field: str) -> int:
        """The number, in the order shown, of the option that a label of the record names."""
        if not self.names:
            return self.place(read_label(value, LETTERS[: len(self)], field))
        if (name := str(value).strip()) not in self.names:
            raise InputError(
                f"field {field!r} must be one of the labels in 'choices', "
                f"{printable(', '.join(self.names), 120)}, not {printable(name, 40)!r}",
                remedy="correct it, or remove the record",
            )
        return self.place(self.names.index(name))

    def place(self, number: int) -> int:
        """Where an option of the record is shown, from 0."""
        if number >= len(self):
            raise InputError(f"the label maps to option {number}, counted from 0, and there are {len(self)}")
        return self.order.index(number)

    def permuted(self, seed: int, number: int) -> Choices:
        """The options in a random order, which depends on the seed and the number of the item only."""
        order = np.random.default_rng([seed, number]).permutation(len(self))
        return replace(self, order=tuple(order.tolist()))

    def shown_in(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Messages with the options at their end, unless they have them; then in the order shown."""
        there = _lettered(self.texts)
        if any(there in one.content for one in messages):
            return tuple(replace(one, content=one.content.replace(there, str(self))) for one in messages)
        last = messages[-1]
        return (*messages[:-1], replace(last, content=f"{last.content.rstrip()}\n{self}"))


def _lettered(texts: tuple[str, ...]) -> str:
    return "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False))
