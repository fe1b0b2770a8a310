"""The HTTP client, against servers and proxies that answer in raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.http_client import HttpClient, ServerResponse
from blindcal.errors import FatalError, RetryableError
from blindcal.records import Message, Request

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"


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
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The root of a server with a handler of its connections."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def sent(root: str, times: int = 1) -> list[ServerResponse]:
    """The responses to requests that follow each other."""
    client = HttpClient(root, {"X-Header": "one"}, 20.0)
    try:
        return [await client.send("POST", f"{root}/a?b=c+d", b"body") for _ in range(times)]
    finally:
        await client.close()


def talk(serve: Serve, times: int = 1, tls: ssl.SSLContext | None = None) -> list[ServerResponse]:
    """The responses of a server to requests that follow each other."""

    async def run() -> list[ServerResponse]:
        async with listening(serve, tls) as root:
            return await sent(root, times)

    return asyncio.run(run())


async def query(url: str) -> str:
    """The answer of a model to a query."""
    async with HttpEndpoint(Address(url, "m"), environ={}) as endpoint:
        return (await endpoint.ask(Request((Message("user", "?"),), {}))).text


def test_headers_of_a_refusal() -> None:
    """Headers are read in any case, and one that is no text spoils nothing."""
    head = b"HTTP/1.1 429 No\r\ncOnTeNt-LeNgTh: 5\r\nRETRY-AFTER: 7\r\nX: \xe9\r\n\r\nhello"
    (response,) = talk(Scripted([head]))
    assert (response.status, response.body) == (429, b"hello")
    assert response.headers == {"content-length": "5", "retry-after": "7"}


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Content-Length: five\r\n\r\nhello",
        OK + b"Content-Length: 9\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Encoding: br\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Encoding: other\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Encoding: \xe9\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 12\r\n\r\n" + gzip.compress(b"hello", mtime=0)[:12],
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
def test_what_is_no_reply_is_an_error(reply: bytes) -> None:
    """A reply that is not HTTP, breaks off or cannot be unpacked may come whole the next time."""
    with pytest.raises(RetryableError, match="breaks off" if reply else "the server disconnected"):
        talk(Scripted([reply], closes=True))


@pytest.mark.parametrize(
    "reply",
    [
        OK + b"X: " + b"x" * 1_000_000,
        OK + b"Content-Length: 9999999999\r\n\r\n" + b"x" * 5_000_000,
        OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(bytes(20_000_000)),
    ],
    ids=["head", "body", "unpacked"],
)
def test_endless_replies_are_cut_off(reply: bytes) -> None:
    """Neither headers nor a body nor what it unpacks to can fill the memory."""
    with pytest.raises(RetryableError, match=r"a reply of more than|not valid HTTP"):
        talk(Scripted([reply], closes=True))


def test_nobody_there() -> None:
    """Nobody listening is a wrong address, and an outage once the server has answered; nothing is sent."""
    with socket.socket() as deaf:  # bound, so that nobody else listens there either
        deaf.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(FatalError, match=f"^cannot reach {host}: Connection refused: check"):
            asyncio.run(sent(f"http://{host}"))

    async def outage() -> None:
        last = PLAIN.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
        async with listening(Scripted([last])) as root:
            client = HttpClient(root, {}, 5.0)
            await client.send("POST", root, b"body")
        try:
            await client.send("POST", root, b"body")
        finally:
            await client.close()

    with pytest.raises(RetryableError, match=r"the connection failed: .*: Connection refused"):
        asyncio.run(outage())


def test_a_stranger_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that the system does not trust ends the connection; one that it trusts does not."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    both = tmp_path / "both.pem"  # a certificate that nobody has signed but itself, and its key
    how = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -out - -addext"
    fields = ("subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
    made = subprocess.run([*how.split(), *fields, "-keyout", str(both)], capture_output=True, check=True)
    both.write_bytes(both.read_bytes() + made.stdout)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(both)
    server = Scripted([PLAIN])
    with pytest.raises(FatalError, match=r"invalid peer certificate.*check .* its certificate"):
        talk(server, tls=tls)
    assert not server.requests
    monkeypatch.setenv("SSL_CERT_FILE", str(both))
    assert [response.body for response in talk(server, 2, tls=tls)] == [b"hello"] * 2


def test_closing_ends_what_is_under_way() -> None:
    """A request that is under way when the client closes fails, and a cancelled one leaves nothing behind."""

    async def run() -> None:
        async with listening(Scripted([])) as root:
            client = HttpClient(root, {}, 20.0)
            cancelled, closed = (asyncio.create_task(client.send("POST", root, b"body")) for _ in range(2))
            await asyncio.sleep(0.1)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await client.close()
            await client.close()
        await closed

    with pytest.raises(RetryableError, match="the connection failed"):
        asyncio.run(run())


def test_a_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names a proxy for another machine, the query goes to the proxy."""
    reply = b'{"choices":[{"message":{"role":"assistant","content":"Yes"},"finish_reason":"stop"}]}'
    server = Scripted([OK + b"Content-Length: %d\r\n\r\n%b" % (len(reply), reply)])

    async def run() -> str:
        async with listening(server) as proxy:
            monkeypatch.setenv("http_proxy", proxy)
            return await query("http://model.invalid/v1")

    assert asyncio.run(run()) == "Yes"
    assert server.requests[0].startswith(b"POST http://model.invalid/v1/chat/completions ")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy gets its password, and a refusal shows neither the password nor what the proxy says."""
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 hunter2\r\nContent-Length: 7\r\n\r\nhunter2")
        await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def run() -> None:
        async with listening(refuse) as proxy:
            monkeypatch.setenv(f"{scheme}_proxy", proxy.replace("//", "//me:hunter2@"))
            await query(f"{scheme}://model.invalid/v1")

    with pytest.raises(FatalError) as caught:
        asyncio.run(run())
    assert b"basic bwu6ahvudgvymg==" in heads[0].lower()
    if scheme == "https":
        assert heads[0].startswith(b"CONNECT model.invalid:443 ")
        assert "the proxy refuses the connection" in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_hosts_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine itself, and hosts that NO_PROXY names, are reached directly."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert talk(Scripted([PLAIN]))[0].body == b"hello"
    monkeypatch.setenv("no_proxy", "model.invalid")
    with pytest.raises(FatalError, match="not known"):
        asyncio.run(sent("http://model.invalid/v1"))


def test_a_second_run_in_one_process() -> None:
    """Clients work in one thread after the other, whichever thread was the first to need one."""
    script = """
import asyncio, threading
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import EndpointError

async def ask():
    async with HttpEndpoint(Address("http://127.0.0.1:9/v1", "m"), environ={}) as endpoint:
        return await asyncio.gather(*(endpoint.models() for _ in range(50)), return_exceptions=True)

def run():
    assert all(isinstance(error, EndpointError) for error in asyncio.run(ask()))

for _ in range(3):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
print("done")
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
