"""Questions from a file, labelled for an audit or not: JSON lines, CSV or Parquet, gzipped or not.

A million questions must not be kept in memory as objects. So a file is read once from start to end: every
record is checked, and only a few bytes per item are kept (label, group, where its line starts). The line is
read again when the item is asked. Other formats are copied as JSON lines into an unnamed temporary file
first, and then treated the same.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
import numpy as np

from blindcal.atomic_write import writing
from blindcal.errors import FileError, InputError
from blindcal.items.answers import LETTERS, written_label
from blindcal.items.choices import CHOICES_FIELD
from blindcal.items.record_files import (
    UNREADABLE,
    Record,
    as_line,
    decode,
    json_lines,
    numbered_lines,
    reader_of,
    unreadable,
)
from blindcal.items.record_format import ANSWERS_FIELD, WORDS_FIELD, RecordFormat
from blindcal.items.repeated_prompts import RepeatedPrompts, repeated_prompts, resampling_units
from blindcal.records import IntArray, Item
from blindcal.text import printable

MOST_PARTS = 200
"""The most values that the field of a breakdown may have."""


class Items:
    """The items of a file, by number; ``items[i]`` reads one from disk.

    ``labels`` and ``groups`` (numbered in order of appearance, ``None`` if every item stands alone) are
    columns. ``digest`` identifies everything that would be asked, including labels and groups, so that a run
    can tell whether it is continued with the same questions. Unless they are ``labelled``, labels are not
    read, and ``labels_ignored`` says whether there are any.
    """

    def __init__(self, path: Path, reading: RecordFormat, file: BinaryIO, *, labelled: bool = True) -> None:
        self.path = path
        self.labels_ignored = False
        self.characters = 0
        self._reading, self._labelled = reading, labelled
        self._file = file
        self._digest = hashlib.blake2b(digest_size=16)
        # About twenty bytes per item instead of a few hundred: arrays of C numbers, not of objects.
        self._labels, self._starts, self._sizes, self._sums = array("b"), array("q"), array("I"), array("I")
        self._choices = array("b")
        self._ids, self._prompts = array("q"), array("q")
        self._group_names, self._grouped = array("q"), False
        self._words: tuple[str, ...] | None = None
        self._part_numbers, self._part_names = array("H"), dict[str, int]()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> Item:
        return self._reading.item(self._record(number), number, labelled=self._labelled)

    def _record(self, number: int) -> Record:
        line = _read_at(self._file, self._starts[number], self._sizes[number])
        if zlib.crc32(line) != self._sums[number]:
            raise InputError(f"{self.path}: changed while it was being used; run again")
        return decode(line)

    def lines(self) -> Iterator[bytes]:
        """Every item as a line of a file that needs no template; fields not used in the prompt are kept."""
        reading = self._reading
        gone = {reading.id_field, reading.label_field, "prompt", "id", "label", *reading.fields}
        for number, item in enumerate(self):
            record = self._record(number)
            rest = {name: value for name, value in record.items() if name not in gone}
            if (choices := reading.choices(record, number)) is not None:
                rest[CHOICES_FIELD] = list(choices.shown)
            label: int | str = item.label
            if answers := reading.named_answers(record):
                rest[ANSWERS_FIELD] = list(answers)
                label = written_label(item.label if len(answers) > 2 else 1 - item.label, answers)
            yield as_line({"id": item.id, "prompt": item.messages[-1].content, "label": label, **rest})

    def __iter__(self) -> Iterator[Item]:
        return (self[number] for number in range(len(self)))

    def __enter__(self) -> Items:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def labels(self) -> IntArray:
        """The label of every item."""
        return np.frombuffer(self._labels, np.int8).astype(np.int64)

    @property
    def words(self) -> tuple[str, ...] | None:
        """The answer words, the positive one first if there are two; ``None`` if the records name none.

        They are letters if prompts show choices. The second of two choices is the positive answer.
        """
        if self._words != ():
            return self._words
        most = max(self._choices)
        return LETTERS[:most] if most > 2 else (LETTERS[1], LETTERS[0])

    @property
    def answers(self) -> tuple[str, ...]:
        """The answer words if there are more than two, in the order of their numbers; else empty."""
        words = self.words or ()
        return words if len(words) > 2 else ()

    @property
    def choices(self) -> IntArray | None:
        """The number of answers of every item; ``None`` if all have two."""
        return np.frombuffer(self._choices, np.int8).astype(np.int64) if self.answers else None

    @property
    def groups(self) -> IntArray | None:
        """The number of every item's `resampling_units`: groups, and items with the same prompt."""
        names = np.frombuffer(self._group_names, np.int64) if self._grouped else None
        return resampling_units(names, np.frombuffer(self._prompts, np.int64))

    def repeated(self, members: IntArray) -> RepeatedPrompts | None:
        """The prompts that several of these items share."""
        return repeated_prompts(np.frombuffer(self._prompts, np.int64)[members], self.labels[members])

    @property
    def parts(self) -> tuple[str | None, ...] | None:
        """The part of every item; ``None`` without a breakdown."""
        if self._reading.by_field is None:
            return None
        names = [None, *self._part_names]
        return tuple(names[number] for number in self._part_numbers)

    @property
    def digest(self) -> str:
        """A hash of everything that would be asked."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file, and delete the temporary copy if one was made."""
        self._file.close()

    def _copy(self, line: bytes = b"") -> None:
        """Write a line to the temporary file, or the lines so far to disk."""
        try:
            self._file.write(line) if line else self._file.flush()
        except OSError as error:
            raise FileError.of(error, f"temporary copy of {self.path}") from error

    def _add(self, line: bytes, start: int) -> None:
        number = len(self)
        record = decode(line)
        item = self._reading.item(record, number, labelled=self._labelled)
        self.labels_ignored |= not self._labelled and self._reading.label_field in record
        words = self._reading.words(record)
        if number and words != self._words:
            raise _mixed_words(words, self._words, record)
        self._words = words
        self._labels.append(item.label)
        self._choices.append(item.choices)
        self._starts.append(start)
        self._sizes.append(len(line))
        self._sums.append(zlib.crc32(line))
        self._ids.append(hash(item.id))
        self._prompts.append(hash(item.messages))
        self._group_names.append(hash(("", number) if item.group is None else item.group))
        self._grouped |= item.group is not None
        # Parts are left out: they shape no query, and the breakdown of a finished run may change.
        asked = {"id": item.id, "label": item.label, "messages": item.messages, "group": item.group}
        if item.choices != 2:
            asked["choices"] = item.choices
        self._digest.update(msgspec.json.encode(asked))
        self._add_part(item.part)
        self.characters += sum(len(message.content) for message in item.messages)

    def _add_part(self, name: str | None) -> None:
        if self._reading.by_field is None:
            return
        number = 0 if name is None else self._part_names.setdefault(name, len(self._part_names) + 1)
        if number > MOST_PARTS:
            raise InputError(
                f"field {printable(self._reading.by_field, 40)!r} has more than {MOST_PARTS} values: "
                "too many to break a result down by"
            )
        self._part_numbers.append(number)

    def _check(self) -> None:
        if not len(self):
            raise InputError(f"{self.path}: holds no items")
        ids = np.frombuffer(self._ids, np.int64)
        _, first, counts = np.unique(ids, return_index=True, return_counts=True)
        if (repeated := first[counts > 1]).size:
            one, two = np.flatnonzero(ids == ids[repeated.min()])[:2]
            raise InputError(
                f"{self.path}: items {one + 1} and {two + 1} share the {self._reading.id_field} "
                f"{printable(self[int(one)].id, 60)!r}; ids must be unique"
            )
        self._ids = array("q")  # checked, and not needed again
        if not self._grouped:
            self._group_names = array("q")


