"""The few queries before a run: kept in the run file, and within the limits of the run."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec

from blindcal.asking.context import Asking
from blindcal.asking.token_estimate import TokenEstimator
from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import EndpointError, InputError, ReplyError
from blindcal.records import Progress, Reply, Request, Usage


class LimitTooLowError(InputError):
    """A limit ends the queries before a run."""


class RememberedEndpoint:
    """An endpoint that asks nothing twice: replies from before an interruption are read from the store.

    So are refusals of an item. It also obeys the run's limits: on concurrency, so that a crash loses no more
    here than in the run, and on queries and cost. About ``expected`` queries will be asked ``for_what``. If
    ``before`` is given, it is the usage of all stored replies, so that none that is read back counts again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        session: Asking,
        expected: int,
        *,
        for_what: str = "the probe",
        before: Usage | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._progress, self._store = session.progress, session.store
        self._limits, self._prices = session.limits, session.prices
        self._room = asyncio.Semaphore(session.limits.concurrency)
        self._expected, self._for_what = expected, for_what
        self._accepted = endpoint.accepted if isinstance(endpoint, HttpEndpoint) else None
        self._times: Counter[bytes] = Counter()
        self._unused: defaultdict[bytes, list[int]] = defaultdict(list)
        self.paid, self._recount = before or Usage(), before is None
        self._wasted = session.store.usage()
        self.tokens = TokenEstimator()
        self._under_way: dict[asyncio.Task[Reply], float] = {}  # with the highest cost of each

    async def ask(self, request: Request) -> Reply:
        key = hashlib.blake2b(msgspec.json.encode(request), digest_size=16).digest()
        nth = self._unused[key].pop() if self._unused[key] else self._times[key]
        self._times[key] = max(self._times[key], nth + 1)
        if (kept := self._store.aside(key, nth)) is not None:
            found = msgspec.json.decode(kept)
            if "error" not in found:
                return self._count(request, msgspec.convert(found, Reply), paid=self._recount)
            refused = msgspec.convert(found, _Refused)
            if self._recount:
                self._count_refused(refused)
            raise refused.as_error()
        async with self._room:
            while (reached := self._limit_reached(request)) is not None:
                if not self._under_way:
                    raise reached
                # replies under way are paid for and kept, and they may turn out cheaper
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            asking = asyncio.create_task(self._ask(key, nth, request))
            self._under_way[asking] = self._dearest(request)
            asking.add_done_callback(self._under_way.pop)
            return await asking

    async def _ask(self, key: bytes, nth: int, request: Request) -> Reply:
        endpoint = self._endpoint
        try:
            reply = await endpoint.ask(request)
        except ReplyError as error:
            self.tokens.bill(error, request, self._store)
            refused = _Refused.of(error)
            self._count_refused(refused)
            self._store.add_aside(key, nth, msgspec.json.encode(refused).decode())
            raise
        except EndpointError as error:
            self._unused[key].append(nth)  # the next attempt is the nth time
            self.tokens.bill(error, request, self._store)
            if error.billed is not None:
                wasted = Usage.of(0, 1, *error.billed) + Usage(wasted=1)
                self._wasted += wasted
                await self._store.waste(wasted)
            raise
        if isinstance(endpoint, HttpEndpoint) and endpoint.accepted != self._accepted:
            self._accepted = endpoint.accepted
            self._store.set_note("accepted", msgspec.to_builtins(self._accepted))
        reply = self._count(request, reply)
        self._store.add_aside(key, nth, msgspec.json.encode(reply).decode())
        return reply

    def _count(self, request: Request, reply: Reply, *, paid: bool = True) -> Reply:
        reply = self.tokens.count(reply, request, self._store)
        if paid:
            self.paid += reply.usage
        self._report()
        return reply

    def _count_refused(self, refused: _Refused) -> None:
        self.paid += refused.usage
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            asked, cost = self.paid.queries, None if self._prices is None else self._prices.cost(self.paid)
            total = max(asked, self._expected)
            self._progress(
                Progress(
                    done=asked,
                    total=total,
                    usage=self.paid,
                    cost=cost,
                    concurrency=self._limits.concurrency,
                    probing=True,
                )
            )

    def _dearest(self, request: Request) -> float:
        return 0.0 if self._prices is None else self.tokens.dearest(request, self._prices)

    def _limit_reached(self, request: Request) -> LimitTooLowError | None:
        paid, limits = self.paid + self._wasted, self._limits
        asked = paid.served
        if limits.max_queries is not None and asked + len(self._under_way) >= limits.max_queries:
            return self._too_low("max_queries", limits.max_queries)
        if limits.max_cost is not None and self._prices is not None:
            cost, own = self._prices.cost(paid), self._dearest(request)
            unknown = self._under_way and not asked  # ask one query first, to learn its cost
            if unknown or cost + sum(self._under_way.values()) + own > limits.max_cost:
                about = cost / asked if asked else own
                return self._too_low("max_cost", limits.max_cost, f", ${about * self._expected:.2g}")
        return None

    def _too_low(self, limit: str, value: float, cost: str = "") -> LimitTooLowError:
        takes = f"which takes about {self._expected} queries{cost}"
        return LimitTooLowError(
            f"{{{limit}}} does not pay for {self._for_what}, {takes}",
            remedy="raise it and run the same again; what was asked is kept",
            options={limit: value},
        )

    async def close(self) -> None:
        await self._endpoint.close()


@dataclass(frozen=True, slots=True)
class _Refused:
    """A stored `ReplyError`: its words, and its tokens if it was ``billed``."""

    error: str
    remedy: str
    options: dict[str, Any]
    status: int | None
    billed: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @classmethod
    def of(cls, error: ReplyError) -> _Refused:
        billed = error.billed or (0, 0, 0)
        about = error.message, error.remedy, error.options, error.status
        return cls(*about, error.billed is not None, *billed)

    @property
    def usage(self) -> Usage:
        tokens = self.prompt_tokens, self.completion_tokens, self.cached_tokens
        return Usage.of(int(self.billed), 1, *tokens)

    def as_error(self) -> ReplyError:
        billed = self.usage.tokens if self.billed else None
        told = {"remedy": self.remedy, "options": self.options}
        return ReplyError(self.error, status=self.status, billed=billed, **told)
