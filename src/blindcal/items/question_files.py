"""Questions with or without labels, read once from a file, checked, and kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from blindcal.errors import InputError, errors_at
from blindcal.items.answers import CHOICES_FIELD, LETTERS
from blindcal.items.record_files import Record
from blindcal.items.record_format import ANSWERS_FIELD, WORDS_FIELD, RecordFormat
from blindcal.records import IntArray, Item
from blindcal.text import printable

MOST_CHARACTERS = 2**30
"""Maximum length of all prompts together, which are kept in memory."""
MOST_PARTS = 200
"""Maximum number of values of the breakdown field."""


@dataclass(frozen=True, slots=True)
class RepeatedPrompts:
    """``items`` repeat an earlier prompt; ``conflicting`` ones share a prompt with different labels."""

    items: int
    conflicting: int


class Items:
    """The items of a file or a set, in order.

    Labels are read only if ``labelled``; otherwise ``labels_ignored`` says whether there are any.
    """

    def __init__(
        self,
        path: Path,
        reading: RecordFormat,
        records: Iterable[tuple[str, Record]],
        *,
        labelled: bool = True,
    ) -> None:
        self.path = path
        self.labels_ignored = False
        self.characters = self.blank = 0
        self._reading, self._labelled = reading, labelled
        self._items: list[Item] = []
        self._words: tuple[str, ...] | None = None
        self._parts = set[str]()
        for where, record in records:
            with errors_at(f"{path}, {where}"):
                self._add(record)
        self._check()

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Item:
        return self._items[number]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @cached_property
    def labels(self) -> IntArray:
        return np.array([item.label for item in self._items], np.int64)

    @cached_property
    def words(self) -> tuple[str, ...] | None:
        """Answer words (letters for choices), the positive one of two first; ``None`` if none are named."""
        if self._words != ():
            return self._words
        most = max(item.choices for item in self._items)
        return LETTERS[:most] if most > 2 else (LETTERS[1], LETTERS[0])

    @property
    def answers(self) -> tuple[str, ...]:
        """The answer words in the order of their numbers if there are more than two; else empty."""
        words = self.words or ()
        return words if len(words) > 2 else ()

    @cached_property
    def choices(self) -> IntArray | None:
        """Number of answers per item; ``None`` if all have two."""
        return np.array([item.choices for item in self._items], np.int64) if self.answers else None

    @cached_property
    def groups(self) -> IntArray | None:
        """The `resampling_units` of the items; ``None`` if each item is its own."""
        names = [item.group for item in self._items]
        if not any(names):
            return resampling_units(None, self._prompts)
        hashes = [hash(("", number) if name is None else name) for number, name in enumerate(names)]
        return resampling_units(np.array(hashes, np.int64), self._prompts)

    def repeated(self, members: IntArray) -> RepeatedPrompts | None:
        """The prompts that several of these items share."""
        return repeated_prompts(self._prompts[members], self.labels[members])

    @cached_property
    def _prompts(self) -> IntArray:
        return np.array([hash(item.messages) for item in self._items], np.int64)

    @property
    def by_field(self) -> str | None:
        """The field to break the result down by; ``None`` without a breakdown."""
        return self._reading.by_field

    @property
    def parts(self) -> tuple[str | None, ...] | None:
        """Part of each item; ``None`` without a breakdown."""
        return None if self.by_field is None else tuple(item.part for item in self._items)

    @cached_property
    def digest(self) -> str:
        """Hash of all that is asked, labels and groups included, by which a run recognises its questions."""
        each = ((item.id, item.label, item.group, item.digest, item.choices) for item in self)
        return items_digest(each)

    def _add(self, record: Record) -> None:
        number = len(self)
        item = self._reading.item(record, number, labelled=self._labelled)
        self.labels_ignored |= not self._labelled and self._reading.label_field in record
        self.blank += self._reading.asks_nothing(record)
        words = self._reading.words(record)
        if number and words != self._words:
            raise _mixed_words(words, self._words, record)
        self._words = words
        if item.part is not None:
            self._parts.add(item.part)
        self.characters += sum(len(message.content) for message in item.messages)
        if self.characters > MOST_CHARACTERS:
            raise InputError(f"the prompts have more than {MOST_CHARACTERS:,} characters; split the file")
        if len(self._parts) > MOST_PARTS:
            raise InputError(
                f"field {printable(str(self._reading.by_field), 40)!r} has more than {MOST_PARTS} values: "
                "too many to break a result down by"
            )
        self._items.append(item)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is probably wrong with the questions, in sentences."""
        repeated = self.repeated(np.arange(len(self)))
        conflicting = 0 if repeated is None else repeated.conflicting
        blank = f"items without a question: {self.blank:,}; the fields that the template names are blank"
        other = f"items that share a prompt with one of another label: {conflicting:,}; check these labels"
        return tuple(text for text, number in ((blank, self.blank), (other, conflicting)) if number)

    def _check(self) -> None:
        if not self._items:
            raise InputError(f"{self.path}: holds no items")
        numbers: dict[str, int] = {}
        for number, item in enumerate(self._items):
            if (first := numbers.setdefault(item.id, number)) != number:
                raise InputError(
                    f"{self.path}: items {first + 1} and {number + 1} share the {self._reading.id_field} "
                    f"{printable(item.id, 60)!r}; ids must be unique"
                )


