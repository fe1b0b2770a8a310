"""The SQLite file of a run: its tables, their rows, the names of its notes, its format and its lock."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Self, TypeAlias

from blindcal.atomic_write import writing
from blindcal.errors import FileError, StoreError
from blindcal.records import INVALID, Usage
from blindcal.text import printable

Note: TypeAlias = Literal[
    "config",  # the settings that a run cannot change once it has answers
    "parts",  # the field of the breakdown, and the digest of the items' parts
    "stages",  # which items of a sample joined in which stage
    "ready",  # what the preparation learnt: tokens, the probe's verdict
    "accepted",  # the fields that the endpoint takes, if it refused any
    "served",  # the models that replies name
    "tokens_estimated",  # some of the tokens are estimates, because the endpoint reported none
    "control_every",  # the distance between two control queries
    "seconds",  # the time that asking took
    "noise",  # the noise of the answers of a concluded run
    "attempts",  # the certifications of a run, in the order in which they began
    "plan",  # the candidates of a certification
    "made",  # the thresholds of a certificate, and its day
    "reuse",  # which answers of the audit a certification may use
    "doubts",  # why nothing is promised of the decisions of a run
    "finished",  # all decisions are made
    "stream",  # what the stream of a watch held besides new records
    "anchors",  # the anchors of a watch
    "facts",  # what has changed at the endpoint of a watch
    "reported",  # the alarms that were reported
]
"""Names of the JSON values that a run file keeps beside items, rounds and replies."""

ReplyKind: TypeAlias = Literal["design", "control", "probe", "anchor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """One stored reply and the query it answers.

    - ``query``: number across all rounds, of a control's carrier or of an anchor query; for the probe, a hash
    - ``nth``: counts the replies to the same query
    - ``outcome``: false if the reply was paid for but is not used
    - ``text``: already `printable`; for an ``unusable`` reply, why it could not be read
    - ``served``: number of the model that the reply names, from `Store.served_number`
    - ``low``, ``high``, ``mass``: bounds of the log-odds and probability of both answers, if shown
    - ``said``: the answer in the text, if it can be compared with what is shown
    - ``reason``: why a text is no answer, if known
    - ``body``: JSON of what a control or anchor asked, of the whole reply to the probe, or of the
      probabilities of more than two answers
    """

    kind: ReplyKind = "design"
    query: int = 0
    nth: int = 0
    outcome: bool = True
    queries: int = 1
    answer: int | None = None
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    attempts: int = 1
    seconds: float = 0.0
    unusable: bool = False
    served: int = 0
    low: float | None = None
    high: float | None = None
    reason: str = ""
    mass: float | None = None
    said: int | None = None
    body: str | None = None


def usage_of(replies: Sequence[StoredReply]) -> Usage:
    """What the replies cost together, in one pass, because every reply goes through it."""
    queries = attempts = prompt = completion = cached = invalid = unusable = wasted = 0
    for reply in replies:
        attempts += reply.attempts
        prompt += reply.prompt_tokens
        completion += reply.completion_tokens
        cached += reply.cached_tokens
        if reply.outcome:
            queries += reply.queries
            invalid += reply.answer == INVALID
            unusable += reply.unusable
        else:
            wasted += reply.queries
    return Usage(
        queries=queries,
        attempts=attempts,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        invalid=invalid,
        unusable=unusable,
        wasted=wasted,
    )


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What an endpoint calls its model and its system; empty where it names none."""

    model: str
    fingerprint: str

    @classmethod
    def of(cls, model: str | None, fingerprint: str | None) -> Self:
        return cls(printable(model or "", 100), printable(fingerprint or "", 100))

    @property
    def words(self) -> str:
        return " ".join(filter(None, (self.model, self.fingerprint and f"({self.fingerprint})"))) or "no name"


_APPLICATION = 0x626C6E64  # "blnd" in the file's header: distinguishes runs from other SQLite files

