"""Open a run, and what it asks: its items, the question about them, and the rounds of its design."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from blindcal.asking.governor import FinalOutcome, Governor
from blindcal.asking.run_context import RunContext
from blindcal.atomic_write import writing
from blindcal.endpoints import NoEndpoint
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import ParsedAnswer, QuestionFormat
from blindcal.endpoints.refusals import Accepted
from blindcal.errors import FileError
from blindcal.records import (
    INVALID,
    POSITIVE,
    BoolArray,
    FloatArray,
    IntArray,
    Item,
    Reply,
    Request,
    Round,
    Usage,
)
from blindcal.store.run_file import StoredReply
from blindcal.store.run_store import RUN_FILE, UNASKED, AnswerArray, Store
from blindcal.text import printable

StoreT = TypeVar("StoreT", bound=Store)

ALL_INVALID = 50
NOT_THERE = "an answer that the item does not have"


@contextlib.asynccontextmanager
async def opened_run(
    folder: Path,
    address: Address,
    run: RunContext,
    store_type: type[StoreT],
    accepted: Accepted | None = None,
) -> AsyncIterator[tuple[StoreT, Governor]]:
    """Open a run file and an endpoint; if nothing was asked before an error, no file is left."""
    with writing(folder):
        begun = (folder / RUN_FILE).exists()
    if run.endpoint is None:
        address.check_key(begun=begun)
    with store_type.open(folder / RUN_FILE) as store:
        asked = run.endpoint or (HttpEndpoint(address) if address.base_url else NoEndpoint())
        if isinstance(asked, HttpEndpoint):
            noted = msgspec.convert(store.note("accepted"), Accepted | None)
            asked.accepted = noted or accepted or Accepted()
        try:
            yield store, Governor(asked, run, store)
        finally:
            await asked.close()


@contextlib.contextmanager
def answers_kept() -> Iterator[None]:
    """Add to a `FileError` that no answer is lost."""
    try:
        yield
    except FileError as error:
        kept = "every answer is kept; run the same again to write the files, without asking anything"
        raise FileError(error.message, remedy=f"{error.remedy}; {kept}") from error


class NumberedItems(Protocol):
    """Items numbered from 0."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Item: ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a run asks, and the store that keeps the replies.

    Shifts are clipped to ``max_shift``, the largest that the endpoint does not clamp. A request asks at most
    ``at_once`` equal queries. With more than two ``answers``, an item may have fewer. ``also_check`` is
    called with each group of stored replies, and ends the run by raising.
    """

    items: NumberedItems
    question: QuestionFormat
    store: Store
    max_shift: float = np.inf
    at_once: int = 1
    answers: int = 2
    also_check: Callable[[Sequence[StoredReply]], None] | None = None

    def forced(self, item: int, answer: int) -> Request:
        """A query at the largest shift, whose answer is known if the bias acts."""
        asked = self.items[item]
        if self.answers == 2:
            shift = self.max_shift if answer == POSITIVE else -self.max_shift
            return self.question.request(asked.messages, shift, 0.0)
        biases = np.where(np.arange(self.answers) < asked.choices, 0.0, -np.inf)
        biases[answer] = self.max_shift
        return self.question.request(asked.messages, self.max_shift, 0.0, 0, biases)

    def read(self, reply: Reply, choices: int | None = None, **stored: Any) -> StoredReply:
        """Parse a reply for the store; answers beyond the item's first ``choices`` are invalid."""
        parsed = self.question.parse(reply)
        if choices is not None and parsed.answer >= choices:
            parsed = ParsedAnswer(INVALID, parsed.text, reason=NOT_THERE)
        if parsed.shown:
            stored.setdefault("body", msgspec.json.encode(parsed.shown).decode())
        return StoredReply(
            answer=parsed.answer,
            text=parsed.text,
            served=self.store.served_number(reply.model, reply.fingerprint),
            low=parsed.low,
            high=parsed.high,
            reason=parsed.reason,
            mass=parsed.mass,
            said=parsed.said,
            **stored,
        )

    def outcomes(self, queries: Sequence[int], final: FinalOutcome, choices: int | None) -> list[StoredReply]:
        """What to store for the queries of one request; the first carries the cost."""
        paid = [final.cost, *[{"attempts": 0}] * (len(queries) - 1)]
        outcome = final.outcome
        if isinstance(outcome, Reply):
            answers = zip(queries, paid, (outcome, *outcome.further), strict=False)
            seconds = round(final.seconds, 4)
            return [
                self.read(reply, choices, query=query, seconds=seconds, **cost)
                for query, cost, reply in answers
            ]
        unusable: dict[str, Any] = {
            "answer": INVALID,
            "text": printable(f"({outcome.message})"),
            "unusable": True,
        }
        return [
            StoredReply(query=query, **unusable, **cost) for query, cost in zip(queries, paid, strict=True)
        ]

    def check(self, usage: Usage, replies: Sequence[StoredReply]) -> None:
        """Raise if at least `ALL_INVALID` replies could be read and none is a valid answer."""
        readable = usage.queries - usage.unusable
        last = next((reply for reply in reversed(replies) if not reply.unusable), None)
        if last is not None and readable >= ALL_INVALID and usage.invalid == usage.queries:
            raise self.question.complaint(readable, last.text, last.reason)
        if self.also_check is not None:
            self.also_check(replies)


