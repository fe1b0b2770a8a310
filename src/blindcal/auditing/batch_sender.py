"""A run through a provider's batches: the same design and store, asked a file at a time at a lower price.

Two rules make it safe. Which queries go in which batch is on disk before anything is sent, and a query
is in one unfinished batch at most. And what is created carries a token that was on disk before: when it is
not known whether a file or a batch came to be (a crash, a lost response), the provider's own list is
looked through for the token before anything is created again. The answers of a finished batch and the
note that it is finished are one transaction.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from blindcal.auditing.canaries import Canaries
from blindcal.auditing.job import HOPELESS, Job, RunOutcome, Send, ask_rounds
from blindcal.auditing.token_estimate import TokenEstimator, bytes_of
from blindcal.design import Design
from blindcal.endpoints.base import backoff
from blindcal.endpoints.batches import MOST_BYTES, MOST_REQUESTS, Batches, RemoteBatch
from blindcal.errors import EndpointError, FatalError, PendingError, ReplyError, RetryableError
from blindcal.prices import Prices
from blindcal.records import FloatArray, IntArray, Progress, Reply, Round, Usage
from blindcal.store.run_store import UNASKED, AnswerArray, Batch, SavedAnswer
from blindcal.text import printable

FRUITLESS = 3  # so many submissions in a row that bring no answer are no accident
LEAST = 1000  # queries a batch, below which a full queue is not this run's doing
OUTAGE = 3600.0  # seconds without contact that waiting for a batch survives
_UNSURE, _SURE = 1.25, 1.02  # times the tokens expected of a prompt: from the probe's, from batches' prompts
_KNOWN = 100  # prompts of batches from which on their tokens are known
_CRUMB = 0.02  # share of the answers, below which no further batch is worth its day
QUEUE_FULL = "token_limit_exceeded"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Polling:
    """How often to look at a batch: after ``every`` seconds, then ever less often up to ``longest``.

    ``wait=False`` looks once, submits what there is to submit, and raises `PendingError` if a batch is under
    way. ``cancel`` submits nothing, has the provider end what is under way, and waits for what it answered.
    """

    wait: bool = True
    every: float = 5.0
    longest: float = 60.0
    cancel: bool = False

    @property
    def settle(self) -> float:
        """Seconds after which a batch that was asked for shows in the provider's list, if there is one."""
        return 6 * self.every


def batch_send(
    job: Job,
    batches: Batches,
    canaries: Canaries | None,
    polling: Polling,
    stage: Callable[[str], None],
) -> Send:
    """Queries sent through a provider's batches."""
    return lambda design, planned: ask_in_batches(
        design, job, batches, planned=planned, canaries=canaries, polling=polling, stage=stage
    )


async def ask_in_batches(
    design: Design,
    job: Job,
    batches: Batches,
    *,
    planned: int = 0,
    canaries: Canaries | None = None,
    polling: Polling | None = None,
    stage: Callable[[str], None] | None = None,
) -> RunOutcome:
    """Have everything answered through batches that the design wants and the store does not answer.

    Of the job's limits only those on queries and cost apply, and the patience. A run that is stopped returns
    after the step under way. ``planned`` is how many queries the design is expected to ask, for the progress.
    ``canaries`` go along until it is known that the bias acts in batches too.

    Raises
    ------
    PendingError
        If batches are under way and ``polling`` does not wait for them.
    EndpointError
        When going on is useless. Everything answered until then is kept.
    """
    sender = _BatchSender(job, batches, canaries, polling or Polling(), stage or (lambda _: None), planned)
    return replace(await ask_rounds(design, job, sender), beside=sender.beside)


class _StoppedError(Exception):
    """The run was asked to stop."""


