"""The Files and Batches APIs of an OpenAI-compatible service: a file of requests in, a file of replies out.

Nothing is retried or kept here: the caller's store records what was submitted. If the outcome of a call is
unknown, the caller can find what was created by a token of its choice: a file by its name, a batch by its
metadata.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec

from blindcal.endpoints import http_errors as failures
from blindcal.endpoints import replies
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
_TRANSFER_SECONDS = 3600.0  # for an upload or a download of 200 MB

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests of a batch were answered, and how many failed."""

    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why a batch as a whole was not accepted."""

    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Problems:
    """The problems of a batch, in the form that the service sends."""

    data: list[Problem] | None = None


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as the service reports it."""

    id: str
    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: RequestCounts | None = None
    errors: Problems | None = None
    metadata: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether the batch has ended; one with an unknown status has not."""
        return self.status.lower() in ENDED

    @property
    def completed(self) -> int:
        """The number of its requests that were answered."""
        return self.request_counts.completed if self.request_counts else 0

    @property
    def failed(self) -> int:
        """The number of its requests that failed."""
        return self.request_counts.failed if self.request_counts else 0

    @property
    def unwritten(self) -> bool:
        """Whether it has answers but no output file yet."""
        return self.completed > 0 and self.output_file_id is None

    @property
    def codes(self) -> set[str]:
        """The codes of its problems as a whole."""
        return {problem.code or "" for problem in (self.errors and self.errors.data) or ()}

    @property
    def said(self) -> str:
        """The first of its problems as a whole, on one line that is safe to show."""
        problems = (self.errors and self.errors.data) or ()
        return printable("; ".join(problem.message or problem.code or "" for problem in problems[:3]))


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of a batch's output: a reply, or the error in its place."""

    custom_id: str
    reply: Reply | None = None
    error: EndpointError | None = None


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
            status, raw = await self._call("GET", path, query, accepted={200, *_NOT_OFFERED})
            if status != 200:
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
        found = await self._json("POST", "/files", data=form, headers=headers, timeout=self._transfer)
        return _convert(found, _File).id

    async def find_file(self, name: str, size: int) -> str | None:
        """The id of the input file stored under a name, if it is complete."""
        async for entry in self._listed("/files", {"purpose": "batch", "limit": "1000"}):
            if entry.get("filename") == name and entry.get("bytes") == size:
                return _convert(entry, _File).id
        return None

    async def create(self, file_id: str, token: str) -> RemoteBatch:
        """Create a batch from a stored file; it carries the token in its metadata."""
        body = {
            "input_file_id": file_id,
            "endpoint": self._url,
            "completion_window": "24h",
            "metadata": {_TOKEN: token},
        }
        return _convert(await self._json("POST", "/batches", data=msgspec.json.encode(body)), RemoteBatch)

    async def find(self, token: str, file_id: str) -> RemoteBatch | None:
        """The batch that carries a token or was created from a file, if there is one."""
        async for entry in self._listed("/batches", {"limit": "100"}):
            if (entry.get("metadata") or {}).get(_TOKEN) == token or entry.get("input_file_id") == file_id:
                return _convert(entry, RemoteBatch)
        return None

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch, which keeps the answers it has; one that has ended does not change."""
        await self._call("POST", f"/batches/{batch_id}/cancel", accepted={200, 400, 409})

    async def look(self, batch_id: str) -> RemoteBatch:
        """The current state of a batch."""
        status, raw = await self._call("GET", f"/batches/{batch_id}", accepted={200, 404})
        if status == 404:
            raise FatalError(
                f"the endpoint knows no batch {printable(batch_id, 80)} (404): is the API key of the same "
                "project as the one it was submitted with?"
            )
        return _convert(self._decoded(raw), RemoteBatch)

    async def lines(self, file_id: str) -> AsyncIterator[BatchLine]:
        """The lines of an output or error file; malformed lines are skipped."""
        url = self._endpoint.below(f"/files/{file_id}/content")
        async with self._endpoint.opened("GET", url, timeout=self._transfer) as response:
            if response.status in (404, 410):
                raise FatalError(
                    f"the endpoint has no file {printable(file_id, 80)} ({response.status}): providers keep "
                    "a batch's files for some weeks; what it held has to be asked again, in a new run"
                )
            if response.status != 200:
                raise self._endpoint.refusal(response.status, response.headers, await response.read())
            async for raw in response.lines():
                if (line := self._line(raw)) is not None:
                    yield line

    def _line(self, raw: bytes) -> BatchLine | None:
        try:
            found = read_json(raw, _OUTPUT)
        except JsonError as error:
            named = None if error.malformed else _CUSTOM_ID.search(raw)
            if named is None:
                return None
            unusable = ReplyError(f"the batch's output is not of OpenAI's form: {error}")
            return BatchLine(named[1].decode(), error=unusable)
        if found.response is None or found.error:
            said = failures.said(msgspec.json.encode(found.error)) if found.error else "no reason given"
            return BatchLine(found.custom_id, error=RetryableError(f"not answered: {said}"))
        body = bytes(found.response.body)
        try:
            reply = replies.read(found.response.status_code, body, chat=self._chat)
        except EndpointError as error:
            return BatchLine(found.custom_id, error=error)
        if isinstance(reply, Reply):
            return BatchLine(found.custom_id, reply)
        return BatchLine(found.custom_id, error=self._endpoint.refusal(reply, {}, body))

    async def _listed(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Every entry of a list, from all its pages."""
        after: str | None = None
        while True:
            page = await self._json("GET", path, query=query if after is None else {**query, "after": after})
            entries = [entry for entry in page.get("data") or () if isinstance(entry, dict)]
            for entry in entries:
                yield entry
            last = str(entries[-1].get("id")) if entries else after
            if not page.get("has_more") or last == after:
                return
            after = last

    async def _json(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, **options: Any
    ) -> dict[str, Any]:
        _, raw = await self._call(method, path, query, accepted={200, 201}, **options)
        return self._decoded(raw)

    def _decoded(self, raw: bytes) -> dict[str, Any]:
        try:
            return read_json(raw.decode("utf-8", "replace").encode(), _OBJECT)
        except JsonError:
            raise RetryableError("the endpoint's reply about a file or batch is not valid JSON") from None

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accepted: Collection[int],
        **options: Any,
    ) -> tuple[int, bytes]:
        """The status and body of a response; a status that is not `accepted` raises an endpoint error."""
        async with self._endpoint.opened(method, self._endpoint.below(path, query), **options) as response:
            raw = await response.read()
        if response.status not in accepted:
            raise self._endpoint.refusal(response.status, response.headers, raw)
        return response.status, raw


def _no_batches(why: str) -> FatalError:
    return FatalError(
        f"this endpoint has no batches ({why})",
        remedy="leave {batch} out to ask it live",
        options={"batch": True},
    )


class _File(msgspec.Struct):
    id: str


class _Response(msgspec.Struct):
    status_code: int = 200
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Output(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: Any = None


_OUTPUT = msgspec.json.Decoder(_Output)
_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([!-~]+?)"')  # in a line that cannot be decoded
_OBJECT = msgspec.json.Decoder(dict[str, Any])


def _convert(found: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise FatalError(
            f"the endpoint's batches are not of OpenAI's form: {printable(str(error))}"
        ) from None
