"""What arrives for a watch: records of its stream and of its labels, gathered until it is time to look."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from blindcal.errors import InputError
from blindcal.items.stream import ArrivalReader, FileStream, LineStream, StreamPiece
from blindcal.records import Arrival, Position
from blindcal.store.watch_store import WatchStore
from blindcal.text import printable

STREAM, LABELS = "stream", "labels"
_MOST_LABELS = 100_000  # label records that are taken at one look
_ALL_BROKEN = 20  # records that cannot be read, after which none ever will be
POLL = 0.5
"""Seconds between two looks into a file that may have grown."""


@dataclass
class Gathered:
    """What has arrived since the last look, and how far the files were read.

    ``closed`` says that nothing more will come, ``more`` that more is there already.
    """

    arrivals: list[Arrival] = field(default_factory=list)
    positions: dict[str, dict[str, Position]] = field(default_factory=lambda: {STREAM: {}, LABELS: {}})
    records: int = 0
    unreadable: int = 0
    more: bool = False
    closed: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing has arrived, not even what cannot be read."""
        return not self.arrivals and not self.unreadable


class Intake:
    """Reads a stream and its labels, ``every`` records per look.

    If it ``waits``, it waits for records to come: for as many, or for ``interval`` seconds once the first is
    there, or until ``stop`` is set.
    """

    def __init__(
        self,
        store: WatchStore,
        reader: ArrivalReader,
        stream: FileStream | LineStream,
        labels: FileStream | LineStream | None,
        *,
        every: int,
        waits: bool,
        interval: float,
        tell: Callable[[str], None],
        stop: asyncio.Event,
    ) -> None:
        self._store, self._reader, self._stream, self._labels = store, reader, stream, labels
        self.waits, self._every, self._interval = waits, every, interval
        self._tell, self._stop = tell, stop
        self._told = False

    async def gather(self, urgent: Callable[[], bool]) -> Gathered:
        """What has arrived; waiting ends at once if it is ``urgent`` to look."""
        found, since = Gathered(), time.monotonic()
        while True:
            await asyncio.to_thread(self._read, found)
            if found.empty:
                since = time.monotonic()
            full = found.records >= self._every or found.closed
            if full or not self.waits or self._stop.is_set() or urgent():
                return found
            if not found.empty and time.monotonic() - since >= self._interval:
                return found
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._stop.wait()

    def rest(self) -> Gathered:
        """What a pipe has given and nobody has taken yet; a file still has what was not read of it."""
        found = Gathered()
        if isinstance(self._stream, LineStream):
            self._decode(self._stream.read(sys.maxsize, {}), self._reader.record, found)
        return found

    def _read(self, found: Gathered) -> None:
        """Add what is there now."""
        if self._labels is not None:
            piece = self._piece(self._labels, LABELS, found, _MOST_LABELS)
            self._decode(piece, self._reader.label, found)
        piece = self._piece(self._stream, STREAM, found, self._every - found.records)
        found.records += len(piece.lines)
        found.more, found.closed = not piece.ended, piece.closed
        self._decode(piece, self._reader.record, found)

    def _piece(self, stream: FileStream | LineStream, name: str, found: Gathered, most: int) -> StreamPiece:
        before = self._store.positions(name) | found.positions[name]
        piece = stream.read(most, before)
        found.positions[name] |= piece.positions
        return piece

    def _decode(self, piece: StreamPiece, read: Callable[[bytes], Arrival], found: Gathered) -> None:
        for where, line in piece.lines:
            try:
                one = read(line)
            except InputError as error:
                found.unreadable += 1
                self._skip(where, error, found)
                continue
            if one.problem:
                self._say(f"{where}: {one.problem}; its label was left out")
            found.arrivals.append(one)

    def _skip(self, where: str, error: InputError, found: Gathered) -> None:
        """Tell about a record that cannot be read; raises if none of the first ones can."""
        known = self._store.counts()
        broken = found.unreadable + known.unreadable
        if broken >= _ALL_BROKEN and not found.arrivals and not known.records:
            raise error.prefixed(f"{where}: ")
        self._say(f"{where}: {error.message}; it was skipped")

    def _say(self, words: str) -> None:
        if not self._told:  # the first says enough, and all are counted
            self._told = True
            self._tell(printable(words, 400))
