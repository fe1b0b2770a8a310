"""Files and batches over HTTP as OpenAI serves them, for a recording: what ``--batch`` is tried out on.

There is no clock in it. A batch moves one step along its life whenever somebody looks at it, or, with
``looks=None``, when :meth:`Desk.step` says so; a test can therefore hold it anywhere for as long as it
likes. Like the real service it validates a file before it answers any of it, keeps the results of requests
that failed in a file of their own, and promises nothing about the order of lines.
"""

from __future__ import annotations

import email.parser
import email.policy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np

from blindcal.simulation.http_server import HttpRequest, HttpResponse, json_response

Fate: TypeAlias = Literal["completed", "failed", "expired", "cancelled", "full"]
Trouble: TypeAlias = Literal["refused", "throttled", "lost"]
Answer: TypeAlias = Callable[[bytes, bool], HttpResponse]

_BORN = 1_700_000_000  # Unix seconds of the first thing created; each further one is a second younger
_ENDPOINTS = {"/v1/chat/completions": True, "/v1/completions": False}


@dataclass(frozen=True, slots=True)
class BatchBehaviour:
    """How the service around the batches departs from an ideal one.

    A batch ends as the next of ``fates`` says, and as completed once they are used up; ``full`` is a
    batch refused because too many tokens wait already. One that does not complete has answered
    ``answered`` of its requests. Shares of the lines get a 500 or 429 instead of an answer (``broken``),
    come twice (``doubled``) or not at all (``missing``); ``unknown`` lines answer nothing that was asked.
    """

    offered: bool = True
    looks: int | None = 2
    fates: tuple[Fate, ...] = ()
    answered: float = 0.5
    broken: float = 0.0
    doubled: float = 0.0
    missing: float = 0.0
    unknown: int = 0
    shuffled: bool = True
    most_requests: int = 50_000
    most_bytes: int = 200_000_000
    seed: int = 0


@dataclass(slots=True)
class _Held:
    """A batch under way or ended."""

    shown: dict[str, Any]
    lines: list[_BatchLine]
    life: list[str]
    errors: list[dict[str, Any]]


