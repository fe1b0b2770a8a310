"""An audit that has begun: what every step of it works with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from blindcal.auditing import budget
from blindcal.auditing.limits import Limits
from blindcal.items.files import Items
from blindcal.prices import Prices
from blindcal.records import Progress
from blindcal.settings import Settings
from blindcal.store.run_store import Store


def _ignore(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Session:
    """An audit under way: its items, its settings with every default filled in, its run file, and its limits.

    ``tell`` is told what is being done and ``progress`` how far it is. Setting ``stop`` ends it early.
    """

    items: Items
    settings: Settings
    store: Store
    limits: Limits = field(default_factory=Limits)
    prices: Prices | None = None
    progress: Callable[[Progress], None] | None = None
    tell: Callable[[str], None] = _ignore
    stop: asyncio.Event = field(default_factory=asyncio.Event)


def begin(
    items: Items,
    settings: Settings,
    store: Store,
    limits: Limits,
    prices: Prices | None = None,
    progress: Callable[[Progress], None] | None = None,
    tell: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> Session:
    """Put settings and items into the run file, or check that the run was begun with the same ones."""
    budgeted = budget.decides_queries(settings, limits, store)
    settings = settings.resolved(len(items), items.words, budgeted=budgeted)
    if (store.note("config") or {}).get("batch"):  # begun through batches, it goes on through them
        settings = settings.replace(batch=True)
    store.begin(settings.fixed(items), items, keep_prompts=settings.prompt.keep_prompts)
    store.set_parts(settings.prompt.by_field, items.parts)
    return Session(
        items,
        settings,
        store,
        budget.kept_limits(settings, limits, store),
        prices,
        progress,
        tell or _ignore,
        stop or asyncio.Event(),
    )
