"""A small HTTP/1.1 server, so lean that a loopback benchmark measures the client.

It supports requests with a Content-Length and small responses, and nothing else of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TypeAlias, cast

import msgspec

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 2**20


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response, and the delay in seconds before it is sent."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


Handler: TypeAlias = Callable[[HttpRequest], HttpResponse]


def json_response(value: object, status: int = 200) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(value), status)


class BadRequestError(Exception):
    """A request that this server does not understand."""


class Connection(asyncio.Protocol):
    """A client connection; requests are answered in order."""

    def __init__(self, handler: Handler, peers: set[Connection]) -> None:
        self._handler = handler
        self._peers = peers
        self._buffer = bytearray()
        self._head: HttpRequest | None = None  # of a request whose body is incomplete
        self._pending = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's only lacks the base class
        self._peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._peers.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            self._buffer += data
            self._advance()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        while not self._pending and self._transport is not None:
            try:
                request = self._next_request()
            except BadRequestError as error:
                self._write(HttpResponse(str(error).encode(), 400, "text/plain"))
                # Closing while data still arrives would reset the connection and lose the answer.
                self._transport.write_eof()
                self._refused = True
                return
            if request is None:
                return
            self._respond(self._handler(request))

    def _next_request(self) -> HttpRequest | None:
        self._head = head = self._head or self._read_head()
        if head is None:
            return None
        length = head.headers.get("content-length", "0")
        if "transfer-encoding" in head.headers or not length.isdecimal() or int(length) > _MAX_BODY:
            raise BadRequestError(f"send a body with a Content-Length of at most {_MAX_BODY}")
        if len(self._buffer) < int(length):
            return None
        body = bytes(self._buffer[: int(length)])
        del self._buffer[: int(length)]
        self._head = None
        return replace(head, body=body)

    def _read_head(self) -> HttpRequest | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise BadRequestError("the header is too long")
            return None
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        try:
            method, path, _version = lines[0].split(" ")
            pairs = (line.split(":", 1) for line in lines[1:])
            headers = {name.lower(): value.strip() for name, value in pairs}
        except ValueError:
            raise BadRequestError("this is not HTTP/1.1") from None
        if headers.get("expect") == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return HttpRequest(method, path, headers)

    def _respond(self, response: HttpResponse) -> None:
        self._pending = response.delay > 0
        if self._pending:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(response.delay, self._respond_late, response)
        else:
            self._write(response)

    def _respond_late(self, response: HttpResponse) -> None:
        self._pending, self._timer = False, None
        self._write(response)
        self._advance()

    def _write(self, response: HttpResponse) -> None:
        if self._transport is None:
            return
        extra = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
        head = (
            f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, 'Unknown')}\r\n"
            f"Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n{extra}\r\n"
        )
        self._transport.write(head.encode("latin-1") + response.body)


class Listener:
    """A server on one port."""

    connection = Connection

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Start listening and return the port; 0 picks a free one."""
        loop = asyncio.get_running_loop()
        factory = lambda: self.connection(self._handler, self._connections)  # noqa: E731 - a factory is wanted
        self._server = await loop.create_server(factory, host, port, backlog=1024)
        name: tuple[str, int] = self._server.sockets[0].getsockname()
        return name[1]

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._server.wait_closed()
        self._server = None


_PHRASES = {int(status): status.phrase for status in HTTPStatus}
