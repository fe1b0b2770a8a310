"""Sends the queries of a probe, counts what they cost and collects what they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.query_format import ParsedAnswer, QuestionFormat, TokenQuestion
from blindcal.errors import ReplyError
from blindcal.probing.findings import Finding, FindingOutcome
from blindcal.probing.flip_search import Reading
from blindcal.query_seeds import query_seeds
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Item, Reply, Request, Targets, Token

_INSIST = 5


class ProbeClient:
    """Sends the queries of a probe, counts queries, tokens and invalid answers, and collects findings.

    ``targets`` are the answer tokens; their ids only matter for queries with a bias. Sampled queries get
    seeds that follow from ``seed``, if there is one.

    Queries with a shift compare two answers. If there are more, ``pairs`` has the numbers of two answers of
    each item: the one that takes the place of the positive answer, and the other. Any third one is invalid.
    """

    def __init__(self, endpoint: Endpoint, targets: Targets, seed: int | None = None) -> None:
        self._seed = seed
        self._endpoint = endpoint
        self.targets = targets
        self._question = TokenQuestion(targets)
        self.queries = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.biased = 0
        self.outside = 0
        self.third = 0  # answers to a comparison of two that are another one
        self.broken: ReplyError | None = None
        self.illegible: ParsedAnswer | None = None  # the last reply that is no answer
        self.longest = 0
        self.pairs: dict[str, tuple[int, int]] = {}
        self.readings: list[Reading] = []
        self.findings: list[Finding] = []

    def find(self, question: str, outcome: FindingOutcome, answer: str, trouble: str = "") -> str:
        """Add a finding; returns ``trouble``, what it means for the audit, empty if it is harmless."""
        self.findings.append(Finding(question, outcome, answer))
        return trouble

    async def reply(self, request: Request) -> Reply | None:
        """The reply to a request; ``None`` if it cannot be read, and the error is kept."""
        try:
            return await self.asked(request)
        except ReplyError as error:
            self.broken = error
            return None

    async def asked(self, request: Request) -> Reply:
        """The reply to a request; raises `ReplyError` if it cannot be read."""
        if request.sampled and self._seed is not None:
            request = replace(request, seed=int(query_seeds(self._seed, self.queries, 1)[0]))
        self.queries += 1
        reply = await self._endpoint.ask(request)
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        if request.n == 1:
            self.longest = max(self.longest, reply.completion_tokens)
        return reply

    async def answer(self, request: Request, question: QuestionFormat | None = None) -> int:
        """The answer to a request; a reply that cannot be read is invalid."""
        reply = await self.reply(request)
        if reply is None:
            return INVALID
        parsed = (question or self._question).parse(reply)
        if parsed.answer == INVALID:
            self.illegible = parsed
        return parsed.answer

    def pair(self, item: str) -> tuple[int, int]:
        """The numbers of the two answers that are compared on an item."""
        return self.pairs.get(item, (POSITIVE, NEGATIVE))

    def sides(self, item: str) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
        """The tokens of the two answers that are compared on an item."""
        up, down = self.pair(item)
        return self.targets.by_answer[up], self.targets.by_answer[down]

    async def biased_by(
        self, item: Item, positive: float | None, negative: float | None, temperature: float = 0.0
    ) -> int:
        """The answer with these biases on the two sides; ``None`` leaves a side unbiased."""
        bias = self._bias(item, positive, negative)
        for _ in range(_INSIST):
            given = await self.answer(Request(item.messages, bias, temperature))
            answer = self._compared(item, given)
            if positive is not None and negative is not None and temperature == 0:
                self.biased += 1
                self.outside += answer == INVALID
                self.third += answer == INVALID != given
            if answer != INVALID:
                break
        return answer

    async def at(self, item: Item, shift: float, offset: float, temperature: float = 0.0) -> int:
        """The answer at a shift, asked as in an audit."""
        answer = await self.biased_by(item, offset + shift, offset, temperature)
        if answer != INVALID:
            self.readings.append(Reading(item.id, shift, answer, temperature))
        return answer

    async def once(self, item: Item, shift: float, offset: float) -> int:
        """The same, but only once and counted nowhere: with an unusual offset, other words may come."""
        bias = self._bias(item, offset + shift, offset)
        return self._compared(item, await self.answer(Request(item.messages, bias)))

    async def among(self, item: Item, biases: Mapping[int, float]) -> int:
        """The number of the answer with these biases on answers, by their numbers; sent in this order."""
        by_answer = self.targets.by_answer
        bias = {token.id: value for number, value in biases.items() for token in by_answer[number]}
        return await self.answer(Request(item.messages, bias))

    def _compared(self, item: Item, answer: int) -> int:
        """An answer as the positive or the negative one of an item's pair, or as invalid."""
        up, down = self.pair(item.id)
        return POSITIVE if answer == up else NEGATIVE if answer == down else INVALID

    def _bias(self, item: Item, positive: float | None, negative: float | None) -> dict[int, float]:
        up, down = self.sides(item.id)
        bias = {token.id: positive for token in up if positive is not None}
        return bias | {token.id: negative for token in down if negative is not None}
