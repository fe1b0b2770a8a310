"""The answers to a question: their words or letters, and which of them a label names."""

from __future__ import annotations

import json
import re
from string import ascii_uppercase
from typing import Any

from blindcal.errors import InputError
from blindcal.text import printable

LETTERS = tuple(ascii_uppercase)
"""The letters of options, and the words that answer them."""
MOST_ANSWERS = len(LETTERS)

_NUMBER = re.compile(r"(0|[1-9][0-9]?)(\.0)?")


def parse_answers(given: object, name: str = "answers") -> tuple[str, ...]:
    """Answer words from a list, or from text such as ``A,B,C``, which may also be a list in JSON.

    Errors begin with ``name``.
    """
    answers = given
    if isinstance(given, str):
        answers = json_list(given) if given.lstrip().startswith("[") else given.split(",")
    if not isinstance(answers, list | tuple) or not all(_is_word(one) for one in answers):
        shown = printable(str(given), 60)
        raise InputError(f"{name}: must be a list of words such as A,B,C, not {shown!r}")
    words = tuple(str(one).strip() for one in answers)
    if len(words) < 2:
        raise InputError(f"{name}: must name at least two answers, not {len(words)}")
    if len(words) > MOST_ANSWERS:
        raise too_many(name, len(words))
    seen: dict[str, str] = {}
    for number, word in enumerate(words, 1):
        if not word:
            raise InputError(f"{name}: answer {number} is empty", remedy="give each answer a word")
        if (other := seen.setdefault(_folded(word), word)) is not word:
            one, two = (printable(each, 40) for each in (other, word))
            why = "is named twice" if one == two else f"and {two!r} differ only by case or spaces"
            raise InputError(f"{name}: {one!r} {why}", remedy="give each answer a word of its own")
    return words


def too_many(name: str, count: int) -> InputError:
    """The error about more answers than there are letters."""
    return InputError(
        f"{name}: must be at most {MOST_ANSWERS}, one per letter, not {count}",
        remedy="leave out the least likely ones, or merge them into one such as 'other'",
    )


def json_list(text: str) -> Any:
    """A list in JSON, as in a CSV cell; ``None`` if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def label_readings(value: Any, words: tuple[str, ...]) -> dict[str, int]:
    """Every way to read a label as the number of an answer: as a word, an index from 0, or a letter."""
    if not isinstance(value, str | int | float):
        return {}
    text = str(value).strip()
    number = _NUMBER.fullmatch(text)
    text = number[1] if number else text  # columns of floats have 1.0 for 1
    folded = [_folded(word) for word in words]
    found = {"word": folded.index(_folded(text))} if _folded(text) in folded else {}
    if number and int(text) < len(words):
        found["index"] = int(text)
    if text.isascii() and text.upper() in LETTERS[: len(words)]:
        found["letter"] = LETTERS.index(text.upper())
    return found


def read_label(value: Any, words: tuple[str, ...], field: str) -> int:
    """The number of the answer that a label names; raises `InputError` if none or more than one fits."""
    found = label_readings(value, words)
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    shown = printable(str(value), 40)
    if not found:
        last = len(words) - 1
        named = "" if words == LETTERS[: len(words)] else f"one of {printable(', '.join(words), 120)}, "
        raise InputError(
            f"field {field!r} must be {named}a letter from A to {LETTERS[last]} or an index from 0 to "
            f"{last}, not {shown!r}",
            remedy="correct it, or map other labels to indices with {label_map}",
            options={"label_map": ...},
        )
    ways = [f"{printable(words[k], 40)!r} (as {_A[way]})" for way, k in found.items()]
    raise InputError(
        f"field {field!r}: {shown!r} is ambiguous: it may mean {' or '.join(ways)}",
        remedy="say which index each label means with {label_map}",
        options={"label_map": ...},
    )


def read_label_of_two(value: Any, words: tuple[str, ...], field: str) -> int:
    """The label of a question with two answers, the positive one first: 1 if its word or letter is named.

    Numbers are refused: 0 may be the first answer, and it may be the negative one.
    """
    found = label_readings(value, words)
    if "index" not in found and len(set(found.values())) == 1:
        return 1 - next(iter(found.values()))
    rule = f"must be one of {printable(', '.join(words), 80)}, not"
    raise InputError(
        f"field {field!r}"
        + (": ambiguous with two answers:" if "index" in found else f" {rule}")
        + f" {printable(str(value), 40)!r}",
        remedy="write the words as labels, or name the answers with {positive} and {negative}, so that 1 is "
        "positive",
        options={"positive": words[0], "negative": words[1]},
    )


def written_label(number: int, words: tuple[str, ...]) -> str | int:
    """A label that means this answer and no other."""
    for label in (words[number], LETTERS[number], number):
        if set(label_readings(label, words).values()) == {number}:
            return label
    return words[number]  # answers such as "1", "A", "0": reading it back asks for a label map


def _is_word(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _folded(word: str) -> str:
    return "".join(word.split()).casefold()


_A = {"word": "a word", "index": "an index from 0", "letter": "a letter"}
