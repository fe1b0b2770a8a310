"""What has to be known before the first query of an audit: the answer tokens, and the probe's verdict."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from blindcal.auditing.job import Limits, Progress
from blindcal.auditing.token_estimate import TokenEstimator, bytes_of
from blindcal.confidence_prompt import INSTRUCTION
from blindcal.design import METHODS, Method
from blindcal.endpoints import tokens
from blindcal.endpoints.base import Endpoint, Patient
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.probe import LEAST_SHIFT, Probe, probe
from blindcal.endpoints.query_format import ConfidenceQuestion
from blindcal.errors import ConfigError, FatalError, UnfitError
from blindcal.items.files import Items
from blindcal.prices import Prices
from blindcal.records import Item, Reply, Request, Targets, Token, Usage
from blindcal.settings import Settings, plain
from blindcal.store.run_store import Store

PILOTS, PROBED = 4, 6
ABOUT = 90  # queries of pilots and probe together; more where an endpoint needs looking into


@dataclass(frozen=True, slots=True)
class Ready:
    """What has to be known before the first query: noted in the run, so that it is paid for once.

    ``size`` is how many bytes the prompts were that were spent on finding out.
    """

    targets: Targets
    spent: Usage
    max_shift: float
    jitter: float
    probe: dict[str, Any] | None
    size: int = 0


async def prepare(
    endpoint: Endpoint,
    items: Items,
    settings: Settings,
    store: Store,
    targets: Targets | None,
    limits: Limits,
    prices: Prices | None,
    force: bool,
    tell: Callable[[str], None],
    progress: Callable[[Progress], None] | None = None,
) -> Ready:
    noted = store.note("ready")
    if isinstance(endpoint, HttpEndpoint):
        endpoint.limit_name = store.note("limit_name") or endpoint.limit_name
    if noted is not None:
        return msgspec.convert(noted, Ready)
    if settings.reads == "stated":
        # Nothing of the endpoint is relied on but that it answers, which the run itself finds out; a batch
        # would a day late, so there one question is asked live first.
        spent, size = Usage(), 0
        if settings.batch:
            question = ConfidenceQuestion(settings.words, settings.instruction or INSTRUCTION)
            asked = question.request(items[0].messages, 0.0, 0.0)
            remembered = _Remembered(endpoint, store, limits, prices)
            await Patient(remembered).ask(asked)
            spent, size = remembered.paid, remembered.lengths.size
        ready = Ready(targets or _words(settings), spent, settings.limit - settings.offset, 0.0, None, size)
        store.set_note("ready", msgspec.to_builtins(ready))
        return ready
    order = np.random.default_rng(settings.seed).permutation(len(items))[: PROBED + PILOTS]
    sample = [items[int(k)] for k in order]
    remembered = _Remembered(endpoint, store, limits, prices, progress)
    patient = Patient(remembered)
    if targets is None:
        tell("choosing answer tokens")
        choice = await _choose(endpoint, patient, sample[-PILOTS:], settings)
    else:
        choice = tokens.Choice(targets, {}, 0)
    tell("probing the endpoint")
    found = await probe(
        patient,
        sample[:PROBED],
        choice.targets,
        offset=settings.offset,
        limit=settings.limit,
        seed=settings.seed,
    )
    method = METHODS[settings.method]
    objection = _objection(found, method)
    if objection is not None and not force:
        store.forget_asides()
        raise UnfitError(_refusal(found, settings.method, objection))
    ready = Ready(
        choice.targets if method.biased else replace(choice.targets, semantics="sum"),
        remembered.paid,
        found.max_shift if found.verdict == "thresholds" else settings.limit - settings.offset,
        float(np.nan_to_num(max(found.jitter, found.crowd_jitter))),
        plain(
            {
                **msgspec.to_builtins(found),
                "votes": choice.votes,
                "forced": objection is not None,
                "objection": objection,
            }
        ),
        remembered.lengths.size,
    )
    store.set_note("ready", msgspec.to_builtins(ready))
    return ready


class _Remembered:
    """An endpoint that asks nothing twice: what a run asked before it was interrupted is read back.

    It keeps to the run's limits too: to its concurrency, so that a crash loses no more here than there,
    and to what it may ask and cost.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        store: Store,
        limits: Limits,
        prices: Prices | None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._progress = progress
        self._store = store
        self._limits, self._prices = limits, prices
        self._room = asyncio.Semaphore(limits.concurrency)
        self._times: Counter[bytes] = Counter()
        self.paid = Usage()
        self.lengths = TokenEstimator()
        self._under_way: dict[asyncio.Task[Reply], float] = {}  # and what each may cost
        self._limit_name = store.note("limit_name") or "max_tokens"

    async def ask(self, request: Request) -> Reply:
        key = hashlib.blake2b(msgspec.json.encode(request), digest_size=16).digest()
        nth = self._times[key]
        self._times[key] += 1
        if (kept := self._store.aside(key, nth)) is not None:
            reply = msgspec.json.decode(kept, type=Reply)
            self._count(request, reply)
            return reply
        async with self._room:
            while (reached := self._limit_reached(request)) is not None:
                if not self._under_way:
                    raise ConfigError(reached)
                # paid for, and to be kept; and it may turn out cheaper than feared
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            asking = asyncio.create_task(self._ask(key, nth, request))
            self._under_way[asking] = self._dearest(request)
            asking.add_done_callback(self._under_way.pop)
            return await asking

    async def _ask(self, key: bytes, nth: int, request: Request) -> Reply:
        reply = await self._endpoint.ask(request)
        if isinstance(self._endpoint, HttpEndpoint) and self._endpoint.limit_name != self._limit_name:
            # Learnt by asking, and needed where nothing is asked live any more: in a batch.
            self._limit_name = self._endpoint.limit_name
            self._store.set_note("limit_name", self._limit_name)
        self._count(request, reply)
        self._store.add_aside(key, nth, msgspec.json.encode(reply).decode())
        return reply

    def _count(self, request: Request, reply: Reply) -> None:
        self.lengths.learn(bytes_of(request), reply.prompt_tokens)
        self.paid += Usage(1, 1, reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
        if self._progress is not None:
            asked, cost = self.paid.queries, None if self._prices is None else self._prices.cost(self.paid)
            total = max(asked, ABOUT)
            self._progress(Progress(asked, total, self.paid, cost, self._limits.concurrency, probing=True))

    def _dearest(self, request: Request) -> float:
        limited = self._limits.max_cost is not None and self._prices is not None
        return self.lengths.dearest(request, self._prices) if limited and self._prices else 0.0

    def _limit_reached(self, request: Request) -> str | None:
        asked, limits = self.paid.queries, self._limits
        if limits.max_queries is not None and asked + len(self._under_way) >= limits.max_queries:
            return _too_low(f"max-queries {limits.max_queries}", "")
        if limits.max_cost is not None and self._prices is not None:
            paid, own = self._prices.cost(self.paid), self._dearest(request)
            unknown = self._under_way and not asked  # one first, to learn what one costs
            if unknown or paid + sum(self._under_way.values()) + own > limits.max_cost:
                about = paid / asked if asked else own
                return _too_low(f"max-cost {limits.max_cost:g}", f", ${about * ABOUT:.2g}")
        return None

    async def close(self) -> None:
        await self._endpoint.close()


def _too_low(limit: str, cost: str) -> str:
    return (
        f"--{limit} does not even pay for the probe, which takes about {ABOUT} queries{cost}: raise it and "
        "run the same again; what was asked is kept"
    )


async def _choose(
    endpoint: Endpoint, patient: Patient, pilots: list[Item], settings: Settings
) -> tokens.Choice:
    by_hand = bool(settings.positive_ids) and bool(settings.negative_ids)
    if not isinstance(endpoint, HttpEndpoint):
        raise ConfigError("an endpoint of your own needs the answer tokens too: pass targets")
    find = tokens.served if by_hand else tokens.find
    try:
        return await tokens.resolve(
            patient,
            find(endpoint, settings.model, *(() if by_hand else (settings.tokenizer,))),
            pilots,
            positive=settings.words[0],
            negative=settings.words[1],
            positive_ids=settings.positive_ids,
            negative_ids=settings.negative_ids,
            semantics=settings.semantics,
        )
    except FatalError:
        if METHODS[settings.method].biased:
            raise
        # Without a bias only the words matter, and no vocabulary is needed.
        return tokens.Choice(replace(_words(settings), semantics="sum"), {}, 0)


def _words(settings: Settings) -> Targets:
    """The answer words, where no token of the vocabulary is needed: the ids say nothing."""
    return Targets((Token(0, settings.words[0]),), (Token(1, settings.words[1]),))


def _objection(found: Probe, method: Method) -> str | None:
    """Why an endpoint with these findings cannot be audited by this method, if so."""
    if found.verdict == "not auditable" or (found.verdict == "temperature" and method.biased):
        return found.reason
    heat = next((f for f in found.findings if f.question == "temperature honoured"), None)
    if method.sampled and heat is not None and heat.outcome in ("caution", "bad"):
        return f"temperature is not honoured ({heat.answer})"
    return None


def _refusal(found: Probe, method: str, objection: str) -> str:
    """The objection, what can be done about it, and last that it can be overridden."""
    if any(f.question == "answers at all" and f.outcome == "bad" for f in found.findings):
        return f"this endpoint is not auditable: {objection}"
    cannot = "is not auditable" if found.verdict == "not auditable" else f"cannot be audited by {method}"
    cure = ""
    if found.verdict == "temperature" and METHODS[method].biased:
        clamped = found.clamp is not None and found.max_shift < LEAST_SHIFT  # its reason names a cure already
        cure = f"{', or' if clamped else ':'} use --method temperature"
    return (
        f"this endpoint {cannot}: {objection}{cure} "
        "(--force goes on all the same; its figures may mean nothing)"
    )
