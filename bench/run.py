"""How fast a whole run is, its store included, beside a bare client loop and the openai SDK; and its memory.

    python bench/run.py             # speed, as ratios within one run: about three minutes
    python bench/run.py --memory    # peak memory at 10^4, 10^5 and 10^6 items: about three minutes

The server is a process of its own on loopback that gives every question the same answer, at once or
after 200 ms. All clients ask the same questions (about 800 characters, two biased tokens, one token
out) with the same bound on what is under way. Rounds are interleaved and medians compared, because
the machine is never quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import numpy as np
import orjson
from openai import AsyncOpenAI

from blindcal.data import Items, load
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.wire import HttpRequest, HttpResponse, Listener
from blindcal.records import Answered, Reply, Request, Round, Targets, Token
from blindcal.run import Limits, Question, run
from blindcal.store import Store

QUESTION = Question(Targets((Token(9642, "Yes"),), (Token(2822, "No"),)))
REPLY = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "length",
                "logprobs": None,
                "message": {"role": "assistant", "content": "Yes"},
            }
        ],
        "usage": {"prompt_tokens": 200, "completion_tokens": 1, "total_tokens": 201},
    }
)


class Dithered:
    """One random threshold an item."""

    def __init__(self, n: int) -> None:
        self._n = n

    def next_round(self, answered: Answered) -> Round | None:
        if len(answered):
            return None
        t = np.random.default_rng(0).random(self._n)
        return Round(np.arange(self._n), -np.log(t / (1 - t)), np.zeros(self._n))


def _serve(delay: float, pipe: Connection) -> None:
    async def main() -> None:
        def answer(_: HttpRequest) -> HttpResponse:
            return HttpResponse(REPLY, delay=delay)

        listener = Listener(answer)
        pipe.send(await listener.open("127.0.0.1", 0))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await listener.close()

    asyncio.run(main())


@contextlib.contextmanager
def server(delay: float) -> Iterator[str]:
    """A server process; yields its base URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(delay, theirs))
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        ours.send(None)
        process.join()


async def whole_run(url: str, items: Items, count: int, concurrency: int) -> None:
    """Ours: design, client, store and all."""
    with tempfile.TemporaryDirectory(dir=".") as folder, Store.open(Path(folder) / "run.sqlite") as store:
        async with HttpEndpoint(Address(url, "m"), environ={}) as endpoint:
            outcome = await run(
                Dithered(count), items, endpoint, QUESTION, store, limits=Limits(concurrency=concurrency)
            )
    assert len(outcome.answered) == count


async def bare_aiohttp(url: str, items: Items, count: int, concurrency: int) -> None:
    """A loop that a careful user would write, and that keeps nothing."""
    numbers = iter(range(count))
    answers = [""] * count
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def worker() -> None:
            for number in numbers:
                body = {
                    "model": "m",
                    "max_tokens": 1,
                    "temperature": 0,
                    "messages": [{"role": m.role, "content": m.content} for m in items[number].messages],
                    "logit_bias": {"9642": 50.5, "2822": 50},
                }
                async with session.post(
                    f"{url}/chat/completions",
                    data=orjson.dumps(body),
                    headers={"Content-Type": "application/json"},
                ) as response:
                    reply = orjson.loads(await response.read())
                answers[number] = reply["choices"][0]["message"]["content"]

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    assert answers.count("Yes") == count


async def openai_sdk(url: str, items: Items, count: int, concurrency: int) -> None:
    """The openai SDK in a bounded pool of workers."""
    numbers = iter(range(count))
    answers = [""] * count
    async with AsyncOpenAI(base_url=url, api_key="none") as client:

        async def worker() -> None:
            for number in numbers:
                reply = await client.chat.completions.create(
                    model="m",
                    max_tokens=1,
                    temperature=0,
                    messages=[{"role": "user", "content": m.content} for m in items[number].messages],
                    logit_bias={"9642": 50, "2822": 50},
                )
                answers[number] = reply.choices[0].message.content or ""

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    assert answers.count("Yes") == count


Client = Callable[[str, Items, int, int], Awaitable[None]]


def timed(client: Client, url: str, items: Items, count: int, concurrency: int) -> float:
    """Requests a second."""

    async def main() -> float:
        started = time.perf_counter()
        await client(url, items, count, concurrency)
        return count / (time.perf_counter() - started)

    return asyncio.run(main())


def compare(
    name: str, delay: float, concurrency: int, counts: dict[str, int], items: Items, rounds: int
) -> None:
    """Print medians and ratios of interleaved rounds."""
    clients: dict[str, Client] = {"whole run": whole_run, "aiohttp": bare_aiohttp, "openai": openai_sdk}
    rates: dict[str, list[float]] = {client: [] for client in counts}
    with server(delay) as url:
        for _ in range(rounds):
            for client, count in counts.items():
                rates[client].append(timed(clients[client], url, items, count, concurrency))
    ours = statistics.median(rates["whole run"])
    for client, seen in rates.items():
        rate = statistics.median(seen)
        spread = f"{min(seen):.0f}-{max(seen):.0f}"
        print(
            f"{name:<24} {client:<10} {rate:>7.0f}/s ({spread})  whole run / this: {ours / rate:.2f}",
            flush=True,
        )


def write_items(path: Path, count: int) -> None:
    """About 800 characters each."""
    with path.open("w") as file:
        for number in range(count):
            text = f"Question {number}: " + "is this so, or is it not? " * 30
            file.write(json.dumps({"id": str(number), "prompt": text, "label": number % 2}) + "\n")


class Instant:
    """An endpoint inside the process, for runs of a million."""

    async def ask(self, request: Request) -> Reply:
        await asyncio.sleep(0)
        return Reply("Yes" if request.logit_bias[9642] > 50 else "No", "length", 200, 1)

    async def close(self) -> None:
        pass


def peak_memory(count: int) -> None:
    """Run that many items from a file to the store and print the peak of this process."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        write_items(folder / "items.jsonl", count)
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        with load(folder / "items.jsonl") as items, Store.open(folder / "run.sqlite") as store:
            store.begin({}, items)
            loaded = time.perf_counter()
            outcome = asyncio.run(
                run(Dithered(count), items, Instant(), QUESTION, store, limits=Limits(concurrency=256))
            )
        assert len(outcome.answered) == count
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        took = f"read {loaded - began:.0f} s, run {time.perf_counter() - loaded:.0f} s"
        print(
            f"{count:>9} items: {start / 1024:.0f} MB before, peak {peak / 1024:.0f} MB; {took}", flush=True
        )


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", action="store_true", help="measure memory instead of speed")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--largest", type=int, default=10**6)
    wanted = parser.parse_args()
    if wanted.peak:
        peak_memory(wanted.peak)
    elif wanted.memory:
        for count in (10**4, 10**5, 10**6):
            if count <= wanted.largest:
                subprocess.run([sys.executable, __file__, "--peak", str(count)], check=True)
    else:
        os.environ.pop("OPENAI_BASE_URL", None)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            write_items(Path(folder) / "items.jsonl", 20_000)
            with load(Path(folder) / "items.jsonl") as items:
                quick = {"whole run": 10_000, "aiohttp": 10_000, "openai": 1_000}
                compare("at once, 32 at a time", 0.0, 32, quick, items, wanted.rounds)
                compare("at once, 256 at a time", 0.0, 256, quick, items, wanted.rounds)
                slow = {"whole run": 20_000, "aiohttp": 20_000, "openai": 2_000}
                compare("200 ms, 256 at a time", 0.2, 256, slow, items, 1)


if __name__ == "__main__":
    main()
