"""What is asked, kept and spent in one audit, whichever way its queries are sent."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from blindcal.auditing.limits import Limits
from blindcal.auditing.token_estimate import TokenEstimator
from blindcal.design import Design
from blindcal.endpoints.query_format import QuestionFormat
from blindcal.errors import EndpointError, NoSenseError, ReplyError
from blindcal.items.files import Items
from blindcal.prices import Prices
from blindcal.records import AnswerTable, IntArray, Item, Progress, Reply, Request, Round, Usage
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


@dataclass(frozen=True)
class Job:
    """What is asked, kept and spent, whichever way the queries go.

    ``spent`` is what was paid before (the probe), counted against the limits, and ``spent_size`` how many
    bytes its prompts were. No shift goes beyond ``max_shift``, where the endpoint would cut it. Setting
    ``stop`` ends the run early, and keeps what it paid for.
    """

    items: Items | Sequence[Item]
    question: QuestionFormat
    store: Store
    limits: Limits = field(default_factory=Limits)
    prices: Prices | None = None
    spent: Usage = field(default_factory=Usage)
    spent_size: int = 0
    max_shift: float = np.inf
    progress: Callable[[Progress], None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def read(self, query: int, reply: Reply, attempts: int, seconds: float = 0.0) -> SavedAnswer:
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


class Sender(ABC):
    """Gets the rounds of a design answered; a subclass knows how one is sent.

    ``usage`` is what all answers on disk have cost, ``stopped`` why a round was left unfinished. The state of
    a round is what is asked, the number of its first query, and its answers, `UNASKED` where there is none.
    """

    def __init__(self, job: Job, planned: int) -> None:
        self._job, self._total = job, planned
        self._store, self._limits, self._stop = job.store, job.limits, job.stop
        self._prices, self._spent = job.prices, job.spent
        self._tokens = TokenEstimator()  # of prompts answered here, be it on disk or not yet
        self._asked: Round
        self._first: int
        self._answers: AnswerArray
        self.usage = job.store.usage()
        self.stopped: str | None = None

    @abstractmethod
    async def _ask_round(self) -> None:
        """Have answered what the round leaves open, and count it; or say why it stopped."""

    @abstractmethod
    def report(self) -> None:
        """Report where the run is."""

    @property
    def beside(self) -> Usage:
        """What was asked on the way that is no answer of the design."""
        return Usage()

    async def ask(self, design: Design) -> RunOutcome:
        """Have the rounds of a design answered, one after the other, as far as it goes."""
        answered, first, nonsense = AnswerTable.empty(), 0, None
        stored = self._store.rounds()
        for number in itertools.count():
            asked = stored[number] if number < len(stored) else design.next_round(answered)
            if asked is None:
                break
            if number >= len(stored):
                most = self._job.max_shift
                asked = replace(asked, shifts=np.clip(asked.shifts, -most, most))
                self._store.add_round(asked)
            self._asked, self._first = asked, first
            self._answers = self._store.answers(first, len(asked))
            self._total = max(self._total, first + len(asked))
            try:
                await self._ask_round()
            except NoSenseError as error:  # no more is asked, and the result says what came back
                self._answers, nonsense = self._store.answers(first, len(asked)), error.message
            have = self._answers != UNASKED
            answered = answered.with_round(asked.rows(have), self._answers[have].astype(np.int64))
            first += len(asked)
            if nonsense or not have.all():
                break
        self.report()
        return RunOutcome(answered, self.usage, nonsense or self.stopped, self.beside)

    def _open(self) -> IntArray:
        """The queries of the round without an answer, in random order.

        So a run stopped half-way has asked a fair sample. The order is the same whenever the run is taken up,
        so that where a limit ends it does not depend on how often it was stopped.
        """
        order = np.random.default_rng(self._first).permutation(len(self._asked))
        queries: IntArray = self._first + order[self._answers[order] == UNASKED]
        return queries

    def _request(self, query: int) -> Request:
        asked, place = self._asked, query - self._first
        return self._job.question.request(
            self._job.items[int(asked.items[place])].messages,
            float(asked.shifts[place]),
            float(asked.temperatures[place]),
            query,
        )

    def _count(self, saved: list[SavedAnswer]) -> None:
        """Count answers that are on disk."""
        for one in saved:
            self._answers[one.query - self._first] = one.answer
            self.usage += one.usage

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until the run is to stop."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()


def as_endpoint_error(error: ReplyError) -> EndpointError:
    """What one item's reply says of the endpoint, if all of them say it."""
    return EndpointError(error.message, remedy=error.remedy, options=error.options)
