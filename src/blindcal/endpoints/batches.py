"""The Files and Batches APIs of an OpenAI-compatible service: a file of requests in, a file of replies out.

Nothing is retried or kept here: the caller's store records what was submitted. If the outcome of a call is
unknown, the caller can find what was created by a token of its choice: a file by its name, a batch by its
metadata.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec

from blindcal.endpoints import http_errors as failures
from blindcal.endpoints import replies, secrets
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import ConfigError, EndpointError, FatalError, ReplyError, RetryableError
from blindcal.records import Reply, Request
from blindcal.text import printable
from blindcal.untrusted_json import JsonError, read_json

MOST_REQUESTS = 50_000
MOST_BYTES = 200_000_000
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})

_TOKEN = "blindcal"  # key of the token in a batch's metadata
_NOT_OFFERED = frozenset({404, 405, 501})
_MAX_REPLY_BYTES = 4 * 2**20
_MAX_LINE_BYTES = 8 * 2**20
_TRANSFER_SECONDS = 3600.0  # for an upload or a download of 200 MB


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why a batch as a whole was not accepted."""

    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as the service reports it, read leniently: only the id has to be there."""

    id: str
    status: str = "unknown"
    output_file_id: str | None = None
    error_file_id: str | None = None
    completed: int = 0
    failed: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether the batch has ended; one with an unknown status has not."""
        return self.status in ENDED

    @property
    def unwritten(self) -> bool:
        """Whether it has answers but no output file yet."""
        return self.completed > 0 and self.output_file_id is None

    @property
    def codes(self) -> set[str]:
        """The codes of its problems as a whole."""
        return {problem.code for problem in self.problems}

    @property
    def said(self) -> str:
        """The first of its problems as a whole, on one line that is safe to show."""
        return printable("; ".join(problem.message or problem.code for problem in self.problems[:3]))


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of a batch's output: a reply, or the error in its place."""

    custom_id: str
    reply: Reply | None = None
    error: EndpointError | None = None


class NoListError(FatalError):
    """A list of files or batches cannot be read to its end, so it does not show what is not there."""


