"""What is asked, kept and spent in one audit, whichever way its queries are sent."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np

from blindcal.auditing.limits import Limits
from blindcal.design import Design
from blindcal.endpoints.query_format import QuestionFormat
from blindcal.errors import NoSenseError
from blindcal.prices import Prices
from blindcal.records import AnswerTable, Item, Progress, Reply, Request, Round, Usage
from blindcal.store.run_store import UNASKED, AnswerArray, SavedAnswer, Store

ALL_INVALID = 50
HOPELESS = 20  # unusable replies in a row that are no accident


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Every answer there is, and why there are no more: ``stopped`` is ``None`` for a finished run.

    ``beside`` is what was asked on the way that is no answer of the design.
    """

    answered: AnswerTable
    usage: Usage
    stopped: str | None = None
    beside: Usage = field(default_factory=Usage)


#: Has a design answered; the number is how many queries it is expected to ask, for the progress.
Send: TypeAlias = Callable[[Design, int], Awaitable[RunOutcome]]


class ItemSource(Protocol):
    """What a run needs of its items."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> Item: ...


@dataclass(frozen=True)
class Job:
    """What is asked, kept and spent, whichever way the queries go.

    ``spent`` is what was paid before (the probe), counted against the limits, and ``spent_size`` how many
    bytes its prompts were. No shift goes beyond ``max_shift``, where the endpoint would cut it. Setting
    ``stop`` ends the run early, and keeps what it paid for.
    """

    items: ItemSource
    question: QuestionFormat
    store: Store
    limits: Limits = field(default_factory=Limits)
    prices: Prices | None = None
    spent: Usage = field(default_factory=Usage)
    spent_size: int = 0
    max_shift: float = np.inf
    progress: Callable[[Progress], None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def request(self, asked: Round, place: int, query: int) -> Request:
        """The request at a place in a round, which is query number `query` of the run."""
        return self.question.request(
            self.items[int(asked.items[place])].messages,
            float(asked.shifts[place]),
            float(asked.temperatures[place]),
            query,
        )

    def read(self, query: int, reply: Reply, attempts: int, seconds: float) -> SavedAnswer:
        """A reply as it is kept, read as the question says."""
        return SavedAnswer(
            query,
            self.question.answer(reply.text),
            self.question.kept(reply.text),
            reply.prompt_tokens,
            reply.completion_tokens,
            reply.cached_tokens,
            attempts,
            round(seconds, 4),
        )

    def check(self, usage: Usage, last: str) -> None:
        """Raise if there are many answers and none of them is valid; `last` is the text of one."""
        if usage.queries >= ALL_INVALID and usage.invalid == usage.queries:
            raise self.question.complaint(usage.queries, last)


class Sender(Protocol):
    """Whoever gets a round answered; ``stopped`` says why a round was left unfinished."""

    stopped: str | None

    @property
    def usage(self) -> Usage: ...
    async def ask(self, asked: Round, first: int, answers: AnswerArray) -> AnswerArray: ...
    def report(self) -> None: ...


async def ask_rounds(design: Design, job: Job, sender: Sender) -> RunOutcome:
    """Have the rounds of a design answered, one after the other, as far as it goes."""
    answered, first, nonsense = AnswerTable.empty(), 0, None
    stored = job.store.rounds()
    for number in itertools.count():
        asked = stored[number] if number < len(stored) else design.next_round(answered)
        if asked is None:
            break
        if number >= len(stored):
            asked = replace(asked, shifts=np.clip(asked.shifts, -job.max_shift, job.max_shift))
            job.store.add_round(asked)
        try:
            answers = await sender.ask(asked, first, job.store.answers(first, len(asked)))
        except NoSenseError as error:  # no more is asked, and the result says what came back
            answers, nonsense = job.store.answers(first, len(asked)), error.message
        have = answers != UNASKED
        answered = answered.with_round(asked.rows(have), answers[have].astype(np.int64))
        first += len(asked)
        if nonsense or not have.all():
            break
    sender.report()
    return RunOutcome(answered, sender.usage, nonsense or sender.stopped)