@dataclass(frozen=True)
class OpenRound:
    """A round under way; its queries are numbered from ``first``, and open ones have the answer `UNASKED`."""

    job: Job
    asked: Round
    first: int
    answers: AnswerArray

    @cached_property
    def order(self) -> IntArray:
        """The queries in a random order, kept on continuing, so that a stopped run is a fair sample."""
        order: IntArray = self.first + asking_order(self.first, self.asked, self.job.at_once)
        return order

    @property
    def answered(self) -> BoolArray:
        answered: BoolArray = self.answers != UNASKED
        return answered

    @property
    def unanswered(self) -> IntArray:
        """The queries without an answer, in the order of asking."""
        queries: IntArray = self.order[~self.answered[self.order - self.first]]
        return queries

    def item(self, query: int) -> int:
        return int(self.asked.items[query - self.first])

    def request(self, query: int, item: int | None = None) -> Request:
        """The request of a query, or the same one about another ``item``."""
        asked, place = self.asked, query - self.first
        return self.job.question.request(
            self.job.items[self.item(query) if item is None else item].messages,
            float(asked.shifts[place]),
            float(asked.temperatures[place]),
            query,
            None if asked.biases is None else asked.biases[place],
        )

    def choices(self, query: int) -> int | None:
        """The number of answers of a query's item; ``None`` in a run with two answers."""
        biases = self.asked.biases
        return None if biases is None else int(np.isfinite(biases[query - self.first]).sum())


def clipped(asked: Round, most: float) -> Round:
    """Clip the shifts and finite biases of a round to ±``most``; infinite ones mark missing answers."""

    def within(values: FloatArray) -> FloatArray:
        return np.where(np.isfinite(values), np.clip(values, -most, most), values)

    biases = None if asked.biases is None else within(asked.biases)
    return replace(asked, shifts=np.clip(asked.shifts, -most, most), biases=biases)


def request_numbers(asked: Round, at_once: int) -> IntArray:
    """The request that asks each query: equal queries share one, at most ``at_once`` of them."""
    if at_once == 1:
        return np.arange(len(asked))
    biases = () if asked.biases is None else (asked.biases,)
    columns = np.column_stack([asked.items, asked.shifts, asked.temperatures, *biases])
    same = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(same, kind="stable")
    nth = np.empty(len(asked), np.int64)  # place among the equal queries
    nth[order] = np.arange(len(asked)) - np.searchsorted(same[order], same[order])
    numbers = np.unique(same * len(asked) + nth // at_once, return_inverse=True)[1]
    return np.asarray(numbers.reshape(-1), np.int64)


def asking_order(first: int, asked: Round, at_once: int) -> IntArray:
    """The places of a round's queries in a random order, seeded by ``first``; requests stay together."""
    numbers = request_numbers(asked, at_once)
    requests = np.random.default_rng(first).permutation(numbers.max() + 1 if numbers.size else 0)
    return np.argsort(np.argsort(requests)[numbers], kind="stable")
