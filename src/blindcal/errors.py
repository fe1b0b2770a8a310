"""Every error blindcal raises on purpose.

Catch the base class, or one of its kinds:

    BlindcalError
    ├── InputError            an argument, a setting, a file or a field breaks a rule (also a ValueError)
    ├── NotIdentifiedError    the data cannot answer the question
    ├── NotCertifiedError     no threshold passed its test, or a certificate does not hold now
    ├── EndpointError         the endpoint cannot be used as it is
    │   ├── RetryableError    may succeed if asked again later: 429, 5xx, a reset, a time-out
    │   ├── FatalError        will fail for every item: wrong key, model or address
    │   │   └── UnsupportedError  a field of the request that matters is refused
    │   ├── ReplyError        one reply does not follow the protocol
    │   └── UnfitError        the probe or the answers show that the method cannot measure anything
    ├── StoreError            a run file that is missing, foreign, of another version, or in use
    ├── FileError             the system refuses a file or a folder: a full disk, no permission, an odd path
    └── MissingExtraError     a feature whose optional dependency is not installed

The engine tells a `RetryableError`, a `FatalError` and a `ReplyError` apart; users catch `EndpointError`.
"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self


def python_option(name: str, value: object) -> str:
    """An option as written in Python, such as ``force=True``; an ellipsis stands for any value."""
    return f"{name}=..." if value is ... else f"{name}={value!r}"


class BlindcalError(Exception):
    """Base class of all errors that blindcal raises on purpose.

    The message and the ``remedy`` refer to ``options`` as ``{name}``, so that each interface shows them in
    its own form: ``force=True`` in Python, ``--force`` on the command line. An ellipsis is any value.
    """

    def __init__(
        self, message: str, *, remedy: str = "", options: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.options = dict(options or {})

    def render(self, option: Callable[[str, object], str]) -> str:
        """The message and the remedy, with each option formatted by ``option``."""
        text = f"{self.message}: {self.remedy}" if self.remedy else self.message
        for name, value in self.options.items():
            text = text.replace(f"{{{name}}}", option(name, value))
        return text

    def prefixed(self, where: str) -> Self:
        """A copy of the error with ``where`` in front of its message."""
        error = copy.copy(self)
        error.message = f"{where}{self.message}"
        error.args = (error.message,)
        return error

    def __str__(self) -> str:
        return self.render(python_option)


class InputError(BlindcalError, ValueError):
    """An argument, a setting, a file or a field breaks a rule, which the message names."""


@contextmanager
def errors_at(place: object, otherwise: str = "") -> Iterator[None]:
    """Put a place before the message of an `InputError`, unless it has it.

    ``otherwise`` says what is wrong if a record is not in the form that its reader expects.
    """
    try:
        yield
    except InputError as error:
        named = error.message.startswith((f"{place}: ", f"{place}, "))
        raise error if named else error.prefixed(f"{place}: ") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        if not otherwise:
            raise
        raise InputError(f"{place}: {otherwise}") from None


class NotIdentifiedError(BlindcalError):
    """The data cannot answer the question: only one class, no answers, or nothing asked."""


class NotCertifiedError(BlindcalError):
    """No threshold passed its test (``stopped``: the queries ended first), or a certificate does not hold."""

    def __init__(self, message: str, *, stopped: bool = False, **more: Any) -> None:
        super().__init__(message, **more)
        self.stopped = stopped


class EndpointError(BlindcalError):
    """The endpoint cannot be used as it is.

    ``status`` is the HTTP status, if any; ``billed`` the prompt, completion and cached tokens of its reply;
    ``retry_after`` the wait in seconds that the server asks for; ``parameter`` the field that it refuses.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        billed: tuple[int, int, int] | None = None,
        retry_after: float | None = None,
        throttled: bool = False,
        parameter: str = "",
        **more: Any,
    ) -> None:
        super().__init__(message, **more)
        self.status, self.billed = status, billed
        self.retry_after, self.throttled = retry_after, throttled
        self.parameter = parameter


class RetryableError(EndpointError):
    """May succeed if asked again."""


class FatalError(EndpointError):
    """Will fail for every item: a wrong key, model or address, or an unsupported parameter."""


class UnsupportedError(FatalError):
    """The endpoint refuses a field that the method relies on."""


class ReplyError(EndpointError):
    """One reply does not follow the protocol."""


class UnfitError(EndpointError):
    """The endpoint does not do what the method relies on, or does not reveal what it must know."""


class StoreError(BlindcalError):
    """A run file that is missing, foreign, of another version, or in use."""


class FileError(BlindcalError):
    """The operating system refuses a file or a folder; the message says why, the remedy what helps."""

    @classmethod
    def of(cls, error: OSError, path: str | os.PathLike[str] | None = None) -> Self:
        """Describe an error of the system; ``path``, if given, replaces the name in it."""
        cause, remedy = _CAUSES.get(error.errno or 0, (error.strerror or str(error), "choose another place"))
        name = os.fsdecode(path if path is not None else error.filename or "")
        return cls(f"{name}: {cause}" if name else cause, remedy=remedy)


_ANOTHER = "choose another path"
_CAUSES = {
    errno.ENOSPC: ("the disk is full", "free some space, and run the same again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, and run the same again"),
    errno.EFBIG: ("the file would be larger than the system allows", "raise the limit (ulimit -f)"),
    errno.EROFS: ("the file system is read-only", "choose a place that can be written to"),
    errno.EACCES: ("permission denied", "change its permissions, or choose another place"),
    errno.EPERM: ("not permitted", "change its permissions, or choose another place"),
    errno.ENOENT: ("no such file or folder", "check the path"),
    errno.EEXIST: ("something else is in the place of this folder", _ANOTHER),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", _ANOTHER),
    errno.EISDIR: ("is a folder, not a file", "choose the path of a file"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
    errno.ELOOP: ("its symbolic links lead in a circle", _ANOTHER),
    errno.EMFILE: ("too many open files", "raise the limit (ulimit -n), or lower the concurrency"),
    errno.ENFILE: ("too many open files on this machine", "close other programs, and run the same again"),
    errno.EBADF: ("is closed", "redirect it to a file, or to /dev/null"),
    errno.EIO: ("the device reports an error", "check the disk, and choose another place meanwhile"),
}


class MissingExtraError(BlindcalError, ImportError):
    """A feature needs an optional dependency; the message says which ``pip install`` adds it."""
