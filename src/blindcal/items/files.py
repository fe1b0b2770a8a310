"""Labelled questions from a file: JSON lines, CSV or Parquet, gzipped or not.

A million questions must not be kept in memory as objects. So a file is read once from start to end: every
record is checked, and only a few bytes per item are kept (label, group, where its line starts). The line is
read again when the item is asked. Other formats are copied as JSON lines into an unnamed temporary file
first, and then treated the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np

from blindcal.atomic_write import writing
from blindcal.errors import FileError, InputError
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
from blindcal.items.repeated_prompts import RepeatedPrompts, repeated_prompts, resampling_units
from blindcal.records import IntArray, Item, Message
from blindcal.text import encodable, printable

MOST_PARTS = 200
"""The most values that the field of a breakdown may have."""

WORDS_FIELD = "answer_words"
"""The field that names the answer words of a set of questions, the positive one first: ``True/False``."""

_LABELS = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """How a record becomes an item: which fields mean what, and how the prompt is made.

    ``template`` is plain text with ``{field}`` for the record's fields and ``{{`` for a brace; text from a
    record is never expanded again. ``label_map`` adds words for 0 and 1 to the usual ones.
    ``role`` is ``user`` for chat and ``prompt`` for plain completions. ``by_field`` is the field of the
    breakdown. ``data_dir`` is the folder with the files of a named set.
    """

    template: str | None = None
    system: str | None = None
    label_map: Mapping[str, int] | None = None
    label_field: str = "label"
    id_field: str = "id"
    group_field: str = "group"
    by_field: str | None = None
    data_dir: str | None = None
    role: str = "user"

    def __post_init__(self) -> None:
        if self.system is not None and self.role == "prompt":
            raise InputError("system: plain completions have no system message; put it in the template")
        for word, label in (self.label_map or {}).items():
            if label not in (0, 1):
                raise InputError(f"label map: {printable(word)!r} must map to 0 or 1, not {label!r}")
        if self.template is not None and not self.fields:
            raise InputError("template: names no field; write the record's fields as {field}")

    @property
    def fields(self) -> frozenset[str]:
        """The fields that the template names."""
        return frozenset(match[1] for match in _PLACEHOLDER.finditer(self.template or "") if match[1])

    def item(self, record: Record, number: int) -> Item:
        """Convert a record to an item; raises `InputError` that names the field."""
        for field, usual in ((self.id_field, "id"), (self.group_field, "group")):
            if field != usual and field not in record:  # only fields of the default names may be missing
                raise _missing(record, field, f"{usual}_field")
        return Item(
            _optional(record, self.id_field) or str(number),
            self._label(record),
            self._messages(record),
            _optional(record, self.group_field),
            self._part(record),
        )

    def _label(self, record: Record) -> int:
        if self.label_field not in record:
            raise _missing(record, self.label_field, "label_field")
        value = record[self.label_field]
        word = str(value).strip()
        own = self.label_map or {}
        short = word[0] if word in ("0.0", "1.0") else word  # as columns of floats are written
        mapped = own.get(word, own.get(short, _LABELS.get(short.lower())))
        if mapped is None or isinstance(value, list | dict):
            raise InputError(
                f"field {self.label_field!r} must be 0/1, true/false or yes/no, not {printable(word, 40)!r}",
                remedy="map other words to 0 and 1 with {label_map}",
                options={"label_map": ...},
            )
        return mapped

    def _part(self, record: Record) -> str | None:
        if self.by_field is None:
            return None
        if self.by_field not in record:
            raise _missing(record, self.by_field, "by_field")
        return _optional(record, self.by_field)

    def _messages(self, record: Record) -> tuple[Message, ...]:
        said: tuple[Message, ...]
        if self.template is not None:
            said = (Message(self.role, _fill(self.template, record)),)
        elif record.get("messages"):
            said = self._given_messages(record["messages"])
        elif "prompt" in record:
            said = (Message(self.role, _text(record["prompt"], "prompt")),)
        else:
            raise InputError(
                f"needs a field 'prompt' or 'messages'{_among(record)}",
                remedy="add one, or make the prompt from other fields with {template}",
                options={"template": ...},
            )
        if not any(one.content.strip() for one in said):
            raise InputError("the prompt is empty; remove the record, or fill in its fields")
        return said if self.system is None else (Message("system", self.system), *said)

    def _given_messages(self, given: Any) -> tuple[Message, ...]:
        if self.role == "prompt":
            raise InputError(
                "field 'messages' needs a chat endpoint; give 'prompt' or a template for completions"
            )
        if isinstance(given, str):  # a CSV cell
            try:
                given = json.loads(given)
            except (ValueError, RecursionError):
                raise InputError("field 'messages' is not JSON") from None
        if not isinstance(given, list):
            raise InputError("field 'messages' must be a list of {role, content}")
        try:
            said = msgspec.convert(given, list[Message])
        except msgspec.ValidationError:
            raise InputError(
                "field 'messages' must hold objects with a text 'role' and a text 'content'"
            ) from None
        return tuple(Message(encodable(one.role), encodable(one.content)) for one in said)


class Items:
    """The items of a file, by number; ``items[i]`` reads one from disk.

    ``labels`` and ``groups`` (numbered in order of appearance, ``None`` if every item stands alone) are
    columns. ``words`` are the positive and the negative answer word, if the records name them
    (``answer_words``); all must name the same. ``digest`` identifies everything that would be asked,
    including labels and groups, so that a run can tell whether it is continued with the same questions.
    """

    def __init__(self, path: Path, reading: RecordFormat, file: BinaryIO) -> None:
        self.path = path
        self.characters = 0
        self._reading = reading
        self._file = file
        self._digest = hashlib.blake2b(digest_size=16)
        # About twenty bytes per item instead of a few hundred: arrays of C numbers, not of objects.
        self._labels, self._starts, self._sizes, self._sums = array("b"), array("q"), array("I"), array("I")
        self._ids, self._prompts = array("q"), array("q")
        self._group_names, self._grouped = array("q"), False
        self.words: tuple[str, str] | None = None
        self._part_numbers, self._part_names = array("H"), dict[str, int]()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> Item:
        return self._reading.item(self._record(number), number)

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
            rest = {name: value for name, value in self._record(number).items() if name not in gone}
            yield as_line({"id": item.id, "prompt": item.messages[-1].content, "label": item.label, **rest})

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
        item = self._reading.item(record, number)
        words = _answer_words(record)
        if number and words != self.words:
            raise InputError(f"field {WORDS_FIELD!r} must be the same in all records")
        self.words = words
        self._labels.append(item.label)
        self._starts.append(start)
        self._sizes.append(len(line))
        self._sums.append(zlib.crc32(line))
        self._ids.append(hash(item.id))
        self._prompts.append(hash(item.messages))
        self._group_names.append(hash(("", number) if item.group is None else item.group))
        self._grouped |= item.group is not None
        # Parts are left out: they shape no query, and the breakdown of a finished run may change.
        asked = {"id": item.id, "label": item.label, "messages": item.messages, "group": item.group}
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


def load(path: str | Path, reading: RecordFormat | None = None, *, scratch: Path | None = None) -> Items:
    """Read and check a file of items; an error names the file, the line and the field.

    ``scratch`` is the folder for a temporary copy if one is needed; by default the system's.
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
    return _gather(Items(path, reading or RecordFormat(), file), reader(path, zipped), copy=not in_place)


