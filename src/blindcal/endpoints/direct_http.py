"""Keep-alive connections for the many small POST requests of a run.

A run sends tens of thousands of requests to one address, and aiohttp takes several times as long over each
as the system takes to send and receive it. So these requests are written and read here; everything else
(lists of models, proxies) is left to aiohttp. The parser is that of Node.js, in C,
which knows all forms that a reply may have. Nothing is retried, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from blindcal.endpoints import http_errors as failures
from blindcal.endpoints.replies import MAX_REPLY_BYTES, ServerResponse
from blindcal.errors import RetryableError

if TYPE_CHECKING:
    from yarl import URL

_MAX_HEAD_BYTES = 64 * 2**10
_STALE = 15.0  # seconds without use, after which a server or a router may have forgotten a connection
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_HAPPY_EYEBALLS = 0.25  # seconds before the next address of a host is tried as well


class ConnectError(OSError):
    """No connection could be made."""


class TlsError(OSError):
    """A connection could be made, but not trusted."""


class InvalidReplyError(OSError):
    """What the server sent is not HTTP, or breaks off."""


class DirectClient:
    """Connections to one server, each used for one request at a time."""

    def __init__(self, root: URL, headers: Mapping[str, str], timeout: float) -> None:
        self._host, self._port, self._timeout = str(root.raw_host), int(root.port or 0), timeout
        fields = {"Host": root.host_port_subcomponent, "Accept": "*/*", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._heads: dict[URL, bytes] = {}
        self._idle: list[_Connection] = []  # the one used last is at the end
        self._closed = False
        self._tls = _trusting() if root.scheme == "https" else None

    async def post(self, url: URL, body: bytes) -> ServerResponse:
        """Send a request to the server and return its response; all failures are errors of the system."""
        head = self._heads.get(url)
        if head is None:
            text = f"POST {url.raw_path_qs} HTTP/1.1\r\n{self._headers}Content-Length: "
            head = self._heads[url] = text.encode("latin-1")
        connection, left = self._unused(), self._timeout
        if connection is None:
            begun = time.monotonic()
            async with asyncio.timeout(left):
                connection = await self._connect()
            left -= time.monotonic() - begun
        try:
            response = await connection.exchange(b"%b%d\r\n\r\n%b" % (head, len(body), body), left)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable and not self._closed:
            self._idle.append(connection)
        else:
            connection.abort()
        return response

    async def close(self) -> None:
        """Close all connections; those in use are closed after it."""
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # in which the system closes them

    def _unused(self) -> _Connection | None:
        """A connection that is open and not in use, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and time.monotonic() - connection.used < _STALE:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                _Connection,
                self._host,
                self._port,
                ssl=self._tls,
                happy_eyeballs_delay=_HAPPY_EYEBALLS,
            )
        except ssl.SSLError as error:
            raise TlsError(error.errno, error.strerror or str(error)) from None
        except OSError as error:
            raise ConnectError(*_reason(error)) from None
        except UnicodeError:
            raise ConnectError(None, "the name of the host is not valid") from None
        return connection


class _Connection(asyncio.Protocol):
    """One connection; the ``on_`` methods are called by the parser."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._response: asyncio.Future[ServerResponse] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._begin()
        self.reusable = True
        self.used = 0.0

    def _begin(self) -> None:
        """Expect a response."""
        self._parser = HttpResponseParser(self)
        self._fields: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._received = 0
        self._in_body = False

    def exchange(self, request: bytes, timeout: float) -> asyncio.Future[ServerResponse]:
        """Send a request; the returned future is done once its response has come, or the time is over."""
        self._begin()
        self._response = self._loop.create_future()
        self._alarm = self._loop.call_later(timeout, self._fail, TimeoutError())
        self._transport.write(request)
        return self._response

    def abort(self) -> None:
        """Close the connection at once."""
        self._silence()
        self.reusable = False
        self._transport.abort()

    # What the system tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand data to the parser, unless it is too much or nobody has asked for it."""
        if self._response is None:
            self.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):  # its text quotes what the server sent
            self._fail(InvalidReplyError())
        most = MAX_REPLY_BYTES if self._in_body else _MAX_HEAD_BYTES
        if self._response is not None and self._received > most:
            self._fail(failures.too_large(most))

    def connection_lost(self, error: Exception | None) -> None:
        """End the response that is under way, if that is how it may end."""
        self.reusable = False
        lengthless = not self._fields.keys() & {b"content-length", b"transfer-encoding"}
        if self._in_body and lengthless and error is None:
            self.on_message_complete()
        elif self._in_body:
            self._fail(InvalidReplyError())
        else:
            self._fail(error if isinstance(error, OSError) else ConnectionResetError("Server disconnected"))

    # What the parser tells

    def on_message_begin(self) -> None:
        """Refuse to use a connection again whose server sends more responses than requests."""
        self.reusable = self._response is not None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._fields[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Expect the body."""
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Hand over the response; one that only announces another is dropped."""
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._fields.clear()
            self._in_body = False
            return
        self._silence()
        expected, self._response = self._response, None
        self._in_body = False
        self.reusable = self.reusable and self._parser.should_keep_alive()
        self.used = time.monotonic()
        if expected is None or expected.done():
            return
        try:
            body = _decoded(b"".join(self._chunks), self._fields.get(b"content-encoding", b""))
        except (InvalidReplyError, RetryableError) as error:
            expected.set_exception(error)
            return
        expected.set_result(ServerResponse(status, self._fields, body))

    def _silence(self) -> None:
        """End the watch over the time: the response has come, or nobody waits for it."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _fail(self, error: Exception) -> None:
        expected, self._response = self._response, None
        if expected is not None and not expected.done():
            expected.set_exception(error)
        self.abort()


def _reason(error: OSError) -> tuple[int | None, str]:
    """The number and the text of an error; asyncio joins those of all addresses of a host."""
    codes = {int(code) for code in _ERRNO.findall(str(error))}
    code = codes.pop() if len(codes) == 1 else error.errno
    if code is not None and code > 0:
        return code, os.strerror(code)
    return code, error.strerror or str(error)


def _decoded(body: bytes, encoding: bytes) -> bytes:
    """A body without its content encoding; none is asked for, and a few servers use one all the same."""
    if not encoding or encoding.lower() == b"identity":
        return body
    if encoding.lower() not in (b"gzip", b"x-gzip", b"deflate"):
        raise InvalidReplyError
    for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):  # some servers take "deflate" for its raw form
        unpacking = zlib.decompressobj(bits)
        try:
            found = unpacking.decompress(body, MAX_REPLY_BYTES + 1)
        except zlib.error:
            continue
        if len(found) > MAX_REPLY_BYTES:
            raise failures.too_large(MAX_REPLY_BYTES)
        if unpacking.eof:
            return found
    raise InvalidReplyError


def _trusting() -> ssl.SSLContext:
    """Trust what the system trusts."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
