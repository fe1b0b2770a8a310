"""How JSON is written, in files and by the command line: a number that is not known is ``null``.

NaN and infinity are no JSON, and a program that reads one output of blindcal reads all of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from blindcal.text import encodable


def json_line(value: Any) -> bytes:
    """``value`` on one line, without a line break; records are objects with their fields."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:  # a path that is not UTF-8
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value, enc_hook=_plain)))


def json_page(value: Any) -> bytes:
    """``value`` as the content of a file that people read too: indented, with a line break at its end."""
    return msgspec.json.format(json_line(value), indent=2) + b"\n"


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_encodable(name): _encodable(one) for name, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, list | tuple) else value
