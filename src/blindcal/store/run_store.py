"""The run on disk: one SQLite file that stays intact whenever the process crashes.

Settings, items and rounds are on disk before the first query that they lead to, and a reply once its
:meth:`Store.save` is done (WAL, ``synchronous=FULL``): a ``kill -9`` loses at most the replies under way.

All replies are in one table; unused or forgotten ones stay as what they cost. A separate thread commits them
in groups. A group is one statement, because each statement waits for the interpreter lock, which the busy
event loop holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from blindcal.atomic_write import make_folder
from blindcal.errors import BlindcalError, InputError, StoreError
from blindcal.records import AnswerTable, FloatArray, IntArray, Item, Message, Round, Usage
from blindcal.store.run_file import (
    Note,
    ReplyKind,
    ServedModel,
    StoredReply,
    hold,
    lock_path,
    looked_at,
    opened,
    transaction,
    translated,
)
from blindcal.text import printable

AnswerArray: TypeAlias = npt.NDArray[np.int8]

RUN_FILE = "run.sqlite"
RESULT_FILES = ("result.json", "certificate.json", "summary.json", "watch.json")
"""What finished runs leave beside their file."""

_MISREAD = (ValueError, TypeError, LookupError, AttributeError, RecursionError, msgspec.MsgspecError)

MOST_SERVED = 50
"""Models and fingerprints that a run tells apart."""

ANOTHER_COPY = "use a copy from before, or audit again in another folder"

UNASKED = -2
"""In an array of answers: not answered yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItems:
    """The items of a run, in columns; ``choices`` is ``None`` if all have two answers."""

    ids: tuple[str, ...]
    labels: IntArray
    groups: tuple[str | None, ...]
    digests: tuple[bytes, ...]
    parts: tuple[str | None, ...]
    choices: IntArray | None = None


