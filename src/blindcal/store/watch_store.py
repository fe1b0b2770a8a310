"""The run file of a watch: what arrived, in which order, and what each look had to go by.

What a look takes from the stream, and how far it read, is one transaction; so is what it concludes from. A
look that was interrupted in between is gone on with. So the looks on disk tell the whole story: replaying
them gives the same numbers, whenever the process ended.

Items are numbered in the order in which they were first seen, and the query about item number i is query
number i.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from blindcal.records import UNLABELLED, Arrival, Item, Message, Position, Usage
from blindcal.store.run_file import transaction, translated
from blindcal.store.run_store import UNASKED, Store, item_row
from blindcal.store.stored import StoredReply


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """What a stream held so far: different records, and what is wrong with others.

    ``early`` are labels whose item has not come yet.
    """

    records: int = 0
    duplicates: int = 0
    conflicts: int = 0
    unreadable: int = 0
    early: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """One look: when it began (ISO 8601, UTC), and how many items there were.

    Once it is over, ``answered`` is the number of items from the first one on whose queries have an outcome,
    and ``anchors`` the number of answered anchor queries; before that, both are ``None``.
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
        """How far each file of a stream was read, by its name."""
        rows = self._execute("SELECT file, place, mark FROM positions WHERE stream = ?", stream)
        return {file: Position(place, mark) for file, place, mark in rows}

    def counts(self) -> StreamCounts:
        """What the stream held so far."""
        return msgspec.convert(self.note("stream") or {}, StreamCounts)

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
        ((so_far, items),) = self._execute(
            "SELECT (SELECT COUNT(*) FROM looks), (SELECT COUNT(*) FROM items)"
        )
        with translated(self.path), transaction(self._db):
            counting = _Counting(self._db.execute, so_far + 1, items, self.counts())
            for one in arrivals:
                counting.add(one, chosen)
            counts = counting.counts
            self.set_note(
                "stream",
                msgspec.to_builtins(replace(counts, unreadable=counts.unreadable + unreadable)),
            )
            for stream, files in positions.items():
                for file, position in files.items():
                    row = (stream, file, position.place, position.mark)
                    self._change("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", *row)
            look = Look(so_far + 1, at, counting.items)
            self._change("INSERT INTO looks VALUES (?, ?, ?, NULL, NULL)", look.number, at, look.items)
        return look

    # Items and labels

    def items_between(self, first: int, end: int) -> list[Item]:
        """Items with their prompts, by their numbers."""
        rows = self._execute(
            "SELECT id, label, messages, grp, part, choices FROM items WHERE item >= ? AND item < ? "
            "ORDER BY item",
            first,
            end,
        )
        return [
            Item(
                name,
                label,
                msgspec.json.decode(messages or "[]", type=tuple[Message, ...]),
                group=group,
                part=part,
                choices=choices,
            )
            for name, label, messages, group, part, choices in rows
        ]

    def names_between(self, first: int, end: int) -> list[tuple[str, str | None]]:
        """Id and part of items, by their numbers."""
        return self._execute(
            "SELECT id, part FROM items WHERE item >= ? AND item < ? ORDER BY item", first, end
        )

    def forget_prompts(self, end: int) -> None:
        """Delete the prompts of the items before this one."""
        self._change("UPDATE items SET messages = NULL WHERE item < ? AND messages IS NOT NULL", end)

    def new_labels(self, look: Look, before: int) -> dict[int, int]:
        """Labels that came with a look, of items before number ``before``; by the number of the item."""
        return dict(
            self._execute(
                "SELECT seen.item, label FROM labels JOIN seen USING (id) "
                "WHERE look = ? AND seen.item < ? ORDER BY seen.item",
                look.number,
                before,
            )
        )

    def labels_between(self, look: Look, first: int, end: int) -> dict[int, int]:
        """Labels that were known at a look, of items by their numbers."""
        return dict(
            self._execute(
                "SELECT item, labels.label FROM items JOIN labels USING (id) "
                "WHERE item >= ? AND item < ? AND look <= ? ORDER BY item",
                first,
                end,
                look.number,
            )
        )

    # Looks

    def looks(self) -> list[Look]:
        """All looks, in order; the last one may not be over."""
        rows = self._execute("SELECT look, at, items, answered, anchors FROM looks ORDER BY look")
        return [Look(*row) for row in rows]

    def last_look(self) -> Look | None:
        """The last look, over or not; ``None`` if there was none."""
        columns = "look, at, items, answered, anchors"
        rows = self._execute(f"SELECT {columns} FROM looks ORDER BY look DESC LIMIT 1")
        return Look(*rows[0]) if rows else None

    def end_look(self, look: Look, answered: int, anchors: int) -> Look:
        """Note what a look has to go by; from now on it is over."""
        self._change(
            "UPDATE looks SET answered = ?, anchors = ? WHERE look = ?", answered, anchors, look.number
        )
        return replace(look, answered=answered, anchors=anchors)

    def rounds_within(self, answered: int) -> int:
        """The number of rounds whose queries are all among the first ones."""
        return int(self._execute("SELECT COUNT(*) FROM rounds WHERE first + size <= ?", answered)[0][0])

    def answered_rounds(self, since: int) -> int:
        """The number of queries in rounds that are answered to the end, given how many were before."""
        for first, size in self._execute(
            "SELECT first, size FROM rounds WHERE first >= ? ORDER BY round", since
        ):
            if UNASKED in self.answers(first, size):
                break
            since = first + size
        return since

    def asked_items(self) -> int:
        """The number of items that are part of a round."""
        return int(self._execute("SELECT COALESCE(MAX(first + size), 0) FROM rounds")[0][0])

    # Anchors

    def anchor_answers(self, begin: int = 0, end: int | None = None) -> list[AnchorAnswer]:
        """Answers to anchor queries, from number ``begin`` up to ``end``, in order."""
        last = 2**62 if end is None else end
        rows = self._execute(
            "SELECT query, json_extract(body, '$.anchor'), json_extract(body, '$.up'), answer FROM replies "
            "WHERE kind = 'anchor' AND outcome AND query >= ? AND query < ? ORDER BY query",
            begin,
            last,
        )
        return [AnchorAnswer(number, anchor, bool(up), answer) for number, anchor, up, answer in rows]

    def count_anchors(self) -> int:
        """The number of answered anchor queries."""
        return int(self._execute("SELECT COUNT(*) FROM replies WHERE kind = 'anchor'")[0][0])

    def add_anchor_answers(self, answers: Sequence[AnchorAnswer]) -> None:
        """Store answers to anchor queries, all or none; what they cost is stored with the replies."""
        known = self.count_anchors()
        self._insert(
            [
                StoredReply(
                    kind="anchor",
                    query=one.number,
                    queries=0,
                    attempts=0,
                    answer=one.answer,
                    body=msgspec.json.encode({"anchor": one.anchor, "up": one.up}).decode(),
                )
                for one in answers
                if one.number >= known
            ]
        )

    # Days

    def spent_before(self, day: str, total: Usage) -> tuple[str, Usage]:
        """The latest day so far (ISO 8601), and what had been used before it; ``total`` is used by now.

        A clock that goes back does not begin a day again. What was under way when a day ended counts for both
        days.
        """
        rows = self._execute("SELECT day, before, latest FROM days ORDER BY day DESC LIMIT 1")
        encoded = msgspec.json.encode(total).decode()
        if rows and rows[0][0] >= day:
            day, before, _ = rows[0]
            self._change("UPDATE days SET latest = ? WHERE day = ?", encoded, day)
        else:
            before = rows[0][2] if rows else encoded
            self._change("INSERT INTO days VALUES (?, ?, ?)", day, before, encoded)
        return day, msgspec.json.decode(before, type=Usage)


