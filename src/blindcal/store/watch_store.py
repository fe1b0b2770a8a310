"""The run file of a watch: what arrived, in what order, and the data that each look used.

What a look takes from the stream, and how far it read, is one transaction; so is what it concludes from.
Interrupted looks are continued, so replaying those on disk always gives the same numbers. Items are numbered
in the order of arrival, and query i is about item i.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from blindcal.records import UNLABELLED, Arrival, Position
from blindcal.store.run_file import StoredReply, transaction, translated
from blindcal.store.run_store import UNASKED, Store, item_row

_NEXT_ITEM = "SELECT COALESCE(MAX(item) + 1, 0) FROM items"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCounts:
    """Different records in a stream so far, and faulty ones; ``early`` labels came before their item."""

    records: int = 0
    duplicates: int = 0
    conflicts: int = 0
    unreadable: int = 0
    early: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look: when it began (ISO 8601, UTC), and how many items there were.

    Once it is over, ``answered`` counts the leading items with outcomes and ``anchors`` the anchor answers.
    """

    number: int
    at: str
    items: int
    answered: int | None = None
    anchors: int | None = None


@dataclass(frozen=True, slots=True)
class AnchorAnswer:
    """The answer to an anchor query, asked above the flip of its item (``up``) or below."""

    number: int
    anchor: int
    up: bool
    answer: int


