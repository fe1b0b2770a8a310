"""Files and batches over HTTP as OpenAI serves them, for a recording; used to try out ``--batch``.

It has no clock. A batch advances one step whenever its status is requested or, with ``looks=None``, when
:meth:`Desk.step` is called, so a test can hold it at any step. Like the real service, it validates a file
before it answers any of it, writes the results of failed requests to a separate file, and does not
guarantee the order of lines.
"""

from __future__ import annotations

import email.parser
import email.policy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np

from blindcal.simulation.http_server import HttpRequest, HttpResponse, json_response
from blindcal.untrusted_json import JsonError, read_json

Answer: TypeAlias = Callable[[bytes, bool], HttpResponse]

_BORN = 1_700_000_000  # Unix seconds; creation times count up from here, one second per file or batch
_ENDPOINTS = {"/v1/chat/completions": True, "/v1/completions": False}


class BatchRequest(msgspec.Struct):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_LINE = msgspec.json.Decoder(BatchRequest)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


@dataclass(slots=True)
class HeldBatch:
    """A batch under way or ended: what clients see of it, and the statuses still to come."""

    shown: dict[str, Any]
    lines: list[BatchRequest]
    life: list[str]
    problems: list[dict[str, Any]]


class Desk:
    """Accepts files and batches and serves the results; ``answer`` answers each request of a batch."""

    most_requests = 50_000
    most_bytes = 200_000_000
    answered = 0.5  # share of a batch's requests that are answered if it does not complete

    def __init__(self, answer: Answer, looks: int | None = 2) -> None:
        self.answer = answer
        self.looks = looks
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        self.batches: dict[str, HeldBatch] = {}
        self._rng = np.random.default_rng(0)
        self._made = 0

    def handle(self, request: HttpRequest) -> HttpResponse | None:
        """The response to a request about files or batches; ``None`` for any other."""
        url = urlsplit(request.path)
        parts = url.path.rstrip("/").split("/")
        start = next((k for k, part in enumerate(parts) if part in ("files", "batches")), None)
        if start is None:
            return None
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        match (request.method, *parts[start:]):
            case ("POST", "files"):
                return self._upload(request)
            case ("GET", "files"):
                wanted = query.get("purpose")
                files = [one for one in self.files.values() if wanted in (None, one["purpose"])]
                return _page(files, query, 10_000)
            case ("GET", "files", name) if name in self.files:
                return json_response(self.files[name])
            case ("GET", "files", name, "content") if name in self.contents:
                return HttpResponse(self.contents[name], content_type="application/octet-stream")
            case ("GET", "files", name) | ("GET", "files", name, "content"):
                return error_response(404, f"No such File object: {name}")
            case ("POST", "batches"):
                return self._create(request.body)
            case ("GET", "batches"):
                return _page([held.shown for held in self.batches.values()], query, 20)
            case ("GET", "batches", name) if name in self.batches:
                return self._look(self.batches[name])
            case ("POST", "batches", name, "cancel") if name in self.batches:
                return self._cancel(self.batches[name])
            case ("GET", "batches", name) | ("POST", "batches", name, "cancel"):
                return error_response(404, f"No batch found with id '{name}'")
        return error_response(404, f"Unknown request URL: {request.method} {url.path}")

    def step(self) -> None:
        """Advance every batch by one step."""
        for held in self.batches.values():
            self._advance(held)

    # Files

    def _upload(self, request: HttpRequest) -> HttpResponse:
        head = b"Content-Type: " + request.headers.get("content-type", "").encode() + b"\r\n\r\n"
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body)
        parts = {part.get_param("name", header="content-disposition"): part for part in form.iter_parts()}
        if not {"file", "purpose"} <= parts.keys():
            return error_response(400, "a file needs the form fields 'file' and 'purpose'")
        purpose = str(parts["purpose"].get_payload()).strip()
        content = parts["file"].get_payload(decode=True)
        assert isinstance(content, bytes)
        if len(content) > self.most_bytes:
            return error_response(413, f"File size exceeds the limit of {self.most_bytes} bytes")
        return json_response(self._keep(content, parts["file"].get_filename() or "upload", purpose))

    def _keep(self, content: bytes, filename: str, purpose: str) -> dict[str, Any]:
        self._made += 1
        name = f"file-{self._made:08d}"
        shown = {
            "id": name,
            "object": "file",
            "bytes": len(content),
            "created_at": self._now(),
            "filename": filename,
            "purpose": purpose,
            "status": "processed",
        }
        self.files[name], self.contents[name] = shown, content
        return shown

    # Batches

    def _create(self, body: bytes) -> HttpResponse:
        try:
            wanted = read_json(body, _OBJECT)
        except JsonError as error:
            return error_response(400, str(error))
        file = self.files.get(str(wanted.get("input_file_id")))
        if file is None or file["purpose"] != "batch":
            return error_response(400, "input_file_id: no such file of purpose 'batch'")
        if wanted.get("completion_window") != "24h" or wanted.get("endpoint") not in _ENDPOINTS:
            return error_response(400, "completion_window must be '24h' and endpoint one that batches serve")
        lines, problems = self._validated(self.contents[file["id"]], wanted["endpoint"])
        return json_response(self._admit(wanted, lines, problems).shown)

    def _validated(self, content: bytes, endpoint: str) -> tuple[list[BatchRequest], list[dict[str, Any]]]:
        lines, problems, seen = [], [], set()
        for number, raw in enumerate(content.splitlines(), 1):
            try:
                line = read_json(raw, _LINE)
            except JsonError as error:
                problems.append(problem("invalid_json_line", str(error), number))
                continue
            if line.url != endpoint or line.method != "POST":
                problems.append(problem("invalid_url", f"the batch is for POST {endpoint}", number))
            if line.custom_id in seen:
                problems.append(problem("duplicate_custom_id", f"{line.custom_id} twice", number))
            seen.add(line.custom_id)
            lines.append(line)
        if not lines and not problems:
            problems.append(problem("empty_file", "the file is empty", None))
        if len(lines) > self.most_requests:
            problems.append(problem("too_many_tasks", f"more than {self.most_requests} requests", None))
        return lines, problems

    def _admit(
        self, wanted: dict[str, Any], lines: list[BatchRequest], problems: list[dict[str, Any]]
    ) -> HeldBatch:
        self._made += 1
        name = f"batch_{self._made:08d}"
        steps = self.looks or 3
        life = (["in_progress"] * (steps - 2) + ["finalizing", "completed"])[-steps:]
        held = HeldBatch(
            {
                "id": name,
                "object": "batch",
                "endpoint": wanted["endpoint"],
                "errors": None,
                "input_file_id": wanted["input_file_id"],
                "completion_window": "24h",
                "status": "validating",
                "output_file_id": None,
                "error_file_id": None,
                "created_at": self._now(),
                "expires_at": self._now() + 86_400,
                "request_counts": {"total": 0, "completed": 0, "failed": 0},
                "metadata": wanted.get("metadata"),
            },
            lines,
            ["failed"] if problems else life,
            problems,
        )
        self.batches[name] = held
        return held

    def _look(self, held: HeldBatch) -> HttpResponse:
        if self.looks is not None:
            self._advance(held)
        return json_response(held.shown)

    def _cancel(self, held: HeldBatch) -> HttpResponse:
        if not held.life:
            return error_response(409, f"Cannot cancel a batch with status '{held.shown['status']}'")
        held.life = ["cancelled"]
        held.shown |= {"status": "cancelling", "cancelling_at": self._now()}
        return json_response(held.shown)

    def _advance(self, held: HeldBatch) -> None:
        if not held.life:
            return
        status = held.life.pop(0)
        held.shown |= {"status": status, f"{status}_at": self._now()}
        if status == "failed":
            held.shown["errors"] = {"object": "list", "data": held.problems}
            return
        counts = held.shown["request_counts"]
        counts["total"] = len(held.lines)
        counts["completed"] = len(held.lines) // (1 + len(held.life))
        if not held.life:
            self._finish(held, status)

    def _finish(self, held: HeldBatch, status: str) -> None:
        """Answer all requests of a batch, or a share if it ends early, and write its two files."""
        reached = len(held.lines) if status == "completed" else int(self.answered * len(held.lines))
        refusal = {"code": f"batch_{status}", "message": f"This request was not executed: {status}."}
        good: list[bytes] = []
        bad: list[bytes] = []
        for place, index in enumerate(self._rng.permutation(len(held.lines))):
            line = held.lines[index]
            if place >= reached:
                bad.append(output_line(line.custom_id, None, refusal))
                continue
            for response in self._responses(line):
                written = output_line(line.custom_id, response, None)
                (good if response.status == 200 else bad).append(written)
        held.shown["request_counts"] |= {"completed": len(good), "failed": len(bad)}
        for name, lines in (("output", good), ("error", bad)):
            if lines:
                kept = self._keep(b"".join(lines), f"{held.shown['id']}_{name}.jsonl", "batch_output")
                held.shown[f"{name}_file_id"] = kept["id"]

    def _responses(self, line: BatchRequest) -> list[HttpResponse]:
        """The responses to write for one line of the batch: one."""
        return [self.answer(bytes(line.body), _ENDPOINTS[line.url])]

    def _now(self) -> int:
        return _BORN + self._made


