"""How fast a whole run is, its store included, beside a bare client loop and the openai SDK; and its memory.

    python bench/run.py             # speed, as ratios within one run: about three minutes
    python bench/run.py --memory    # peak memory at 10^4, 10^5 and 10^6 items: about three minutes

The server and the other clients are those of bench/client.py: a process of its own on loopback gives
every question (about 800 characters, twelve biased tokens, one token out) the same answer, at once or
after 200 ms. All have the same bound on what is under way. Rounds are interleaved and medians
compared, because a machine is never quiet.
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
from pathlib import Path

import numpy as np

import client
from blindcal.auditing.job import Job, Limits
from blindcal.auditing.live_sender import run
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.items.files import Items, load
from blindcal.records import AnswerTable, Reply, Request, Round, Targets, Token
from blindcal.store.run_store import Store

# As many biased tokens as the other clients send.
HALF = len(client.BIAS) // 2
IDS = list(client.BIAS)
QUESTION = TokenQuestion(
    Targets(tuple(Token(k, "Yes") for k in IDS[:HALF]), tuple(Token(k, "No") for k in IDS[HALF:]), "max")
)


class Dithered:
    """One random threshold an item."""

    def __init__(self, n: int) -> None:
        self._n = n

    def next_round(self, answered: AnswerTable) -> Round | None:
        if len(answered):
            return None
        t = np.random.default_rng(0).random(self._n)
        return Round(np.arange(self._n), -np.log(t / (1 - t)), np.zeros(self._n))


@contextlib.contextmanager
def server(delay: float) -> Iterator[str]:
    """A server process; yields its base URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=client.serve, args=(theirs, delay), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


async def whole_run(url: str, items: Items, count: int, concurrency: int) -> None:
    """Ours: design, client, store and all."""
    with tempfile.TemporaryDirectory(dir=".") as folder, Store.open(Path(folder) / "run.sqlite") as store:
        async with HttpEndpoint(Address(url, "bench"), environ={}) as endpoint:
            job = Job(items, QUESTION, store, Limits(concurrency=concurrency))
            outcome = await run(Dithered(count), job, endpoint)
    assert len(outcome.answered) == count


def pooled(opened: client.Client) -> Client:
    """Another client in a bounded pool of workers, which keeps nothing but a count."""

    async def ask_all(url: str, _: Items, count: int, concurrency: int) -> None:
        numbers, positive = iter(range(count)), 0
        async with opened(url) as ask:

            async def worker() -> None:
                nonlocal positive
                for number in numbers:
                    said = await ask(number)
                    positive += said == "Yes"

            await asyncio.gather(*(worker() for _ in range(concurrency)))
        assert positive == count

    return ask_all


Client = Callable[[str, Items, int, int], Awaitable[None]]
CLIENTS: dict[str, Client] = {
    "whole run": whole_run,
    "aiohttp": pooled(client.bare),
    "openai": pooled(client.sdk),
}


def timed(ask_all: Client, url: str, items: Items, count: int, concurrency: int) -> float:
    """Requests a second."""

    async def main() -> float:
        started = time.perf_counter()
        await ask_all(url, items, count, concurrency)
        return count / (time.perf_counter() - started)

    return asyncio.run(main())


def compare(
    what: str, delay: float, concurrency: int, counts: dict[str, int], items: Items, rounds: int
) -> None:
    """Print medians and ratios of interleaved rounds."""
    rates: dict[str, list[float]] = {name: [] for name in counts}
    with server(delay) as url:
        for _ in range(rounds):
            for name, count in counts.items():
                rates[name].append(timed(CLIENTS[name], url, items, count, concurrency))
    ours = statistics.median(rates["whole run"])
    for name, seen in rates.items():
        rate = statistics.median(seen)
        spread = f"{min(seen):.0f}-{max(seen):.0f}"
        print(
            f"{what:<24} {name:<10} {rate:>7.0f}/s ({spread})  whole run / this: {ours / rate:.2f}",
            flush=True,
        )


def write_items(path: Path, count: int) -> None:
    """About 800 characters each."""
    with path.open("w") as file:
        for number in range(count):
            text = f"TokenQuestion {number}: " + "is this so, or is it not? " * 30
            file.write(json.dumps({"id": str(number), "prompt": text, "label": number % 2}) + "\n")


class Instant:
    """An endpoint inside the process, for runs of a million."""

    async def ask(self, request: Request) -> Reply:
        await asyncio.sleep(0)
        return Reply("Yes" if request.logit_bias[IDS[0]] > 50 else "No", "length", 200, 1)

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
            job = Job(items, QUESTION, store, Limits(concurrency=256))
            outcome = asyncio.run(run(Dithered(count), job, Instant()))
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
