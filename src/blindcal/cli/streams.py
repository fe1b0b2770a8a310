"""Standard streams that may be closed, full or without a reader.

What a command prints on standard output is its result: if it cannot be written, that is an error, but a
reader that has seen enough (``| head``) ends the command in silence. Messages on standard error are a
courtesy: a long audit does not fail because nobody can read them.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from blindcal.errors import FileError

NO_READER = 141
"""Exit status if the reader of standard output is gone: what a shell reports for SIGPIPE."""
_OUTPUT, _ERRORS = 1, 2


def prepare_streams() -> None:
    """Replace the standard streams of this process by ones that behave as described above."""
    _open_closed_streams()
    if sys.platform == "win32":  # its consoles are not files
        return
    for name, raw in (("stdout", _Output(_OUTPUT, "wb", False)), ("stderr", _Messages(_ERRORS, "wb", False))):
        encoding = getattr(getattr(sys, name), "encoding", "utf-8")
        buffer = io.BufferedWriter(raw)
        at_once = name == "stderr" or raw.isatty()
        text = io.TextIOWrapper(buffer, encoding, errors="backslashreplace", line_buffering=at_once)
        setattr(sys, name, text)


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _discard(_OUTPUT)  # or the rest would fail again when Python exits
            if isinstance(error, BrokenPipeError):
                raise SystemExit(NO_READER) from None
            raise FileError.of(error, "standard output") from None


class _Messages(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            _discard(_ERRORS)
            return memoryview(data).nbytes


def _open_closed_streams() -> None:
    """Open the standard streams that are closed, or the next file opened would get their number.

    Standard output is opened for reading only: writing to it still fails.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free number, which is this one


def _discard(number: int) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, number)
    os.close(nothing)
