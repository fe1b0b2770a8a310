"""How fast queries are sent: a whole run, the client alone, a bare aiohttp loop and openai's SDK.

    python bench/run.py [--seconds 3] [--repeats 5]

A server in another process gives every question (about 800 characters, twelve biased tokens, one token out)
the same answer, at once or after 200 ms. All have the same number of requests in flight. They take turns, so
that a busy moment of the machine meets all of them; the median of the rounds counts. A share is that of two
neighbours in the same round.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import aiohttp
import numpy as np
import openai
import orjson
import uvloop

import blindcal as bc
from blindcal.auditing.job import Job
from blindcal.auditing.live_sender import ask_live
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.items.files import load
from blindcal.records import AnswerTable, Message, Request, Round, Targets, Token
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener
from blindcal.store.run_store import Store
from record import Cell, parser, record, table

PROMPT = "Passage: " + "All biomass goes through at least some of these steps. " * 14 + "Answer Yes or No."
BIAS = {1000 + k: 50.0 + 0.25 * k for k in range(12)}
# As many biased tokens as the other clients send.
QUESTION = TokenQuestion(
    Targets(
        tuple(Token(k, "Yes") for k in list(BIAS)[:6]), tuple(Token(k, "No") for k in list(BIAS)[6:]), "max"
    )
)
BODY = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Yes", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
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


BARE = "bare aiohttp + orjson"
CLIENTS: dict[str, Client] = {
    "openai `AsyncOpenAI`": sdk,
    "blindcal, the client alone": ours,
    BARE: bare,
}
WHOLE = "blindcal, a whole run"


async def rate(client: Client, base_url: str, workers: int, seconds: float) -> float:
    """Requests per second of a pool of workers, after a short warm-up."""
    numbers = itertools.count()
    done = 0
    async with client(base_url) as ask:

        async def work(until: float) -> None:
            nonlocal done
            while time.perf_counter() < until:
                assert await ask(next(numbers)) == "Yes"
                done += 1

        async def pool(length: float) -> float:
            start = time.perf_counter()
            await asyncio.gather(*(work(start + length) for _ in range(workers)))
            return time.perf_counter() - start

        await pool(seconds / 4)
        done = 0
        elapsed = await pool(seconds)
    return done / elapsed


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


def write_items(path: Path, count: int) -> None:
    """Questions of about 800 characters."""
    with path.open("w") as file:
        for number in range(count):
            record = {"id": str(number), "prompt": f"{number} {PROMPT}", "label": number % 2}
            file.write(json.dumps(record) + "\n")


async def whole_run(base_url: str, path: Path, count: int, workers: int) -> float:
    """Queries per second of a whole run: design, client and store."""
    items = load(path)
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(Path(folder) / "run.sqlite") as store,
    ):
        job = Job(items, QUESTION, store, bc.Limits(concurrency=workers))
        async with HttpEndpoint(Address(base_url, "bench"), environ={}) as endpoint:
            start = time.perf_counter()
            outcome = await ask_live(Dithered(count), job, endpoint)
            elapsed = time.perf_counter() - start
    assert len(outcome.answered) == count
    return count / elapsed


def measure(latency: float, workers: int, seconds: float, repeats: int) -> dict[str, list[float]]:
    """Each client's rate in every round."""
    found: dict[str, list[float]] = {name: [] for name in (*CLIENTS, WHOLE)}
    with tempfile.TemporaryDirectory() as folder, server(latency) as base_url:
        path = Path(folder) / "items.jsonl"
        for _ in range(repeats):
            for name, client in CLIENTS.items():
                found[name].append(asyncio.run(rate(client, base_url, workers, seconds)))
            count = max(workers, round(seconds * found[BARE][-1]))
            write_items(path, count)
            found[WHOLE].append(asyncio.run(whole_run(base_url, path, count, workers)))
    return found


def shares(found: dict[str, list[float]]) -> list[float]:
    """The rate of a whole run in parts of a bare loop's: the median of the rounds, the least and the most."""
    each = [whole / bare for whole, bare in zip(found[WHOLE], found[BARE], strict=True)]
    return [statistics.median(each), min(each), max(each)]


def main() -> None:
    """Measure all clients, and record the tables."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--repeats", type=int, default=5)
    arguments = options.parse_args()
    os.environ.pop("OPENAI_BASE_URL", None)
    found = {
        f"{workers} in flight" + (f", {1000 * latency:.0f} ms" if latency else ""): measure(
            latency, workers, arguments.seconds, arguments.repeats
        )
        for latency, workers in ((0.0, 32), (0.0, 256), (0.2, 256))
    }
    rows: list[list[Cell]] = [
        [name, *(statistics.median(one[name]) for one in found.values())] for name in (*CLIENTS, WHOLE)
    ]
    relative: list[list[Cell]] = [["a whole run / bare aiohttp", *(shares(one) for one in found.values())]]
    tables = {
        "rates": table({"queries per second": "{}", **dict.fromkeys(found, "{:,.0f}")}, rows),
        "shares": table({"": "{}", **dict.fromkeys(found, "{:.2f} ({:.2f} to {:.2f})")}, relative),
    }
    record("run", tables, folder=arguments.results, repeats=arguments.repeats, seeds="")


if __name__ == "__main__":
    main()
