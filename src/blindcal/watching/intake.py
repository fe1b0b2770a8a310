"""Reading what arrives for a watch, records and labels, until it is time to look."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from blindcal.asking.run_context import RunContext
from blindcal.errors import InputError
from blindcal.items.stream import ArrivalReader, FileStream, LineStream, StreamPiece
from blindcal.records import Arrival, Position
from blindcal.store.watch_store import WatchStore
from blindcal.text import printable

STREAM, LABELS = "stream", "labels"
_MOST_LABELS = 100_000  # label records per look
_ALL_BROKEN = 20  # unreadable records, with no readable one, after which the stream is refused
POLL = 0.5
"""Seconds between two reads of a file that may have grown."""


@dataclass(kw_only=True)
class Gathered:
    """What has arrived since the last look, and how far the files were read."""

    arrivals: list[Arrival] = field(default_factory=list)
    positions: dict[str, dict[str, Position]] = field(default_factory=lambda: {STREAM: {}, LABELS: {}})
    records: int = 0
    unreadable: int = 0
    more: bool = False  # more can be read at once
    closed: bool = False  # nothing more will come

    @property
    def empty(self) -> bool:
        """Whether nothing has arrived, not even unreadable records."""
        return not self.arrivals and not self.unreadable


@dataclass(kw_only=True)
class Intake:
    """Reads a stream and its labels, ``every`` records per look.

    If it ``waits``, fewer are taken only ``interval`` seconds after the first, or at the end.
    """

    store: WatchStore
    reader: ArrivalReader
    stream: FileStream | LineStream
    labels: FileStream | LineStream | None
    every: int
    waits: bool
    interval: float
    context: RunContext
    _warned: bool = False

    async def gather(self, urgent: Callable[[], bool]) -> Gathered:
        """Return what has arrived; waiting ends at once if a look is ``urgent``."""
        gathered, since, stop = Gathered(), time.monotonic(), self.context.stop
        while True:
            await asyncio.to_thread(self._read, gathered)
            if gathered.empty:
                since = time.monotonic()
            full = gathered.records >= self.every or gathered.closed
            late = not gathered.empty and time.monotonic() - since >= self.interval
            if full or late or not self.waits or stop.is_set() or urgent():
                return gathered
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL)

    def rest(self) -> Gathered:
        """What a pipe has delivered and no look has taken; empty for files, which can be read again."""
        gathered = Gathered()
        if isinstance(self.stream, LineStream):
            self._decode(self.stream.read(sys.maxsize, {}), self.reader.record, gathered)
        return gathered

    def _read(self, gathered: Gathered) -> None:
        if self.labels is not None:
            piece = self._piece(self.labels, LABELS, gathered, _MOST_LABELS)
            self._decode(piece, self.reader.label, gathered)
        piece = self._piece(self.stream, STREAM, gathered, self.every - gathered.records)
        gathered.records += len(piece.lines)
        gathered.more, gathered.closed = not piece.ended, piece.closed
        self._decode(piece, self.reader.record, gathered)

    def _piece(
        self, stream: FileStream | LineStream, name: str, gathered: Gathered, most: int
    ) -> StreamPiece:
        before = self.store.positions(name) | gathered.positions[name]
        piece = stream.read(most, before)
        gathered.positions[name] |= piece.positions
        return piece

    def _decode(self, piece: StreamPiece, read: Callable[[bytes], Arrival], gathered: Gathered) -> None:
        for where, line in piece.lines:
            try:
                arrival = read(line)
            except InputError as error:
                gathered.unreadable += 1
                known = self.store.counts()
                broken = gathered.unreadable + known.unreadable
                if broken >= _ALL_BROKEN and not gathered.arrivals and not known.records:
                    raise error.prefixed(f"{where}: ") from None
                self._warn(f"{where}: {error.message}; it was skipped")
            else:
                if arrival.problem:
                    self._warn(f"{where}: {arrival.problem}; its label was left out")
                gathered.arrivals.append(arrival)

    def _warn(self, words: str) -> None:
        if not self._warned:  # one warning is enough: all are counted
            self._warned = True
            self.context.tell(printable(words, 400))
