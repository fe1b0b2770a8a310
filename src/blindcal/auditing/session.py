"""The session of an audit: what all of its steps work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from blindcal.auditing.limits import Limits
from blindcal.items.files import Items
from blindcal.methods import METHODS, check_goal
from blindcal.prices import Prices
from blindcal.records import Progress, Way
from blindcal.settings import Settings
from blindcal.store.run_store import Store

ONCE: tuple[Way, ...] = ("logprobs", "stated confidence")
"""Ways to audit in which asking an item again tells nothing more."""
QUERIES_NOTE, ITEMS_NOTE = "budget", "budget_items"
"""Names under which a run notes what its budget decided."""


def ignore(_: str) -> None:
    """Discard a message."""


class Asking(Protocol):
    """What it takes to ask a few queries: a run file, limits, and whom to tell."""

    @property
    def store(self) -> Store:
        """The run file."""
        ...

    @property
    def limits(self) -> Limits:
        """How fast to ask, and when to stop."""
        ...

    @property
    def prices(self) -> Prices | None:
        """What tokens cost."""
        ...

    @property
    def progress(self) -> Callable[[Progress], None] | None:
        """Called with the progress."""
        ...

    @property
    def tell(self) -> Callable[[str], None]:
        """Called with a description of each step."""
        ...


@dataclass(frozen=True)
class Session:
    """An audit under way: its items, settings (with all defaults once it has begun), run file and limits.

    ``tell`` is called with a description of each step, ``progress`` with the progress. Setting ``stop`` ends
    the audit early.
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
    """Fill in the defaults, and store settings and items in the run file or check that they match it."""
    items, store = session.items, session.store
    known = store.note("config") or {}
    if session.settings.auto and known.get("method") in METHODS:  # chosen, or named, when the run began
        session = replace(session, settings=_with_method(session.settings, known["method"]))
    settings = session.settings.resolved(len(items), items.words, budgeted=_decides_queries(session))
    if settings.goal is not None and items.answers:
        check_goal(settings.assumed_method, settings.goal, several=True)
    store.begin(settings.fixed(items), items, keep_prompts=settings.prompt.keep_prompts)
    store.set_parts(settings.prompt.by_field, items.parts)
    begun = replace(session, settings=settings)
    return replace(begun, limits=_kept_limits(begun))


def settle(session: Session, method: str) -> Session:
    """The session with the method that was chosen for it; the run file notes it as if it had been named."""
    if not session.settings.auto:
        return session
    if session.settings.goal is not None:
        check_goal(method, session.settings.goal)
    items, settings = session.items, _with_method(session.settings, method)
    budgeted = settings.design.method == "latent" and session.limits.max_cost is not None
    settings = settings.resolved(len(items), items.words, budgeted=budgeted)
    session.store.set_note("config", settings.fixed(items))
    settled = replace(session, settings=settings)
    return replace(settled, limits=_kept_limits(settled))


def _with_method(settings: Settings, method: str) -> Settings:
    """Settings with the method that was chosen, which may not need as many queries as they allow."""
    queries = settings.design.queries
    if METHODS[method].way in ONCE and queries is not None:
        queries = min(queries, 1.0)
    return settings.replace(method=method, queries=queries)


def _decides_queries(session: Session) -> bool:
    """Whether a budget decides the number of queries: since the run began or, in a new run, from now on."""
    design = session.settings.design
    if design.method != "latent" or design.queries is not None:
        return False
    begun = session.store.note("config")
    return session.limits.max_cost is not None if begun is None else begun.get("queries") is None


def decides_items(session: Session) -> bool:
    """Whether a budget decides the number of items, for methods that ask every item equally often.

    This applies if a budget is given and no number of items, and if it applied before. Without a probe, the
    cost of a query is unknown, and a budget only ends the run.
    """
    settings, store = session.settings, session.store
    design = settings.design
    if design.method == "latent" or not settings.probed or design.sample is not None:
        return False
    return store.note(ITEMS_NOTE) is not None or (session.limits.max_cost is not None and not store.rounds())


def _kept_limits(session: Session) -> Limits:
    """The limits, with the budget decided on before if none is given now, so that no more is spent."""
    limits, store = session.limits, session.store
    if not (session.settings.design.queries is None or decides_items(session)):
        return limits
    noted = store.note(QUERIES_NOTE) or store.note(ITEMS_NOTE)
    return limits if noted is None or limits.max_cost else replace(limits, max_cost=noted["max_cost"])