class WatchStore(Store):
    """A run file with the tables of a watch."""

    # What arrives

    def positions(self, stream: str) -> dict[str, Position]:
        """How far each file of a stream was read."""
        rows = self._execute("SELECT file, place, mark FROM positions WHERE stream = ?", stream)
        return {file: Position(place, mark) for file, place, mark in rows}

    def counts(self) -> StreamCounts:
        early = "SELECT COUNT(*) FROM labels WHERE id NOT IN (SELECT id FROM seen)"
        ((records, early_labels),) = self._execute(f"SELECT (SELECT COUNT(*) FROM seen), ({early})")
        return StreamCounts(records=records, early=early_labels, **(self.note("stream") or {}))

    def begin_look(
        self,
        at: str,
        arrivals: Iterable[Arrival],
        *,
        chosen: Callable[[str], bool],
        positions: Mapping[str, Mapping[str, Position]],
        unreadable: int = 0,
    ) -> Look:
        """Begin a look with what has arrived, all or nothing; ``chosen`` says which items are asked."""
        with translated(self.path), transaction(self._db):
            number = self._one("SELECT COUNT(*) FROM looks") + 1
            odd = Counter(self.note("stream") or {})
            odd["unreadable"] += unreadable
            for arrival in arrivals:
                odd.update(self._take(arrival, number, chosen))
            self.set_note("stream", dict(odd))
            for stream, files in positions.items():
                for file, position in files.items():
                    row = (stream, file, position.place, position.mark)
                    self._change("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", *row)
            look = Look(number=number, at=at, items=self._one(_NEXT_ITEM))
            self._change("INSERT INTO looks VALUES (?, ?, ?, NULL, NULL)", number, at, look.items)
        return look

    def _take(self, arrival: Arrival, look: int, chosen: Callable[[str], bool]) -> Iterator[str]:
        """Add what is new in a record; yields the names of the counts that it adds to."""
        name, item = arrival.id, arrival.item
        known = self._one("SELECT digest FROM seen WHERE id = ?", name)
        new = known is None and item is not None
        if item is not None and known is None:
            number = self._one(_NEXT_ITEM) if chosen(name) else None
            self._change("INSERT INTO seen VALUES (?, ?, ?)", name, arrival.digest, number)
            if number is not None:
                row = item_row(number, item, keep_prompts=True)
                self._change("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)
        elif item is not None and known != arrival.digest:
            yield "conflicts"
            return
        if arrival.problem:
            yield "unreadable"
        label = self._one("SELECT label FROM labels WHERE id = ?", name)
        if arrival.label != UNLABELLED and label is None:
            self._change("INSERT INTO labels VALUES (?, ?, ?)", name, arrival.label, look)
        elif arrival.label not in (UNLABELLED, label):
            yield "conflicts"
        elif not new:
            yield "duplicates"

    def _one(self, statement: str, *values: object) -> Any:
        row = self._db.execute(statement, values).fetchone()
        return None if row is None else row[0]

    # Items and labels

    def ids_between(self, first: int, end: int) -> list[str]:
        """Ids of the items from number ``first`` up to ``end``."""
        rows = self._execute("SELECT id FROM items WHERE item >= ? AND item < ? ORDER BY item", first, end)
        return [name for (name,) in rows]

    def forget_prompts(self, end: int) -> None:
        """Delete the prompts of the items before ``end``."""
        self._change("UPDATE items SET messages = NULL WHERE item < ? AND messages IS NOT NULL", end)

    def completed_labels(self, look: Look, first: int, end: int) -> dict[int, int]:
        """Labels by item number that count from a look on, which brought answers from ``first`` to ``end``.

        Those of earlier items came with the look; those of its own items came with it or before.
        """
        rows = self._execute(
            "SELECT seen.item, label FROM labels JOIN seen USING (id) WHERE seen.item < ? "
            "AND (look = ? OR seen.item >= ? AND look < ?) ORDER BY seen.item",
            end,
            look.number,
            first,
            look.number,
        )
        return dict(rows)

    # Looks

    def looks(self) -> list[Look]:
        """All looks, in order; the last one may not be over."""
        return [_look(*row) for row in self._execute("SELECT * FROM looks ORDER BY look")]

    def last_look(self) -> Look | None:
        """The last look, over or not, if any."""
        rows = self._execute("SELECT * FROM looks ORDER BY look DESC LIMIT 1")
        return _look(*rows[0]) if rows else None

    def end_look(self, look: Look, answered: int, anchors: int) -> Look:
        """End a look by noting what it has to go by."""
        self._change(
            "UPDATE looks SET answered = ?, anchors = ? WHERE look = ?", answered, anchors, look.number
        )
        return replace(look, answered=answered, anchors=anchors)

    def rounds_within(self, answered: int) -> int:
        """The number of rounds within the first ``answered`` queries."""
        return int(self._one("SELECT COUNT(*) FROM rounds WHERE first + size <= ?", answered))

    def answered_rounds(self, since: int) -> int:
        """The number of queries in fully answered rounds, counting on from ``since``."""
        for first, size in self._execute(
            "SELECT first, size FROM rounds WHERE first >= ? ORDER BY round", since
        ):
            if UNASKED in self.answers(first, size):
                break
            since = first + size
        return since

    def asked_items(self) -> int:
        """The number of items in rounds."""
        return int(self._one("SELECT COALESCE(MAX(first + size), 0) FROM rounds"))

    # Anchors

    def anchor_answers(self, begin: int, end: int) -> list[AnchorAnswer]:
        """Answers to the anchor queries from number ``begin`` up to ``end``, in order."""
        rows = self._execute(
            "SELECT query, json_extract(body, '$.anchor'), json_extract(body, '$.up'), answer FROM replies "
            "WHERE kind = 'anchor' AND outcome AND query >= ? AND query < ? ORDER BY query",
            begin,
            end,
        )
        return [AnchorAnswer(number, anchor, bool(up), answer) for number, anchor, up, answer in rows]

    def count_anchors(self) -> int:
        return int(self._one("SELECT COUNT(*) FROM replies WHERE kind = 'anchor'"))

    def add_anchor_answers(self, answers: Sequence[AnchorAnswer]) -> None:
        """Store answers to anchor queries, all or none; their cost is stored with the replies."""
        known = self.count_anchors()
        self._insert(
            [
                StoredReply(
                    kind="anchor",
                    query=asked.number,
                    queries=0,
                    attempts=0,
                    answer=asked.answer,
                    body=msgspec.json.encode({"anchor": asked.anchor, "up": asked.up}).decode(),
                )
                for asked in answers
                if asked.number >= known
            ]
        )


def _look(number: int, at: str, items: int, answered: int | None, anchors: int | None) -> Look:
    return Look(number=number, at=at, items=items, answered=answered, anchors=anchors)