class Store:
    """A run file held by one process; use :meth:`open`, or :meth:`read` to read it without holding it."""

    def __init__(
        self, path: Path, db: sqlite3.Connection, lock: IO[bytes] | None, made: Sequence[Path] = ()
    ) -> None:
        self.path = path
        self._db = db
        self._lock = lock
        self._made = made
        self._identity = None if lock is None else _identity(path)
        self._thread = ThreadPoolExecutor(1, "blindcal-store")
        self._waiting: list[StoredReply] = []
        self._kept: asyncio.Future[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._served: list[ServedModel] | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open and hold a run file; an error before anything was asked removes what was created."""
        if not path.exists() or not path.stat().st_size:
            for name in RESULT_FILES:
                if path.with_name(name).exists():
                    raise StoreError(
                        f"{path} is missing or empty beside {name}, so everything would be asked again",
                        remedy="restore it, or use another {out}",
                        options={"out": ...},
                    )
        made = [folder for folder in path.parents if not folder.exists()]
        make_folder(path.parent)
        lock = hold(path)
        if not path.exists():
            made = [path, lock_path(path), *made]
        try:
            db = opened(path)
        except BaseException:
            lock.close()
            raise
        return cls(path, db, lock, made)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open a run file read-only; another process may be writing it."""
        return cls(path, looked_at(path), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """Finish the commit under way and release the file; an error before anything was asked removes it.

        What a file that is only read does not hold as it was written is a `StoreError`.
        """
        self._thread.shutdown()
        unused = False
        if kind is not None and self._made:
            with suppress(StoreError):
                unused = self._is_empty("replies")
        self._db.close()
        if self._lock is not None:
            # Removed while still held, to spare another process's run; folders with other content stay.
            for made in self._made if unused else ():
                with suppress(OSError):
                    made.rmdir() if made.is_dir() else made.unlink()
            self._lock.close()
        elif isinstance(error, _MISREAD) and not isinstance(error, BlindcalError):
            raise StoreError(
                f"{self.path}: holds what blindcal did not write", remedy=ANOTHER_COPY
            ) from error

    def close(self) -> None:
        self.__exit__(None, None)

    def _execute(self, statement: str, *values: object) -> list[Any]:
        with translated(self.path):
            return self._db.execute(statement, values).fetchall()

    def _change(self, statement: str, *values: object) -> None:
        if self._identity != _identity(self.path):
            raise StoreError(
                f"{self.path} was moved or deleted during the run, which has stopped",
                remedy="put it back and run the same again; without it, everything has to be asked again",
            )
        self._execute(statement, *values)

    # Settings and items

    def begin(self, config: Mapping[str, Any], items: Iterable[Item], *, keep_prompts: bool = True) -> bool:
        """Store settings and items, or check that the run was begun with the same ones.

        Returns whether they were stored. Only a run without answers takes different settings.
        """
        wanted = json.loads(json.dumps(config))
        begun = self.note("config")
        if begun == wanted:
            return False
        if begun is not None and not self._is_empty():
            raise InputError(
                f"{self.path} was begun with other settings ({_difference(begun, wanted)})",
                remedy="go back to the old settings, or choose another folder with {out}",
                options={"out": ...},
            )
        with translated(self.path), transaction(self._db):
            for table in _REPLACED if begun is not None else ():
                self._change(f"DELETE FROM {table}")
            self._served = None
            self._db.executemany(
                "INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (item_row(number, item, keep_prompts) for number, item in enumerate(items)),
            )
            self.set_note("config", wanted)
        return True

    def _is_empty(self, table: str = "answers WHERE NOT unusable") -> bool:
        return not self._execute(f"SELECT 1 FROM {table} LIMIT 1")

    def item(self, number: int) -> tuple[str, int, str | None]:
        row: tuple[str, int, str | None]
        (row,) = self._execute("SELECT id, label, grp FROM items WHERE item = ?", number)
        return row

    def items(self) -> StoredItems:
        rows = self._execute("SELECT id, label, grp, digest, part, choices FROM items ORDER BY item")
        ids, labels, groups, digests, parts, choices = zip(*rows, strict=True) if rows else ((),) * 6
        several = np.array(choices, np.int64) if max(choices, default=2) > 2 else None
        labelled = np.array(labels, np.int64)
        return StoredItems(
            ids=ids, labels=labelled, groups=groups, digests=digests, parts=parts, choices=several
        )

    def questions(self) -> list[Item] | None:
        """All items with their prompts; ``None`` if the run keeps only hashes of these."""
        if not self._is_empty("items WHERE messages IS NULL"):
            return None
        items, digests = self.items_between(0, sys.maxsize), self.items().digests
        if any(item.digest != digest for item, digest in zip(items, digests, strict=True)):
            raise StoreError(f"{self.path}: its prompts were changed", remedy=ANOTHER_COPY)
        return items

    def items_between(self, first: int, end: int) -> list[Item]:
        """Items from number ``first`` up to ``end``, with the prompts that are kept."""
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

    def set_parts(self, field: str | None, parts: Sequence[str | None] | None) -> None:
        """Store the field of the breakdown and each item's part; both may change at any time."""
        digest = hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()
        wanted = {"field": field, "digest": digest}
        if self.note("parts") == wanted:
            return
        with translated(self.path), transaction(self._db):
            self._change("UPDATE items SET part = NULL WHERE part IS NOT NULL")
            self._db.executemany(
                "UPDATE items SET part = ? WHERE item = ?", ((part, k) for k, part in enumerate(parts or ()))
            )
            self.set_note("parts", wanted)

    def note(self, name: Note) -> Any:
        """The value noted under a name, or ``None``."""
        rows = self._execute("SELECT value FROM notes WHERE name = ?", name)
        try:
            value = json.loads(rows[0][0]) if rows else None
            if name in ("config", "ready") and not isinstance(value, dict | None):
                raise TypeError(value)
            return value
        except (ValueError, TypeError, RecursionError):
            raise StoreError(f"{self.path}: is damaged: its note {name!r} is not JSON") from None

    def set_note(self, name: Note, value: Any) -> None:
        """Note a JSON value under a name."""
        self._change("INSERT OR REPLACE INTO notes VALUES (?, ?)", name, json.dumps(value))

    # Rounds

    def rounds(self, begin: int = 0) -> list[Round]:
        """The rounds from number ``begin`` on."""
        columns = "items, shifts, temperatures, about, biases"
        rows = self._execute(f"SELECT {columns} FROM rounds WHERE round >= ? ORDER BY round", begin)
        return [
            Round(
                np.frombuffer(items, np.int64),
                np.frombuffer(shifts),
                np.frombuffer(temperatures),
                about=None if about is None else np.frombuffer(about, np.int64),
                biases=None if biases is None else np.frombuffer(biases).reshape(len(items) // 8, -1),
            )
            for items, shifts, temperatures, about, biases in rows
        ]

    def first_query(self, begin: int) -> int:
        """The number of the first query of round ``begin``."""
        return int(self._execute("SELECT COALESCE(SUM(size), 0) FROM rounds WHERE round < ?", begin)[0][0])

    def add_round(self, asked: Round) -> None:
        """Write the next round to disk; only then may it be asked."""
        ((number, first),) = self._execute("SELECT COUNT(*), COALESCE(MAX(first + size), 0) FROM rounds")
        blobs = (
            asked.items.astype(np.int64).tobytes(),
            asked.shifts.astype(np.float64).tobytes(),
            asked.temperatures.astype(np.float64).tobytes(),
            None if asked.about is None else asked.about.astype(np.int64).tobytes(),
            None if asked.biases is None else asked.biases.astype(np.float64).tobytes(),
        )
        self._change("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)", number, first, len(asked), *blobs)

    # Replies

    def save(self, *replies: StoredReply) -> asyncio.Future[None]:
        """Save replies, all or none; the future, shared within a commit, is done once they are on disk."""
        self._waiting += replies
        if self._kept is None:
            self._kept = asyncio.get_running_loop().create_future()
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit())
        return self._kept

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._kept is not None:
            group, kept = self._waiting, self._kept
            self._waiting, self._kept = [], None
            try:
                await loop.run_in_executor(self._thread, self._insert, group)
            except Exception as error:  # passed on to all who wait for this commit
                kept.set_exception(error)
            else:
                kept.set_result(None)
        self._committing = None

    def _insert(self, replies: list[StoredReply]) -> None:
        self._change(_INSERT, msgspec.json.encode(replies).decode())

    def add_readings(
        self, first: int, answers: Iterable[int], odds: Sequence[float], shown: Iterable[Sequence[float]]
    ) -> None:
        """Store answers to the queries from number ``first`` on that were not asked and cost nothing.

        ``odds`` are their log-odds, and ``shown`` the probabilities of all of more than two answers.
        """
        bodies = (msgspec.json.encode(each).decode() if each else None for each in shown)
        with translated(self.path), transaction(self._db):
            self._db.executemany(
                _INSERT_READING, zip(itertools.count(first), answers, odds, odds, bodies, strict=False)
            )

    def reply_body(self, kind: ReplyKind, query: int, nth: int) -> str | None:
        """The whole reply to a query when it was asked for the ``nth`` time (from 0), or ``None``."""
        chosen = "kind = ? AND outcome AND query = ? AND nth = ?"
        rows = self._execute(f"SELECT body FROM replies WHERE {chosen}", kind, query, nth)
        return rows[0][0] if rows else None

    def replies(self, kind: ReplyKind) -> list[StoredReply]:
        """All outcomes of one kind, in the order of arrival."""
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM replies WHERE kind = ? AND outcome ORDER BY number", kind
        )
        names = _COLUMNS.split(", ")
        return [StoredReply(**dict(zip(names, row, strict=True))) for row in rows]

    def forget(self, kind: ReplyKind, queries: Sequence[int] | None = None) -> None:
        """Let all outcomes of a kind, or of these queries, be asked again; what they cost still counts."""
        chosen = "" if queries is None else "AND query IN (SELECT value FROM json_each(?))"
        numbers = () if queries is None else (json.dumps(list(queries)),)
        self._change(
            f"UPDATE replies SET outcome = FALSE WHERE kind = ? AND outcome {chosen}", kind, *numbers
        )

    def usage(self, *kinds: ReplyKind) -> Usage:
        """What all replies cost, or those of some kinds."""
        chosen = f"WHERE kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        (row,) = self._execute(
            "SELECT TOTAL(queries * outcome), TOTAL(attempts), TOTAL(prompt_tokens), "
            "TOTAL(completion_tokens), TOTAL(cached_tokens), TOTAL(outcome AND answer = -1), "
            f"TOTAL(outcome AND unusable), TOTAL(queries * NOT outcome) FROM replies {chosen}",
            *kinds,
        )
        return Usage.of(*map(int, row))

    # Answers: the outcomes of the queries of the design

    def answers(self, first: int, size: int) -> AnswerArray:
        """The answers to ``size`` queries from ``first`` on; `UNASKED` where there is none."""
        column = np.full(size, UNASKED, np.int8)
        statement = "SELECT query - ?, answer FROM answers WHERE query >= ? AND query < ?"
        with translated(self.path):
            rows = self._db.execute(statement, (first, first, first + size))
            while some := rows.fetchmany(10_000):
                at, answer = np.array(some, np.int64).T
                column[at] = answer
        return column

    def unusable(self, first: int, size: int) -> IntArray:
        """Which of ``size`` queries from ``first`` on have no reply that could be read."""
        rows = self._execute(
            "SELECT query FROM answers WHERE unusable AND query >= ? AND query < ?", first, first + size
        )
        return np.array([query for (query,) in rows], np.int64)

    def unusable_reasons(self) -> dict[str, int]:
        """Why replies could not be read, with counts, commonest first."""
        return self._counted("text", "unusable")

    def invalid_reasons(self) -> dict[str, int]:
        """Why texts are no answers, where known, with counts, commonest first."""
        return self._counted("reason", "reason != ''")

    def _counted(self, column: str, chosen: str) -> dict[str, int]:
        counted = f"SELECT {column}, COUNT(*) FROM answers WHERE {chosen} GROUP BY {column}"
        return dict(self._execute(f"{counted} ORDER BY COUNT(*) DESC, {column}"))

    def answered(self) -> AnswerTable:
        """All answers so far with their queries, in the order of the queries."""
        table, first = AnswerTable.empty(), 0
        for asked in self.rounds():
            answers = self.answers(first, len(asked))
            have = answers != UNASKED
            table = table.with_round(asked.rows(have), answers[have].astype(np.int64))
            first += len(asked)
        shown = bool(self._execute("SELECT 1 FROM answers WHERE low IS NOT NULL LIMIT 1"))
        if not shown:
            return table
        shown_of_all = None if table.about is None else self._probabilities()
        return replace(table, bounds=self._columns("low, high").reshape(-1, 2), shown=shown_of_all)

    def _probabilities(self) -> FloatArray | None:
        bodies = self._execute("SELECT body FROM answers ORDER BY query")
        rows = [() if body is None else msgspec.json.decode(body) for (body,) in bodies]
        several = max(map(len, rows))
        return np.array([row or [np.nan] * several for row in rows]) if several else None

    def masses(self) -> FloatArray:
        """The probability of both answers together, for every answer that shows it."""
        return self._columns("mass", "mass IS NOT NULL").reshape(-1)

    def said(self) -> FloatArray:
        """The answer in a text, and what its logprobs show: the likeliest answer and bounds; four columns."""
        return self._columns("said, answer, low, high", "said IS NOT NULL").reshape(-1, 4)

    def shown_bounds(self, queries: int, first: int = 0) -> FloatArray | None:
        """Bounds of the log-odds that answers to queries from ``first`` on show, NaN for none.

        ``None`` if no answer shows any.
        """
        chosen = f"low IS NOT NULL AND query >= {first} AND query < {first + queries}"
        shown = self._columns("query, low, high", chosen).reshape(-1, 3)
        bounds = np.full((queries, 2), np.nan)
        bounds[shown[:, 0].astype(np.int64) - first] = shown[:, 1:]
        return bounds if len(shown) else None

    def log_odds(self, queries: int) -> FloatArray | None:
        """The log-odds that the answer to each query shows, NaN for none; ``None`` if no answer shows any."""
        bounds = self.shown_bounds(queries)
        return None if bounds is None else bounds.mean(axis=1)

    def served(self) -> IntArray:
        """Query number and model number of every answer, in two columns."""
        return self._columns("query, served").astype(np.int64).reshape(-1, 2)

    def _columns(self, columns: str, chosen: str = "TRUE") -> FloatArray:
        rows = self._execute(f"SELECT {columns} FROM answers WHERE {chosen} ORDER BY query")
        return np.array(rows, np.float64)

    def texts(self, first: int = 0, size: int = 2**62) -> Iterator[tuple[int, int, str, float]]:
        """Query number, answer, text and seconds of the answers to ``size`` queries from ``first`` on."""
        columns, chosen = "query, answer, text, seconds", "query >= ? AND query < ?"
        statement = f"SELECT {columns} FROM answers WHERE {chosen} ORDER BY query"
        with translated(self.path):
            yield from self._db.execute(statement, (first, first + size))

    # Models that the replies name

    def served_number(self, model: str | None, fingerprint: str | None) -> int:
        """The number of a model and fingerprint, from 1 to `MOST_SERVED`, which is shared; 0 for neither."""
        if not (model or fingerprint):
            return 0
        known = self.served_names()
        name = ServedModel.of(model, fingerprint)
        if name not in known:
            if len(known) == MOST_SERVED:
                return MOST_SERVED
            known.append(name)
            self.set_note("served", msgspec.to_builtins(known))
        return known.index(name) + 1

    def served_names(self) -> list[ServedModel]:
        """The model and fingerprint of each number, in order."""
        if self._served is None:
            self._served = msgspec.convert(self.note("served") or [], list[ServedModel])
        return self._served


