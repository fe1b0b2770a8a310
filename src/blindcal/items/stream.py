"""Records that arrive over time: from a growing file, a folder of files, or standard input.

A stream is read in pieces, and after each piece the `Position` in every file can be kept. A file of JSON
lines may grow: it is read on from where it ended, and a last line that is not complete yet is left for the
next time. Files of other kinds are read whole, and again from their end if they have changed. Nothing is lost
if a position is: a record that is read twice is a duplicate, and a watch tells by the id.
"""

from __future__ import annotations

import hashlib
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from blindcal.errors import FileError, InputError
from blindcal.items.record_files import (
    JSON_LINES,
    READERS,
    UNREADABLE,
    decode,
    format_of,
    is_zipped,
    numbered_lines,
    unreadable,
)
from blindcal.records import Position

Lines: TypeAlias = list[tuple[str, bytes]]
"""Lines of a stream, each with where it is."""
STANDARD_INPUT = "-"
_HEAD = 1024  # bytes at the start of a file that tell whether it is still the same one
_BROKEN = b"{"  # stands for the rest of a file that cannot be read on: no record


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Lines of a stream, each with where it is; how far the files were read, by name; and if that is all.

    ``ended`` says that nothing more is there now, ``closed`` that nothing more will ever come.
    """

    lines: Lines = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    ended: bool = True
    closed: bool = False


class RecordStream(Protocol):
    """Where records come from."""

    @property
    def name(self) -> str:
        """The stream in words."""
        ...

    def read(self, most: int, positions: Mapping[str, Position]) -> StreamPiece:
        """The next lines, ``most`` at most, from these positions on; waits for nothing."""
        ...


def open_stream(source: str | Path) -> RecordStream:
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
        self._path = path
        self._open: tuple[Path, str, int, Iterator[tuple[str, bytes]]] | None = None

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    def read(self, most: int, positions: Mapping[str, Position]) -> StreamPiece:
        """The next lines, ``most`` at most, from these positions on."""
        lines: Lines = []
        moved: dict[str, Position] = {}
        try:
            for path in self._files():
                before = positions.get(path.name, Position())
                grows = format_of(path) in JSON_LINES and not is_zipped(path)
                read = self._grown if grows else self._whole
                found, after, left = read(path, before, most - len(lines))
                lines += found
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
        known = tuple(READERS)
        return [
            path
            for path in sorted(self._path.iterdir())
            if path.is_file()
            and not path.name.startswith(".")
            and path.name.lower().removesuffix(".gz").endswith(known)
        ]

    def _grown(self, path: Path, before: Position, most: int) -> tuple[Lines, Position, bool]:
        """Complete lines from a position on, and whether some are left; from the start if it was replaced."""
        lines: Lines = []
        with path.open("rb") as file:
            place = before.place if _same_start(file, before) else 0
            file.seek(place)
            left = False
            while not left and (line := file.readline()):
                if not line.endswith(b"\n") and not _complete(line):
                    break
                left = len(lines) == most and bool(line.strip())
                if not left:
                    if line.strip():
                        lines.append((f"{path}, byte {place}", line))
                    place += len(line)
            return lines, Position(place, _start(file, place)), left

    def _whole(self, path: Path, before: Position, most: int) -> tuple[Lines, Position, bool]:
        """Records after so many, and whether some are left; none if it was read to its end before."""
        found = path.stat()
        mark = f"{found.st_size}:{found.st_mtime_ns}"
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
            if place > before.place and not _settled(path, found.st_size):
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
        found: Lines = []
        while len(found) < most and not self._closed:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                break
            self._closed = not line
            self._number += 1
            if line.strip():
                found.append((f"{self.name}, line {self._number}", line))
        with self._lines.mutex:
            ended = not any(self._lines.queue)  # the end is an empty line
        return StreamPiece(found, ended=ended, closed=self._closed)


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
