"""What an audit through batches gives up and takes: accuracy of one round, time and memory of many queries.

    python bench/batched.py accuracy [--data ../shared] [--repeats 20] [--budgets 1 2]   # minutes
    python bench/batched.py size [--queries 120000]                                      # about a minute

One query an item is one round through batches, thresholds spread evenly; asked live it is two, and the second
puts its thresholds where the first found them to tell most. `accuracy` compares the two designs on the twelve
score sets of bench/accuracy.py. `size` submits and collects so many questions of about 800 characters on
loopback, with the limits of 50,000 requests and 200 MB a file; the server is in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import accuracy
import client
from blindcal import design
from blindcal.auditing.batch_sender import Polling, run_batched
from blindcal.auditing.job import Job
from blindcal.endpoints.batches import Batches
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import PendingError
from blindcal.estimate.truth import binned_ece
from blindcal.items.files import load
from blindcal.methods import estimate_ece
from blindcal.records import Targets, Token
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener
from blindcal.simulation.replay_batches import BatchBehaviour, Desk
from blindcal.simulation.simulate import ask
from blindcal.store.run_store import Store


def error(job: tuple[Path, float, bool, int]) -> tuple[float, float]:
    """Mean absolute error of latent on one file, and how many rounds it took."""
    path, queries, adaptive, repeats = job
    labels, p = accuracy.load(path)
    truth, found, rounds = binned_ece(labels, p, 5).ece, [], 0
    for seed in range(repeats):
        plan = design.make("latent", labels, queries=queries, seed=seed, adaptive=adaptive)
        assert isinstance(plan, design.LatentDesign)
        rounds = len(plan.sizes)
        answered = ask(plan, labels, p, seed=seed)
        found.append(abs(estimate_ece("latent", plan, labels, answered, 5) - truth))
    return float(np.mean(found)), rounds


def compare(data: Path, repeats: int, budgets: list[float], processes: int) -> None:
    """Print the error of both designs."""
    paths = sorted((data / "scores").glob("*.csv.gz"))
    if not paths:
        raise SystemExit(f"no score files under {data}: give their folder with --data")
    print(
        f"| queries an item | live: rounds, error | batches: rounds, error | {repeats} repeats, seeds from 0"
    )
    with ProcessPoolExecutor(processes) as pool:
        for queries in budgets:
            cells = []
            for adaptive in (True, False):
                jobs = [(path, queries, adaptive, repeats) for path in paths]
                found = list(tqdm(pool.map(error, jobs), total=len(jobs), leave=False, disable=None))
                cells.append(f"{found[0][1]}, {np.mean([one for one, _ in found]):.4f}")
            print(f"| {queries:g} | {cells[0]} | {cells[1]} |", flush=True)


def serve(pipe: Connection) -> None:
    """A desk that answers Yes to everything, until its parent ends it."""

    async def main() -> None:
        yes = HttpResponse(client.BODY)
        desk = Desk(lambda _, __: yes, BatchBehaviour(looks=1))

        def handle(request: HttpRequest) -> HttpResponse:
            return desk.handle(request) or HttpResponse(b"{}", 404)

        pipe.send(await Listener(handle).open("127.0.0.1", 0))
        await asyncio.Event().wait()

    asyncio.run(main())


async def measure(url: str, folder: Path, n: int) -> None:
    """Submit, then collect."""
    path = folder / "items.jsonl"
    with path.open("w") as file:
        for k in range(n):
            file.write(json.dumps({"prompt": f"{client.PROMPT} {k}?", "label": k % 2}) + "\n")
    question = TokenQuestion(Targets((Token(1, "Yes"),), (Token(2, "No"),)))
    with load(path) as items, Store.open(folder / "run.sqlite") as store:
        store.begin({}, items)
        job = Job(items, question, store)
        plan = design.make("latent", items.labels, adaptive=False)
        async with HttpEndpoint(Address(url, "bench"), environ={}) as endpoint:
            begin = time.perf_counter()
            try:
                await run_batched(plan, job, Batches(endpoint), polling=Polling(False))
            except PendingError:
                submitted = time.perf_counter() - begin
            begin = time.perf_counter()
            outcome = await run_batched(plan, job, Batches(endpoint))
            collected = time.perf_counter() - begin
        sent = len(store.batches())
    assert len(outcome.answered) == n
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{n:,} queries in {sent} batches: {submitted:.1f} s to submit, {collected:.1f} s to collect, "
        f"peak memory {peak:.0f} MiB"
    )


def main() -> None:
    """Print one of the two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("accuracy", "size"))
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--budgets", type=float, nargs="*", default=[1.0, 1.5, 2.0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--queries", type=int, default=120_000)
    arguments = parser.parse_args()
    if arguments.what == "accuracy":
        compare(arguments.data, arguments.repeats, arguments.budgets, arguments.processes)
        return
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            url = f"http://127.0.0.1:{ours.recv()}/v1"
            asyncio.run(measure(url, Path(folder), arguments.queries))
    finally:
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
