"""Estimate the tokens of a prompt, expected and at most, from answered prompts.

A mean is not enough to keep to a limit: digits or other scripts take several times the tokens of plain
English. But no token is shorter than a byte. Where an endpoint reports no tokens, or impossible numbers, the
estimate counts, so that limits hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blindcal.errors import EndpointError
from blindcal.prices import CHARACTERS_A_TOKEN, Prices
from blindcal.records import Reply, Request, Usage
from blindcal.store.run_store import Store

_WARY = 2.0  # factor on the expected tokens, for endpoints that count more tokens than a prompt has bytes
_AROUND = 8  # tokens that a chat format adds around each message, and around the whole


@dataclass(slots=True)
class TokenEstimator:
    """Bytes and tokens of the answered prompts; ``estimated`` if an endpoint did not report some."""

    store: Store | None = None
    answered: int = 0
    size: int = 0
    tokens: int = 0
    estimated: bool = False

    def learn(self, size: int, tokens: int) -> None:
        self.answered += 1
        self.size += size
        self.tokens += tokens

    def count(self, reply: Reply, request: Request) -> Reply:
        """Learn from a reply; estimate its tokens if it reports none."""
        size = bytes_of(request)
        if reply.prompt_tokens:
            self.learn(size, reply.prompt_tokens)
            return reply
        self.answered += 1
        prompt, completion, _ = self._estimate(request)
        return replace(reply, prompt_tokens=prompt, completion_tokens=completion)

    def bill(self, error: EndpointError, request: Request) -> None:
        """Estimate the tokens of an unusable reply that was billed but reports none."""
        if error.billed is not None and not error.billed[0]:
            error.billed = self._estimate(request)

    def _estimate(self, request: Request) -> tuple[int, int, int]:
        if not self.estimated:
            self.estimated = True
            if self.store is not None:
                self.store.set_note("tokens_estimated", True)
        prompt = max(1, round(self.expected(bytes_of(request))))
        return prompt * request.n, request.max_tokens * request.n, 0

    def expected(self, size: float) -> float:
        """Expected tokens of a prompt of ``size`` bytes."""
        return size * self.tokens / self.size if self.tokens and self.size else size / CHARACTERS_A_TOKEN

    def highest_cost(self, request: Request, prices: Prices) -> float:
        """The most that a request may cost; some endpoints bill the prompt once per answer."""
        size = bytes_of(request)
        mean = self.tokens / max(1, self.answered)  # some endpoints add their own prompt
        most = max(_WARY * self.expected(size), _WARY * mean, size + _AROUND * (1 + len(request.messages)))
        return prices.cost(
            Usage(
                queries=1,
                attempts=1,
                prompt_tokens=round(most) * request.n,
                completion_tokens=request.max_tokens * request.n,
            )
        )


def bytes_of(request: Request) -> int:
    """Size of a request's prompt in bytes."""
    return sum(
        len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        for text in (message.content for message in request.messages)
    )
