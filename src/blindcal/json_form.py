"""JSON to write and to read: NaN and infinity are written as ``null``, and any fault is a `JsonError`."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec
from msgspec import defstruct

from blindcal.errors import InputError
from blindcal.text import encodable, printable

T = TypeVar("T")

DEEPEST = 100
"""Maximum depth of nesting; Python's own limit depends on the caller."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class JsonError(ValueError):
    """JSON that cannot be read; ``malformed`` is false if it is valid, but of an unexpected form."""

    def __init__(self, message: str, *, malformed: bool) -> None:
        super().__init__(message)
        self.malformed = malformed


@overload
def read_json(raw: bytes) -> Any: ...
@overload
def read_json(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T: ...
def read_json(raw: bytes, decoder: msgspec.json.Decoder[Any] = _ANYTHING) -> Any:
    """Decode JSON; raises `JsonError` and nothing else."""
    try:
        if raw.count(b"[") + raw.count(b"{") > DEEPEST and _depth(raw) > DEEPEST:
            raise RecursionError
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise JsonError(str(error), malformed=False) from None
    except RecursionError:
        raise JsonError(f"is nested more than {DEEPEST} levels deep", malformed=False) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise JsonError(str(error), malformed=True) from None


def read_saved(path: Path, kind: type[T], name: str, version: int, field: str = "format") -> T:
    """Read a record that blindcal saved, with its format in ``field``; raises `InputError` for another."""
    try:
        raw = path.read_bytes()
        saved = getattr(read_json(raw, msgspec.json.Decoder(defstruct("Saved", [(field, int)]))), field)
        if saved != version:
            raise InputError(
                f"{path}: is a {name} in format {saved}, and this version of blindcal reads {version}",
                remedy="open it with the version that made it",
            )
        return read_json(raw, msgspec.json.Decoder(kind))
    except FileNotFoundError:
        raise InputError(f"{path}: no such {name}", remedy=f"name a {name} that blindcal wrote") from None
    except (OSError, JsonError) as error:
        why = printable(str(error))
        raise InputError(
            f"{path}: not a {name} of blindcal ({why})", remedy=f"name a {name} that blindcal wrote"
        ) from None


def _depth(raw: bytes) -> int:
    brackets = _BRACKET.findall(_STRING.sub(b"", raw))
    return max(itertools.accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)


def json_line(value: Any) -> bytes:
    """Encode on one line, without a line break; records become objects."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:  # a path that is not UTF-8
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value, enc_hook=_plain)))


def json_page(value: Any) -> bytes:
    """Encode for people to read: indented, with a line break at the end."""
    return msgspec.json.format(json_line(value), indent=2) + b"\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_encodable(name): _encodable(each) for name, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list | tuple) else value
