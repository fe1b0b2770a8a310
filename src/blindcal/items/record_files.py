"""Read the records of JSON lines, CSV, TSV and Parquet files, each as one line of JSON."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from blindcal.errors import FileError, InputError, MissingExtraError
from blindcal.text import printable

Record: TypeAlias = dict[str, Any]
Reader: TypeAlias = Callable[[Path, bool], Iterator[tuple[str, bytes]]]

_BOM = b"\xef\xbb\xbf"


def read_records(path: Path) -> Iterator[Record]:
    """The records of a file, unchanged; errors name the file and the line."""
    reader, zipped = reader_of(path)
    at = "the start"
    try:
        for where, line in reader(path, zipped):
            at = where
            if line.strip():
                yield decode(line)
    except InputError as error:
        raise error.prefixed(f"{path}, {at}: ") from None
    except UNREADABLE as error:
        raise InputError(f"{path}, after {at}: {unreadable(error)}") from None


def as_line(record: Record) -> bytes:
    """A record as a line of JSON; bytes, as some Parquet files hold their text, must be UTF-8."""
    return json.dumps(record, default=as_text).encode() + b"\n"


def numbered_lines(noun: str, records: Iterable[Record]) -> Iterator[tuple[str, bytes]]:
    """Records as lines of JSON, each with where it is: the noun and its number."""
    for number, record in enumerate(records, 1):
        where = f"{noun} {number}"
        try:
            line = as_line(record)
        except InputError:
            yield where, b""  # so that the error is about this one
            raise
        yield where, line


def as_text(value: object) -> str:
    """A value that JSON has no form for as text; bytes must be UTF-8."""
    if not isinstance(value, bytes | bytearray):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        shown = printable(repr(bytes(value[:20])), 60)
        raise InputError(f"holds bytes that are not UTF-8 text ({shown}); convert them first") from None


def reader_of(path: Path) -> tuple[Reader, bool]:
    """The reader for a file of this name, and whether the file is gzipped."""
    zipped = path.suffix.lower() == ".gz"
    suffix = Path(path.stem).suffix.lower() if zipped else path.suffix.lower()
    if suffix not in READERS:
        raise InputError(f"{path}: a file of items ends in {', '.join(READERS)}, or one of these and .gz")
    return READERS[suffix], zipped


UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error, csv.Error)


def unreadable(error: Exception) -> str:
    """Why a file cannot be read, and what helps."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text; convert it first"
    if isinstance(error, OSError) and error.errno is not None:
        refused = FileError.of(error, "")
        return f"cannot be read ({refused.message}); {refused.remedy}"
    why = printable(" ".join(str(error).split()))
    return f"cannot be read ({why}); it may be damaged or cut off: copy or download it again"


def json_lines(path: Path, zipped: bool) -> Iterator[tuple[str, bytes]]:
    with _binary(path, zipped) as file:
        for number, line in enumerate(file, 1):
            yield f"line {number}", line


def _csv(path: Path, zipped: bool, delimiter: str = ",") -> Iterator[tuple[str, bytes]]:
    limit = csv.field_size_limit(sys.maxsize)  # the default refuses a prompt over 128 kB
    try:
        with io.TextIOWrapper(_binary(path, zipped), encoding="utf-8-sig", newline="") as text:
            rows = csv.DictReader(text, delimiter=delimiter, strict=True)
            for row in rows:
                where = f"line {rows.line_num}"
                if None in row:
                    yield where, b""
                    raise InputError("has more fields than the header")
                yield where, as_line({k: v for k, v in row.items() if v is not None})
    finally:
        csv.field_size_limit(limit)


@contextmanager
def csv_rows(path: Path) -> Iterator[Iterator[list[str]]]:
    """The rows of a CSV file as they are, its header among them; the file may be gzipped."""
    try:
        with io.TextIOWrapper(_binary(path, path.suffix == ".gz"), encoding="utf-8-sig", newline="") as text:
            yield csv.reader(text)
    except UNREADABLE as error:
        raise InputError(f"{path}: {unreadable(error)}") from None


def _parquet(path: Path, zipped: bool) -> Iterator[tuple[str, bytes]]:
    if zipped:
        raise InputError("Parquet is compressed inside; unzip it first")
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        raise MissingExtraError("reading Parquet needs pyarrow: pip install 'blindcal[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as table:
            batches = table.iter_batches(batch_size=1024)
            yield from numbered_lines("row", (row for batch in batches for row in batch.to_pylist()))
    except ArrowException as error:
        raise InputError(f"is not a Parquet file that can be read ({printable(str(error))})") from None


READERS: dict[str, Reader] = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".parquet": _parquet,
}


def _binary(path: Path, zipped: bool) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb") if zipped else path.open("rb"))


def decode(line: bytes) -> Record:
    from blindcal.untrusted_json import JsonError, read_json  # scores are read without it

    try:
        record = read_json(line.removeprefix(_BOM))
    except JsonError as unread:
        if not unread.malformed:
            raise InputError(str(unread)) from None
        try:  # the standard library also accepts lone surrogates and NaN
            record = json.loads(line.removeprefix(_BOM))
        except UnicodeDecodeError:
            raise InputError("is not UTF-8 text; convert it first") from None
        except ValueError as error:
            raise InputError(f"is not JSON ({printable(str(error), 80)})") from None
    if not isinstance(record, dict):
        raise InputError("must be a JSON object with named fields")
    return record