_REPLACED = ("notes", "items", "rounds", "replies", "seen", "labels", "positions", "looks")
"""Tables emptied if a run without answers is begun again with other settings."""

_COLUMNS = ", ".join(column.name for column in fields(StoredReply))
_READING = ("query", "answer", "low", "high", "body")
_REST = {name: getattr(StoredReply(queries=0, attempts=0), name) for name in _COLUMNS.split(", ")}
_REST = {name: value for name, value in _REST.items() if name not in _READING and value is not None}
_INSERT_READING = "INSERT INTO replies ({}) VALUES ({})".format(
    ", ".join((*_READING, *_REST)), ", ".join((*"?????", *(repr(value) for value in _REST.values())))
)
_INSERT = "INSERT INTO replies ({}) SELECT {} FROM json_each(?)".format(
    _COLUMNS, ", ".join(f"json_extract(value, '$.{name}')" for name in _COLUMNS.split(", "))
)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def item_row(number: int, item: Item, keep_prompts: bool) -> tuple[object, ...]:
    """The columns of an item in the run file."""
    kept = msgspec.json.encode(item.messages).decode() if keep_prompts else None
    return number, item.id, item.label, item.group, item.digest, kept, item.part, item.choices


def _difference(begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    return "; ".join(
        "the questions changed"
        if name == "items_digest"
        else f"{name}: {printable(json.dumps(begun.get(name)), 80)} then, "
        f"{printable(json.dumps(wanted.get(name)), 80)} now"
        for name in sorted({*begun, *wanted})
        if begun.get(name) != wanted.get(name)
    )