class _BatchLine(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class Desk:
    """Takes files and batches in, and hands results out.

    ``submitted`` counts, by request body, what batches were created of; ``billed`` what was answered.
    ``trouble`` is asked before each operation (upload, create, look, list, content) whether to refuse it,
    or to carry it out and lose the response.
    """

    def __init__(self, answer: Answer, behaviour: BatchBehaviour | None = None) -> None:
        self.behaviour = behaviour or BatchBehaviour()
        self.files: dict[str, dict[str, Any]] = {}
        self.batches: dict[str, _Held] = {}
        self.submitted: Counter[bytes] = Counter()
        self.billed: Counter[bytes] = Counter()
        self.operations: list[str] = []
        self.trouble: Callable[[str], Trouble | None] = lambda _: None
        self.answer = answer
        self.contents: dict[str, bytes] = {}
        self._rng = np.random.default_rng(self.behaviour.seed)
        self._made = 0

    def handle(self, request: HttpRequest) -> HttpResponse | None:
        """The response to a request about files or batches; ``None`` for any other."""
        url = urlsplit(request.path)
        parts = url.path.rstrip("/").split("/")
        start = next((k for k, part in enumerate(parts) if part in ("files", "batches")), None)
        if start is None or not self.behaviour.offered:
            return None
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        do = self._operation(request, parts[start:], query)
        if do is None:
            return _error(404, f"Unknown request URL: {request.method} {url.path}")
        name, work = do
        self.operations.append(name)
        trouble = self.trouble(name)
        if trouble in ("refused", "throttled"):
            return _error(500 if trouble == "refused" else 429, "The server had an error")
        response = work()
        return HttpResponse(manner="reset") if trouble == "lost" else response

    def step(self) -> None:
        """Let every batch move on by one step."""
        for held in self.batches.values():
            self._advance(held)

    def _operation(
        self, request: HttpRequest, parts: list[str], query: dict[str, str]
    ) -> tuple[str, Callable[[], HttpResponse]] | None:
        match (request.method, *parts):
            case ("POST", "files"):
                return "upload", lambda: self._upload(request)
            case ("GET", "files"):
                wanted = query.get("purpose")
                shown = [one for one in self.files.values() if wanted in (None, one["purpose"])]
                return "list", lambda: _page(shown, query, 10_000)
            case ("GET", "files", name):
                return "look", lambda: self._file(name)
            case ("GET", "files", name, "content"):
                return "content", lambda: self._content(name)
            case ("POST", "batches"):
                return "create", lambda: self._create(request.body)
            case ("GET", "batches"):
                held = [one.shown for one in self.batches.values()]
                return "list", lambda: _page(held, query, 20)
            case ("GET", "batches", name):
                return "look", lambda: self._look(name)
            case ("POST", "batches", name, "cancel"):
                return "cancel", lambda: self._cancel(name)
        return None

    # Files

    def _upload(self, request: HttpRequest) -> HttpResponse:
        head = b"Content-Type: " + request.headers.get("content-type", "").encode() + b"\r\n\r\n"
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body)
        parts = {part.get_param("name", header="content-disposition"): part for part in form.iter_parts()}
        if not {"file", "purpose"} <= parts.keys():
            return _error(400, "a file needs the form fields 'file' and 'purpose'")
        purpose = str(parts["purpose"].get_payload()).strip()
        content = parts["file"].get_payload(decode=True)
        assert isinstance(content, bytes)
        if len(content) > self.behaviour.most_bytes:
            return _error(413, f"File size exceeds the limit of {self.behaviour.most_bytes} bytes")
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

    def _file(self, name: str) -> HttpResponse:
        if name not in self.files:
            return _error(404, f"No such File object: {name}")
        return json_response(self.files[name])

    def _content(self, name: str) -> HttpResponse:
        if name not in self.contents:
            return _error(404, f"No such File object: {name}")
        return HttpResponse(self.contents[name], content_type="application/octet-stream")

    # Batches

    def _create(self, body: bytes) -> HttpResponse:
        try:
            wanted = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        file = self.files.get(str(wanted.get("input_file_id")))
        if file is None or file["purpose"] != "batch":
            return _error(400, "input_file_id: no such file of purpose 'batch'")
        if wanted.get("completion_window") != "24h" or wanted.get("endpoint") not in _ENDPOINTS:
            return _error(400, "completion_window must be '24h' and endpoint one that batches serve")
        lines, problems = self._validated(self.contents[file["id"]], wanted["endpoint"])
        return json_response(self._admit(wanted, lines, problems).shown)

    def _validated(self, content: bytes, endpoint: str) -> tuple[list[_BatchLine], list[dict[str, Any]]]:
        lines, problems, seen = [], [], set()
        for number, raw in enumerate(content.splitlines(), 1):
            try:
                line = msgspec.json.decode(raw, type=_BatchLine)
            except msgspec.DecodeError as error:
                problems.append(_problem("invalid_json_line", str(error), number))
                continue
            if line.url != endpoint or line.method != "POST":
                problems.append(_problem("invalid_url", f"the batch is for POST {endpoint}", number))
            if line.custom_id in seen:
                problems.append(_problem("duplicate_custom_id", f"{line.custom_id} twice", number))
            seen.add(line.custom_id)
            lines.append(line)
        if not lines and not problems:
            problems.append(_problem("empty_file", "the file is empty", None))
        if len(lines) > self.behaviour.most_requests:
            limit = self.behaviour.most_requests
            problems.append(_problem("too_many_tasks", f"more than {limit} requests", None))
        return lines, problems

    def _admit(
        self, wanted: dict[str, Any], lines: list[_BatchLine], problems: list[dict[str, Any]]
    ) -> _Held:
        self._made += 1
        name = f"batch_{self._made:08d}"
        fates, index = self.behaviour.fates, len(self.batches)
        fate = fates[index] if index < len(fates) else "completed"
        if fate == "failed" and not problems:
            problems = [_problem("server_error", "the batch could not be validated", None)]
        if fate == "full":
            problems = [_problem("token_limit_exceeded", "Enqueued token limit reached", None)]
        life = ["in_progress"] * max(0, (self.behaviour.looks or 3) - 2) + ["finalizing", fate]
        if problems:
            life = ["failed"]
        held = _Held(
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
            life[-(self.behaviour.looks or len(life)) :],
            problems,
        )
        self.batches[name] = held
        if not problems:
            self.submitted.update(bytes(line.body) for line in lines)
        return held

    def _look(self, name: str) -> HttpResponse:
        if name not in self.batches:
            return _error(404, f"No batch found with id '{name}'")
        if self.behaviour.looks is not None:
            self._advance(self.batches[name])
        return json_response(self.batches[name].shown)

    def _cancel(self, name: str) -> HttpResponse:
        if name not in self.batches:
            return _error(404, f"No batch found with id '{name}'")
        held = self.batches[name]
        if not held.life:
            return _error(409, f"Cannot cancel a batch with status '{held.shown['status']}'")
        held.life = ["cancelled"]
        held.shown |= {"status": "cancelling", "cancelling_at": self._now()}
        return json_response(held.shown)

    def _advance(self, held: _Held) -> None:
        if not held.life:
            return
        status = held.life.pop(0)
        held.shown |= {"status": status, f"{status}_at": self._now()}
        if status == "failed":
            held.shown["errors"] = {"object": "list", "data": held.errors}
            return
        counts = held.shown["request_counts"]
        counts["total"] = len(held.lines)
        counts["completed"] = len(held.lines) // (1 + len(held.life))
        if not held.life:
            self._finish(held, status)

    def _finish(self, held: _Held, status: str) -> None:
        """Answer what this batch is fated to have answered, and write its two files."""
        order = self._rng.permutation(len(held.lines)) if self.behaviour.shuffled else range(len(held.lines))
        reached = len(held.lines) if status == "completed" else int(self.behaviour.answered * len(held.lines))
        good: list[bytes] = []
        bad: list[bytes] = []
        for place, index in enumerate(order):
            line = held.lines[index]
            if place >= reached:
                why = {"code": f"batch_{status}", "message": f"This request was not executed: {status}."}
                bad.append(_output(line.custom_id, None, why))
                continue
            if self._rng.random() < self.behaviour.broken:
                broken = _error(500 if self._rng.random() < 0.5 else 429, "The server had an error")
                bad.append(_output(line.custom_id, broken, None))
                continue
            response = self.answer(bytes(line.body), _ENDPOINTS[line.url])
            written = _output(line.custom_id, response, None)
            if response.status == 200:
                self.billed[bytes(line.body)] += 1
            times = 0 if self._rng.random() < self.behaviour.missing else 1
            times += self._rng.random() < self.behaviour.doubled
            (good if response.status == 200 else bad).extend([written] * times)
        good += [
            _output(f"unknown-{k}", json_response({"choices": []}), None)
            for k in range(self.behaviour.unknown)
        ]
        if self.behaviour.shuffled:
            self._rng.shuffle(good)
        held.shown["request_counts"] |= {"completed": len(good), "failed": len(bad)}
        for name, lines in (("output", good), ("error", bad)):
            if lines:
                kept = self._keep(b"".join(lines), f"{held.shown['id']}_{name}.jsonl", "batch_output")
                held.shown[f"{name}_file_id"] = kept["id"]

    def _now(self) -> int:
        return _BORN + self._made


def _page(entries: list[dict[str, Any]], query: dict[str, str], usual: int) -> HttpResponse:
    """One page of a list, the newest first."""
    newest = entries[::-1]
    ids = [str(entry["id"]) for entry in newest]
    start = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
    page = newest[start : start + int(query.get("limit", usual))]
    shown = {"object": "list", "data": page, "has_more": start + len(page) < len(newest)}
    if page:
        shown |= {"first_id": page[0]["id"], "last_id": page[-1]["id"]}
    return json_response(shown)


def _output(custom_id: str, response: HttpResponse | None, error: dict[str, str] | None) -> bytes:
    answer = None
    if response is not None:
        answer = {
            "status_code": response.status,
            "request_id": f"req-{custom_id}",
            "body": msgspec.Raw(response.body),
        }
    line = {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": answer, "error": error}
    return msgspec.json.encode(line) + b"\n"


def _problem(code: str, message: str, line: int | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": line}


def _error(status: int, message: str) -> HttpResponse:
    code = {429: "rate_limit_exceeded", 500: "server_error"}.get(status, "invalid_request_error")
    return json_response({"error": {"message": message, "type": code, "code": code, "param": None}}, status)
