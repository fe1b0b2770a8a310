"""White-box probabilities from an endpoint that exposes logprobs.

vLLM shows the logprobs of tokens that a request names. Other endpoints show those of the likeliest tokens and
of the answer, so any other target is *forced* with ``logit_bias`` and read as the answer. This is exact if
logprobs are computed before the bias is added, as in llama.cpp. If after, all targets are raised alike, which
keeps their differences.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, Self, TypeAlias

import numpy as np
from scipy.special import logsumexp

from blindcal.endpoints import Endpoint
from blindcal.endpoints.replies import BY_ID, fault_in
from blindcal.endpoints.tokens import one_spelling
from blindcal.errors import FatalError, ReplyError
from blindcal.records import Item, Reply, Request, Targets, Token
from blindcal.text import printable

WIDEST = (5000, 100, 20, 5)  # logprobs to ask for: llama.cpp allows any number, vLLM and OpenAI 20
NAMES = "logprob_token_ids"  # vLLM's field that names the tokens to show
FORCE = 100.0
RAISE = 50.0
_SAME = 1e-3
_NEAR = 0.1  # replies to one prompt differ by as much in half precision
_CERTAIN = -1e-3

Reading: TypeAlias = Literal["named", "listed", "raised"]
"""How targets are read: by the ids in a request, from the list of the likeliest tokens (others are forced),
or from that list with all targets raised."""


@dataclass(frozen=True, slots=True)
class Score:
    """Logprobs of an item's targets, in the order of :func:`in_order`, and their mass."""

    item: Item
    logprobs: tuple[float, ...]
    mass: float


def in_order(targets: Targets) -> tuple[Token, ...]:
    """All target tokens: the first of each answer, the positive one leading, then the others."""
    return (
        *(side[0] for side in targets.sides),
        *(token for side in targets.sides for token in side[1:]),
    )


def log_odds(targets: Targets, logprobs: Sequence[float]) -> tuple[float, float, float]:
    """Log-odds of the positive side under pair, max and sum semantics (METHOD 1)."""
    values = np.asarray(logprobs, float)
    more = 1 + len(targets.positive)
    positive, negative = np.r_[values[0], values[2:more]], np.r_[values[1], values[more:]]
    return (
        float(values[0] - values[1]),
        float(positive.max() - negative.max()),
        float(logsumexp(positive) - logsumexp(negative)),
    )


