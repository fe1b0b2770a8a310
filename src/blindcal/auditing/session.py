"""The session of an audit: what all of its steps work with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blindcal.asking.run_context import RunContext
from blindcal.errors import InputError
from blindcal.items.files import Items
from blindcal.methods import METHODS, control_spacing
from blindcal.planning.plan import probe_queries
from blindcal.prices import CHARACTERS_A_TOKEN
from blindcal.records import Usage, Way
from blindcal.settings import Settings
from blindcal.store.run_store import Store

ONCE: tuple[Way, ...] = ("logprobs", "stated confidence")
"""Ways to audit in which asking an item again tells nothing more."""
_CLEARLY = 1.5  # factor by which the estimated cost of the probe may exceed the limit


@dataclass(frozen=True)
class Session:
    """An audit under way: its items, settings (with all defaults once it has begun), run file and context."""

    items: Items
    settings: Settings
    store: Store
    run: RunContext


def begin(session: Session) -> Session:
    """Fill in the defaults, and store settings and items in the run file or check that they match it."""
    items, store = session.items, session.store
    known = store.note("config") or {}
    if session.settings.auto and known.get("method") in METHODS:  # chosen, or named, when the run began
        session = replace(session, settings=_with_method(session.settings, known["method"]))
    settings = session.settings.resolved(len(items), items.words)
    store.begin(settings.fixed(items), items, keep_prompts=settings.prompt.keep_prompts)
    store.set_parts(settings.prompt.by_field, items.parts)
    return replace(session, settings=settings)


def settle(session: Session, method: str) -> Session:
    """The session with the method that was chosen for it; the run file notes it as if it had been named."""
    if not session.settings.auto:
        return session
    items, settings = session.items, _with_method(session.settings, method)
    settings = settings.resolved(len(items), items.words)
    session.store.set_note("config", settings.fixed(items))
    return replace(session, settings=settings)


def _with_method(settings: Settings, method: str) -> Settings:
    """Settings with the method that was chosen, which may not need as many queries as they allow."""
    queries = settings.design.queries
    if METHODS[method].way in ONCE and queries is not None:
        queries = min(queries, 1.0)
    return settings.replace(method=method, queries=queries)


def check_affords_probe(session: Session) -> None:
    """Refuse a limit on the cost that clearly cannot pay even for the probe, before anything is asked.

    Tokens are estimated from the mean number of characters per item.
    """
    max_cost, prices, items = session.run.limits.max_cost, session.run.prices, session.items
    if max_cost is None or prices is None or session.store.note("ready") is not None:
        return
    count = probe_queries(several=items.choices is not None)
    tokens = round(items.characters / len(items) / CHARACTERS_A_TOKEN * count)
    cost = prices.cost(Usage(queries=count, attempts=count, prompt_tokens=tokens, completion_tokens=count))
    if cost > _CLEARLY * max_cost:
        raise InputError(
            f"{{max_cost}} does not pay for the probe: its about {count} queries cost about ${cost:.2g}; "
            "nothing was asked",
            options={"max_cost": max_cost},
        )


def control_every(session: Session) -> int | None:
    """Of how many queries of a run one carries a control query: decided once, even if its sample grows.

    ``None`` if none does, as with methods that send no bias.
    """
    design = session.settings.design
    if not METHODS[design.method].biased:
        return None
    found = session.store.note("control_every")
    if found is None:
        found = control_spacing(design.sample or len(session.items))
        session.store.set_note("control_every", found)
    return int(found)
