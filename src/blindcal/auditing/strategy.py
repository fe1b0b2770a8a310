"""How much of a design is asked: all of it, or what a budget pays for; chosen before asking."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from blindcal.auditing.budget import Budget
from blindcal.auditing.item_sample import members_of, sample_stages
from blindcal.auditing.job import RunOutcome
from blindcal.auditing.prepare import Prepared
from blindcal.auditing.session import Session, decides_items
from blindcal.design import Design
from blindcal.methods import METHODS, count_queries, make_design
from blindcal.records import AnswerTable, IntArray, Round
from blindcal.settings import Settings


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked, and the outcome; ``stages`` are the items in the sample, ``None`` for all items."""

    settings: Settings
    design: Design
    stages: list[IntArray] | None
    outcome: RunOutcome


#: Gets a design answered; the number is how many queries it is expected to ask, for the progress.
Send: TypeAlias = Callable[[Design, int], Awaitable[RunOutcome]]
#: Gets the queries of an audit answered, as far as limits and budget allow.
Strategy: TypeAlias = Callable[[Prepared, Send], Awaitable[Asked]]


def choose_strategy(session: Session) -> Strategy:
    """Choose how this audit decides how much to ask."""
    settings = session.settings
    if settings.design.queries is not None and decides_items(session):
        return lambda prepared, send: _spend_on_items(session, prepared, send)
    stages = sample_stages(session.items, settings, session.store)
    if settings.design.queries is None:
        return lambda prepared, send: _spend_on_queries(session, stages, prepared, send)
    _design(session, settings, stages)  # raises if the method does not fit, before anything is spent
    return lambda _, send: _ask_everything(session, stages, send)


async def _ask_everything(session: Session, stages: list[IntArray] | None, send: Send) -> Asked:
    """Ask every query of the design, for all items or a sample that may grow."""
    settings = session.settings
    design = _design(session, settings, stages)
    return Asked(settings, design, stages, await send(design, _planned(session, settings, stages)))


async def _spend_on_items(session: Session, prepared: Prepared, send: Send) -> Asked:
    """Ask as many items as a budget pays for, each as often as the settings say."""
    settings, n = session.settings, len(session.items)
    each = _planned(session, settings, None) / n
    sampled = settings.replace(sample=Budget(session, prepared, n).affordable_items(each))
    stages = await asyncio.to_thread(sample_stages, session.items, sampled, session.store)
    return _money_well_spent(await _ask_everything(session, stages, send))


async def _spend_on_queries(
    session: Session, stages: list[IntArray] | None, prepared: Prepared, send: Send
) -> Asked:
    """Ask as many queries as a budget pays for: a pilot, what it shows to be affordable, then the rest."""
    n = members_of(stages, len(session.items)).size
    money = Budget(session, prepared, n)
    decided, outcome = money.decided(), None
    if decided.total is None:
        some = METHODS[session.settings.design.method].usual_queries(several=bool(session.items.answers))
        whole = _design(session, session.settings.replace(queries=some), stages, decided.pilot)
        outcome = await send(_FirstRound(whole), decided.pilot)
    if outcome is None or outcome.stopped is None:
        money.decide()
    while True:
        settings = session.settings.replace(queries=money.mean())
        design = _design(session, settings, stages, decided.pilot)
        if outcome is None or outcome.stopped is None:
            outcome = await send(design, _planned(session, settings, stages))
        if outcome.stopped is not None or not money.top_up():
            return _money_well_spent(Asked(settings, design, stages, outcome))


@dataclass(frozen=True)
class _FirstRound:
    """A design that ends after the first round of another."""

    whole: Design

    def next_round(self, answered: AnswerTable) -> Round | None:
        """The first round, then none."""
        return None if len(answered) else self.whole.next_round(answered)


def _design(
    session: Session, settings: Settings, stages: list[IntArray] | None, pilot: int | None = None
) -> Design:
    return make_design(
        settings.design.method,
        session.items.labels,
        queries=settings.queries,
        bins=settings.bins,
        seed=settings.design.seed,
        stages=stages,
        pilot=pilot,
        choices=session.items.choices,
        summed=settings.summed,
        goal=settings.goal,
    )


def _planned(session: Session, settings: Settings, stages: list[IntArray] | None) -> int:
    sizes = [len(session.items)] if stages is None else [stage.size for stage in stages]
    method, several = settings.design.method, bool(session.items.answers)
    return sum(count_queries(method, n, settings.queries, settings.bins, several=several) for n in sizes)


def _money_well_spent(asked: Asked) -> Asked:
    """Count a run that ended because its budget is spent as finished."""
    if (asked.outcome.stopped or "").startswith("max_cost"):
        return replace(asked, outcome=replace(asked.outcome, stopped=None))
    return asked