class Batches:
    """The batch operations of an endpoint, which the caller closes."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        if endpoint.address.api_version is not None:
            raise ConfigError(
                "Azure's batch deployments answer nothing live, so they cannot be probed and audited",
                remedy="leave {batch} out, and audit a standard deployment",
                options={"batch": True},
            )
        self._endpoint = endpoint
        self._chat = endpoint.address.api == "chat"
        self._url = "/v1/chat/completions" if self._chat else "/v1/completions"
        longer = max(_TRANSFER_SECONDS, endpoint.address.timeout)
        self._transfer = aiohttp.ClientTimeout(total=longer)

    async def check(self) -> None:
        """Raise `FatalError` if the service has no files or batches; costs nothing."""
        for path in ("/files", "/batches"):
            query = {"limit": "1"} | ({"purpose": "batch"} if path == "/files" else {})
            status, raw = await self._call("GET", path, query, accepted=_NOT_OFFERED)
            if status in _NOT_OFFERED:
                raise _no_batches(f"{status} at {path}")
            if not raw.lstrip().startswith(b"{"):
                raise _no_batches(f"{path} is no list")

    def line(self, custom_id: str, request: Request) -> bytes:
        """One request as a line of an input file."""
        body = self._endpoint.body(request)
        head = msgspec.json.encode({"custom_id": custom_id, "method": "POST", "url": self._url})
        return b'%b,"body":%b}\n' % (head[:-1], body)

    async def upload(self, name: str, content: bytes) -> str:
        """Store an input file under a name; returns its id."""
        with aiohttp.MultipartWriter("form-data") as form:
            form.append("batch").set_content_disposition("form-data", name="purpose")
            part = form.append(io.BytesIO(content), {"Content-Type": "application/jsonl"})
            part.set_content_disposition("form-data", name="file", filename=name)
        headers = {"Content-Type": form.content_type}
        _, raw = await self._call("POST", "/files", data=form, headers=headers, timeout=self._transfer)
        file_id = _id(self._decoded(raw).get("id"))
        if file_id is None:
            raise RetryableError("the endpoint's reply to an upload names no file")
        return file_id

    async def find_file(self, name: str, size: int) -> str | None:
        """The id of the input file stored under a name, if it is complete."""
        async for entry in self._listed("/files", {"purpose": "batch", "limit": "1000"}):
            if entry.get("filename") == name and entry.get("bytes") == size:
                return _id(entry.get("id"))
        return None

    async def create(self, file_id: str, token: str) -> RemoteBatch | EndpointError:
        """Create a batch from a stored file; it carries the token in its metadata.

        Returns the error if the service says that it refuses. Raises `RetryableError` if it is unknown
        whether the batch was created, unless the error is ``unsent``.
        """
        body = {
            "input_file_id": file_id,
            "endpoint": self._url,
            "completion_window": "24h",
            "metadata": {_TOKEN: token},
        }
        status, headers, raw = await self._send("POST", "/batches", data=msgspec.json.encode(body))
        if not _is_success(status):
            refusal = self._endpoint._refusal(status, headers, raw)
            if _may_have_acted(status):
                raise refusal
            return refusal
        created = _remote(self._decoded(raw))
        if created is None:
            raise RetryableError("the endpoint's reply to a new batch names no batch")
        return created

    async def find(self, token: str, file_id: str) -> RemoteBatch | None:
        """The batch that carries a token or was created from a file, if the whole list shows one."""
        async for entry in self._listed("/batches", {"limit": "100"}):
            metadata = entry.get("metadata")
            marked = isinstance(metadata, dict) and metadata.get(_TOKEN) == token
            if marked or _id(entry.get("input_file_id")) == file_id:
                found = _remote(entry)
                if found is None:
                    raise NoListError("the endpoint's list at /batches names no ids")
                return found
        return None

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch, which keeps the answers it has; one that has ended does not change."""
        await self._call("POST", f"/batches/{batch_id}/cancel", accepted={400, 409})

    async def look(self, batch_id: str) -> RemoteBatch:
        """The current state of a batch."""
        status, raw = await self._call("GET", f"/batches/{batch_id}", accepted={404})
        if status == 404:
            raise FatalError(
                f"the endpoint knows no batch {printable(batch_id, 80)} (404): is the API key of the same "
                "project as the one it was submitted with?"
            )
        found = _remote({**self._decoded(raw), "id": batch_id})
        assert found is not None
        return found

    async def lines(self, file_id: str, *, free_text: bool = False) -> AsyncIterator[BatchLine]:
        """The lines of an output or error file; a line that names no request is skipped.

        ``free_text`` says that longer answers than a word were asked for (see `replies.read`).
        """
        path = f"/files/{file_id}/content"
        async with _opened(self._endpoint, "GET", path, timeout=self._transfer) as response:
            if response.status in (404, 410):
                raise FatalError(
                    f"the endpoint has no file {printable(file_id, 80)} ({response.status}): providers keep "
                    "a batch's files for some weeks; what it held has to be asked again, in a new run"
                )
            if response.status != 200:
                raise self._endpoint._refusal(response.status, response.headers, await response.read())
            async for raw in response.lines():
                if (line := self._line(raw, free_text)) is not None:
                    yield line

    def _line(self, raw: bytes, free_text: bool) -> BatchLine | None:
        try:
            return self._parsed(raw, free_text)
        except JsonError:
            # It may have been billed, so if it says whose answer it is, that query is not asked again.
            named = _NAMED.search(raw)
            return named and BatchLine(
                named[1].decode("utf-8", "replace"),
                error=ReplyError("the line with this answer cannot be read"),
            )

    def _parsed(self, raw: bytes, free_text: bool) -> BatchLine:
        found = read_json(raw, _OUTPUT)
        if found.response is None or found.error:
            said = failures.said(msgspec.json.encode(found.error)) if found.error else "no reason given"
            return BatchLine(found.custom_id, error=RetryableError(f"not answered: {said}"))
        body = bytes(found.response.body)
        try:
            reply = replies.read(found.response.status_code, body, chat=self._chat, free_text=free_text)
        except EndpointError as error:
            return BatchLine(found.custom_id, error=error)
        if isinstance(reply, Reply):
            return BatchLine(found.custom_id, reply)
        return BatchLine(found.custom_id, error=self._endpoint._refusal(reply, {}, body))

    async def _listed(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Every entry of a list, from all its pages."""
        after: str | None = None
        seen: set[str | None] = set()
        while True:
            wanted = query if after is None else {**query, "after": after}
            status, headers, raw = await self._send("GET", path, wanted)
            if not _is_success(status):
                refusal = self._endpoint._refusal(status, headers, raw)
                if status == 401 or isinstance(refusal, RetryableError):
                    raise refusal
                raise NoListError(f"the endpoint does not show its list at {path} ({status})")
            page = self._decoded(raw)
            found = page.get("data")
            if not isinstance(found, list):
                raise NoListError(f"what the endpoint sends for {path} is not a list of OpenAI's form")
            entries = [entry for entry in found if isinstance(entry, dict)]
            for entry in entries:
                yield entry
            if not page.get("has_more", len(found) >= int(query["limit"])):
                return
            seen.add(after)
            after = _id(entries[-1].get("id")) if entries else None
            if after in seen:
                raise NoListError(f"the pages of the endpoint's list at {path} do not end")

    def _decoded(self, raw: bytes) -> dict[str, Any]:
        try:
            return read_json(raw.decode("utf-8", "replace").encode(), _OBJECT)
        except JsonError:
            raise RetryableError("the endpoint's reply about a file or batch is not a JSON object") from None

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accepted: Collection[int] = (),
        **options: Any,
    ) -> tuple[int, bytes]:
        """The status and body of a response; any but a success or one that is `accepted` raises."""
        status, headers, raw = await self._send(method, path, query, **options)
        if not _is_success(status) and status not in accepted:
            raise self._endpoint._refusal(status, headers, raw)
        return status, raw

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None = None, **options: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        """The status, headers and body of a response."""
        async with _opened(self._endpoint, method, path, query, **options) as response:
            return response.status, response.headers, await response.read()


class _RedactedResponse:
    """A response whose body is read without the API key, however much of it the server repeats."""

    def __init__(self, response: aiohttp.ClientResponse, redact: secrets.Redactor) -> None:
        self._response, self._redact = response, redact
        self.status, self.headers = response.status, response.headers

    async def read(self) -> bytes:
        """The whole body; raises an error if it is larger than `_MAX_REPLY_BYTES`."""
        response, length = self._response, self._response.content_length
        if length is not None and length <= _MAX_REPLY_BYTES and "Content-Encoding" not in self.headers:
            return self._redact(await response.read())
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > _MAX_REPLY_BYTES:
                raise failures.too_large(_MAX_REPLY_BYTES)
        return self._redact(b"".join(chunks))

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of a body of any length; only the beginning of one longer than `_MAX_LINE_BYTES`."""
        line = b""
        async for chunk in self._response.content.iter_any():
            first, *more = chunk.split(b"\n")
            line += first[: max(0, _MAX_LINE_BYTES - len(line))]
            for following in more:
                yield self._redact(line)
                line = following
        yield self._redact(line)


@contextlib.asynccontextmanager
async def _opened(
    endpoint: HttpEndpoint, method: str, path: str, query: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[_RedactedResponse]:
    """Send a request below the base URL and yield its unread response; failures become endpoint errors."""
    root, timeout = endpoint._root, aiohttp.ClientTimeout(total=endpoint.address.timeout)
    both = "&".join(part for part in (root.query, urlencode(query or {})) if part)
    url = root._replace(path=root.path.rstrip("/") + path, query=both).geturl()
    try:
        async with (
            aiohttp.ClientSession(headers=endpoint._headers, timeout=timeout, trust_env=True) as session,
            session.request(method, url, allow_redirects=False, **options) as response,
        ):
            yield _RedactedResponse(response, endpoint._redact)
    except TimeoutError:
        raise RetryableError(f"no reply from {root.hostname} in time") from None
    except (aiohttp.ClientError, OSError) as error:
        unsent = isinstance(error, aiohttp.ClientConnectorError)
        raise RetryableError(f"the connection failed: {root.hostname}", unsent=unsent) from None


def _no_batches(why: str) -> FatalError:
    return FatalError(
        f"this endpoint has no batches ({why})",
        remedy="leave {batch} out to ask it live",
        options={"batch": True},
    )


class _Response(msgspec.Struct):
    status_code: int = 200
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Output(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: Any = None


_OUTPUT = msgspec.json.Decoder(_Output)
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_NAMED = re.compile(rb'"custom_id"\s*:\s*"([^"\\]+)"')  # in a line that is not valid JSON


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _may_have_acted(status: int) -> bool:
    """Whether a service that answers with this failure may still have done what was asked."""
    return status in (408, 409) or (status >= 500 and status not in (501, 503))


def _remote(found: Mapping[str, Any]) -> RemoteBatch | None:
    """The batch in a JSON object; ``None`` if it has no id."""
    batch_id = _id(found.get("id"))
    if batch_id is None:
        return None
    counts = found.get("request_counts")
    counts = counts if isinstance(counts, dict) else {}
    return RemoteBatch(
        batch_id,
        str(found.get("status") or "unknown").lower(),
        _id(found.get("output_file_id")),
        _id(found.get("error_file_id")),
        _count(counts.get("completed")),
        _count(counts.get("failed")),
        _problems(found.get("errors")),
    )


def _id(value: object) -> str | None:
    """An id, which some services write as a number; ``None`` if there is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _problems(errors: Any) -> tuple[Problem, ...]:
    listed = errors.get("data") if isinstance(errors, dict) else errors
    return tuple(
        Problem(str(one.get("code") or ""), str(one.get("message") or ""))
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict)
    )
