"""Replays whose files and batches fail as real services do: what a run through batches must get through."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from blindcal.simulation.http_server import HttpRequest, HttpResponse, json_response
from blindcal.simulation.replay_batches import (
    Answer,
    BatchRequest,
    Desk,
    HeldBatch,
    error_response,
    output_line,
    problem,
)
from misbehaving import Server

Fate: TypeAlias = Literal["completed", "failed", "expired", "cancelled", "full"]
Trouble: TypeAlias = Literal["refused", "throttled", "busy", "dropped", "lost"]

OPERATIONS = {
    "upload": r"POST .*/files",
    "create": r"POST .*/batches",
    "cancel": r"POST .*/batches/[^/]+/cancel",
    "list": r"GET .*/(files|batches)",
    "look": r"GET .*/(files|batches)/[^/]+",
    "content": r"GET .*/files/[^/]+/content",
}


@dataclass(frozen=True, slots=True)
class BatchBehaviour:
    """How the service around the batches departs from an ideal one.

    A batch ends as the next of ``fates`` says, and as completed once they are used up; ``full`` is a
    batch refused because too many tokens wait already. One that does not complete has answered
    ``answered`` of its requests. Shares of the lines get a 500 or 429 instead of an answer (``broken``),
    come twice (``doubled``), also with another answer (``conflicting``), or not at all (``missing``);
    ``unknown`` lines answer nothing that was asked. The list of batches does not show the newest one until
    it has been asked for ``lag`` times.
    """

    offered: bool = True
    looks: int | None = 2
    fates: tuple[Fate, ...] = ()
    answered: float = 0.5
    broken: float = 0.0
    doubled: float = 0.0
    conflicting: float = 0.0
    missing: float = 0.0
    unknown: int = 0
    lag: int = 0
    most_requests: int = 50_000
    most_bytes: int = 200_000_000


class HostileDesk(Desk):
    """A desk that misbehaves, and counts what it is asked.

    ``submitted`` counts, by request body, what batches were created of; ``billed`` what was answered.
    ``trouble`` is asked before each of `OPERATIONS` whether to refuse it, to drop the connection, or to carry
    it out and lose the response. ``instead`` holds responses by operation that are sent without carrying it
    out; ``answers`` changes the response after that.
    """

    def __init__(self, answer: Answer, behaviour: BatchBehaviour | None = None) -> None:
        self.behaviour = behaviour or BatchBehaviour()
        super().__init__(answer, self.behaviour.looks)
        self.answered = self.behaviour.answered
        self.most_requests, self.most_bytes = self.behaviour.most_requests, self.behaviour.most_bytes
        self.submitted: Counter[bytes] = Counter()
        self.billed: Counter[bytes] = Counter()
        self.operations: list[str] = []
        self.trouble: Callable[[str], Trouble | None] = lambda _: None
        self.instead: dict[str, list[HttpResponse]] = {}
        self.answers: dict[str, Callable[[HttpResponse], HttpResponse]] = {}

    def handle(self, request: HttpRequest) -> HttpResponse | None:
        if not self.behaviour.offered:
            return None
        asked = f"{request.method} {urlsplit(request.path).path}"
        name = next((name for name, form in OPERATIONS.items() if re.fullmatch(form, asked)), None)
        if name is None:
            return super().handle(request)
        self.operations.append(name)
        trouble = self.trouble(name)
        if trouble in ("refused", "throttled"):
            return failure(throttled=trouble == "throttled")
        if trouble == "busy":
            return error_response(503, "The server is overloaded", "overloaded")
        if trouble == "dropped":
            return HttpResponse(manner="reset")
        if self.instead.get(name):
            return self.instead[name].pop()
        response = self._late(super().handle(request)) if name == "list" else super().handle(request)
        if response is not None and name in self.answers:
            response = self.answers[name](response)
        return HttpResponse(manner="reset") if trouble == "lost" else response

    def _late(self, response: HttpResponse | None) -> HttpResponse | None:
        """A list without the newest batch, while it lags behind."""
        newest = next(reversed(self.batches), None)
        if response is None or newest is None or self.operations.count("list") > self.behaviour.lag:
            return response
        page = msgspec.json.decode(response.body)
        page["data"] = [entry for entry in page["data"] if entry["id"] != newest]
        return json_response(page)

    def _admit(
        self, wanted: dict[str, Any], lines: list[BatchRequest], problems: list[dict[str, Any]]
    ) -> HeldBatch:
        fates, index = self.behaviour.fates, len(self.batches)
        fate = fates[index] if index < len(fates) else "completed"
        if fate == "failed" and not problems:
            problems = [problem("server_error", "the batch could not be validated", None)]
        if fate == "full":
            problems = [problem("token_limit_exceeded", "Enqueued token limit reached", None)]
        held = super()._admit(wanted, lines, problems)
        if not problems:
            held.life[-1] = fate
            self.submitted.update(bytes(line.body) for line in lines)
        return held

    def _responses(self, line: BatchRequest) -> list[HttpResponse]:
        if self._rng.random() < self.behaviour.broken:
            return [failure(throttled=self._rng.random() >= 0.5)]
        (response,) = super()._responses(line)
        if response.status == 200:
            self.billed[bytes(line.body)] += 1
        times = 0 if self._rng.random() < self.behaviour.missing else 1
        times += self._rng.random() < self.behaviour.doubled
        conflicts = times and self._rng.random() < self.behaviour.conflicting
        return [response] * times + [_contradiction(response)] * conflicts

    def _keep(self, content: bytes, filename: str, purpose: str) -> dict[str, Any]:
        if purpose == "batch_output" and filename.endswith("_output.jsonl"):
            nothing = json_response({"choices": []})
            lines = content.splitlines(keepends=True)
            lines += [output_line(f"unknown-{k}", nothing, None) for k in range(self.behaviour.unknown)]
            self._rng.shuffle(lines)
            content = b"".join(lines)
        return super()._keep(content, filename, purpose)


class HostileServer(Server):
    """A replay with such a desk."""

    desk: HostileDesk

    def __init__(self, *recorded: Any, batches: BatchBehaviour | None = None, **more: Any) -> None:
        super().__init__(*recorded, **more)
        self.desk = HostileDesk(self.desk.answer, batches)


def _contradiction(response: HttpResponse) -> HttpResponse:
    """The same reply with another answer."""
    yes, no = b'"content":"Yes"', b'"content":"No"'
    pair = (yes, no) if yes in response.body else (no, yes)
    return replace(response, body=response.body.replace(*pair))


def failure(*, throttled: bool) -> HttpResponse:
    """What a service says that may answer if it is asked again."""
    status, code = (429, "rate_limit_exceeded") if throttled else (500, "server_error")
    return error_response(status, "The server had an error", code)
