"""Records that arrive over time (questions, labels or both) in a file, a folder, or standard input.

A stream is read in pieces, each with the `Position` up to which every file was read. JSON lines are read on
from there, and an incomplete last line waits for the next read. Other files are read whole, and again from
that position once they change. Losing a position loses nothing: records that are read twice are duplicates,
recognised by id.
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
    LARGEST_RECORD,
    UNREADABLE,
    Record,
    decode,
    format_of,
    has_reader,
    is_zipped,
    numbered_lines,
    unreadable,
)
from blindcal.items.record_format import RecordFormat, has_value, optional_text
from blindcal.records import UNLABELLED, Arrival, Position
from blindcal.text import printable, spoken

Lines: TypeAlias = list[tuple[str, bytes]]
"""Lines of a stream, each with its place."""
STANDARD_INPUT = "-"
_HEAD = 1024  # bytes at the start of a file by which it is recognised
_BROKEN = b"{"  # not a record: stands for the rest of an unreadable file


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Lines, and positions by file name; ``ended`` means no more for now, ``closed`` no more ever."""

    lines: Lines = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    ended: bool = True
    closed: bool = False


def open_stream(source: str | Path) -> FileStream | LineStream:
    """Open a file, a folder, or standard input (``-``) as a stream."""
    if str(source) == STANDARD_INPUT:
        return LineStream(sys.stdin.buffer)
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if not path.is_dir() and not path.is_fifo():
        format_of(path)
    return LineStream(path.open("rb"), str(path)) if path.is_fifo() else FileStream(path)


class FileStream:
    """The records of a file, or of the files in a folder in order of name."""

    def __init__(self, path: Path) -> None:
        self._path, self.name = path, str(path)
        self._open: tuple[Path, str, int, Iterator[tuple[str, bytes]]] | None = None

    def read(self, most: int, positions: Mapping[str, Position]) -> StreamPiece:
        """At most ``most`` lines, from the given positions on."""
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
        return [path for path in sorted(self._path.iterdir()) if has_reader(path) and path.name[0] != "."]

    def _grown(self, path: Path, before: Position, most: int) -> tuple[Lines, Position, bool]:
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
                place -= 1  # maybe half of a record: read it again once the file has changed
        return lines, Position(place, mark), False


class LineStream:
    """Lines of a pipe or the like, read by a thread as they arrive; they cannot be read again."""

    def __init__(self, file: BinaryIO, name: str = "standard input") -> None:
        self.name = name
        self._lines: queue.Queue[bytes] = queue.Queue(10_000)
        self._number, self._closed = 0, False
        threading.Thread(target=self._work, args=(file,), name="blindcal-stream", daemon=True).start()

    def _work(self, file: BinaryIO) -> None:
        try:
            while line := file.readline(LARGEST_RECORD):  # a longer line is in pieces, which are no records
                self._lines.put(line)
        finally:
            self._lines.put(b"")

    def read(self, most: int, positions: Mapping[str, Position]) -> StreamPiece:  # noqa: ARG002 - read once
        """At most ``most`` of the lines that have arrived."""
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
    # Half of a JSON object never decodes.
    try:
        decode(line)
    except InputError:
        return False
    return True


def _settled(path: Path, size: int) -> bool:
    # CSV is complete if it has not grown since it was read and ends with a newline.
    if not path.name.lower().endswith((".csv", ".tsv")):
        return True
    with path.open("rb") as file:
        if file.seek(0, 2) != size:
            return False
        file.seek(max(size - 1, 0))
        return file.read(1) in (b"\n", b"\r")


def _start(file: BinaryIO, place: int) -> str:
    file.seek(0)
    head = file.read(min(place, _HEAD))
    return f"{len(head)}:{hashlib.blake2b(head, digest_size=8).hexdigest()}"


def _same_start(file: BinaryIO, before: Position) -> bool:
    if not before.place:
        return True
    size = int(before.mark.partition(":")[0])
    file.seek(0, 2)
    return file.tell() >= before.place and _start(file, size) == before.mark


class ArrivalReader:
    """Reads the records of a stream, and their labels, as the reference audit would.

    Labels may name ``words``, the positive one first.
    """

    def __init__(self, reading: RecordFormat, words: tuple[str, ...]) -> None:
        self._reading = replace(reading, by_field=None, group_field="group")
        self._words = [spoken(word) for word in words]

    def record(self, line: bytes) -> Arrival:
        """Read a record of the stream; without an id, a digest of its prompt serves as one."""
        record, reading = decode(line), self._reading
        given = optional_text(record, reading.id_field)
        if given is not None and self._only_a_label(record):
            return Arrival(id=given, item=None, digest=b"", label=self._label(record, 0))
        # The number decides in which order options are shown, and must not depend on the place in the stream.
        rest = {name: value for name, value in record.items() if name != reading.label_field}
        known = given if given is not None else json.dumps(rest, sort_keys=True)
        number = int.from_bytes(_digest(known.encode(errors="surrogatepass"))[:4])
        if given is None:  # a field of another name than usual may be missing too
            record = {**record, reading.id_field: ""}
        item = reading.item(record, number, labelled=False)
        if item.choices > len(self._words):
            raise InputError(
                f"has {item.choices} answers, and the reference has questions with {len(self._words)}"
            )
        digest = _digest(msgspec.json.encode(item.messages))
        name = digest.hex() if given is None else given
        label, problem = UNLABELLED, ""
        if has_value(record, reading.label_field):
            try:
                label = self._label(record, number)
            except InputError as error:
                problem = error.message
        return Arrival(
            id=name,
            item=replace(item, id=name, group=None, part=None),
            digest=digest,
            label=label,
            problem=problem,
        )

    def label(self, line: bytes) -> Arrival:
        """Read a record that gives the label of an item."""
        record, field = decode(line), self._reading.id_field
        given = optional_text(record, field)
        if given is None:
            raise InputError(f"field {printable(field, 40)!r} is missing, so the label belongs to no item")
        return Arrival(id=given, item=None, digest=b"", label=self._label(record, 0))

    def _label(self, record: Record, number: int) -> int:
        try:
            return self._reading.label(record, number)
        except InputError:
            word = spoken(str(record.get(self._reading.label_field)))
            if len(self._words) > 2 or self._reading.has_options(record) or word not in self._words:
                raise
            return 1 - self._words.index(word)

    def _only_a_label(self, record: Record) -> bool:
        reading = self._reading
        usual = ("prompt", "messages", "question", CHOICES_FIELD)
        if reading.confidence_field is not None:
            return has_value(record, reading.label_field) and not reading.is_complete(record)
        asked = usual if reading.template is None else reading.fields - {reading.id_field}
        return has_value(record, reading.label_field) and not any(name in record for name in asked)


def _digest(words: bytes) -> bytes:
    return hashlib.blake2b(words, digest_size=16).digest()
