"""Read records from JSON lines, CSV, TSV and Parquet files; errors name the file and the place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, AnyStr, BinaryIO, TypeAlias, cast

from blindcal.errors import FileError, InputError, MissingExtraError, errors_at
from blindcal.text import printable

Record: TypeAlias = dict[str, Any]
Numbered: TypeAlias = Iterator[tuple[str, Record]]
"""Records, each with its place, such as ``line 3``."""

UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error, csv.Error)
LARGEST_RECORD = 16 * 2**20
"""Maximum size of a line or a row in bytes: no prompt is so long, but packed files may unpack to more."""
_LARGEST_BATCH = 2**28  # bytes that rows of Parquet may unpack to at once
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_DELIMITERS = ",;\t"  # Excel writes semicolons where the comma is the decimal mark


def numbered_records(path: Path) -> Numbered:
    """Iterate over the records of a file, each with its place."""
    kind, at = format_of(path), "the start"
    decoded = _DECODED.get(kind)
    try:
        for at, row in READERS[kind](path):
            with errors_at(f"{path}, {at}"):
                record = row if decoded is None else decoded(row)
            yield at, record
    except UNREADABLE as error:
        refused = isinstance(error, OSError) and error.errno is not None  # whatever was read before
        raise InputError(f"{path}{'' if refused else f', after {at}'}: {unreadable(error)}") from None


def as_numbered(records: Iterable[Record]) -> Numbered:
    """Records that do not come from the lines of a file, each with its place."""
    return ((f"record {number}", record) for number, record in enumerate(records, 1))


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
        if error.object.startswith(_UTF_16):
            return (
                "is UTF-16, as Excel saves Unicode text; save it as CSV UTF-8, or: iconv -f UTF-16 -t UTF-8"
            )
        return "is not UTF-8 text; convert it first"
    if isinstance(error, OSError) and error.errno is not None:
        refused = FileError.of(error, "")
        return f"cannot be read ({refused.message}); {refused.remedy}"
    why = printable(" ".join(str(error).split()))
    return f"cannot be read ({why}); it may be damaged or cut off: copy or download it again"


def as_line(record: Record) -> bytes:
    line = json.dumps(record, default=_as_text).encode() + b"\n"
    if len(line) > LARGEST_RECORD:
        raise _too_large()
    return line


def _too_large() -> InputError:
    return InputError(f"has more than {LARGEST_RECORD >> 20} MB, and no prompt is that long; leave it out")


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
        for number, line in enumerate(_lines(path, file), 1):
            if line.strip():
                yield f"line {number}", line


def _lines(path: Path, file: IO[AnyStr]) -> Iterator[AnyStr]:
    number = 0
    while line := file.readline(LARGEST_RECORD + 1):
        number += 1
        if len(line) > LARGEST_RECORD:
            raise _too_large().prefixed(f"{path}, line {number}: ")
        yield line


def _csv(path: Path, usual: str = ",") -> Numbered:
    with io.TextIOWrapper(_binary(path), encoding="utf-8-sig", newline="") as text:
        size = blank = 0
        read = _lines(path, text)
        header = next(read, "")
        counts = Counter(re.sub(r'"[^"]*"', "", header))
        delimiter = max((usual, *_DELIMITERS), key=counts.__getitem__)

        def lines() -> Iterator[str]:
            nonlocal size
            for line in chain([header], read):
                size += len(line)
                if size > LARGEST_RECORD:  # a row of many lines
                    raise _too_large().prefixed(f"{path}, line {rows.line_num}: ")
                yield line

        rows = csv.DictReader(lines(), delimiter=delimiter, strict=True)
        names = rows.fieldnames or ()
        if len(set(names)) < len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise InputError(f"{path}: names the field {printable(twice, 40)!r} twice; rename one of them")
        while True:
            limit = csv.field_size_limit(LARGEST_RECORD)  # it is global, and too low for a prompt over 128 kB
            try:
                row = next(rows, None)
            finally:
                csv.field_size_limit(limit)
            if row is None:
                break
            where, size = f"line {rows.line_num}", 0
            if not any(row.values()):
                blank += 1
                continue
            if None in row:
                raise InputError(f"{path}, {where}: has more fields than the header")
            yield where, {name: value for name, value in row.items() if value is not None}
        if blank:
            warnings.warn(f"{path}: blank rows that were skipped: {blank:,}", stacklevel=2)


def _parquet(path: Path) -> Numbered:
    if is_zipped(path):
        raise InputError(f"{path}: Parquet is compressed inside; unzip it first")
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        raise MissingExtraError(f"{path}: Parquet needs pyarrow: pip install 'blindcal[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as table:
            # each row may repeat the longest entry of a dictionary
            groups = map(table.metadata.row_group, range(table.metadata.num_row_groups))
            largest = max((group.total_byte_size for group in groups), default=1)
            size = min(1024, max(1, _LARGEST_BATCH // max(1, largest)))
            rows = (row for batch in table.iter_batches(batch_size=size) for row in batch.to_pylist())
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
    ".tsv": partial(_csv, usual="\t"),
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
        except (ValueError, RecursionError) as error:
            raise InputError(f"is not JSON ({printable(str(error), 80)})") from None
    if not isinstance(record, dict):
        raise InputError("must be a JSON object with named fields")
    return record


#: What makes a record of a row; the rows of CSV are records.
_DECODED: dict[str, Callable[[Any], Record]] = {**dict.fromkeys(JSON_LINES, decode), ".parquet": plain}