_FORMAT = 1
"""A file in another format is refused."""
_TABLES = """
    CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE items (
        item INTEGER PRIMARY KEY, id TEXT NOT NULL, label INTEGER NOT NULL, grp TEXT,
        digest BLOB NOT NULL, messages TEXT, part TEXT, choices INTEGER NOT NULL);
    CREATE TABLE rounds (
        round INTEGER PRIMARY KEY, first INTEGER NOT NULL, size INTEGER NOT NULL,
        items BLOB NOT NULL, shifts BLOB NOT NULL, temperatures BLOB NOT NULL, about BLOB, biases BLOB);
    CREATE TABLE replies (
        number INTEGER PRIMARY KEY, kind TEXT NOT NULL, query INTEGER NOT NULL, nth INTEGER NOT NULL,
        outcome INTEGER NOT NULL, queries INTEGER NOT NULL, answer INTEGER, text TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
        attempts INTEGER NOT NULL, seconds REAL NOT NULL, unusable INTEGER NOT NULL, served INTEGER NOT NULL,
        low REAL, high REAL, reason TEXT NOT NULL, mass REAL, said INTEGER, body TEXT);
    CREATE UNIQUE INDEX outcomes ON replies (kind, query, nth) WHERE outcome;
    CREATE VIEW answers AS SELECT * FROM replies WHERE kind = 'design' AND outcome;
    CREATE TABLE seen (id TEXT PRIMARY KEY, digest BLOB NOT NULL, item INTEGER) WITHOUT ROWID;
    CREATE TABLE labels (id TEXT PRIMARY KEY, label INTEGER NOT NULL, look INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX labels_by_look ON labels (look);
    CREATE TABLE positions (
        stream TEXT NOT NULL, file TEXT NOT NULL, place INTEGER NOT NULL, mark TEXT NOT NULL,
        PRIMARY KEY (stream, file)) WITHOUT ROWID;
    CREATE TABLE looks (
        look INTEGER PRIMARY KEY, at TEXT NOT NULL, items INTEGER NOT NULL,
        answered INTEGER, anchors INTEGER);
"""


def opened(path: Path) -> sqlite3.Connection:
    """Open a run file for writing, created if needed; the caller must hold it."""
    with translated(path), ExitStack() as unless_well:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        unless_well.callback(db.close)
        new = _is_empty(db, path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        if new:
            _create_tables(db)
        unless_well.pop_all()
    return db


def looked_at(path: Path) -> sqlite3.Connection:
    """Open an existing run file read-only; another process may be writing it."""
    if not path.is_file():
        raise StoreError(f"{path}: no such run")
    with translated(path), ExitStack() as unless_well:
        db = _reader(path)
        unless_well.callback(db.close)
        if _is_empty(db, path):
            raise StoreError(f"{path}: an unfinished run file; run its audit again first")
        unless_well.pop_all()
    return db


def _reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads.

    SQLite creates files beside one with a write-ahead log even to read it. Where it cannot, as on read-only
    media, a file without a log is complete; one with a log, as after a crash, is refused.
    """
    address = f"{path.resolve().as_uri()}?mode=ro"
    with ExitStack() as unless_well:
        db = sqlite3.connect(address, uri=True, isolation_level=None)
        unless_well.callback(db.close)
        log = path.with_name(path.name + "-wal")
        try:
            db.execute("SELECT 1 FROM sqlite_master")
        except sqlite3.OperationalError as error:
            path.open("rb").close()  # the system knows better why a file cannot be read
            unwritable = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not unwritable or (log.exists() and log.stat().st_size):
                raise
        else:
            unless_well.pop_all()
            return db
    return sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None)


def in_use(path: Path) -> bool:
    """Whether a process holds the run file."""
    try:
        with lock_path(path).open("rb") as file:
            return not _lock(file)
    except OSError:  # no lock file, or none that can be read
        return False


def lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def hold(path: Path) -> IO[bytes]:
    """Keep other processes from writing until the returned file is closed."""
    # A separate file, because closing any other handle on the database would drop SQLite's own locks.
    with writing(lock_path(path)):
        file = lock_path(path).open("ab")
    if not _lock(file):
        file.close()
        raise StoreError(f"{path}: another process is working on this run; wait for it or end it")
    return file


def _lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_GOES_ON = "what was stored is kept, and the same audit command goes on from there"
_REMEDIES = {
    sqlite3.SQLITE_FULL: f"free some space; {_GOES_ON}",
    sqlite3.SQLITE_IOERR: f"check the disk and the folder; {_GOES_ON}",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: use a copy of it, or audit into another folder",
    sqlite3.SQLITE_READONLY: "copy the folder to a place that can be written to, and use the copy",
    sqlite3.SQLITE_CANTOPEN: "check that its folder exists and can be written to, or use a copy of it",
}


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into `StoreError` and `FileError` with the file's path."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        what = f"not a run file ({error})" if code == sqlite3.SQLITE_NOTADB else error
        raise StoreError(f"{path}: {what}", remedy=_REMEDIES.get(code, "")) from error
    except OSError as error:
        raise FileError.of(error, path) from error


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit everything in the block, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _is_empty(db: sqlite3.Connection, path: Path) -> bool:
    if not db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
        return True
    if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise StoreError(f"{path}: a database of another program, not a run file")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != _FORMAT:
        raise StoreError(
            f"{path}: is a run file in format {version}, and this version of blindcal reads {_FORMAT}",
            remedy="open it with the version that made it, or audit into another folder",
        )
    return False


def _create_tables(db: sqlite3.Connection) -> None:
    with transaction(db):
        for statement in filter(str.strip, _TABLES.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {_FORMAT}")
