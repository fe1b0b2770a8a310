"""How much of a design is asked: all of it, or what a sum of money pays for. Chosen before asking."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Protocol

from blindcal.auditing import budget
from blindcal.auditing.budget import Budget
from blindcal.auditing.item_sample import sample_stages
from blindcal.auditing.job import RunOutcome, Send
from blindcal.auditing.prepare import Prepared
from blindcal.auditing.session import Session
from blindcal.design import Design
from blindcal.methods import count_queries, make_design
from blindcal.records import AnswerTable, IntArray, Round
from blindcal.settings import Settings


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked and what came of it; ``stages`` are the items that took part, ``None`` for all."""

    settings: Settings
    design: Design
    stages: list[IntArray] | None
    outcome: RunOutcome


class Strategy(Protocol):
    """Decides how much is asked, and has it sent."""

    async def ask(self, session: Session, prepared: Prepared, send: Send) -> Asked:
        """Have the whole audit answered, as far as it goes."""
        ...


def choose_strategy(session: Session) -> Strategy:
    """How this audit decides how much to ask."""
    settings, store = session.settings, session.store
    if settings.design.queries is None:
        return SpendOnQueries(sample_stages(session.items, settings, store))
    if budget.decides_items(settings, session.limits, store):
        return SpendOnItems()
    return AskEverything(sample_stages(session.items, settings, store))


@dataclass(frozen=True, slots=True)
class AskEverything:
    """Every query of the design, of all items or of a sample that may grow."""

    stages: list[IntArray] | None

    async def ask(self, session: Session, prepared: Prepared, send: Send) -> Asked:  # noqa: ARG002
        """All of it."""
        settings = session.settings
        design = _design(session, settings, self.stages)
        return Asked(
            settings, design, self.stages, await send(design, _planned(session, settings, self.stages))
        )


@dataclass(frozen=True, slots=True)
class SpendOnItems:
    """As many items as a sum pays for, each asked as often as the method has it."""

    async def ask(self, session: Session, prepared: Prepared, send: Send) -> Asked:
        """The items that the money pays for."""
        settings, n = session.settings, len(session.items)
        purse = _budget(session, prepared, n)
        affordable = purse.affordable_items(_planned(session, settings, None) / n)
        sampled = settings.replace(sample=affordable)
        stages = await asyncio.to_thread(sample_stages, session.items, sampled, session.store)
        return _money_well_spent(await AskEverything(stages).ask(session, prepared, send))


@dataclass(frozen=True, slots=True)
class SpendOnQueries:
    """As many queries as a sum pays for: a pilot, what it shows can be paid for, and what is left over."""

    stages: list[IntArray] | None

    async def ask(self, session: Session, prepared: Prepared, send: Send) -> Asked:
        """The pilot, then the rest, then what the rest leaves of the money."""
        n = len(session.items) if self.stages is None else sum(stage.size for stage in self.stages)
        money = _budget(session, prepared, n)
        pilot = money.decided().pilot
        outcome = await self._pilot(session, money, pilot, send)
        while True:
            settings = session.settings.replace(queries=money.decided().mean(n))
            design = _design(session, settings, self.stages, pilot)
            if outcome is None or outcome.stopped is None:
                outcome = await send(design, _planned(session, settings, self.stages))
            if outcome.stopped is not None or not money.top_up():
                return _money_well_spent(Asked(settings, design, self.stages, outcome))

    async def _pilot(self, session: Session, money: Budget, pilot: int, send: Send) -> RunOutcome | None:
        """Let a pilot decide the rest, if it is not decided; returns its outcome if it ended early.

        Batches take hours, so for them the probe stands for the pilot.
        """
        if money.decided().total is None and not money.batch:
            whole = _design(session, session.settings.replace(queries=1.0), self.stages, pilot)
            outcome = await send(_FirstRound(whole), pilot)
            if outcome.stopped is not None:
                return outcome
        money.decide()
        return None


@dataclass(frozen=True)
class _FirstRound:
    """The first round of a design, and no more."""

    whole: Design

    def next_round(self, answered: AnswerTable) -> Round | None:
        """The first round."""
        return None if len(answered) else self.whole.next_round(answered)


def _budget(session: Session, prepared: Prepared, n: int) -> Budget:
    return Budget(
        session.store,
        session.prices,
        session.settings.design.batch,
        session.limits.max_cost,
        prepared.spent,
        n,
        session.items.characters / len(session.items),
        prepared.size,
    )


def _design(
    session: Session, settings: Settings, stages: list[IntArray] | None, pilot: int | None = None
) -> Design:
    batch = settings.design.batch
    return make_design(
        settings.design.method,
        session.items.labels,
        queries=settings.queries,
        bins=settings.bins,
        seed=settings.design.seed,
        adaptive=not batch,
        stages=stages,
        pilot=None if batch else pilot,
    )


def _planned(session: Session, settings: Settings, stages: list[IntArray] | None) -> int:
    sizes = [len(session.items)] if stages is None else [stage.size for stage in stages]
    return sum(count_queries(settings.design.method, n, settings.queries, settings.bins) for n in sizes)


def _money_well_spent(asked: Asked) -> Asked:
    """A run that ends because the money is spent has finished, as it was meant to."""
    if (asked.outcome.stopped or "").startswith("max_cost"):
        return replace(asked, outcome=replace(asked.outcome, stopped=None))
    return asked
