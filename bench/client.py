"""How fast is the client? Ours, a bare aiohttp + orjson loop and openai's SDK, in one run.

A server in another process answers at once, then after 200 ms. Each client keeps a fixed number of
requests in flight from one process; figures are requests a second, and what counts is their ratio.

    python bench/client.py [--seconds 4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from typing import TypeAlias

import aiohttp
import openai
import orjson
import uvloop

from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.records import Message, Request
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener

PROMPT = "Passage: " + "All biomass goes through at least some of these steps. " * 14 + "Answer Yes or No."
BIAS = {1000 + k: 50.0 + 0.25 * k for k in range(12)}
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
    """Answer the same to everything, as fast as one core can."""
    response = HttpResponse(BODY, delay=latency)

    def handle(_: HttpRequest) -> HttpResponse:
        return response

    async def run() -> None:
        ready.send(await Listener(handle).open("127.0.0.1", 0))
        await asyncio.Event().wait()

    uvloop.run(run())


@contextlib.asynccontextmanager
async def bare(base_url: str) -> AsyncIterator[Ask]:
    """The plainest loop one would write by hand."""
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


CLIENTS: dict[str, Client] = {"bare aiohttp + orjson": bare, "blindcal": ours, "openai AsyncOpenAI": sdk}


async def rate(client: Client, base_url: str, workers: int, seconds: float) -> float:
    """Requests a second that a bounded pool makes, after a short warm-up."""
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


def measure(latency: float, workers: int, seconds: float, rounds: int) -> None:
    """Print one line a client: the median of several rounds, taken in turns."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, latency), daemon=True)
    server.start()
    try:
        base_url = f"http://127.0.0.1:{here.recv()}/v1"
        found: dict[str, list[float]] = {name: [] for name in CLIENTS}
        for _ in range(rounds):
            for name, client in CLIENTS.items():
                found[name].append(asyncio.run(rate(client, base_url, workers, seconds)))
    finally:
        server.terminate()
        server.join()
    rates = {name: statistics.median(values) for name, values in found.items()}
    print(f"\n{workers} in flight, answers after {latency * 1000:.0f} ms")
    for name, value in rates.items():
        base, peer = rates["bare aiohttp + orjson"], rates["openai AsyncOpenAI"]
        print(f"  {name:<24}{value:8.0f} /s   {value / base:5.2f} of bare   {value / peer:5.1f} x openai")


def main() -> None:
    """Measure all clients, at once and with latency."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for latency, workers in ((0.0, 32), (0.0, 256), (0.2, 256)):
        measure(latency, workers, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
