"""What killed audits have in common, live and through batches: the questions, the filter and the phases."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np

from blindcal.errors import StoreError
from blindcal.items.files import load
from blindcal.records import Item, Progress
from blindcal.simulation.recording import Recording
from blindcal.store.run_store import RUN_FILE, UNASKED, Store

ROUNDS = 2
CONCURRENCY = 4
FAILING = 0.2
PHASES = ("probe", "first round", "later rounds", "conclude")
REFUSED = b"about weapons"
REFUSAL = "blocked by the content filter"
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["blindcal.auditing.audit", "blindcal.report.page"])


def write_items(path: Path, n: int) -> None:
    """Write questions to a file; the filter refuses one in twenty."""
    rng = np.random.default_rng(11)
    with path.open("w") as file:
        for k in range(n):
            prompt = f"question {k} about {'weapons' if k % 20 == 7 else 'numbers'}?"
            file.write(json.dumps({"id": f"q{k}", "prompt": prompt, "label": int(rng.random() < 0.5)}) + "\n")


def recorded(path: Path) -> tuple[Recording, list[Item]]:
    """A model that has an answer to each of the questions in a file, and these."""
    loaded = load(path)
    items = list(loaded)
    p = np.random.default_rng(12).beta(0.5, 0.5, len(items))
    return Recording.from_probabilities([item.id for item in items], p), items


def telling(
    tell: Callable[[str], object], n: int
) -> tuple[Callable[[str], None], Callable[[Progress], None]]:
    """Callbacks for the stages and the progress of an audit of ``n`` items that tell which phase begins."""

    def stage(text: str) -> None:
        if text == "asking":
            tell("first round")
        elif text.startswith("estimating"):
            tell("conclude")

    def progress(so_far: Progress) -> None:
        if not so_far.probing and so_far.done >= n:
            tell("later rounds")

    return stage, progress


def phase_on_disk(out: Path) -> str:
    """The phase in which an audit was killed, by what it left on disk."""
    try:
        with Store.read(out / RUN_FILE) as store:
            sizes = [len(one) for one in store.rounds()]
            if store.note("ready") is None or not sizes:
                return "probe"
            done = UNASKED not in store.answers(0, sum(sizes))
    except StoreError:  # there is no file yet, or an empty one
        return "probe"
    return "first round" if len(sizes) < ROUNDS else "conclude" if done else "later rounds"
