"""The small HTTP server, spoken to in raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener

POST = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"


def echo(request: HttpRequest) -> HttpResponse:
    """Say what was asked."""
    return HttpResponse(
        f"{request.method} {request.path} ".encode() + request.body, content_type="text/plain"
    )


def exchange(pieces: Sequence[bytes], handler: object = echo) -> bytes:
    """What comes back for bytes sent in these pieces, until the server closes or we do."""

    async def talk() -> bytes:
        assert callable(handler)
        listener = Listener(handler)
        port = await listener.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        received = await reader.read()
        writer.close()
        await writer.wait_closed()
        await listener.close()
        return received

    return asyncio.run(talk())


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_pieces_do_not_matter(size: int) -> None:
    """Two requests on one connection are answered in order, however the bytes are cut up."""
    whole = POST + b"one" + POST.replace(b"/a", b"/b") + b"two"
    received = exchange([whole[at : at + size] for at in range(0, len(whole), size)])
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert 0 < received.index(b"POST /a one") < received.index(b"POST /b two")


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000,
    ],
)
def test_what_is_not_understood_is_refused(raw: bytes) -> None:
    """Requests it does not understand get a 400 and the connection ends."""
    assert exchange([raw]).startswith(b"HTTP/1.1 400 ")


def test_expect_continue() -> None:
    """A client that asks before sending a large body is told to go on."""
    received = exchange([POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), b"one"])
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