def items_digest(items: Iterable[tuple[str, int, str | None, bytes, int]]) -> str:
    """Hash of the id, label, group, digest and number of answers of each item.

    Parts are left out: they shape no query, and the breakdown of a finished run may change.
    """
    digest = hashlib.blake2b(digest_size=16)
    for item in items:
        digest.update(msgspec.json.encode(item))
    return digest.hexdigest()


def _mixed_words(words: tuple[str, ...] | None, before: tuple[str, ...] | None, record: Record) -> InputError:
    if () in (words, before):
        which = "no" if before == () else "a"
        return InputError(
            f"has {which} field {CHOICES_FIELD!r}, unlike the records before it",
            remedy="give all records one, or none",
        )
    if WORDS_FIELD in record:
        return InputError(f"field {WORDS_FIELD!r} must be the same in all records")
    return InputError(
        f"field {ANSWERS_FIELD!r} must be the same in all records",
        remedy="rename it if it does not name the answer words",
    )


# Items that share a prompt: their answers are alike, so the items are not independent


def repeated_prompts(prompts: IntArray, labels: IntArray) -> RepeatedPrompts | None:
    """Count repeated prompts, given as hashes; ``None`` if there are none."""
    codes = _in_order(prompts)
    size = np.bincount(codes)
    if size.size == codes.size:
        return None
    first = labels[np.unique(codes, return_index=True)[1]]
    mixed = np.bincount(codes, labels != first[codes]) > 0
    return RepeatedPrompts(codes.size - size.size, int(size[mixed].sum()))


def resampling_units(groups: IntArray | None, prompts: IntArray) -> IntArray | None:
    """The unit of each item, numbered in order of appearance; ``None`` if each item is its own.

    A unit is a group, merged with groups that share a prompt; without groups, the items with the same prompt.
    """
    codes = _in_order(prompts)
    distinct = np.unique(codes).size
    if groups is None:
        return None if distinct == codes.size else codes
    named = _in_order(groups)
    if distinct == codes.size:
        return named
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first = int(named.max()) + 1
    shape = (first + distinct,) * 2
    links = coo_array((np.ones(codes.size, np.int8), (named, first + codes)), shape=shape)
    _, unit = connected_components(links, directed=False)
    return _in_order(unit[named].astype(np.int64))


def _in_order(values: IntArray) -> IntArray:
    # Hashes differ between processes; the order of appearance does not.
    _, first, codes = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[codes]