def collect(
    name: str, records: Iterable[Record], reading: RecordFormat | None = None, *, scratch: Path | None = None
) -> Items:
    """Check records that do not come from a single file, and keep them in a temporary one.

    ``name`` replaces the file name in messages and results; errors give the number of the record.
    """
    items = Items(Path(name), reading or RecordFormat(), _scratch(scratch))
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


def _fill(template: str, record: Record) -> str:
    # One pass and plain look-ups: braces in a record stay text, and no attribute can be reached.
    def value(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] not in record:
            raise InputError(
                f"field {printable(match[1], 40)!r}, named in the template, is missing{_among(record)}"
            )
        return "" if record[match[1]] == "" else _scalar(record[match[1]], match[1])

    return _PLACEHOLDER.sub(value, template)


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise InputError(
            f"field {printable(field, 40)!r} must be text, not {printable(repr(value), 40)}",
            remedy="put it into a question with {template}",
            options={"template": ...},
        )
    return encodable(value)


def _scalar(value: Any, field: str) -> str:
    if not isinstance(value, str | int | float) or value == "" or value != value:  # NaN differs from itself
        raise InputError(
            f"field {printable(field, 40)!r} must be text or a number, not {printable(repr(value), 40)}"
        )
    return encodable(str(value))


def _optional(record: Record, field: str) -> str | None:
    value = record.get(field)
    return None if value in (None, "") or value != value else _scalar(value, field)


def _answer_words(record: Record) -> tuple[str, str] | None:
    given = record.get(WORDS_FIELD)
    if given in (None, ""):
        return None
    positive, _, negative = str(given).partition("/")
    if not positive or not negative or "/" in negative:
        raise InputError(
            f"field {WORDS_FIELD!r} must be two words such as Yes/No, not {printable(str(given), 40)!r}"
        )
    return positive, negative


def _missing(record: Record, field: str, option: str) -> InputError:
    return InputError(
        f"field {printable(field, 40)!r} is missing{_among(record)}",
        remedy=f"name the right one with {{{option}}}",
        options={option: ...},
    )


def _among(record: Record) -> str:
    return f" (the record has: {printable(', '.join(record), 120)})"