def load(
    path: str | Path,
    reading: RecordFormat | None = None,
    *,
    scratch: Path | None = None,
    labelled: bool = True,
) -> Items:
    """Read and check a file of items; an error names the file, the line and the field.

    ``scratch`` is the folder for a temporary copy if one is needed; by default the system's. Unless items are
    to be ``labelled``, they need no labels.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    reader, zipped = reader_of(path)
    in_place = reader is json_lines and not zipped
    try:
        file = path.open("rb") if in_place else _scratch(scratch)
    except OSError as error:
        raise InputError(f"{path}: {unreadable(error)}") from None
    items = Items(path, reading or RecordFormat(), file, labelled=labelled)
    return _gather(items, reader(path, zipped), copy=not in_place)


def collect(
    name: str,
    records: Iterable[Record],
    reading: RecordFormat | None = None,
    *,
    scratch: Path | None = None,
    labelled: bool = True,
) -> Items:
    """Check records that do not come from a single file, and keep them in a temporary one.

    ``name`` replaces the file name in messages and results; errors give the number of the record.
    """
    items = Items(Path(name), reading or RecordFormat(), _scratch(scratch), labelled=labelled)
    return _gather(items, numbered_lines("record", records), copy=True)


def _gather(items: Items, lines: Iterable[tuple[str, bytes]], *, copy: bool) -> Items:
    """Add every line to the items; with ``copy``, it is written to their temporary file first."""
    path, at, start = items.path, "the start", 0
    try:
        for where, line in lines:
            at = where
            if copy:
                items._copy(line)
            if line.strip():
                items._add(line, start)
            start += len(line)
        if copy:
            items._copy()
        items._check()
    except BaseException as error:
        items.close()
        if isinstance(error, UNREADABLE):
            raise InputError(f"{path}, after {at}: {unreadable(error)}") from None
        if isinstance(error, InputError) and not error.message.startswith(str(path)):
            raise error.prefixed(f"{path}, {at}: ") from None
        raise
    return items


def _read_at(file: BinaryIO, start: int, size: int) -> bytes:
    if hasattr(os, "pread"):  # one system call; a seek would also discard the file's buffer
        return os.pread(file.fileno(), size, start)
    file.seek(start)
    return file.read(size)


def _scratch(folder: Path | None) -> BinaryIO:
    with writing(Path(tempfile.gettempdir()) if folder is None else folder):
        return cast(BinaryIO, tempfile.TemporaryFile(dir=folder))


def _mixed_words(words: tuple[str, ...] | None, before: tuple[str, ...] | None, record: Record) -> InputError:
    """The error about a record with other answers than those before it."""
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
