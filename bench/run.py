"""How fast queries are sent: whole runs over three HTTP clients, a bare aiohttp loop and openai's SDK.

    python bench/run.py [--seconds 3] [--repeats 5]

A server in another process gives every question (about 800 characters, twelve biased tokens, one token out)
the same answer, at once or after 200 ms. All have the same number of requests in flight. They take turns, so
that a busy moment of the machine meets all of them; the median of the rounds counts. A share is that of two
neighbours in the same round. blindcal sends through pyreqwest; aiohttp and httpx2 are put in its place, with
the same bound on replies.
"""

from __future__ import annotations

from record import parser, record, table

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import httpx2
import numpy as np
import openai
import orjson
import uvloop

import blindcal as bc
from blindcal.asking.ask_design import ask_design
from blindcal.asking.governor import Governor
from blindcal.asking.job import Job
from blindcal.asking.run_context import RunContext
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.http_client import MAX_REPLY_BYTES, ServerResponse
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.items.catalogue import open_items
from blindcal.records import AnswerTable, Message, Request, Round, Targets, Token
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener
from blindcal.store.run_store import Store

PROMPT = "Passage: " + "All biomass goes through at least some of these steps. " * 14 + "Answer Yes or No."
BIAS = {1000 + k: 50.0 + 0.25 * k for k in range(12)}
# As many biased tokens as the other clients send.
QUESTION = TokenQuestion(
    Targets(
        tuple(Token(k, "Yes") for k in list(BIAS)[:6]), tuple(Token(k, "No") for k in list(BIAS)[6:]), "max"
    )
)
ANSWER = {"role": "assistant", "content": "Yes", "refusal": None}
BODY = orjson.dumps(
    {
        **{"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench"},
        "choices": [{"index": 0, "message": ANSWER, "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 180, "completion_tokens": 1, "total_tokens": 181},
    }
)

Ask: TypeAlias = Callable[[int], Awaitable[str | None]]
Client: TypeAlias = Callable[[str], contextlib.AbstractAsyncContextManager[Ask]]


def serve(ready: Connection, latency: float) -> None:
    """Give every request the same answer, as fast as one core can."""
    response = HttpResponse(BODY, delay=latency)

    def handle(_: HttpRequest) -> HttpResponse:
        return response

    async def run() -> None:
        ready.send(await Listener(handle).open("127.0.0.1", 0))
        await asyncio.Event().wait()

    uvloop.run(run())


@contextlib.contextmanager
def server(latency: float) -> Iterator[str]:
    """A server process; yields its base URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, latency), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


@contextlib.asynccontextmanager
async def bare(base_url: str) -> AsyncIterator[Ask]:
    """A minimal client, as one would write it by hand."""
    url = f"{base_url}/chat/completions"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(k: int) -> str | None:
            body = orjson.dumps(
                {
                    "model": "bench",
                    "messages": [{"role": "user", "content": f"{k} {PROMPT}"}],
                    "max_tokens": 1,
                    "temperature": 0.0,
                    "logit_bias": BIAS,
                },
                option=orjson.OPT_NON_STR_KEYS,
            )
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as reply:
                answer: str = orjson.loads(await reply.read())["choices"][0]["message"]["content"]
                return answer

        yield ask


@contextlib.asynccontextmanager
async def ours(base_url: str) -> AsyncIterator[Ask]:
    """blindcal's endpoint."""
    async with HttpEndpoint(Address(base_url, "bench"), environ={}) as endpoint:

        async def ask(k: int) -> str | None:
            return (await endpoint.ask(Request((Message("user", f"{k} {PROMPT}"),), BIAS))).text

        yield ask


@contextlib.asynccontextmanager
async def sdk(base_url: str) -> AsyncIterator[Ask]:
    """openai's own asynchronous client."""
    async with openai.AsyncOpenAI(api_key="none", base_url=base_url, max_retries=0) as client:
        bias = {str(token): int(value) for token, value in BIAS.items()}

        async def ask(k: int) -> str | None:
            reply = await client.chat.completions.create(
                model="bench",
                messages=[{"role": "user", "content": f"{k} {PROMPT}"}],
                max_tokens=1,
                temperature=0.0,
                logit_bias=bias,
            )
            return reply.choices[0].message.content

        yield ask


class Aiohttp:
    """aiohttp in place of blindcal's client."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers)
        self.close = self._session.close

    async def send(self, method: str, url: str, body: bytes | None = None) -> ServerResponse:
        """Send a request and return its response."""
        async with self._session.request(method, url, data=body, allow_redirects=False) as reply:
            return ServerResponse(reply.status, reply.headers, await bounded(reply.content.iter_any()))


class Httpx2:
    """httpx2 in place of blindcal's client."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx2.AsyncClient(headers=headers, limits=limits, timeout=60, trust_env=False)
        self.close = self._client.aclose

    async def send(self, method: str, url: str, body: bytes | None = None) -> ServerResponse:
        """Send a request and return its response."""
        async with self._client.stream(method, url, content=body) as reply:
            return ServerResponse(reply.status_code, reply.headers, await bounded(reply.aiter_bytes()))


async def bounded(chunks: AsyncIterator[bytes]) -> bytes:
    """A body that is not read beyond what blindcal reads."""
    kept: list[bytes] = []
    async for chunk in chunks:
        kept.append(chunk)
        assert sum(map(len, kept)) <= MAX_REPLY_BYTES
    return b"".join(kept)


BARE = "bare aiohttp + orjson"
CLIENTS: dict[str, Client] = {"openai `AsyncOpenAI`": sdk, "blindcal, the client alone": ours, BARE: bare}
RUNS: dict[str, Callable[[Mapping[str, str]], Any] | None] = {
    "blindcal, a whole run": None,
    "a whole run over aiohttp": Aiohttp,
    "a whole run over httpx2": Httpx2,
}


async def rate(client: Client, base_url: str, workers: int, seconds: float) -> float:
    """The queries per second of a pool of workers, after a short warm-up."""
    numbers = itertools.count()
    async with client(base_url) as ask:

        async def work(until: float) -> None:
            while time.perf_counter() < until:
                assert await ask(next(numbers)) == "Yes"

        for length in (seconds / 4, seconds):
            begun, start = next(numbers), time.perf_counter()
            await asyncio.gather(*(work(start + length) for _ in range(workers)))
            elapsed = time.perf_counter() - start
    return (next(numbers) - begun - 1) / elapsed


class Dithered:
    """One random threshold per item."""

    def __init__(self, n: int) -> None:
        self._n = n

    def next_round(self, answered: AnswerTable) -> Round | None:
        """All queries in one round."""
        if len(answered):
            return None
        t = np.random.default_rng(0).random(self._n)
        return Round(np.arange(self._n), -np.log(t / (1 - t)), np.zeros(self._n))


async def whole_run(
    base_url: str, path: Path, count: int, workers: int, client: Callable[[Mapping[str, str]], Any] | None
) -> float:
    """The queries per second of a whole run: design, client and store; ``client`` replaces blindcal's own."""
    items = open_items(path)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "run.sqlite") as store:
        job = Job(items=items, question=QUESTION, store=store)
        run = RunContext(limits=bc.Limits(concurrency=workers))
        async with HttpEndpoint(Address(base_url, "bench"), environ={}) as endpoint:
            if client is not None:
                endpoint._client = client(endpoint._headers)
            start = time.perf_counter()
            outcome = await ask_design(Dithered(count), job, Governor(endpoint, run, store))
            elapsed = time.perf_counter() - start
    assert len(outcome.answered) == count
    return count / elapsed


def measure(latency: float, workers: int, seconds: float, repeats: int) -> dict[str, list[float]]:
    """The speed of each in every round."""
    speeds: dict[str, list[float]] = {name: [] for name in (*CLIENTS, *RUNS)}
    with tempfile.TemporaryDirectory() as folder, server(latency) as base_url:
        path = Path(folder) / "items.jsonl"
        for _ in range(repeats):
            for name, client in CLIENTS.items():
                speeds[name].append(asyncio.run(rate(client, base_url, workers, seconds)))
            for name, transport in RUNS.items():
                slower = 8 if transport is Httpx2 else 1
                count = max(workers, round(seconds * speeds[BARE][-1] / slower))
                rows = ({"id": str(k), "prompt": f"{k} {PROMPT}", "label": k % 2} for k in range(count))
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
                speeds[name].append(asyncio.run(whole_run(base_url, path, count, workers, transport)))
    return speeds


def main() -> None:
    """Measure all clients, and record the tables."""
    options = parser(__doc__, repeats=5)
    options.add_argument("--seconds", type=float, default=3.0)
    arguments = options.parse_args()
    os.environ.pop("OPENAI_BASE_URL", None)
    speeds = {
        f"{workers} in flight" + (f", {1000 * latency:.0f} ms" if latency else ""): measure(
            latency, workers, arguments.seconds, arguments.repeats
        )
        for latency, workers in ((0.0, 32), (0.0, 256), (0.2, 256))
    }
    rates = [
        [name, *(statistics.median(each[name]) for each in speeds.values())] for name in (*CLIENTS, *RUNS)
    ]
    shares = []
    for name in RUNS:
        of_bare = [
            [run / bare for run, bare in zip(each[name], each[BARE], strict=True)] for each in speeds.values()
        ]
        shares.append([name, *((statistics.median(share), min(share), max(share)) for share in of_bare)])
    tables = {
        "rates": table({"queries per second": "{}", **dict.fromkeys(speeds, "{:,.0f}")}, rates),
        "shares": table({"": "{}", **dict.fromkeys(speeds, "{:.2f} ({:.2f} to {:.2f})")}, shares),
    }
    record("run", tables, arguments, seeds="")


if __name__ == "__main__":
    main()
