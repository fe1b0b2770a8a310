"""Time and memory of an audit through batches, on loopback.

    python bench/batched.py [--queries 60000]

Submits and collects questions of about 800 characters, with the limits of 50,000 requests and 200 MB per
file; the server is in another process. bench/accuracy.py measures the accuracy of asking in one round.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import blindcal as bc
import run
from blindcal.auditing.batch_sender import ask_in_batches
from blindcal.auditing.job import Job
from blindcal.endpoints.batches import Batches
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.items.files import load
from blindcal.methods import make_design
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener
from blindcal.simulation.replay_batches import Desk
from blindcal.store.run_store import Store
from record import Cell, parser, record, table


def serve(pipe: Connection) -> None:
    """Serve batches and answer Yes to everything, until the parent ends this process."""

    async def main() -> None:
        yes = HttpResponse(run.BODY)
        desk = Desk(lambda _, __: yes, looks=1)

        def handle(request: HttpRequest) -> HttpResponse:
            return desk.handle(request) or HttpResponse(b"{}", 404)

        pipe.send(await Listener(handle).open("127.0.0.1", 0))
        await asyncio.Event().wait()

    asyncio.run(main())


async def measure(url: str, folder: Path, n: int) -> list[Cell]:
    """Submit all queries, then collect the answers."""
    path = folder / "items.jsonl"
    with path.open("w") as file:
        for k in range(n):
            file.write(json.dumps({"prompt": f"{run.PROMPT} {k}?", "label": k % 2}) + "\n")
    items = load(path)
    with Store.open(folder / "run.sqlite") as store:
        store.begin({}, items)
        job = Job(items, run.QUESTION, store)
        design = make_design("latent", items.labels, adaptive=False)
        async with HttpEndpoint(Address(url, "bench"), environ={}) as endpoint:
            begin = time.perf_counter()
            try:
                await ask_in_batches(design, job, Batches(endpoint), polling=bc.Polling(wait=False))
            except bc.PendingError:
                submitted = time.perf_counter() - begin
            begin = time.perf_counter()
            outcome = await ask_in_batches(design, job, Batches(endpoint))
            collected = time.perf_counter() - begin
        sent = len(store.batches())
    assert len(outcome.answered) == n
    return [n, sent, submitted, collected, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]


def main() -> None:
    """Measure, and record the table."""
    options = parser(__doc__)
    options.add_argument("--queries", type=int, default=60_000)
    arguments = options.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            url = f"http://127.0.0.1:{ours.recv()}/v1"
            row = asyncio.run(measure(url, Path(folder), arguments.queries))
    finally:
        process.terminate()
        process.join()
    columns = {
        "queries": "{:,}",
        "batches": "{}",
        "submitted in": "{:.0f} s",
        "collected in": "{:.0f} s",
        "peak memory": "{:.0f} MiB",
    }
    record("batched", {"size": table(columns, [row])}, folder=arguments.results, repeats=1, seeds="")


if __name__ == "__main__":
    main()
