"""Read records from JSON lines, CSV, TSV and Parquet files; errors name the file and the place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from blindcal.errors import FileError, InputError, MissingExtraError
from blindcal.text import printable

Record: TypeAlias = dict[str, Any]
Numbered: TypeAlias = Iterator[tuple[str, Record]]
"""Records, each with its place, such as ``line 3``."""

UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error, csv.Error)
_BOM = b"\xef\xbb\xbf"


def numbered_records(path: Path) -> Numbered:
    """Iterate over the records of a file, each with its place."""
    kind, at = format_of(path), "the start"
    decoded = _DECODED.get(kind)
    try:
        for at, row in READERS[kind](path):
            try:
                record = row if decoded is None else decoded(row)
            except InputError as error:
                raise error.prefixed(f"{path}, {at}: ") from None
            yield at, record
    except UNREADABLE as error:
        refused = isinstance(error, OSError) and error.errno is not None  # whatever was read before
        raise InputError(f"{path}{'' if refused else f', after {at}'}: {unreadable(error)}") from None


def numbered_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The records of a file as lines of JSON; those of a JSON lines file are not checked."""
    if format_of(path) in JSON_LINES:
        return json_lines(path)
    return ((where, as_line(record)) for where, record in numbered_records(path))


def format_of(path: Path) -> str:
    """The ending that tells the format of a file, without ``.gz``."""
    name = Path(path.stem) if is_zipped(path) else path
    if (suffix := name.suffix.lower()) not in READERS:
        raise InputError(f"{path}: its name must end in {', '.join(READERS)}, or one of these and .gz")
    return suffix


def has_reader(path: Path) -> bool:
    return path.is_file() and path.name.lower().removesuffix(".gz").endswith(tuple(READERS))


def is_zipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def unreadable(error: Exception) -> str:
    """Why a file cannot be read, and a remedy."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text; convert it first"
    if isinstance(error, OSError) and error.errno is not None:
        refused = FileError.of(error, "")
        return f"cannot be read ({refused.message}); {refused.remedy}"
    why = printable(" ".join(str(error).split()))
    return f"cannot be read ({why}); it may be damaged or cut off: copy or download it again"


def as_line(record: Record) -> bytes:
    return json.dumps(record, default=_as_text).encode() + b"\n"


def plain(record: Record) -> Record:
    """Convert values that JSON lacks to text; bytes must be UTF-8."""
    return cast(Record, json.loads(as_line(record)))


def _as_text(value: object) -> str:
    if not isinstance(value, bytes | bytearray):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        shown = printable(repr(bytes(value[:20])), 60)
        raise InputError(f"holds bytes that are not UTF-8 text ({shown}); convert them first") from None


def json_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    with _binary(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"line {number}", line


def _csv(path: Path, delimiter: str = ",") -> Numbered:
    limit = csv.field_size_limit(sys.maxsize)  # the default refuses a prompt over 128 kB
    try:
        with io.TextIOWrapper(_binary(path), encoding="utf-8-sig", newline="") as text:
            rows = csv.DictReader(text, delimiter=delimiter, strict=True)
            for row in rows:
                where = f"line {rows.line_num}"
                if None in row:
                    raise InputError(f"{path}, {where}: has more fields than the header")
                yield where, {name: value for name, value in row.items() if value is not None}
    finally:
        csv.field_size_limit(limit)


def _parquet(path: Path) -> Numbered:
    if is_zipped(path):
        raise InputError(f"{path}: Parquet is compressed inside; unzip it first")
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        raise MissingExtraError(f"{path}: Parquet needs pyarrow: pip install 'blindcal[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as table:
            rows = (row for batch in table.iter_batches(batch_size=1024) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield f"row {number}", row
    except ArrowException as error:
        why = printable(str(error))
        raise InputError(f"{path}: is not a Parquet file that can be read ({why})") from None


JSON_LINES = (".jsonl", ".ndjson")
#: What gives the rows of a file, each with its place: lines of JSON, or records.
READERS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    **dict.fromkeys(JSON_LINES, json_lines),
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".parquet": _parquet,
}


def _binary(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb") if is_zipped(path) else path.open("rb"))


def decode(line: bytes) -> Record:
    from blindcal.json_form import JsonError, read_json  # scores are read without it

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


#: What makes a record of a row; the rows of CSV are records.
_DECODED: dict[str, Callable[[Any], Record]] = {**dict.fromkeys(JSON_LINES, decode), ".parquet": plain}
