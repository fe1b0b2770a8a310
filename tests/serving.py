"""Recorded models and servers that the endpoint tests share."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from blindcal.endpoints import local_model as models
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.items.catalogue import open_items
from blindcal.items.record_format import RecordFormat
from blindcal.records import FloatArray, Item, Message, Reply, Request, Targets, Token
from blindcal.settings import Settings
from blindcal.simulation import replay
from blindcal.simulation.http_server import Handler, HttpRequest, HttpResponse, Listener
from blindcal.simulation.recording import RecordedTexts, Recording
from blindcal.simulation.replay import running
from misbehaving import Behaviour, Server
from paths import DATA

#: A small real model on 240 built-in questions: recorded data of the project's own.
OWN_LOGITS = DATA / "smollm2__builtin__logits.csv.gz"
PAIR = Targets((Token(1, "Yes"),), (Token(2, "No"),))


def items(n: int) -> list[Item]:
    """So many plain questions."""
    return [Item(f"item-{k}", k % 2, (Message("user", f"Is {k} odd? Yes or No."),)) for k in range(n)]


def write_records(path: Path, records: Iterable[Mapping[str, object]]) -> Path:
    """Write records to a file, one line of JSON each."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_items(path: Path, labels: int | npt.ArrayLike, **fields: Sequence[object]) -> Path:
    """Write questions with these labels, or N random ones, to a file; ``fields`` repeat."""
    known = np.random.default_rng(1).integers(0, 2, labels) if isinstance(labels, int) else np.asarray(labels)
    records = (
        {
            "id": f"q{k}",
            "prompt": f"Is {k} so? Answer Yes or No.",
            "label": int(label),
            **{name: values[k % len(values)] for name, values in fields.items()},
        }
        for k, label in enumerate(known)
    )
    return write_records(path, records)


def settings_of(server: replay.Server, **more: Any) -> Settings:
    """Settings of an audit of a server's model, with few refits."""
    return Settings(**{"model": "replay", "base_url": server.base_url, "resamples": 20, **more})


def recording(log_odds: Sequence[float]) -> Recording:
    """A model with these hidden log-odds, one for each of `items`."""
    p = 1 / (1 + np.exp(-np.asarray(log_odds, float)))
    return Recording.from_probabilities([item.id for item in items(len(log_odds))], p)


def replaying(
    items: Path,
    p: FloatArray,
    how: Behaviour | None = None,
    *,
    reading: RecordFormat | None = None,
    spoken: RecordedTexts | None = None,
    **behaviour: Any,
) -> contextlib.AbstractContextManager[Server]:
    """A server of a model with these probabilities of the questions in a file, in a thread of its own."""
    loaded = open_items(items, reading)
    asked = list(loaded)
    known = Recording.from_probabilities([item.id for item in asked], p)
    return running(Server(known, asked, how or Behaviour(**behaviour), spoken=spoken))


@contextlib.asynccontextmanager
async def replayed(
    log_odds: Sequence[float], behaviour: Behaviour | None = None, **address: Any
) -> AsyncIterator[tuple[Server, HttpEndpoint]]:
    """A server of a recorded model and a client of it."""
    async with (
        Server(recording(log_odds), items(len(log_odds)), behaviour) as server,
        HttpEndpoint(Address(server.base_url, "replay", **address), environ={}) as endpoint,
    ):
        yield server, endpoint


def replies_of(
    known: Recording,
    asked: Sequence[Item],
    requests: Sequence[Request],
    behaviour: Behaviour | None = None,
    **address: Any,
) -> list[Reply]:
    """The replies of a recorded model to requests that follow each other, over HTTP."""

    async def talk() -> list[Reply]:
        async with (
            Server(known, asked, behaviour) as server,
            HttpEndpoint(Address(server.base_url, known.name, **address), environ={}) as endpoint,
        ):
            return [await endpoint.ask(request) for request in requests]

    return asyncio.run(talk())


@contextlib.asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[str]:
    """The base URL of a server with a handler of the test's own."""
    listener = Listener(handler)
    port = await listener.open("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await listener.close()


def ask(
    handler: Handler, request: Request | None = None, environ: Mapping[str, str] = {}, **address: Any
) -> Reply:
    """The reply of a server with a handler of the test's own."""

    async def talk() -> Reply:
        async with (
            answering(handler) as url,
            HttpEndpoint(Address(url, "m", **address), environ=environ) as endpoint,
        ):
            return await endpoint.ask(request or asking())

    return asyncio.run(talk())


class Recorder:
    """A handler that keeps what it was sent and answers the same to everything."""

    def __init__(self, body: object, status: int = 200) -> None:
        self.requests: list[HttpRequest] = []
        self._response = HttpResponse(body if isinstance(body, bytes) else msgspec.json.encode(body), status)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        return self._response

    @property
    def sent(self) -> Any:
        """The last body, decoded."""
        return msgspec.json.decode(self.requests[-1].body)


class Altered(Server):
    """A replay whose completions are altered; ``alter`` gets the bodies of the request and the reply."""

    alter: Callable[[bytes, bytes], bytes]

    def _handle(self, request: HttpRequest) -> HttpResponse:
        response = super()._handle(request)
        if response.status != 200 or not request.path.endswith("/completions"):
            return response
        return replace(response, body=self.alter(request.body, response.body))


CHAT_YES = {"choices": [{"message": {"role": "assistant", "content": "Yes"}, "finish_reason": "length"}]}


def asking(text: str = "Is 1 odd? Yes or No.", **changes: Any) -> Request:
    """A request for one user message."""
    return Request((Message("user", text),), **changes)


def model_or_skip() -> Path:
    """The default model; where it is not installed, the tests that need it are skipped."""
    pytest.importorskip("xllamacpp", reason="the embedded model needs: pip install 'blindcal[local]'")
    try:
        return models.default_model()
    except models.ModelError:
        pytest.skip("no model on this machine: fetch it with 'blindcal pull'")
