"""Records that arrive over time: from a growing file, a folder of files, or standard input.

A record brings a question, a label, or both.

A stream is read in pieces, and after each piece the `Position` in every file can be kept. A file of JSON
lines may grow: it is read on from where it ended, and a last line that is not complete yet is left for the
next time. Files of other kinds are read whole, and again from their end if they have changed. Nothing is lost
if a position is: a record that is read twice is a duplicate, and a watch tells by the id.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from blindcal.errors import FileError, InputError
from blindcal.items.answers import CHOICES_FIELD
from blindcal.items.record_files import (
    JSON_LINES,
    READERS,
    UNREADABLE,
    Record,
    decode,
    format_of,
    is_zipped,
    numbered_lines,
    unreadable,
)
from blindcal.items.record_format import RecordFormat
from blindcal.records import UNLABELLED, Arrival, Position
from blindcal.text import encodable, printable, spoken

Lines: TypeAlias = list[tuple[str, bytes]]
"""Lines of a stream, each with where it is."""
STANDARD_INPUT = "-"
_HEAD = 1024  # bytes at the start of a file that tell whether it is still the same one
_BROKEN = b"{"  # stands for the rest of a file that cannot be read on: no record


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Lines of a stream, and how far its files were read, by name.

    ``ended`` says that nothing more is there now, ``closed`` that nothing more will ever come.
    """

    lines: Lines = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    ended: bool = True
    closed: bool = False


def open_stream(source: str | Path) -> FileStream | LineStream:
    """The stream of a file, of a folder, or of standard input (``-``)."""
    if str(source) == STANDARD_INPUT:
        return LineStream(sys.stdin.buffer)
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if not path.is_dir() and not path.is_fifo():
        format_of(path)
    return LineStream(path.open("rb"), str(path)) if path.is_fifo() else FileStream(path)


class FileStream:
    """The records of a file, or of the files in a folder in the order of their names."""

    def __init__(self, path: Path) -> None:
        self._path, self.name = path, str(path)
        self._open: tuple[Path, str, int, Iterator[tuple[str, bytes]]] | None = None

    def read(self, most: int, positions: Mapping[str, Position]) -> StreamPiece:
        """The next lines, ``most`` at most, from these positions on."""
        lines: Lines = []
        moved: dict[str, Position] = {}
        try:
            for path in self._files():
                before = positions.get(path.name, Position())
                grows = format_of(path) in JSON_LINES and not is_zipped(path)
                read = self._grown if grows else self._whole
                new, after, left = read(path, before, most - len(lines))
                lines += new
                if after != before:
                    moved[path.name] = after
                if left:
                    return StreamPiece(lines, moved, ended=False)
        except OSError as error:
            raise FileError.of(error, self._path) from error
        return StreamPiece(lines, moved)

    def _files(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path]
        files = (path for path in sorted(self._path.iterdir()) if path.is_file() and path.name[0] != ".")
        return [path for path in files if path.name.lower().removesuffix(".gz").endswith(tuple(READERS))]

    def _grown(self, path: Path, before: Position, most: int) -> tuple[Lines, Position, bool]:
        """Complete lines from a position on, and whether some are left; from the start if it was replaced."""
        lines: Lines = []
        with path.open("rb") as file:
            place, left = before.place if _same_start(file, before) else 0, False
            file.seek(place)
            for line in file:
                if not line.endswith(b"\n") and not _complete(line):
                    break
                if line.strip():
                    left = len(lines) == most
                    if left:
                        break
                    lines.append((f"{path}, byte {place}", line))
                place += len(line)
            return lines, Position(place, _start(file, place)), left

    def _whole(self, path: Path, before: Position, most: int) -> tuple[Lines, Position, bool]:
        """Records from a position on, and whether some are left; none if it was read to its end before."""
        status = path.stat()
        mark = f"{status.st_size}:{status.st_mtime_ns}"
        if before.mark == mark:
            return [], before, False
        if self._open is None or self._open[:3] != (path, mark, before.place):
            self._open = path, mark, before.place, islice(numbered_lines(path), before.place, None)
        rows, place = self._open[3], before.place
        lines: Lines = []
        self._open = None
        try:
            for where, line in rows:
                if len(lines) == most:
                    self._open = path, mark, place, chain([(where, line)], rows)
                    return lines, Position(place), True
                place += 1
                lines.append((f"{path}, {where}", line))
        except (InputError, *UNREADABLE) as error:
            words = error.message if isinstance(error, InputError) else f"{path}, {unreadable(error)}"
            lines.append((words, _BROKEN))
        else:
            if place > before.place and not _settled(path, status.st_size):
                place -= 1  # half of a record, perhaps: it is read again once the file has changed
        return lines, Position(place, mark), False


