"""No test may leave the API key anywhere: every file, stream and error of every test is searched for it.

All tests have a key in their environment, and servers that get it from our client repeat it in every message
and completion.
Searched for is its beginning, as it is and encoded, because what is cut short has leaked, too.
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
import io
import os
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from blindcal.errors import BlindcalError
from blindcal.simulation import http_server
from blindcal.simulation.http_server import Handler, HttpRequest, HttpResponse

KEY = os.environ.get("SWEPT_API_KEY", "sk-sweep+Zq7/Rw9=Lm3-Tn5Kd8Vb2Xc6Hj4")
PREFIX = KEY[:12]


_MESSAGE = re.compile(rb'("message":"[^"\\]*(?:\\.[^"\\]*)*)"')


def forms(text: str) -> Iterator[bytes]:
    """A text as it may stand in a file or a stream."""
    plain = text.encode()
    yield from (plain, text.encode("utf-16-le"), plain.hex().encode(), html.escape(text).encode())
    for escape in ("%{:02x}", "%{:02X}", "\\u{:04x}", "\\u{:04X}"):
        yield "".join(
            one if one.isalnum() or one in "-._~" else escape.format(ord(one)) for one in text
        ).encode()
    for before in range(3):  # base64 depends on the place modulo three
        encoded = base64.b64encode(b" " * before + plain)
        yield encoded[4 * bool(before) : len(encoded) // 4 * 4 - 4]


_FORMS = tuple(dict.fromkeys(forms(PREFIX)))


def leaked(content: bytes | str) -> bool:
    """Whether a content holds the beginning of the key in any form."""
    raw = content.encode(errors="replace") if isinstance(content, str) else content
    if raw.startswith(b"\x1f\x8b"):
        with suppress(OSError, EOFError, zlib.error):  # some tests damage a file on purpose
            raw = gzip.decompress(raw)
    return any(form in raw for form in _FORMS)


def leaking_files(folder: Path) -> list[Path]:
    """The files below a folder that hold the key."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if leaked(path.name) or leaked(_content(path))]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # a file that the test has made unreadable
        return b""


class Sweep:
    """Where the key was seen since the last test."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def look(self, where: str, *contents: object) -> None:
        """Note that contents hold the key."""
        if any(leaked(one if isinstance(one, bytes | str) else repr(one)) for one in contents):
            self.seen.append(where)

    def around(self, where: str, function: Callable[..., Any], *parts: str) -> Callable[..., Any]:
        """A function whose results are looked at: the named attributes, or all of each."""

        @functools.wraps(function)
        def looked_at(*given: Any, **named: Any) -> Any:
            found = function(*given, **named)
            self.look(where, *([getattr(found, part) for part in parts] or [found]))
            return found

        return looked_at


class WatchedPipe(io.TextIOWrapper):
    """The output of a process that a test reads by lines."""

    sweep: Sweep

    def __next__(self) -> str:  # type: ignore[override]  # as io has it
        return self._looked_at(super().__next__())

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # as io has it
        return self._looked_at(super().readline(size))

    def read(self, size: int | None = -1, /) -> str:
        return self._looked_at(super().read(size))

    def _looked_at(self, text: str) -> str:
        self.sweep.look("the output of a process", text)
        return text


def watch(process: subprocess.Popen[Any], sweep: Sweep) -> None:
    """Look at what is read from the pipes of a process."""
    for name in ("stdout", "stderr"):
        pipe = getattr(process, name)
        if isinstance(pipe, io.TextIOWrapper):
            watched = WatchedPipe(pipe.detach(), encoding=pipe.encoding, errors=pipe.errors)
            watched.sweep = sweep
            setattr(process, name, watched)


def echoing(handler: Handler) -> Handler:
    """A handler that repeats the key it was sent in each message and in each completion."""

    def respond(request: HttpRequest) -> HttpResponse:
        response = handler(request)
        sent = request.headers.get("authorization") or request.headers.get("api-key") or ""
        agent = request.headers.get("user-agent", "")
        ours = agent.startswith("blindcal/") or "aiohttp" in agent  # from our client, or a proxy of a test
        if KEY not in sent or not ours:
            return response
        body = _MESSAGE.sub(rb'\1 (%b)"' % sent.encode(), response.body)
        body = body.replace(b'"choices":', b'"system_fingerprint":"%b","choices":' % sent.encode())
        return replace(response, body=body)

    return respond


@pytest.fixture(scope="session", autouse=True)
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    """Look at all streams and errors of the session, and at the end at all its files."""
    sweep = Sweep()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        opened, told = http_server.Listener.__init__, BlindcalError.__init__
        started = subprocess.Popen.__init__

        def open_echoing(listener: http_server.Listener, handler: Handler) -> None:
            opened(listener, echoing(handler))

        def tell(error: BlindcalError, *given: Any, **named: Any) -> None:
            told(error, *given, **named)
            sweep.look("an error", error.message, error.remedy, error.options)

        def start(process: subprocess.Popen[Any], *given: Any, **named: Any) -> None:
            started(process, *given, **named)
            watch(process, sweep)

        patch.setattr(subprocess.Popen, "__init__", start)
        patch.setattr(http_server.Listener, "__init__", open_echoing)
        patch.setattr(BlindcalError, "__init__", tell)
        for where, kind, name, *parts in (
            ("the output of a process", subprocess.Popen, "communicate"),
            ("the output of the test", pytest.CaptureFixture, "readouterr"),
            ("the output of a command", CliRunner, "invoke", "output", "stderr", "exception"),
        ):
            patch.setattr(kind, name, sweep.around(where, getattr(kind, name), *parts))
        yield sweep
    assert not leaking_files(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def swept(request: pytest.FixtureRequest, sweep: Sweep) -> Iterator[None]:
    """Fail the test that leaves the key in a file, a stream or an error."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    sweep.seen.clear()
    yield
    files = leaking_files(folder) if folder is not None else []
    assert not sweep.seen + [str(path) for path in files], "the API key has leaked"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Fail the test that prints the key."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's result
    for name, text in report.sections:
        if leaked(text):
            report.outcome, report.longrepr = "failed", f"the API key has leaked: {name}"
