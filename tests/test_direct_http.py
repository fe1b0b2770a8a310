"""The connections that queries travel on, against servers that answer in raw bytes."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import shutil
import ssl
import subprocess
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from blindcal.endpoints.direct_http import (
    ConnectError,
    DirectClient,
    InvalidReplyError,
    TlsError,
)
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.replies import ServerResponse
from blindcal.errors import RetryableError
from blindcal.records import Message, Request

OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=1\r\nllo\r\n0\r\nTrailer: t\r\n\r\n"
PACKED = gzip.compress(b"hello", mtime=0)
FORMS = {
    "plain": PLAIN,
    "chunked": CHUNKED,
    "announced": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN,
    "packed": OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(PACKED), PACKED),
    "headers in any case": OK + b"cOnTeNt-LeNgTh: 5\r\nRETRY-AFTER: 7\r\n\r\nhello",
}


class Scripted:
    """A server that answers every request with the same bytes, in pieces, and may then close."""

    def __init__(self, pieces: Sequence[bytes], *, closes: bool = False) -> None:
        self._pieces, self._closes = pieces, closes
        self.connections = 0
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for piece in self._pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self._closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def talk(
    server: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    times: int = 1,
    *,
    timeout: float = 20.0,
    tls: ssl.SSLContext | None = None,
) -> list[ServerResponse]:
    """The responses to requests that follow each other."""

    async def run() -> list[ServerResponse]:
        listening = await asyncio.start_server(server, "127.0.0.1", 0, ssl=tls)
        port = listening.sockets[0].getsockname()[1]
        root = URL(f"{'https' if tls else 'http'}://127.0.0.1:{port}")
        client = DirectClient(root, {"X-Header": "one"}, timeout)
        try:
            return [await client.post(root / "a" % {"b": "c d"}, b"body") for _ in range(times)]
        finally:
            await client.close()
            listening.close()
            await listening.wait_closed()

    return asyncio.run(run())


def test_request_as_sent() -> None:
    """A request names its path, host, headers and length, and carries its body."""
    server = Scripted([PLAIN])
    talk(server)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    first, *fields = head.split(b"\r\n")
    assert first == b"POST /a?b=c+d HTTP/1.1"
    assert b"X-Header: one" in fields
    assert b"Content-Length: 4" in fields
    assert any(field.startswith(b"Host: 127.0.0.1:") for field in fields)
    assert body == b"body"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_reply_is_read(form: str) -> None:
    """However a server frames its body, it is read whole, and the connection is used again."""
    server = Scripted([FORMS[form]])
    found = talk(server, 3)
    assert [(one.status, one.body) for one in found] == [(200, b"hello")] * 3
    assert server.connections == 1
    if form == "headers in any case":
        assert found[0].headers["retry-after"] == "7"


@given(form=st.sampled_from(list(FORMS)), cuts=st.lists(st.integers(1, 150), max_size=8))
@settings(max_examples=40, deadline=None)
def test_pieces_do_not_matter(form: str, cuts: list[int]) -> None:
    """A reply is the same however its bytes arrive."""
    whole = FORMS[form]
    edges = [0, *sorted({cut for cut in cuts if cut < len(whole)}), len(whole)]
    (found,) = talk(Scripted([whole[a:b] for a, b in itertools.pairwise(edges)]))
    assert found.body == b"hello"


def test_raw_deflate_is_unpacked() -> None:
    """What some servers call deflate is read too."""
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    raw = packing.compress(b"hello") + packing.flush()
    head = OK + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(raw)
    (found,) = talk(Scripted([head + raw]))
    assert found.body == b"hello"


def test_a_host_that_cannot_be() -> None:
    """A name that no host can have is an address where nothing is."""
    with pytest.raises(ConnectError, match="name of the host"):
        asyncio.run(DirectClient(URL("http://x..y/v1"), {}, 5.0).post(URL("/"), b""))


def test_a_body_may_end_with_the_connection() -> None:
    """Without a length the body ends where the server closes, and the next request connects anew."""
    server = Scripted([OK + b"\r\nhel", b"lo"], closes=True)
    assert [one.body for one in talk(server, 2)] == [b"hello"] * 2
    assert server.connections == 2


@pytest.mark.parametrize(
    "reply",
    [PLAIN.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"), PLAIN + b"HTTP/1.1 200 OK\r\n"],
    ids=["asked to close", "more than was asked for"],
)
def test_a_connection_that_cannot_be_trusted_is_not_used_again(reply: bytes) -> None:
    """One that the server will close, or on which it says more than it was asked, is given up."""
    server = Scripted([reply])
    assert [one.body for one in talk(server, 2)] == [b"hello"] * 2
    assert server.connections == 2


@pytest.mark.parametrize(
    "reply",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Content-Length: five\r\n\r\nhello",
        OK + b"Content-Length: 9\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Encoding: br\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 12\r\n\r\n" + PACKED[:12],
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
def test_what_is_no_reply_is_an_error(reply: bytes) -> None:
    """A reply that is not HTTP, breaks off or cannot be unpacked is an error of the system, and only that."""
    with pytest.raises(InvalidReplyError):
        talk(Scripted([reply], closes=True))


def test_no_reply_at_all() -> None:
    """A server that closes without a word has disconnected."""
    with pytest.raises(ConnectionError):
        talk(Scripted([], closes=True))


@pytest.mark.parametrize(
    "reply",
    [
        OK + b"X: " + b"x" * 100_000,
        OK + b"Content-Length: 9999999999\r\n\r\n" + b"x" * 5_000_000,
        OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(bytes(20_000_000)),
    ],
    ids=["head", "body", "unpacked"],
)
def test_endless_replies_are_cut_off(reply: bytes) -> None:
    """Neither headers nor a body nor what it unpacks to can fill the memory."""
    with pytest.raises(RetryableError, match="a reply of more than"):
        talk(Scripted([reply], closes=True))


def test_silence_ends() -> None:
    """A server that takes the request and says nothing is left after the time-out."""
    with pytest.raises(TimeoutError):
        talk(Scripted([]), timeout=0.2)


def test_nobody_there() -> None:
    """An address where nothing listens is an error of its own kind, with the system's reason."""

    async def run() -> None:
        listening = await asyncio.start_server(Scripted([]), "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        await DirectClient(URL(f"http://127.0.0.1:{port}"), {}, 5.0).post(URL("/"), b"")

    with pytest.raises(ConnectError, match="Connection refused"):
        asyncio.run(run())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody has signed but itself, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    made = subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", "-"),
        ],
        capture_output=True,
        check=True,
    )
    path.write_bytes(path.read_bytes() + made.stdout)
    return path


def test_a_stranger_is_not_trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that the system does not trust ends the connection; one that it trusts does not."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    server = Scripted([PLAIN])
    with pytest.raises(TlsError, match="certificate"):
        talk(server, tls=tls)
    assert not server.requests
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert [one.body for one in talk(server, 2, tls=tls)] == [b"hello"] * 2


def test_a_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names a proxy for another machine, the query goes to the proxy."""
    reply = b'{"choices":[{"message":{"role":"assistant","content":"Yes"},"finish_reason":"stop"}]}'
    server = Scripted([OK + b"Content-Length: %d\r\n\r\n%b" % (len(reply), reply)])

    async def run() -> str:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        async with HttpEndpoint(Address("http://model.invalid/v1", "m"), environ={}) as endpoint:
            found = await endpoint.ask(Request((Message("user", "?"),), {}))
        listening.close()
        await listening.wait_closed()
        return found.text

    assert asyncio.run(run()) == "Yes"
    assert server.requests[0].startswith(b"POST http://model.invalid/v1/chat/completions ")
