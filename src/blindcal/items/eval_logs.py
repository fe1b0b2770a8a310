"""Logs of evaluation tools as files of items: which tool's a file is, and its questions as records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from blindcal.errors import InputError
from blindcal.items.inspect_logs import inspect_questions
from blindcal.items.lm_eval_logs import is_sample, lm_eval_questions
from blindcal.items.logged_questions import LoggedQuestion, item_records
from blindcal.items.record_files import UNREADABLE, Record, json_lines
from blindcal.items.record_format import RecordFormat

LogReader: TypeAlias = Callable[[Path, RecordFormat], Iterator[Record]]

_HEAD = 4096  # bytes at the start of an Inspect log in JSON that name its parts


def log_reader(path: Path) -> LogReader | None:
    """What reads a file as the log of an evaluation tool; ``None`` if it is none."""
    suffix = path.suffix.lower()
    if suffix == ".eval":
        return _inspect
    try:
        if suffix == ".json":
            with path.open("rb") as file:
                return _inspect if b'"eval"' in file.read(_HEAD) else None
        if suffix == ".jsonl":
            return _lm_eval if is_sample(next(json_lines(path, False))[1]) else None
    except (StopIteration, *UNREADABLE):
        pass  # the reader of files of items says what is wrong
    return None


def _inspect(path: Path, reading: RecordFormat) -> Iterator[Record]:
    return _records(path, inspect_questions(path), reading)


def _lm_eval(path: Path, reading: RecordFormat) -> Iterator[Record]:
    return _records(path, lm_eval_questions(path, completions=reading.role == "prompt"), reading)


def _records(path: Path, questions: Iterable[LoggedQuestion], reading: RecordFormat) -> Iterator[Record]:
    try:
        yield from item_records(list(questions), reading.answers)
    except InputError as error:
        raise error if error.message.startswith(str(path)) else error.prefixed(f"{path}: ") from None