class LineStream:
    """The lines of a file that has no positions, such as a pipe, read by a thread as they come.

    What was read is nowhere else any more.
    """

    def __init__(self, file: BinaryIO, name: str = "standard input") -> None:
        self.name = name
        self._lines: queue.Queue[bytes] = queue.Queue(10_000)
        self._number, self._closed = 0, False
        threading.Thread(target=self._work, args=(file,), name="blindcal-stream", daemon=True).start()

    def _work(self, file: BinaryIO) -> None:
        try:
            for line in file:
                self._lines.put(line)
        finally:
            self._lines.put(b"")

    def read(self, most: int, positions: Mapping[str, Position]) -> StreamPiece:  # noqa: ARG002 - read once
        """The lines that have come, ``most`` at most."""
        lines: Lines = []
        with contextlib.suppress(queue.Empty):
            while len(lines) < most and not self._closed:
                line = self._lines.get_nowait()
                self._closed = not line
                self._number += 1
                if line.strip():
                    lines.append((f"{self.name}, line {self._number}", line))
        with self._lines.mutex:
            ended = not any(self._lines.queue)  # the end is an empty line
        return StreamPiece(lines, ended=ended, closed=self._closed)


def _complete(line: bytes) -> bool:
    """Whether a line without its end is a record: half of one never is."""
    try:
        decode(line)
    except InputError:
        return False
    return True


def _settled(path: Path, size: int) -> bool:
    """Whether the last record of a file that had this size is complete; text ends with a line, then."""
    if not path.name.lower().endswith((".csv", ".tsv")):
        return True
    with path.open("rb") as file:
        if file.seek(0, 2) != size:
            return False
        file.seek(max(size - 1, 0))
        return file.read(1) in (b"\n", b"\r")


def _start(file: BinaryIO, place: int) -> str:
    """What tells the start of a file that was read up to a place from that of another one."""
    file.seek(0)
    head = file.read(min(place, _HEAD))
    return f"{len(head)}:{hashlib.blake2b(head, digest_size=8).hexdigest()}"


def _same_start(file: BinaryIO, before: Position) -> bool:
    """Whether a file is the one that was read up to a position, or has been replaced by another."""
    if not before.place:
        return True
    size = int(before.mark.partition(":")[0])
    file.seek(0, 2)
    return file.tell() >= before.place and _start(file, size) == before.mark


class ArrivalReader:
    """Reads the records of a stream, and of its labels, as the reference audit would.

    ``words`` are the answer words, the positive one first, which labels may name. ``by_field`` is the field
    of the slices; an item may be without it.
    """

    def __init__(self, reading: RecordFormat, words: tuple[str, ...], by_field: str | None = None) -> None:
        self._reading = replace(reading, by_field=None, group_field="group")
        self._words = [spoken(word) for word in words]
        self._by_field = by_field

    def record(self, line: bytes) -> Arrival:
        """Read a record of the stream; without an id, the prompt stands for one."""
        record, reading = decode(line), self._reading
        given = _name_in(record, reading.id_field)
        if given is not None and self._only_a_label(record):
            return Arrival(id=given, item=None, digest=b"", label=self._label(record, 0))
        # The number decides in which order options are shown, and must not depend on the place in the stream.
        rest = {name: value for name, value in record.items() if name != reading.label_field}
        known = given if given is not None else json.dumps(rest, sort_keys=True)
        number = int.from_bytes(_digest(known.encode(errors="surrogatepass"))[:4])
        if given is None:  # a field of another name than usual may be missing too
            record = {**record, reading.id_field: ""}
        item = reading.item(record, number, labelled=False)
        if item.choices != 2:
            raise InputError(f"has {item.choices} answers, and only questions with two can be watched")
        digest = _digest(msgspec.json.encode(item.messages))
        name = digest.hex() if given is None else given
        part = None if self._by_field is None else _name_in(record, self._by_field)
        label, problem = UNLABELLED, ""
        if _has(record, reading.label_field):
            try:
                label = self._label(record, number)
            except InputError as error:
                problem = error.message
        return Arrival(
            id=name,
            item=replace(item, id=name, group=None, part=part),
            digest=digest,
            label=label,
            problem=problem,
        )

    def label(self, line: bytes) -> Arrival:
        """Read a record that brings the label of an item."""
        record, field = decode(line), self._reading.id_field
        given = _name_in(record, field)
        if given is None:
            raise InputError(f"field {printable(field, 40)!r} is missing, so the label belongs to no item")
        return Arrival(id=given, item=None, digest=b"", label=self._label(record, 0))

    def _label(self, record: Record, number: int) -> int:
        try:
            return self._reading.label(record, number)
        except InputError:
            word = spoken(str(record.get(self._reading.label_field)))
            if self._reading.has_options(record) or word not in self._words:
                raise
            return 1 - self._words.index(word)

    def _only_a_label(self, record: Record) -> bool:
        """Whether a record has a label and nothing that a prompt could be made of."""
        reading = self._reading
        usual = ("prompt", "messages", "question", CHOICES_FIELD)
        asked = usual if reading.template is None else reading.fields - {reading.id_field}
        return _has(record, reading.label_field) and not any(name in record for name in asked)


def _has(record: Record, field: str) -> bool:
    value = record.get(field)
    return value is not None and value != "" and value == value  # NaN differs from itself


def _name_in(record: Record, field: str) -> str | None:
    """The text of a field that names something; ``None`` if it is empty or not there."""
    if not _has(record, field):
        return None
    value = record[field]
    if not isinstance(value, str | int | float):
        raise InputError(
            f"field {printable(field, 40)!r} must be text or a number, not {printable(repr(value), 40)}"
        )
    return encodable(str(value))


def _digest(words: bytes) -> bytes:
    return hashlib.blake2b(words, digest_size=16).digest()