def prefer(targets: Targets, scores: Iterable[Sequence[float]]) -> Targets:
    """Put the spelling first that is most often the likeliest of its side, as an audit's pilot does.

    Of more than two answers, only this spelling is kept, the same for all if possible.
    """
    values = np.array(list(scores))
    tokens = in_order(targets)
    if targets.answers:
        likeliest = (
            side[int(k)].text
            for side in targets.answers
            for k in values[:, [tokens.index(token) for token in side]].argmax(axis=1)
        )
        return one_spelling(targets.answers, Counter(likeliest))
    sides = []
    for side in (targets.positive, targets.negative):
        columns = [tokens.index(token) for token in side]
        votes = np.bincount(values[:, columns].argmax(axis=1), minlength=len(side))
        best = int(votes.argmax())
        sides.append((side[best], *side[:best], *side[best + 1 :]))
    return replace(targets, positive=sides[0], negative=sides[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads the logprobs of targets from an endpoint; :meth:`open` determines how.

    ``top`` is the number of logprobs shown; ids in ``misread`` are shown under another text.
    """

    endpoint: Endpoint
    targets: Targets
    top: int
    reading: Reading
    misread: frozenset[int] = frozenset()

    @classmethod
    async def open(cls, endpoint: Endpoint, item: Item, targets: Targets) -> Self:
        """Determine on one item how the targets can be read.

        Raises `FatalError` if the endpoint shows no logprobs, or ignores both token ids and ``logit_bias``.
        """
        top, shown = await _widest(endpoint, item)
        if await _shows_named(endpoint, item, targets, shown):
            return cls(endpoint=endpoint, targets=targets, top=top, reading="named")
        tokens = in_order(targets)
        replies = [await _forced(endpoint, item, token) for token in tokens]
        own = [_own(reply) for reply in replies]
        if replies[0].text.strip() == replies[1].text.strip():
            answer = printable(replies[0].text, 40)
            raise FatalError(f"logit_bias has no effect: the answer is {answer!r} whichever token is raised")
        least = min(shown.values())
        misread = set()
        for token, value in zip(tokens, own, strict=True):
            expected = shown.get(token.text)
            if (value > least + _SAME) if expected is None else abs(value - expected) > _SAME:
                misread.add(token.id)
        reading: Reading = "raised" if min(own) > _CERTAIN else "listed"
        return cls(endpoint=endpoint, targets=targets, top=top, reading=reading, misread=frozenset(misread))

    async def read(self, item: Item) -> Score:
        """Ask for the logprobs of all targets."""
        if self.reading == "raised":
            return await self._read_raised(item)
        read = self._read_named if self.reading == "named" else self._read_listed
        values = await read(item)
        return Score(item, tuple(values), float(np.exp(values).sum()))

    async def _read_named(self, item: Item) -> list[float]:
        values = await _named(self.endpoint, item, self.targets)
        if values is None:
            raise FatalError(f"the endpoint no longer shows the logprobs of the tokens that {NAMES} names")
        return values

    async def _read_listed(self, item: Item) -> list[float]:
        shown = _shown(await self.endpoint.ask(Request(item.messages, top_logprobs=self.top)))
        values = []
        for token in in_order(self.targets):
            value = None if token.id in self.misread else shown.get(token.text)
            values.append(_own(await _forced(self.endpoint, item, token)) if value is None else value)
        return values

    async def _read_raised(self, item: Item) -> Score:
        tokens = in_order(self.targets)
        bias = {token.id: RAISE for token in tokens}
        raised = _shown(await self.endpoint.ask(Request(item.messages, bias, top_logprobs=self.top)))
        missing = [token.text for token in tokens if token.text not in raised]
        if missing:
            raise FatalError(
                f"the endpoint shows {len(raised)} logprobs, too few for {len(tokens)} answer tokens: "
                f"{printable(missing[0])!r} is not among them",
                remedy=""
                if self.targets.answers
                else "name one token per answer with {positive_ids} and {negative_ids}",
                options={"positive_ids": ..., "negative_ids": ...},
            )
        values = np.array([raised[token.text] for token in tokens])
        shown = _shown(await self.endpoint.ask(Request(item.messages, top_logprobs=self.top)))
        seen = [k for k, token in enumerate(tokens) if token.text in shown]
        if not seen:
            return Score(item, tuple(values.tolist()), float("nan"))
        anchor = max(seen, key=lambda k: values[k])
        values += shown[tokens[anchor].text] - values[anchor]
        return Score(item, tuple(values.tolist()), float(np.exp(values).sum()))


async def read_all(reader: Reader, items: Iterable[Item], *, concurrency: int) -> AsyncIterator[list[Score]]:
    """Read items in order, in batches, with at most ``concurrency`` concurrent requests."""
    gate = asyncio.Semaphore(concurrency)

    async def read(item: Item) -> Score:
        async with gate:
            return await reader.read(item)

    rest = iter(items)
    while batch := list(islice(rest, 4 * concurrency)):
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(read(item)) for item in batch]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        yield [task.result() for task in tasks]


async def _widest(endpoint: Endpoint, item: Item) -> tuple[int, Mapping[str, float]]:
    for top in WIDEST:
        try:
            reply = await endpoint.ask(Request(item.messages, top_logprobs=top))
        except FatalError as error:
            if top == WIDEST[-1]:
                raise (_no_logprobs() if "logprobs" in str(error) else error) from None
        else:
            return top, _shown(reply)
    raise AssertionError("the last of WIDEST returns or raises")


async def _shows_named(endpoint: Endpoint, item: Item, targets: Targets, shown: Mapping[str, float]) -> bool:
    # Most endpoints ignore or refuse the field.
    try:
        values = await _named(endpoint, item, targets)
    except (FatalError, ReplyError):
        return False
    if values is None or max(values) > max(shown.values()) + _NEAR:
        return False
    pairs = zip(in_order(targets), values, strict=True)
    return all(abs(value - shown.get(token.text, value)) < _NEAR for token, value in pairs)


async def _named(endpoint: Endpoint, item: Item, targets: Targets) -> list[float] | None:
    tokens = in_order(targets)
    fields = {NAMES: [token.id for token in tokens], BY_ID: True}
    reply = await endpoint.ask(Request(item.messages, top_logprobs=1, fields=fields))
    logprobs = reply.logprobs or {}
    values = [logprobs.get(f"token_id:{token.id}") for token in tokens]
    return None if None in values else [value for value in values if value is not None]


async def _forced(endpoint: Endpoint, item: Item, token: Token) -> Reply:
    return await endpoint.ask(Request(item.messages, {token.id: FORCE}, top_logprobs=1))


def _no_logprobs() -> FatalError:
    return FatalError(
        "this endpoint shows no logprobs, and its probabilities cannot be read without them",
        remedy="use a server that shows them, such as llama.cpp or vLLM, or load the model itself with "
        "{transformers}",
        options={"transformers": ...},
    )


def _shown(reply: Reply) -> Mapping[str, float]:
    if not reply.logprobs:
        raise _no_logprobs()
    if (fault := fault_in(reply.logprobs)) is not None:
        raise FatalError(fault)
    return reply.logprobs


def _own(reply: Reply) -> float:
    value = _shown(reply).get(reply.text) if reply.logprob is None else reply.logprob
    if value is None:
        raise FatalError("this endpoint does not show the logprob of the answer it gives")
    return value
