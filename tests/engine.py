"""The engine alone: designs asked without an audit around them, and governors that need not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.asking.ask_design import RunOutcome, ask_design
from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.job import Job
from blindcal.asking.run_context import Limits, RunContext, ignore
from blindcal.design import Design
from blindcal.endpoints import Endpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.records import Item, Message
from blindcal.store.run_store import RUN_FILE, Store
from serving import PAIR

QUICK = Limits(backoff=0.001)
BIASED = TokenQuestion(PAIR)


def make_items(n: int) -> list[Item]:
    """Questions whose last word is their number."""
    return [Item(f"i{k}", k % 2, (Message("user", f"question {k}"),)) for k in range(n)]


async def ask_all(
    endpoint: Endpoint,
    folder: Path,
    design: Design,
    items: Sequence[Item],
    *,
    question: TokenQuestion = BIASED,
    limits: Limits = QUICK,
    max_shift: float = np.inf,
    at_once: int = 1,
    **context: Any,
) -> RunOutcome:
    """Ask a design in a run folder, or go on with it."""
    with Store.open(folder / RUN_FILE) as store:
        store.begin({}, make_items(len(items)))
        job = Job(items=items, question=question, store=store, max_shift=max_shift, at_once=at_once)
        return await ask_design(design, job, Governor(endpoint, RunContext(limits=limits, **context), store))


class HurriedGovernor(Governor):
    """A governor that only counts how long it would have waited."""

    now = 0.0
    waits: list[float]

    def _now(self) -> float:
        self.now += 1e-6  # what happens later is later
        return self.now

    async def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self.waits.append(seconds)
            self.now += seconds
        for _ in range(20):  # whoever else is under way goes on meanwhile
            await asyncio.sleep(0)


def hurried(
    endpoint: Endpoint,
    *,
    store: Store | None = None,
    tell: Callable[[str], None] = ignore,
    **limits: Any,
) -> HurriedGovernor:
    """A governor that does not wait."""
    governor = HurriedGovernor(endpoint, RunContext(limits=Limits(**limits), tell=tell), store)
    governor.waits = []
    return governor


def governed(endpoint: Endpoint, **limits: Any) -> GovernedEndpoint:
    """A governed endpoint that does not wait."""
    return GovernedEndpoint(hurried(endpoint, **limits))
