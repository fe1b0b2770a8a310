"""An audit that has begun: what every step of it works with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from blindcal.auditing.limits import Limits
from blindcal.items.files import Items
from blindcal.prices import Prices
from blindcal.records import Progress
from blindcal.settings import Settings
from blindcal.store.run_store import Store

QUERIES_NOTE, ITEMS_NOTE = "budget", "budget_items"
"""Under which names a run notes what money decided."""


def ignore(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Session:
    """An audit under way: its items, settings (once it has begun, with every default), run file and limits.

    ``tell`` is told what is being done and ``progress`` how far it is. Setting ``stop`` ends it early.
    """

    items: Items
    settings: Settings
    store: Store
    limits: Limits = field(default_factory=Limits)
    prices: Prices | None = None
    progress: Callable[[Progress], None] | None = None
    tell: Callable[[str], None] = ignore
    stop: asyncio.Event = field(default_factory=asyncio.Event)


def begin(session: Session) -> Session:
    """Fill in the defaults and put settings and items into the run file, or check that they are the same."""
    items, store = session.items, session.store
    settings = session.settings.resolved(len(items), items.words, budgeted=_decides_queries(session))
    if (store.note("config") or {}).get("batch"):  # begun through batches, it goes on through them
        settings = settings.replace(batch=True)
    store.begin(settings.fixed(items), items, keep_prompts=settings.prompt.keep_prompts)
    store.set_parts(settings.prompt.by_field, items.parts)
    begun = replace(session, settings=settings)
    return replace(begun, limits=_kept_limits(begun))


def _decides_queries(session: Session) -> bool:
    """Whether the money decides how many queries are asked: it was so when the run began, or is now."""
    design = session.settings.design
    if design.method != "latent" or design.queries is not None:
        return False
    begun = session.store.note("config")
    return session.limits.max_cost is not None if begun is None else begun.get("queries") is None


def decides_items(session: Session) -> bool:
    """Whether the money decides how many items are asked, by methods that ask each of them as often.

    So it is where a sum is given and no number of items, and where it was so before. Without a probe nothing
    is known of what a query costs: there a sum only ends the run.
    """
    settings, store = session.settings, session.store
    design = settings.design
    if design.method == "latent" or settings.estimator_name == "stated" or design.sample is not None:
        return False
    return store.note(ITEMS_NOTE) is not None or (session.limits.max_cost is not None and not store.rounds())


def _kept_limits(session: Session) -> Limits:
    """Limits with the sum that was decided on, if none is given now: nothing more is spent then."""
    limits, store = session.limits, session.store
    if not (session.settings.design.queries is None or decides_items(session)):
        return limits
    noted = store.note(QUERIES_NOTE) or store.note(ITEMS_NOTE)
    return limits if noted is None or limits.max_cost else replace(limits, max_cost=noted["max_cost"])
