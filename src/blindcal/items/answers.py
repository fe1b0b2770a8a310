"""Answers to a question, as words or letters of its options, and which of them a label names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any

import numpy as np

from blindcal.errors import InputError
from blindcal.records import Message
from blindcal.text import encodable, printable

LETTERS = tuple(ascii_uppercase)
"""The letters of options, which are then the answers."""
MOST_ANSWERS = len(LETTERS)
CHOICES_FIELD = "choices"
QUESTION_TEMPLATE = "{question}\n{choices}\nReply only with the letter of the right answer."
"""Default prompt of records with a question and choices."""

_NUMBER = re.compile(r"(0|[1-9][0-9]?)(\.0)?")
_FORMS = {"word": "a word", "index": "an index from 0", "letter": "a letter"}


def parse_answers(given: object, name: str = "answers") -> tuple[str, ...]:
    """Read answer words from a list, a JSON list or text such as ``A,B,C``; errors begin with ``name``."""
    answers = given
    if isinstance(given, str):
        answers = json_list(given) if given.lstrip().startswith("[") else given.split(",")
    if not isinstance(answers, list | tuple) or not all(
        isinstance(word, str | int) and not isinstance(word, bool) for word in answers
    ):
        raise InputError(f"{name}: must be a list of words such as A,B,C, not {printable(str(given), 60)!r}")
    words = tuple(str(word).strip() for word in answers)
    _check_texts(words, name)
    seen: dict[str, str] = {}
    for word in words:
        if (other := seen.setdefault(_folded(word), word)) is not word:
            first, second = (printable(each, 40) for each in (other, word))
            why = "is named twice" if first == second else f"and {second!r} differ only by case or spaces"
            raise InputError(f"{name}: {first!r} {why}", remedy="give each answer a word of its own")
    return words


def _check_texts(texts: tuple[str, ...], name: str) -> None:
    if not 2 <= len(texts) <= MOST_ANSWERS:
        fewer = "leave out the least likely ones, or merge them into one such as 'other'"
        raise InputError(
            f"{name}: must be 2 to {MOST_ANSWERS}, one per letter, not {len(texts)}",
            remedy="add the others" if len(texts) < 2 else fewer,
        )
    if "" in texts:
        raise InputError(f"{name}: number {texts.index('') + 1} is empty", remedy="fill it in, or remove it")


def json_list(text: str) -> Any:
    """Parse a JSON list, as in a CSV cell; ``None`` if it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def label_readings(value: Any, words: tuple[str, ...]) -> dict[str, int]:
    """Every reading of a label as the number of an answer: as a word, an index from 0, or a letter."""
    if not isinstance(value, str | int | float):
        return {}
    text = str(value).strip()
    number = _NUMBER.fullmatch(text)
    text = number[1] if number else text  # columns of floats have 1.0 for 1
    folded = [_folded(word) for word in words]
    readings = {"word": folded.index(_folded(text))} if _folded(text) in folded else {}
    if number and int(text) < len(words):
        readings["index"] = int(text)
    if text.isascii() and text.upper() in LETTERS[: len(words)]:
        readings["letter"] = LETTERS.index(text.upper())
    return readings


def read_label(value: Any, words: tuple[str, ...], field: str) -> int:
    """The number of the answer that a label names; an error if it names none, or may name several."""
    readings = label_readings(value, words)
    if len(set(readings.values())) == 1:
        return next(iter(readings.values()))
    shown = printable(str(value), 40)
    if not readings:
        last = len(words) - 1
        named = "" if words == LETTERS[: len(words)] else f"one of {printable(', '.join(words), 120)}, "
        raise InputError(
            f"field {field!r} must be {named}a letter from A to {LETTERS[last]} or an index from 0 to "
            f"{last}, not {shown!r}",
            remedy="correct it, or map other labels to indices with {label_map}",
            options={"label_map": ...},
        )
    meanings = [f"{printable(words[k], 40)!r} (as {_FORMS[form]})" for form, k in readings.items()]
    raise InputError(
        f"field {field!r}: {shown!r} is ambiguous: it may mean {' or '.join(meanings)}",
        remedy="say which index each label means with {label_map}",
        options={"label_map": ...},
    )


def read_label_of_two(value: Any, words: tuple[str, ...], field: str) -> int:
    """Like `read_label`, but 1 for the first of two, the positive one; numbers are ambiguous, and refused."""
    readings = label_readings(value, words)
    if "index" not in readings and len(set(readings.values())) == 1:
        return 1 - next(iter(readings.values()))
    rule = f"must be one of {printable(', '.join(words), 80)}, not"
    raise InputError(
        f"field {field!r}"
        + (": ambiguous with two answers:" if "index" in readings else f" {rule}")
        + f" {printable(str(value), 40)!r}",
        remedy="write the words as labels, or name the answers with {positive} and {negative}, so that 1 is "
        "positive",
        options={"positive": words[0], "negative": words[1]},
    )


def written_label(number: int, words: tuple[str, ...]) -> str | int:
    """A label that can only mean this answer."""
    for label in (words[number], LETTERS[number], number):
        if set(label_readings(label, words).values()) == {number}:
            return label
    return words[number]  # answers such as "1", "A", "0": reading it back asks for a label map


def _folded(word: str) -> str:
    return "".join(word.split()).casefold()


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of a question, the ``order`` shown, and the source's own ``names`` of them, if any."""

    texts: tuple[str, ...]
    order: tuple[int, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: Any) -> Choices:
        """Parse a list of texts (in CSV as JSON), or the Hub's ``{"text": [...], "label": [...]}``."""
        options: Any = given
        names: tuple[str, ...] = ()
        if isinstance(given, str):
            options = json_list(given)
        elif isinstance(given, dict) and set(given) == {"text", "label"} and isinstance(given["label"], list):
            options, names = given["text"], tuple(str(name).strip() for name in given["label"])
        if not isinstance(options, list) or not all(isinstance(text, str | int | float) for text in options):
            shown = printable(str(given), 60)
            raise InputError(f"field 'choices' must be a list of texts, in CSV as JSON, not {shown!r}")
        texts = tuple(encodable(str(text)).strip() for text in options)
        _check_texts(texts, "field 'choices'")
        if names and (len(names) != len(texts) or len(set(names)) != len(names)):
            raise InputError("field 'choices' must have one label per text, each a different one")
        return cls(texts, tuple(range(len(texts))), names)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(self.texts[k] for k in self.order)

    def __str__(self) -> str:
        return lettered(self.shown)

    def label(self, value: Any, field: str) -> int:
        """The place, in the order shown, of the option that a label names."""
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
        """The place of an option in the order shown, from 0."""
        if number >= len(self):
            raise InputError(f"the label maps to option {number}, counted from 0, and there are {len(self)}")
        return self.order.index(number)

    def permuted(self, seed: int, number: int) -> Choices:
        """The options in a random order that depends only on the seed and the item's number."""
        order = np.random.default_rng([seed, number]).permutation(len(self))
        return replace(self, order=tuple(order.tolist()))

    def shown_in(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Messages with the options in the order shown, at the end unless they contain them already."""
        original = lettered(self.texts)
        if any(original in message.content for message in messages):
            return tuple(
                replace(message, content=message.content.replace(original, str(self))) for message in messages
            )
        last = messages[-1]
        return (*messages[:-1], replace(last, content=f"{last.content.rstrip()}\n{self}"))


def lettered(texts: tuple[str, ...]) -> str:
    """Options as lines: ``A. text``."""
    return "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False))
