"""How many tokens a prompt will be, most likely and at the most, learnt from those that were answered.

Nothing that has to keep within a sum may go by a mean: prompts differ in length, and a text of digits or of
another script has several times the tokens of plain English. But no token is shorter than a byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.prices import CHARACTERS_A_TOKEN, Prices
from blindcal.records import Request, Usage

_WARY = 2.0  # times what is expected, where an endpoint counts more tokens than a prompt has bytes
_AROUND = 8  # tokens that a chat wraps around each message, and around the whole


@dataclass(slots=True)
class TokenEstimator:
    """What is known of prompts: how many were answered, their bytes and their tokens."""

    answered: int = 0
    size: int = 0
    tokens: int = 0

    def learn(self, size: int, tokens: int) -> None:
        """Take in a prompt of so many bytes that was so many tokens."""
        self.answered += 1
        self.size += size
        self.tokens += tokens

    def expected(self, size: float) -> float:
        """Tokens of a prompt of so many bytes, most likely."""
        return size * self.tokens / self.size if self.tokens and self.size else size / CHARACTERS_A_TOKEN

    def dearest(self, request: Request, prices: Prices) -> float:
        """What a request costs at the most."""
        size = bytes_of(request)
        mean = self.tokens / max(1, self.answered)  # some endpoints add a prompt of their own
        most = max(_WARY * self.expected(size), _WARY * mean, size + _AROUND * (1 + len(request.messages)))
        return prices.cost(Usage(1, 1, round(most), request.max_tokens))


def bytes_of(request: Request) -> int:
    """Bytes of a prompt."""
    return sum(len(message.content.encode(errors="surrogatepass")) for message in request.messages)
