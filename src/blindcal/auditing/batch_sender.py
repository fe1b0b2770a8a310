"""A run through a provider's batches: the design and store of a live run, sent as files at a lower price.

Two rules make it safe. First, which queries go into which batch is on disk before anything is sent, and a
query is in at most one unfinished batch. The answers of a finished batch and the note that it has finished
are one transaction. Second, a batch is created a second time only if it is certain that it was not created
the first time. Every batch carries a token that is on disk before it is sent, and until the provider confirms
the batch, the provider's list is searched for the token. If the provider has refused the batch and its list
does not show it for a while, it was not created. If the outcome is unknown (a crash, a lost response), only
the user can decide. No decision is based on a clock that may be wrong.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from blindcal.auditing.canaries import Canaries
from blindcal.auditing.job import HOPELESS, Job, RunOutcome, Sender, as_endpoint_error
from blindcal.auditing.token_estimate import TokenEstimator, bytes_of
from blindcal.design import Design
from blindcal.endpoints.base import backoff
from blindcal.endpoints.batches import MOST_BYTES, MOST_REQUESTS, Batches, NoListError, RemoteBatch
from blindcal.errors import EndpointError, FatalError, PendingError, ReplyError, RetryableError
from blindcal.prices import Prices, total_cost
from blindcal.records import FloatArray, IntArray, Progress, Reply, Usage
from blindcal.store.run_store import UNASKED, Batch, SavedAnswer
from blindcal.text import printable

FRUITLESS = 3  # submissions in a row without any answer, after which the run gives up
LEAST = 1000  # queries per batch, below which a full queue is not caused by this run
OUTAGE = 3600.0  # seconds without contact, after which waiting for a batch fails
_UNSURE, _SURE = 1.25, 1.02  # margin on a prompt's expected tokens: known from the probe, from batches
_KNOWN = 100  # prompts answered in batches, from which on the smaller margin applies
_CRUMB = 0.02  # share of the answers so far; a smaller batch is not worth a day of waiting
NOT_SUBMITTED, UNCONFIRMED, REFUSED = "not submitted", "submission not confirmed", "submission refused"
CONFLICT = "(different replies to the same query)"
QUEUE_FULL = "token_limit_exceeded"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Polling:
    """How often to poll a batch: after ``every`` seconds, then less and less often, up to ``longest``.

    ``wait=False`` polls once, submits what is left to submit, and raises `PendingError` if a batch is under
    way. ``cancel`` submits nothing, cancels the batches under way, and collects the answers they have.

    A batch whose submission was refused or not confirmed is looked for in the provider's list for ``settle``
    seconds, which must be longer than the list takes to show a new batch. If the submission was refused and
    the list does not show it, it is submitted again; if it was not confirmed, only with ``resubmit``, as it
    might be paid for twice.
    """

    wait: bool = True
    every: float = 5.0
    longest: float = 60.0
    cancel: bool = False
    resubmit: bool = False
    settle: float = 120.0


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
    """Ask through batches all queries of the design that the store does not answer yet.

    Of the job's limits, only those on queries and cost, ``patience`` and ``backoff`` apply. A stopped run
    returns after the step under way. ``planned`` is the expected number of queries, for the progress. With
    ``check_bias``, batches include control queries until these show that the bias acts in batches too.
    Raises `PendingError` if batches are under way and ``polling`` does not wait for them, and
    `EndpointError` if asking on is useless or might be paid for twice; every answer so far is kept.
    """
    canaries = Canaries(job, wanted=check_bias)
    sender = _BatchSender(job, planned, batches, canaries, polling or Polling(), stage or (lambda _: None))
    return await sender.ask(design)


class _StoppedError(Exception):
    """The run was asked to stop."""


class _BatchSender(Sender):
    """The state of one run: its batches, their answers, and why it stopped."""

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
        self._fruitless = self._refusals = 0
        self._absent: dict[int, float] = {}  # by batch: since when the list is known not to show it
        self._doubts: dict[int, str] = {}  # by batch: why the list cannot tell whether it was created
        self._resubmitted: set[int] = set()
        self._last = ""
        self._limit: str | None = None

    @property
    def beside(self) -> Usage:
        """What the control queries cost."""
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
                unconfirmed = [batch for batch in self._under_way() if batch.batch_id is None]
                if self._doubts.keys() >= {batch.number for batch in self._under_way()}:
                    raise self._question(unconfirmed)
                if not self._polling.wait and self._doubts.keys() >= {one.number for one in unconfirmed}:
                    raise PendingError(self._pending())
                self.report()
                await self._pause()
        except _StoppedError:
            self.stopped = "interrupted"

    def _under_way(self) -> list[Batch]:
        return [batch for batch in self._batches if not batch.ended]

    def _keep(self, batch: Batch, **changes: Any) -> Batch:
        """Change a batch, and write it to disk if that made a difference."""
        changed = replace(batch, **changes)
        if changed != self._batches[batch.number]:
            self._store.set_batch(changed)
            self._batches[batch.number] = changed
        return changed

    async def _cancel(self) -> None:
        """Cancel the batches under way, and collect the answers they have."""
        told: set[int] = set()
        while self._under_way():
            await self._look()
            for batch in self._under_way():
                if batch.batch_id is None and batch.creating is None:
                    self._keep(batch, ended=True, status="cancelled", said="never submitted")
                elif batch.batch_id is None and batch.number in self._doubts:
                    said = "not confirmed and not found: if the provider shows it, cancel it there"
                    self._keep(batch, ended=True, status="cancelled", said=said)
                    self._stage(f"a batch of {batch.queries.size:,} queries was {said}")
                elif batch.batch_id is not None and batch.number not in told:
                    await self._patiently(OUTAGE, self._client.cancel, batch.batch_id)
                    told.add(batch.number)
            if self._under_way():
                self._stage(f"cancelling: {self._pending()}")
                await self._pause()
        if UNASKED in self._answers:
            self.stopped = "cancelled"

    # Submitting

    async def _submit_open(self) -> bool:
        """Assign all open queries to batches and submit the unsubmitted ones; returns whether any were."""
        covered = np.concatenate([np.empty(0, np.int64), *(batch.queries for batch in self._under_way())])
        todo = self._open()
        todo = todo[~np.isin(todo, covered)]
        if not (self._held and covered.size) and self._fruitless < FRUITLESS:
            todo = todo[: self._allowed(todo, covered)]
            if todo.size:
                # After the provider's queue was full once, add one batch at a time.
                self._store.add_batches(itertools.islice(self._pieces(todo), 1 if self._careful else None))
                self._batches = self._store.batches()
        unsubmitted = [one for one in self._under_way() if one.batch_id is None and one.creating is None]
        for batch in unsubmitted:
            self._stage(f"submitting a batch of {batch.queries.size:,} queries")
            if batch.file_id is None:
                await self._patiently(self._limits.patience, self._upload, batch.number, self._file(batch))
            await self._patiently(self._limits.patience, self._create, batch.number)
        return bool(unsubmitted)

    def _pieces(self, queries: IntArray) -> Iterator[IntArray]:
        """Split the queries into as few files as the provider's limits allow."""
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
        if batch.uploading is not None:  # it may have succeeded with its response lost
            with suppress(NoListError):  # a second copy costs nothing
                file_id = await self._client.find_file(name, len(content))
        if file_id is None:
            batch = self._keep(batch, uploading=time.time())
            file_id = await self._client.upload(name, content)
        self._keep(batch, file_id=file_id)

    async def _create(self, number: int) -> None:
        """Create a batch; if the outcome is not certain, `_look` finds out."""
        batch = self._keep(self._batches[number], creating=time.time(), status=UNCONFIRMED)
        assert batch.file_id is not None
        try:
            created = await self._client.create(batch.file_id, batch.token)
        except EndpointError as error:
            if isinstance(error, RetryableError) and not error.unsent:
                self._stage(f"a batch of {batch.queries.size:,} queries is not confirmed: {error}")
                return
            self._keep(batch, creating=None, status=NOT_SUBMITTED)
            raise
        if isinstance(created, RemoteBatch):
            self._refusals = 0
            self._keep(batch, batch_id=created.id, status=created.status)
            return
        batch = self._keep(batch, status=REFUSED)
        self._refusals += 1
        if isinstance(created, RetryableError) and self._refusals < FRUITLESS:
            self._stage(f"a batch of {batch.queries.size:,} queries is refused: {created}")
            return
        with suppress(EndpointError):  # the refusal says more than a second one
            batch = await self._search(batch)
        if batch.batch_id is None:  # never a retryable error: retried at once, it might be paid for twice
            raise EndpointError(created.message) if isinstance(created, RetryableError) else created

    async def _search(self, batch: Batch) -> Batch:
        """Look for a batch that may have been created; once it certainly was not, it can be submitted."""
        number, settle = batch.number, self._polling.settle
        self._doubts.pop(number, None)
        doubt = ""
        try:
            remote = await self._patiently(OUTAGE, self._client.find, batch.token, batch.file_id or "")
        except NoListError as error:
            doubt = f"its list of batches cannot be searched ({error})"
        else:
            if remote is not None:
                return self._keep(batch, batch_id=remote.id, status=remote.status)
            if number not in self._absent:
                what = f"a batch of {batch.queries.size:,} queries"
                self._stage(f"looking for {what} in the provider's list, for up to {settle:g} s")
            since = self._absent.setdefault(number, time.monotonic())
            if time.monotonic() - since < settle:
                return batch
            if batch.status != REFUSED:
                doubt = f"its list of batches has not shown it for {settle:g} s"
        if doubt and not (self._polling.resubmit and number not in self._resubmitted):
            self._doubts[number] = doubt
            return batch
        if doubt:
            self._resubmitted.add(number)
        self._absent.pop(number, None)
        # The file may be the reason for a refusal: it is looked for, and uploaded if it is not there.
        return self._keep(batch, file_id=None, creating=None, status=NOT_SUBMITTED)

    def _question(self, unconfirmed: list[Batch]) -> EndpointError:
        """The error that asks the user what became of the batches that nothing is known about."""
        queries = sum(batch.queries.size for batch in unconfirmed)
        what = "a batch" if len(unconfirmed) == 1 else f"{len(unconfirmed)} batches"
        return EndpointError(
            f"it is not known whether the provider has created {what} of {queries:,} queries: it did not "
            f"confirm it, and {self._doubts[unconfirmed[0].number]}. Nothing is submitted, as it might be "
            "paid for twice. Look at the provider's list of batches, for the metadata "
            f"{' or '.join(batch.token for batch in unconfirmed[:3])}",
            remedy="if it is there, the same command collects it later; if it is not, {resubmit} submits it "
            "again, and {cancel} gives it up",
            options={"resubmit": True, "cancel": True},
        )

    # Collecting

    async def _look(self) -> None:
        """Poll each batch, and collect the answers of those that have ended."""
        ended, fruit = 0, 0
        for batch in self._under_way():
            if batch.batch_id is None and batch.creating is not None:
                batch = await self._search(batch)
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
        """Save the answers of a batch that has ended; returns their number."""
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
            replies[query] = self._tokens.count(reply, self._request(query), self._store)
        tries = self._tries(batch)
        saved = [
            self._job.read(query, reply, tries[query], choices=self._choices(query))
            for query, reply in replies.items()
        ]
        unusable = {query: error for query, error in errors.items() if isinstance(error, ReplyError)}
        saved += [self._job.unusable(query, error, tries[query]) for query, error in unusable.items()]
        answered = self.usage.queries - self.usage.invalid + len(replies)
        hopeless = bool(unusable) and (not answered or (answered < HOPELESS <= len(unusable)))
        missing = batch.queries.size - len(saved)
        fatal = next((error for error in errors.values() if isinstance(error, FatalError)), None)
        reasons = Counter(error.message for error in errors.values()).most_common(1)
        why = remote.said or next((reason for reason, _ in reasons), "no reason given")
        said = [why] if missing else []
        if conflicts := sum(one.text == CONFLICT for one in saved):
            said.append(f"different replies to {conflicts:,} queries, which are invalid answers")
            self._stage(f"batch {batch.batch_id} has {said[-1]}")
        self._keep_results(batch, remote, saved, "; ".join(said))
        if hopeless:
            raise as_endpoint_error(next(iter(unusable.values())))
        if saved:
            self._job.check(self.usage, saved)
        if fatal is not None and not replies:
            raise fatal
        if missing:
            self._last = f"batch {batch.batch_id} {remote.status}: {printable(why, 300)}"
            self._stage(f"{len(saved):,} of {batch.queries.size:,} answers from {self._last}")
        return len(saved)

    async def _results(self, remote: RemoteBatch) -> tuple[dict[str, Reply], dict[str, EndpointError]]:
        """The reply for each request id, and the error where there is none.

        Of different replies to one request none is better than the other, so it has no valid answer.
        """
        replies: dict[str, Reply] = {}
        errors: dict[str, EndpointError] = {}
        free_text = self._job.question.max_tokens > 1
        for file_id in filter(None, (remote.output_file_id, remote.error_file_id)):
            async for line in self._client.lines(file_id, free_text=free_text):
                if line.reply is not None:
                    first = replies.setdefault(line.custom_id, line.reply)
                    if first.text != line.reply.text:
                        replies[line.custom_id] = replace(first, text=CONFLICT)
                elif line.error is not None:
                    errors.setdefault(line.custom_id, line.error)
        return replies, {name: error for name, error in errors.items() if name not in replies}

    def _keep_results(self, batch: Batch, remote: RemoteBatch, saved: list[SavedAnswer], said: str) -> None:
        ended = replace(batch, **_seen(remote), ended=True, answered=len(saved), said=printable(said))
        self._store.set_batch(ended, saved)
        self._batches[batch.number] = ended
        self._count(saved)
        self.report()

    def _tries(self, batch: Batch) -> dict[int, int]:
        """How often each query has been submitted, this batch included."""
        tries = np.ones(batch.queries.size, np.int64)
        for earlier in self._batches[: batch.number]:
            tries += np.isin(batch.queries, earlier.queries)
        return dict(zip(batch.queries.tolist(), tries.tolist(), strict=True))

    def _made_room(self, batch: Batch) -> bool:
        """After a full queue, wait for the other batches or make smaller ones; returns whether it can."""
        self._careful = True
        self._held = any(other.batch_id is not None for other in self._under_way())
        if self._held:
            return True
        self._most = max(LEAST, batch.queries.size // 2)
        return batch.queries.size > self._most

    # Limits, waiting and reporting

    def _allowed(self, todo: IntArray, covered: IntArray) -> int:
        """How many open queries the limits allow besides those under way; notes the reason if not all."""
        canaries = 0
        if self._canaries.requests():
            canaries = len(self._canaries) * (len(self._under_way()) + math.ceil(todo.size / self._most))
        asked = self._paid.served + covered.size + canaries
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
                # a few more answers are not worth another day of waiting
                allowed = paid_for if paid_for > _CRUMB * self.usage.queries else 0
                self._limit = f"max_cost = {limits.max_cost:g} reached"
        return allowed

    def _costs(self, queries: IntArray, prices: Prices) -> FloatArray:
        """Expected cost of each query by its length, with a margin that shrinks as prompts are answered."""
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
        """Retry an action while its errors are retryable, for at most ``patience`` seconds."""
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
        """Wait before the next poll, longer each time."""
        await self._wait(self._delay)
        self._delay = min(1.5 * self._delay, self._polling.longest)

    def _pending(self) -> str:
        under_way = self._under_way()
        queries = sum(batch.queries.size for batch in under_way)
        named = ", ".join(
            f"{printable(batch.batch_id or 'no id yet', 80)} ({batch.status})" for batch in under_way[:3]
        )
        more = f" and {len(under_way) - 3} more" if len(under_way) > 3 else ""
        return (
            f"{queries:,} queries are with the provider in {len(under_way)} "
            f"batch{'es' if len(under_way) > 1 else ''}: {named}{more}"
        )

    def report(self) -> None:
        """Report the progress; what a batch has completed counts before it is on disk."""
        if self._job.progress is not None:
            under_way = self._under_way()
            done = self.usage.queries + sum(batch.completed for batch in under_way)
            cost = self._cost(self._prices) if self._prices else None
            paid = self._spent + self.usage + self.beside
            self._job.progress(Progress(done, self._total, paid, cost, len(under_way)))


def _seen(remote: RemoteBatch) -> dict[str, Any]:
    """The fields of the provider's batch object that are stored."""
    return {"status": remote.status, "completed": remote.completed, "failed": remote.failed}
