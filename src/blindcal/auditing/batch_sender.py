"""A run through a provider's batches: the same design and store, asked a file at a time at a lower price.

Two rules make it safe. Which queries go in which batch is on disk before anything is sent, and a query
is in one unfinished batch at most. And what is created carries a token that was on disk before: when it is
not known whether a file or a batch came to be (a crash, a lost response), the provider's own list is
looked through for the token before anything is created again. The answers of a finished batch and the
note that it is finished are one transaction.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from blindcal.auditing.canaries import Canaries
from blindcal.auditing.job import HOPELESS, Job, RunOutcome, Sender, as_endpoint_error
from blindcal.auditing.token_estimate import TokenEstimator, bytes_of
from blindcal.design import Design
from blindcal.endpoints.base import backoff
from blindcal.endpoints.batches import MOST_BYTES, MOST_REQUESTS, Batches, RemoteBatch
from blindcal.errors import EndpointError, FatalError, PendingError, ReplyError, RetryableError
from blindcal.prices import Prices, total_cost
from blindcal.records import FloatArray, IntArray, Progress, Reply, Usage
from blindcal.store.run_store import UNASKED, Batch, SavedAnswer
from blindcal.text import printable

FRUITLESS = 3  # so many submissions in a row that bring no answer are no accident
LEAST = 1000  # queries a batch, below which a full queue is not this run's doing
OUTAGE = 3600.0  # seconds without contact that waiting for a batch survives
_UNSURE, _SURE = 1.25, 1.02  # times the tokens expected of a prompt: from the probe's, from batches' prompts
_KNOWN = 100  # prompts of batches from which on their tokens are known
_CRUMB = 0.02  # share of the answers, below which no further batch is worth its day
_SETTLED = 6  # looks after which a batch that was asked for shows in the provider's list, if there is one
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


async def ask_in_batches(
    design: Design,
    job: Job,
    batches: Batches,
    *,
    planned: int = 0,
    check_bias: bool = False,
    polling: Polling | None = None,
    stage: Callable[[str], None] | None = None,
) -> RunOutcome:
    """Have everything answered through batches that the design wants and the store does not answer.

    Of the job's limits only those on queries and cost apply, and the patience. A run that is stopped returns
    after the step under way. ``planned`` is how many queries the design is expected to ask, for the progress.
    With ``check_bias`` canaries go along until it is known that the bias acts in batches too. Raised are
    `PendingError` if batches are under way and ``polling`` does not wait for them, and `EndpointError` when
    going on is useless; everything answered until then is kept.
    """
    canaries = Canaries(job, wanted=check_bias)
    sender = _BatchSender(job, planned, batches, canaries, polling or Polling(), stage or (lambda _: None))
    return await sender.ask(design)


class _StoppedError(Exception):
    """The run was asked to stop."""


class _BatchSender(Sender):
    """The state of one run: which batches there are, what they brought, why it stopped."""

    def __init__(
        self,
        job: Job,
        planned: int,
        client: Batches,
        canaries: Canaries,
        polling: Polling,
        stage: Callable[[str], None],
    ) -> None:
        super().__init__(job, planned)
        self._client, self._canaries, self._polling, self._stage = client, canaries, polling, stage
        if job.spent_size:
            self._tokens = TokenEstimator(0, job.spent_size, job.spent.prompt_tokens)
        self._batches = job.store.batches()
        self._most = MOST_REQUESTS - len(canaries)
        self._careful = self._held = False
        self._fruitless = 0
        self._last = ""
        self._limit: str | None = None

    @property
    def beside(self) -> Usage:
        """What the canaries cost."""
        return self._canaries.usage

    async def _ask_round(self) -> None:
        self._delay = self._polling.every
        try:
            if self._polling.cancel:
                await self._cancel()
            while UNASKED in self._answers and self.stopped is None:
                await self._look()
                if UNASKED not in self._answers:
                    break
                if await self._submit_open():
                    self._delay = self._polling.every
                if not self._under_way():
                    self.stopped = self._limit or (
                        f"{int((self._answers == UNASKED).sum())} queries were in {FRUITLESS} submissions in "
                        f"a row that brought no answer: {self._last}"
                    )
                    break
                if not self._polling.wait:
                    raise PendingError(self._pending())
                self.report()
                await self._pause()
        except _StoppedError:
            self.stopped = "interrupted"

    def _under_way(self) -> list[Batch]:
        return [batch for batch in self._batches if not batch.ended]

    def _keep(self, batch: Batch, **changes: Any) -> Batch:
        """Put on disk what has changed of a batch."""
        changed = replace(batch, **changes)
        if changed != self._batches[batch.number]:
            self._store.set_batch(changed)
            self._batches[batch.number] = changed
        return changed

    async def _cancel(self) -> None:
        """Have the provider end what is under way, and take in what it answered until then."""
        for batch in self._under_way():
            batch_id = batch.batch_id
            if batch_id is None and (remote := await self._patiently(OUTAGE, self._there, batch)):
                batch_id = self._keep(batch, batch_id=remote.id).batch_id
            if batch_id is None:
                self._keep(batch, ended=True, status="cancelled", said="never submitted")
            else:
                await self._patiently(OUTAGE, self._client.cancel, batch_id)
        while self._under_way():
            await self._look()
            if self._under_way():
                self._stage(f"cancelling: {self._pending()}")
                await self._pause()
        if UNASKED in self._answers:
            self.stopped = "cancelled"

    # Submitting

    async def _submit_open(self) -> bool:
        """Put every open query that is in no batch into one, and each batch with the provider, if not yet."""
        covered = np.concatenate([np.empty(0, np.int64), *(batch.queries for batch in self._under_way())])
        todo = self._open()
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
            if batch.file_id is None:
                await self._patiently(self._limits.patience, self._upload, batch.number, self._file(batch))
            await self._patiently(self._limits.patience, self._create, batch.number)
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
        return self._client.line(f"q{query}", self._request(query))

    def _canary_lines(self) -> list[bytes]:
        return [self._client.line(name, request) for name, request in self._canaries.requests().items()]

    def _file(self, batch: Batch) -> bytes:
        return b"".join([*map(self._line, batch.queries.tolist()), *self._canary_lines()])

    async def _upload(self, number: int, content: bytes) -> None:
        batch = self._batches[number]
        name = f"blindcal-{batch.token}.jsonl"
        file_id = None
        if batch.uploading is not None:  # it may be there although nobody heard of it
            file_id = await self._client.find_file(name, len(content))
        if file_id is None:
            batch = self._keep(batch, uploading=time.time())
            file_id = await self._client.upload(name, content)
        self._keep(batch, file_id=file_id)

    async def _create(self, number: int) -> None:
        batch = self._batches[number]
        file_id = batch.file_id
        assert file_id is not None
        remote = await self._there(batch)
        if remote is None:
            batch = self._keep(batch, creating=time.time())
            try:
                remote = await self._client.create(file_id, batch.token)
            except FatalError:  # surely refused: all is as if nothing had been sent
                self._keep(batch, uploading=None, file_id=None, creating=None)
                raise
            except RetryableError as error:
                if error.throttled:
                    self._keep(batch, creating=None)
                raise
        self._keep(batch, batch_id=remote.id, status=remote.status.lower())

    async def _there(self, batch: Batch) -> RemoteBatch | None:
        """A batch that was asked for and came to be although nobody heard of it."""
        if batch.creating is None or batch.file_id is None:
            return None
        settle = _SETTLED * self._polling.every
        await self._wait(min(settle, batch.creating + settle - time.time()))
        return await self._client.find(batch.token, batch.file_id)

    # Collecting

    async def _look(self) -> None:
        """See where each batch is, and take in what the finished ones brought."""
        ended, fruit = 0, 0
        for batch in self._under_way():
            if batch.batch_id is None:
                continue
            remote = await self._patiently(OUTAGE, self._client.look, batch.batch_id)
            if remote.ended and not remote.unwritten:
                fruit += await self._collect(batch, remote)
                ended += not (QUEUE_FULL in remote.codes and self._made_room(batch))
            else:
                self._keep(batch, **_seen(remote))
        if ended:
            self._fruitless = 0 if fruit else self._fruitless + 1
        if self._fruitless >= FRUITLESS and not self.usage.queries:
            raise EndpointError(f"{FRUITLESS} batches in a row brought no answer: {self._last}")

    async def _collect(self, batch: Batch, remote: RemoteBatch) -> int:
        """Keep what a finished batch brought; returns how many answers that is."""
        named, failed = await self._patiently(OUTAGE, self._results, remote)
        queries = {f"q{query}": query for query in batch.queries.tolist()}
        replies = {queries[name]: reply for name, reply in named.items() if name in queries}
        errors = {queries[name]: error for name, error in failed.items() if name in queries}
        if not replies and not errors and remote.completed:
            raise EndpointError(
                f"batch {batch.batch_id} has answered {remote.completed:,} queries, but none of them is in "
                "its output: nothing is submitted again, as it would be paid again; look at the batch's files"
            )
        self._canaries.listen(batch.number, named)
        for query, reply in replies.items():
            self._tokens.learn(bytes_of(self._request(query)), reply.prompt_tokens)
        tries = self._tries(batch)
        saved = [self._job.read(query, reply, tries[query]) for query, reply in replies.items()]
        unusable = {query: error for query, error in errors.items() if isinstance(error, ReplyError)}
        answered = self.usage.queries + len(replies)
        hopeless = bool(unusable) and (not answered or len(unusable) >= max(HOPELESS, answered))
        if not hopeless:
            saved += [
                self._job.read(query, Reply(f"({error.message})"), tries[query])
                for query, error in unusable.items()
            ]
        missing = batch.queries.size - len(saved)
        fatal = next((error for error in errors.values() if isinstance(error, FatalError)), None)
        reasons = Counter(error.message for error in errors.values()).most_common(1)
        why = remote.said or next((reason for reason, _ in reasons), "no reason given")
        self._keep_results(batch, remote, saved, why if missing else "")
        if hopeless:
            raise as_endpoint_error(next(iter(unusable.values())))
        if fatal is not None and not replies:
            raise fatal
        if missing:
            self._last = f"batch {batch.batch_id} {remote.status.lower()}: {printable(why, 300)}"
            self._stage(f"{len(saved):,} of {batch.queries.size:,} answers from {self._last}")
        return len(saved)

    async def _results(self, remote: RemoteBatch) -> tuple[dict[str, Reply], dict[str, EndpointError]]:
        """The first usable reply under each name, and what came instead where there is none."""
        replies: dict[str, Reply] = {}
        errors: dict[str, EndpointError] = {}
        for file_id in filter(None, (remote.output_file_id, remote.error_file_id)):
            async for line in self._client.lines(file_id):
                if line.reply is not None:
                    replies.setdefault(line.custom_id, line.reply)
                elif line.error is not None:
                    errors.setdefault(line.custom_id, line.error)
        return replies, {name: error for name, error in errors.items() if name not in replies}

    def _keep_results(self, batch: Batch, remote: RemoteBatch, saved: list[SavedAnswer], said: str) -> None:
        ended = replace(batch, **_seen(remote), ended=True, answered=len(saved), said=printable(said))
        self._store.set_batch(ended, saved)
        self._batches[batch.number] = ended
        self._count(saved)
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
        if self._canaries.requests():
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
        requests = map(self._request, queries.tolist())
        usages = (
            Usage(1, 1, round(margin * self._tokens.expected(bytes_of(one))), one.max_tokens)
            for one in requests
        )
        return np.array([prices.cost(one) for one in usages], np.float64)

    def _cost(self, prices: Prices) -> float:
        return total_cost(prices, self._spent, self.usage + self.beside, batch=True)

    async def _patiently(self, patience: float, action: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Do something again while it may succeed, for so many seconds at most."""
        begin, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            if self._stop.is_set():
                raise _StoppedError
            try:
                return await action(*arguments)
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

    async def _wait(self, seconds: float) -> None:
        await super()._wait(seconds)
        if self._stop.is_set():
            raise _StoppedError

    async def _pause(self) -> None:
        """Wait before the next look, longer each time."""
        await self._wait(self._delay)
        self._delay = min(1.5 * self._delay, self._polling.longest)

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


def _seen(remote: RemoteBatch) -> dict[str, Any]:
    """What is kept of a batch as the provider tells of it."""
    return {"status": remote.status.lower(), "completed": remote.completed, "failed": remote.failed}
