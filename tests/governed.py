"""Governors of endpoints for tests, with a clock that their waits move, so that no test has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.run_context import Limits, RunContext, ignore
from blindcal.endpoints import Endpoint
from blindcal.store.run_store import Store


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
    kept: str = "",
    **limits: Any,
) -> HurriedGovernor:
    """A governor that does not wait."""
    governor = HurriedGovernor(endpoint, RunContext(limits=Limits(**limits), tell=tell), store, kept)
    governor.waits = []
    return governor


def governed(endpoint: Endpoint, **limits: Any) -> GovernedEndpoint:
    """A governed endpoint that does not wait."""
    return GovernedEndpoint(hurried(endpoint, **limits))