class _BatchSender:
    """The state of one run: which batches there are, what they brought, why it stopped."""

    def __init__(
        self,
        job: Job,
        client: Batches,
        canaries: Canaries | None,
        polling: Polling,
        stage: Callable[[str], None],
        planned: int,
    ) -> None:
        self._job, self._client, self._polling = job, client, polling
        self._stage, self._total = stage, planned
        self._store, self._limits, self._stop = job.store, job.limits, job.stop
        self._prices, self._spent = job.prices, job.spent
        self._tokens = TokenEstimator()
        if job.spent_size:
            self._tokens.learn(job.spent_size, job.spent.prompt_tokens, answered=0)
        self._batches = job.store.batches()
        self._canaries = canaries
        # by batch: whether they act, and their cost
        self._canary_results: dict[str, Any] = job.store.note("canaries") or {}
        self._most = MOST_REQUESTS - (len(canaries) if canaries else 0)
        self._careful = self._held = False
        self._fruitless = 0
        self._last = ""
        self._limit: str | None = None
        self.usage = job.store.usage()
        self.stopped: str | None = None

    @property
    def beside(self) -> Usage:
        """What the canaries cost."""
        return sum((Usage(**one["usage"]) for one in self._canary_results.values()), Usage())

    async def ask(self, asked: Round, first: int, answers: AnswerArray) -> AnswerArray:
        """Have a round answered; returns its answers, `UNASKED` where the run stopped before."""
        self._asked, self._first, self._answers = asked, first, answers
        self._total = max(self._total, first + len(asked))
        delay = self._polling.every
        try:
            if self._polling.cancel:
                await self._cancel()
            while UNASKED in answers and self.stopped is None:
                await self._look()
                if UNASKED not in answers:
                    break
                if await self._submit_open():
                    delay = self._polling.every
                if not self._under_way():
                    self.stopped = self._limit or (
                        f"{int((answers == UNASKED).sum())} queries were in {FRUITLESS} submissions in a row "
                        f"that brought no answer: {self._last}"
                    )
                    break
                if not self._polling.wait:
                    raise PendingError(self._pending())
                self.report()
                await self._wait(delay)
                delay = min(1.5 * delay, self._polling.longest)
        except _StoppedError:
            self.stopped = "interrupted"
        return answers

    def _under_way(self) -> list[Batch]:
        return [batch for batch in self._batches if not batch.ended]

    def _keep(self, batch: Batch) -> Batch:
        if batch != self._batches[batch.number]:
            self._store.set_batch(batch)
            self._batches[batch.number] = batch
        return batch

    async def _cancel(self) -> None:
        """Have the provider end what is under way, and take in what it answered until then."""
        for batch in self._under_way():
            batch_id = batch.batch_id
            if batch_id is None and (remote := await self._patiently(lambda: self._there(batch), OUTAGE)):  # noqa: B023
                batch_id = self._keep(replace(batch, batch_id=remote.id)).batch_id
            if batch_id is None:
                self._keep(replace(batch, ended=True, status="cancelled", said="never submitted"))
            else:
                await self._patiently(lambda: self._client.cancel(batch_id), OUTAGE)  # noqa: B023
        delay = self._polling.every
        while self._under_way():
            await self._look()
            if self._under_way():
                self._stage(f"cancelling: {self._pending()}")
                await self._wait(delay)
                delay = min(1.5 * delay, self._polling.longest)
        if UNASKED in self._answers:
            self.stopped = "cancelled"

    # Submitting

    async def _submit_open(self) -> bool:
        """Put every open query that is in no batch into one, and each batch with the provider, if not yet."""
        covered = np.concatenate([np.empty(0, np.int64), *(batch.queries for batch in self._under_way())])
        # In random order, so that a run stopped half-way has asked a fair sample; always in the same one.
        order = np.random.default_rng(self._first).permutation(self._answers.size)
        todo = self._first + order[self._answers[order] == UNASKED]
        todo = todo[~np.isin(todo, covered)]
        if not (self._held and covered.size) and self._fruitless < FRUITLESS:
            todo = todo[: self._allowed(todo, covered)]
            if todo.size:
                # Once the provider's queue was full, one at a time, until it is full again.
                self._store.add_batches(itertools.islice(self._pieces(todo), 1 if self._careful else None))
                self._batches = self._store.batches()
        unsubmitted = [batch for batch in self._under_way() if batch.batch_id is None]
        for batch in unsubmitted:
            self._stage(f"submitting a batch of {batch.queries.size:,} queries")
            await self._upload(batch.number)
            await self._create(batch.number)
        return bool(unsubmitted)

    def _pieces(self, queries: IntArray) -> Iterator[IntArray]:
        """The queries in as few files as the provider's limits allow."""
        room = MOST_BYTES - sum(map(len, self._canary_lines()))
        begin, size = 0, 0
        for place, query in enumerate(queries):
            length = len(self._line(int(query)))
            if place > begin and (place - begin == self._most or size + length > room):
                yield queries[begin:place]
                begin, size = place, 0
            size += length
        yield queries[begin:]

    def _line(self, query: int) -> bytes:
        request = self._job.request(self._asked, query - self._first, query)
        return self._client.line(f"q{query}", request)

    def _canary_lines(self) -> list[bytes]:
        if self._canaries is None or any(one["act"] for one in self._canary_results.values()):
            return []
        return [
            self._client.line(
                one.name, self._job.question.request(self._job.items[one.item].messages, one.shift, 0.0)
            )
            for one in self._canaries
        ]

    async def _upload(self, number: int) -> None:
        if self._batches[number].file_id is not None:
            return
        lines = (self._line(int(query)) for query in self._batches[number].queries)
        content = b"".join([*lines, *self._canary_lines()])

        async def upload() -> None:
            batch = self._batches[number]
            name = f"blindcal-{batch.token}.jsonl"
            file_id = None
            if batch.uploading is not None:  # it may be there although nobody heard of it
                file_id = await self._client.find_file(name, len(content))
            if file_id is None:
                batch = self._keep(replace(batch, uploading=time.time()))
                file_id = await self._client.upload(name, content)
            self._keep(replace(batch, file_id=file_id))

        await self._patiently(upload, self._limits.patience)

    async def _create(self, number: int) -> None:
        async def create() -> None:
            batch = self._batches[number]
            file_id = batch.file_id
            assert file_id is not None
            remote = await self._there(batch)
            if remote is None:
                batch = self._keep(replace(batch, creating=time.time()))
                try:
                    remote = await self._client.create(file_id, batch.token)
                except FatalError:  # surely refused: all is as if nothing had been sent
                    self._keep(replace(batch, uploading=None, file_id=None, creating=None))
                    raise
                except RetryableError as error:
                    if error.throttled:
                        self._keep(replace(batch, creating=None))
                    raise
            self._keep(replace(batch, batch_id=remote.id, status=remote.status.lower()))

        await self._patiently(create, self._limits.patience)

    async def _there(self, batch: Batch) -> RemoteBatch | None:
        """A batch that was asked for and came to be although nobody heard of it."""
        if batch.creating is None or batch.file_id is None:
            return None
        settle = self._polling.settle
        await self._wait(min(settle, batch.creating + settle - time.time()))
        return await self._client.find(batch.token, batch.file_id)

    # Collecting

    async def _look(self) -> None:
        """See where each batch is, and take in what the finished ones brought."""
        ended, fruit = 0, 0
        for batch in self._under_way():
            if batch.batch_id is None:
                continue
            batch_id = batch.batch_id
            remote = await self._patiently(lambda: self._client.look(batch_id), OUTAGE)  # noqa: B023
            if remote.ended and not remote.unwritten:
                fruit += await self._collect(batch, remote)
                ended += not (QUEUE_FULL in remote.codes and self._made_room(batch))
            else:
                self._keep(
                    replace(
                        batch,
                        status=remote.status.lower(),
                        completed=remote.completed,
                        failed=remote.failed,
                    )
                )
        if ended:
            self._fruitless = 0 if fruit else self._fruitless + 1
        if self._fruitless >= FRUITLESS and not self.usage.queries:
            raise EndpointError(f"{FRUITLESS} batches in a row brought no answer: {self._last}")

    async def _collect(self, batch: Batch, remote: RemoteBatch) -> int:
        """Keep what a finished batch brought; returns how many answers that is."""
        replies, errors, sung = await self._patiently(lambda: self._results(batch, remote), OUTAGE)
        if not replies and not errors and remote.completed:
            raise EndpointError(
                f"batch {batch.batch_id} has answered {remote.completed:,} queries, but none of them is in "
                "its output: nothing is submitted again, as it would be paid again; look at the batch's files"
            )
        self._listen(batch, sung)
        for query, reply in replies.items():
            asked = self._job.request(self._asked, query - self._first, query)
            self._tokens.learn(bytes_of(asked), reply.prompt_tokens)
        tries = self._tries(batch)
        saved = [self._job.read(query, replies[query], tries[query], 0.0) for query in replies]
        useless = {query: error for query, error in errors.items() if isinstance(error, ReplyError)}
        answered = self.usage.queries + len(replies)
        hopeless = bool(useless) and (not answered or len(useless) >= max(HOPELESS, answered))
        if not hopeless:
            saved += [
                self._job.read(query, Reply(f"({error.message})"), tries[query], 0.0)
                for query, error in useless.items()
            ]
        missing = batch.queries.size - len(saved)
        fatal = next((error for error in errors.values() if isinstance(error, FatalError)), None)
        reasons = Counter(error.message for error in errors.values()).most_common(1)
        why = remote.said or next((reason for reason, _ in reasons), "no reason given")
        self._keep_results(batch, remote, saved, why if missing else "")
        if hopeless:
            first = next(iter(useless.values()))
            raise EndpointError(first.message, remedy=first.remedy, options=first.options)
        if fatal is not None and not replies:
            raise fatal
        if missing:
            self._last = f"batch {batch.batch_id} {remote.status.lower()}: {printable(why, 300)}"
            self._stage(f"{len(saved):,} of {batch.queries.size:,} answers from {self._last}")
        return len(saved)

    async def _results(
        self, batch: Batch, remote: RemoteBatch
    ) -> tuple[dict[int, Reply], dict[int, EndpointError], dict[str, Reply]]:
        """The first usable reply to each query, what came instead for the others, and the canaries'."""
        names = {f"q{query}": int(query) for query in batch.queries}
        replies: dict[int, Reply] = {}
        errors: dict[int, EndpointError] = {}
        sung: dict[str, Reply] = {}
        for file_id in (remote.output_file_id, remote.error_file_id):
            if file_id is None:
                continue
            async for line in self._client.lines(file_id):
                query = names.get(line.custom_id)
                if query is None:
                    if line.reply is not None:
                        sung.setdefault(line.custom_id, line.reply)
                elif line.reply is not None:
                    replies.setdefault(query, line.reply)
                elif line.error is not None:
                    errors.setdefault(query, line.error)
        for query in replies:
            errors.pop(query, None)
        return replies, errors, sung

    def _listen(self, batch: Batch, sung: dict[str, Reply]) -> None:
        """Note what the canaries say; raise, and leave the batch as it is, if the bias does nothing."""
        if self._canaries is None:
            return
        heard = {one.name: sung[one.name] for one in self._canaries if one.name in sung}
        usage = sum((self._job.read(0, reply, 1, 0.0).usage for reply in heard.values()), Usage())
        act = self._canaries.act(heard, self._job.question)
        if usage.queries:
            self._canary_results[str(batch.number)] = {"act": act, "usage": asdict(usage)}
            self._store.set_note("canaries", self._canary_results)
        if act is False:
            raise EndpointError(
                "logit_bias acts live but not in this endpoint's batches, so their answers measure nothing",
                remedy="leave {batch} out, and choose another folder with {out}",
                options={"batch": True, "out": ...},
            )

    def _keep_results(self, batch: Batch, remote: RemoteBatch, saved: list[SavedAnswer], said: str) -> None:
        ended = replace(
            batch,
            status=remote.status.lower(),
            completed=remote.completed,
            failed=remote.failed,
            ended=True,
            answered=len(saved),
            said=printable(said),
        )
        self._store.set_batch(ended, saved)
        self._batches[batch.number] = ended
        for one in saved:
            self._answers[one.query - self._first] = one.answer
            self.usage += one.usage
        self.report()
        if saved:
            self._job.check(self.usage, saved[-1].text)

    def _tries(self, batch: Batch) -> dict[int, int]:
        """How often each query has been submitted, this batch included."""
        tries = np.ones(batch.queries.size, np.int64)
        for earlier in self._batches[: batch.number]:
            tries += np.isin(batch.queries, earlier.queries)
        return dict(zip(batch.queries.tolist(), tries.tolist(), strict=True))

    def _made_room(self, batch: Batch) -> bool:
        """After a refusal because too much is queued: wait for the others, or try less at once."""
        self._careful = True
        self._held = any(other.batch_id is not None for other in self._under_way())
        if self._held:
            return True
        self._most = max(LEAST, batch.queries.size // 2)
        return batch.queries.size > self._most

    # Limits, waiting and telling

    def _allowed(self, todo: IntArray, covered: IntArray) -> int:
        """How many of the open queries the limits allow beside those under way; it notes why not all."""
        canaries = 0
        if self._canary_lines() and self._canaries is not None:
            canaries = len(self._canaries) * (len(self._under_way()) + math.ceil(todo.size / self._most))
        asked = self._spent.queries + self.usage.queries + self.beside.queries + covered.size + canaries
        allowed, limits = todo.size, self._limits
        if limits.max_queries is not None and limits.max_queries - asked < allowed:
            allowed = max(0, limits.max_queries - asked)
            self._limit = f"max_queries = {limits.max_queries} reached"
        if limits.max_cost is not None and self._prices is not None:
            under_way, costs = (self._costs(part, self._prices.batched) for part in (covered, todo))
            each = float(np.concatenate([under_way, costs]).mean()) if todo.size else 0.0
            left = limits.max_cost - self._cost(self._prices) - under_way.sum() - canaries * each
            paid_for = int(np.searchsorted(np.cumsum(costs), left, side="right"))
            if paid_for < allowed:
                # another day for a crumb of what there is already is not worth it
                allowed = paid_for if paid_for > _CRUMB * self.usage.queries else 0
                self._limit = f"max_cost = {limits.max_cost:g} reached"
        return allowed

    def _costs(self, queries: IntArray, prices: Prices) -> FloatArray:
        """What each query will cost by its length, and a margin while little is known of the prompts."""
        margin = _SURE if self._tokens.answered >= _KNOWN else _UNSURE
        requests = (self._job.request(self._asked, int(query) - self._first, int(query)) for query in queries)
        usages = (
            Usage(1, 1, round(margin * self._tokens.expected(bytes_of(one))), one.max_tokens)
            for one in requests
        )
        return np.array([prices.cost(one) for one in usages], np.float64)

    def _cost(self, prices: Prices) -> float:
        return prices.cost(self._spent) + prices.batched.cost(self.usage + self.beside)

    async def _patiently(self, action: Callable[[], Awaitable[T]], patience: float) -> T:
        """Do something again while it may succeed, for so many seconds at most."""
        begin = time.monotonic()
        for attempt in itertools.count(1):
            if self._stop.is_set():
                raise _StoppedError
            try:
                return await action()
            except RetryableError as error:
                delay = error.retry_after
                if delay is None:
                    delay = backoff(attempt, self._limits.backoff, 60.0)
                if time.monotonic() + delay - begin > patience:
                    raise EndpointError(
                        f"no success in {patience:.0f} s; the last error: {error}. Nothing is lost: the same "
                        "command goes on"
                    ) from None
                await self._wait(delay)
        raise AssertionError("it is tried until it succeeds or time is up")

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stop.wait()
        if self._stop.is_set():
            raise _StoppedError

    def _pending(self) -> str:
        under_way = self._under_way()
        queries = sum(batch.queries.size for batch in under_way)
        named = ", ".join(
            f"{printable(batch.batch_id or '', 80)} ({batch.status})" for batch in under_way[:3]
        )
        more = f" and {len(under_way) - 3} more" if len(under_way) > 3 else ""
        return (
            f"{queries:,} queries are with the provider in {len(under_way)} "
            f"batch{'es' if len(under_way) > 1 else ''}: {named}{more}"
        )

    def report(self) -> None:
        """Report where the run is; what a batch has completed counts before it is on disk."""
        if self._job.progress is not None:
            under_way = self._under_way()
            done = self.usage.queries + sum(batch.completed for batch in under_way)
            cost = self._cost(self._prices) if self._prices else None
            paid = self._spent + self.usage + self.beside
            self._job.progress(Progress(done, self._total, paid, cost, len(under_way)))
