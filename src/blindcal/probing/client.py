"""Sends the queries of a probe, counts their cost and collects findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blindcal.endpoints import Endpoint
from blindcal.endpoints.query_format import ParsedAnswer, QuestionFormat, TokenQuestion
from blindcal.errors import ReplyError
from blindcal.probing.findings import QUESTIONS, Finding, FindingOutcome
from blindcal.probing.response_curve import Observation, Query
from blindcal.query_seeds import query_seeds
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Item, Reply, Request, Targets

ATTEMPTS = 5  # to get one of the two answers that are compared


class ProbeClient:
    """Sends the queries of a probe, counts queries, tokens and invalid answers, and collects findings.

    Seeds of sampled queries derive from ``seed``. If there are more than two answers, ``pairs``
    has two answer numbers per item, taken as positive and negative; any third answer is invalid.
    """

    def __init__(self, endpoint: Endpoint, targets: Targets, seed: int) -> None:
        self._seed = seed
        self._endpoint = endpoint
        self.targets = targets
        self._question = TokenQuestion(targets)
        self.queries = self.prompt_tokens = self.completion_tokens = 0
        self.longest = 0  # tokens of the longest reply
        self.compared = 0  # greedy comparisons of two answers
        self.outside = 0  # those answered with neither
        self.third = 0  # those answered with another of the answers
        self.broken: ReplyError | None = None  # error of the last unreadable reply
        self.illegible: ParsedAnswer | None = None  # the last reply that is no answer
        self.pairs: dict[str, tuple[int, int]] = {}
        self.observations: list[Observation] = []
        self.findings: dict[str, Finding] = {}  # by question

    def find(self, question: str, outcome: FindingOutcome, answer: str, trouble: str = "") -> str:
        """Keep a finding, in place of an earlier one about the same question.

        Returns ``trouble``, what it means for the audit; empty if it is harmless.
        """
        self.findings[question] = Finding(question, outcome, answer)
        return trouble

    @property
    def report(self) -> dict[str, Any]:
        """The fields of every `Probe`: findings in order, cost, and the cure of the last unreadable reply."""
        options = self.broken.options if self.broken else {}
        return {
            "findings": tuple(self.findings[name] for name in QUESTIONS if name in self.findings),
            "targets": self.targets,
            "queries": self.queries,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "remedy": self.broken.remedy if self.broken else "",
            "options": {name: None if value is ... else value for name, value in options.items()},
        }

    async def asked(self, request: Request) -> Reply:
        """The reply to a request; raises `ReplyError` if it cannot be read."""
        if request.sampled:  # the same request twice may be answered out of a cache, or by the same draw
            request = replace(request, seed=int(query_seeds(self._seed, self.queries, 1)[0]))
        self.queries += 1
        reply = await self._endpoint.ask(request)
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        if request.n == 1:
            self.longest = max(self.longest, reply.completion_tokens)
        return reply

    async def reply(self, request: Request) -> Reply | None:
        """The reply to a request; ``None`` if it cannot be read, and the error is kept."""
        try:
            return await self.asked(request)
        except ReplyError as error:
            self.broken = error
            return None

    async def answer(self, request: Request, question: QuestionFormat | None = None) -> int:
        """The answer to a request; a reply that cannot be read is invalid."""
        reply = await self.reply(request)
        if reply is None:
            return INVALID
        parsed = (question or self._question).parse(reply)
        if parsed.answer == INVALID:
            self.illegible = parsed
        return parsed.answer

    async def among(self, item: Item, biases: Mapping[int, float], temperature: float = 0.0) -> int:
        """The number of the answer with these biases, keyed by answer number and sent in this order."""
        tokens = self.targets.by_answer
        bias = {token.id: value for number, value in biases.items() for token in tokens[number]}
        return await self.answer(Request(item.messages, bias, temperature))

    def pair(self, item: str) -> tuple[int, int]:
        return self.pairs.get(item, (POSITIVE, NEGATIVE))

    async def biased_by(
        self, item: Item, positive: float | None, negative: float | None, temperature: float = 0.0
    ) -> int:
        """The answer with these biases on the two sides; ``None`` leaves a side unbiased."""
        for _ in range(ATTEMPTS):
            answer, given = await self._compare(item, positive, negative, temperature)
            if positive is not None and negative is not None and temperature == 0:
                self.compared += 1
                self.outside += answer == INVALID
                self.third += answer == INVALID != given
            if answer != INVALID:
                break
        return answer

    async def at(self, item: Item, shift: float, offset: float, temperature: float = 0.0) -> int:
        answer = await self.biased_by(item, offset + shift, offset, temperature)
        if answer != INVALID:
            self.observations.append(Observation(Query(item.id, shift, temperature), answer))
        return answer

    async def once(self, item: Item, shift: float, offset: float) -> int:
        """As `at`, but tried once and counted nowhere: an unusual offset may let other words through."""
        return (await self._compare(item, offset + shift, offset))[0]

    async def _compare(
        self, item: Item, positive: float | None, negative: float | None, temperature: float = 0.0
    ) -> tuple[int, int]:
        """The answer of the pair (positive, negative or invalid), and the number of the one given."""
        up, down = self.pair(item.id)
        sides = ((up, positive), (down, negative))
        biases = {number: bias for number, bias in sides if bias is not None}
        given = await self.among(item, biases, temperature)
        return POSITIVE if given == up else NEGATIVE if given == down else INVALID, given