def _page(entries: list[dict[str, Any]], query: dict[str, str], usual: int) -> HttpResponse:
    """One page of a list, newest first."""
    newest = entries[::-1]
    ids = [str(entry["id"]) for entry in newest]
    start = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
    page = newest[start : start + int(query.get("limit", usual))]
    shown = {"object": "list", "data": page, "has_more": start + len(page) < len(newest)}
    if page:
        shown |= {"first_id": page[0]["id"], "last_id": page[-1]["id"]}
    return json_response(shown)


def output_line(custom_id: str, response: HttpResponse | None, error: dict[str, str] | None) -> bytes:
    """One line of a batch's results."""
    answer = None
    if response is not None:
        answer = {
            "status_code": response.status,
            "request_id": f"req-{custom_id}",
            "body": msgspec.Raw(response.body),
        }
    line = {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": answer, "error": error}
    return msgspec.json.encode(line) + b"\n"


def problem(code: str, message: str, line: int | None) -> dict[str, Any]:
    """One reason why a batch failed, as clients see it."""
    return {"code": code, "message": message, "param": None, "line": line}


def error_response(status: int, message: str, code: str = "invalid_request_error") -> HttpResponse:
    """An error response with a message and a code."""
    return json_response({"error": {"message": message, "type": code, "code": code, "param": None}}, status)
