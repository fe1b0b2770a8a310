"""The HTTP client that sends every request, built on pyreqwest (see ``docs/decisions/http-client.md``).

It promises: certificates are verified, proxies come from the environment, redirects are not followed, nothing
that may have been sent is sent again, requests have a deadline and replies a maximum size, and every failure
is an `EndpointError` that quotes neither a URL nor a reply.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from urllib.request import getproxies, proxy_bypass

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import DecodeError, PyreqwestError
from pyreqwest.proxy import ProxyBuilder
from pyreqwest.response import Response

from blindcal.endpoints.address import authority, is_loopback, web_url
from blindcal.errors import EndpointError, FatalError, RetryableError
from blindcal.text import printable

# By pyreqwest's class names, of which the nearest ancestor counts. Its own texts quote URLs or replies, which
# may hold a secret.
_REASONS = {
    "DecodeError": "the reply is not valid HTTP, breaks off, or cannot be unpacked",
    "ReadError": "the reply breaks off",
    "NetworkError": "the server disconnected",
    **dict.fromkeys(("BuilderError", "ValueError"), "the URL of the endpoint or of the proxy is not valid"),
}
_CONNECTING = "client error (Connect)"
_OS_ERROR = re.compile(r"\A(.*) \(os error (\d+)\)\Z", re.DOTALL)

# pyreqwest's threads must release Python objects before exit, or they abort the process.
atexit.register(time.sleep, 0.1)

MAX_REPLY_BYTES = 4 * 2**20
_IDLE = timedelta(seconds=15)  # servers and routers may forget a connection after this
_LONGEST = 10 * 366 * 86_400.0  # seconds; fits in a timedelta


@dataclass(frozen=True, slots=True)
class ServerResponse:
    status: int
    fields: Mapping[str, str]
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """The headers that are text, with names in lower case."""
        headers = {}
        for name in self.fields:
            with contextlib.suppress(ValueError):  # it has other bytes
                headers[name.lower()] = self.fields[name]
        return headers


class HttpClient:
    """Keep-alive connections to the server of one URL, one per concurrent request."""

    def __init__(self, root: str, headers: Mapping[str, str], timeout: float) -> None:
        self._authority = authority(web_url(root))
        self._client = _client(root, headers, timeout)
        self._reached = False

    async def send(self, method: str, url: str, body: bytes | None = None) -> ServerResponse:
        """Send a request and return its whole response; every failure is an `EndpointError`."""
        try:
            request = self._client.request(method, url)
            if body is not None:
                request = request.body_bytes(body)
            async with request.build_streamed() as response:
                content = await response.body_reader.read(MAX_REPLY_BYTES + 1)
                if response.status < 200 or _is_packed(response):
                    raise DecodeError("neither switched nor unpacked", {"causes": None})
        except (PyreqwestError, ValueError) as error:
            raise from_exception(error, self._authority, reached=self._reached) from None
        self._reached = True
        raw = b"" if content is None else content.to_bytes()
        if len(raw) > MAX_REPLY_BYTES:
            raise RetryableError(f"the endpoint sent a reply of more than {MAX_REPLY_BYTES:,} bytes")
        return ServerResponse(response.status, response.headers, raw)

    async def close(self) -> None:
        await self._client.close()


def _is_packed(response: Response) -> bool:
    """Whether a body is still encoded; pyreqwest drops the header of an encoding that it undoes."""
    try:
        return response.get_header("Content-Encoding") not in (None, "identity")
    except ValueError:
        return True


def _client(root: str, headers: Mapping[str, str], timeout: float) -> Client:
    always = {"User-Agent": f"blindcal/{version('blindcal')}", "Accept-Encoding": "identity"}
    builder = (
        ClientBuilder()
        .default_headers({**always, **headers})
        .timeout(timedelta(seconds=min(timeout, _LONGEST)))
        .pool_idle_timeout(_IDLE)
        .follow_redirects(False)
        .referer(False)
        .no_proxy()
    )
    proxy = _proxy(root)
    return (builder if proxy is None else builder.proxy(ProxyBuilder.all(proxy))).build()


def _proxy(root: str) -> str | None:
    """The proxy for a URL from the environment; loopback never uses one."""
    url = web_url(root)
    proxy = getproxies().get(url.scheme)
    if proxy is None or is_loopback(url.hostname or "") or proxy_bypass(url.hostname or ""):
        return None
    try:
        web_url(proxy)
    except ValueError:
        raise FatalError(
            f"{url.scheme}_proxy in the environment is not the URL of a proxy, http://HOST:PORT; correct it, "
            "or unset it if no proxy is needed"
        ) from None
    return proxy


def from_exception(error: Exception, authority: str, *, reached: bool) -> EndpointError:
    """Convert a pyreqwest error; ``reached`` says whether the endpoint has ever answered."""
    causes = [cause["message"] for cause in (getattr(error, "details", None) or {}).get("causes") or ()]
    system = _OS_ERROR.match(causes[-1]) if causes else None
    if system and int(system[2]) in (errno.EMFILE, errno.ENFILE):
        return FatalError(
            f"too many open files to connect to {authority}",
            remedy="raise the limit (ulimit -n), or lower {concurrency}",
            options={"concurrency": ...},
        )
    if isinstance(error, TimeoutError):
        return RetryableError(f"no reply from {authority} in time")
    kinds = [kind.__name__ for kind in type(error).__mro__]
    passing = isinstance(error, PyreqwestError) and {"RedirectError", "BuilderError"}.isdisjoint(kinds)
    unreached = False
    reason = next((_REASONS[kind] for kind in kinds if kind in _REASONS), kinds[0])
    if _CONNECTING in causes:
        reason = causes[-1].removeprefix("failed to lookup address information: ")
        unreached = "dns error" in causes or system is not None or reason == "tls handshake eof"
        passing = unreached
        if reason.startswith("tunnel error"):
            reason = "the proxy refuses the connection"
    what = f"{authority}: {printable(system[1] if system else reason)}"
    if not passing:
        return FatalError(f"cannot talk to {what}: check the base URL, its certificate and any proxy")
    if unreached and not reached:  # once the endpoint has answered, it is an outage
        return FatalError(f"cannot reach {what}: check the base URL, and that the server runs")
    return RetryableError(f"the connection failed: {what}")
