"""A small HTTP/1.1 server: requests with a Content-Length, small responses, and nothing else of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

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


class Listener:
    """A server on one port; the requests of a connection are answered in order."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Start listening and return the port; 0 picks a free one."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_HEAD, backlog=1024)
        name: tuple[str, int] = self._server.sockets[0].getsockname()
        return name[1]

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                response = self._handler(await _read(reader, writer))
                if response.delay > 0:
                    await asyncio.sleep(response.delay)
                self.write(writer, response)
        except BadRequestError as error:
            self.write(writer, HttpResponse(str(error).encode(), 400, "text/plain"))
            # Closing while data still arrives would reset the connection and lose the answer.
            writer.write_eof()
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client or the server has gone
        finally:
            self._connections.discard(task)
            writer.close()

    def write(self, writer: asyncio.StreamWriter, response: HttpResponse) -> None:
        """Send a response."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
        head = (
            f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, 'Unknown')}\r\n"
            f"Content-Type: {response.content_type}\r\nContent-Length: {len(response.body)}\r\n{extra}\r\n"
        )
        writer.write(head.encode("latin-1") + response.body)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        method, path, _version = lines[0].split(" ")
        pairs = (line.split(":", 1) for line in lines[1:])
        headers = {name.lower(): value.strip() for name, value in pairs}
    except asyncio.LimitOverrunError:
        raise BadRequestError("the header is too long") from None
    except ValueError:
        raise BadRequestError("this is not HTTP/1.1") from None
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not length.isdecimal() or int(length) > _MAX_BODY:
        raise BadRequestError(f"send a body with a Content-Length of at most {_MAX_BODY}")
    if headers.get("expect") == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return HttpRequest(method, path, headers, await reader.readexactly(int(length)))


_PHRASES = {int(status): status.phrase for status in HTTPStatus}