class _Counting:
    """Puts arrivals into the tables one by one, and counts what they are."""

    def __init__(
        self, execute: Callable[..., sqlite3.Cursor], look: int, items: int, counts: StreamCounts
    ) -> None:
        self._execute, self._look = execute, look
        self.items, self.counts = items, counts

    def add(self, one: Arrival, chosen: Callable[[str], bool]) -> None:
        """Add an item that is not known yet, and a label that is not known yet."""
        known = self._one("SELECT digest FROM seen WHERE id = ?", one.id)
        new = known is None and one.item is not None
        if one.item is not None and known is None:
            self._see(one, one.item, chosen(one.id))
        elif one.item is not None and known != one.digest:
            self._count("conflicts")
            return
        if one.problem:
            self._count("unreadable")
        if one.label != UNLABELLED:
            self._label(one, new=new, there=new or known is not None)
        elif not new:
            self._count("duplicates")

    def _see(self, one: Arrival, item: Item, chosen: bool) -> None:
        number = self.items if chosen else None
        self._execute("INSERT INTO seen VALUES (?, ?, ?)", (one.id, one.digest, number))
        if chosen:
            row = item_row(self.items, item, keep_prompts=True)
            self._execute("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self.items += 1
        self._count("records")
        if self._one("SELECT 1 FROM labels WHERE id = ?", one.id) is not None:
            self._count("early", -1)

    def _label(self, one: Arrival, *, new: bool, there: bool) -> None:
        known = self._one("SELECT label FROM labels WHERE id = ?", one.id)
        if known is None:
            self._execute("INSERT INTO labels VALUES (?, ?, ?)", (one.id, one.label, self._look))
            if not there:
                self._count("early")
        elif known != one.label:
            self._count("conflicts")
        elif not new:
            self._count("duplicates")

    def _one(self, statement: str, *values: object) -> object:
        row = self._execute(statement, values).fetchone()
        return None if row is None else row[0]

    def _count(self, name: str, by: int = 1) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + by})
