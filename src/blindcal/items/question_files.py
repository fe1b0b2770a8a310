"""Questions with or without labels, read once from a file, checked, and kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from blindcal.errors import InputError
from blindcal.items.answers import CHOICES_FIELD, LETTERS, written_label
from blindcal.items.record_files import Record, as_line, numbered_records
from blindcal.items.record_format import ANSWERS_FIELD, WORDS_FIELD, RecordFormat
from blindcal.items.repeated_prompts import RepeatedPrompts, repeated_prompts, resampling_units
from blindcal.records import IntArray, Item
from blindcal.text import printable

MOST_PARTS = 200
"""Maximum number of values of the breakdown field."""


class Items:
    """The items of a file or a set, in order; their records are kept only for `lines`.

    Labels are read only if ``labelled``; otherwise ``labels_ignored`` says whether there are any.
    """

    def __init__(
        self,
        path: Path,
        reading: RecordFormat,
        records: Iterable[tuple[str, Record]],
        *,
        labelled: bool = True,
        keep_records: bool = False,
    ) -> None:
        self.path = path
        self.labels_ignored = False
        self._reading, self._labelled = reading, labelled
        self._items: list[Item] = []
        self._records: list[Record] | None = [] if keep_records else None
        self._digest = hashlib.blake2b(digest_size=16)
        self._words: tuple[str, ...] | None = None
        self._parts = set[str]()
        for where, record in records:
            try:
                self._add(record)
            except InputError as error:
                raise error.prefixed(f"{path}, {where}: ") from None
        self._check()

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Item:
        return self._items[number]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def lines(self) -> Iterator[bytes]:
        """Each item as a line of a file that needs no template; fields not used in the prompt are kept."""
        assert self._records is not None
        reading = self._reading
        gone = {reading.id_field, reading.label_field, "prompt", "id", "label", *reading.fields}
        for number, (item, record) in enumerate(zip(self._items, self._records, strict=True)):
            rest = {name: value for name, value in record.items() if name not in gone}
            if (choices := reading.choices(record, number)) is not None:
                rest[CHOICES_FIELD] = list(choices.shown)
            label: int | str = item.label
            if answers := reading.named_answers(record):
                rest[ANSWERS_FIELD] = list(answers)
                label = written_label(item.label if len(answers) > 2 else 1 - item.label, answers)
            yield as_line({"id": item.id, "prompt": item.messages[-1].content, "label": label, **rest})

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
    def parts(self) -> tuple[str | None, ...] | None:
        """Part of each item; ``None`` without a breakdown."""
        return None if self._reading.by_field is None else tuple(item.part for item in self._items)

    @property
    def digest(self) -> str:
        """Hash of all that is asked, labels and groups included, by which a run recognises its questions."""
        return self._digest.hexdigest()

    @cached_property
    def characters(self) -> int:
        return sum(len(message.content) for item in self._items for message in item.messages)

    def _add(self, record: Record) -> None:
        number = len(self)
        item = self._reading.item(record, number, labelled=self._labelled)
        self.labels_ignored |= not self._labelled and self._reading.label_field in record
        words = self._reading.words(record)
        if number and words != self._words:
            raise _mixed_words(words, self._words, record)
        self._words = words
        # Parts are left out: they shape no query, and the breakdown of a finished run may change.
        asked = {"id": item.id, "label": item.label, "messages": item.messages, "group": item.group}
        if item.choices != 2:
            asked["choices"] = item.choices
        self._digest.update(msgspec.json.encode(asked))
        if item.part is not None:
            self._parts.add(item.part)
        if len(self._parts) > MOST_PARTS:
            raise InputError(
                f"field {printable(str(self._reading.by_field), 40)!r} has more than {MOST_PARTS} values: "
                "too many to break a result down by"
            )
        self._items.append(item)
        if self._records is not None:
            self._records.append(record)

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


def load(
    path: str | Path,
    reading: RecordFormat | None = None,
    *,
    labelled: bool = True,
    keep_records: bool = False,
) -> Items:
    """Read and check a file of items, with labels if ``labelled``; errors name the file, line and field."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    records = numbered_records(path)
    return Items(path, reading or RecordFormat(), records, labelled=labelled, keep_records=keep_records)


def collect(
    name: str,
    records: Iterable[Record],
    reading: RecordFormat | None = None,
    *,
    labelled: bool = True,
    keep_records: bool = False,
) -> Items:
    """Like `load`, for records that are not from one file; errors show ``name`` as the file."""
    numbered = ((f"record {number}", record) for number, record in enumerate(records, 1))
    return Items(
        Path(name), reading or RecordFormat(), numbered, labelled=labelled, keep_records=keep_records
    )


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
