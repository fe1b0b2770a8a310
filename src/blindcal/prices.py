"""Prices of queries, and a guess of the tokens in a text that have not been counted."""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.records import Usage

CHARACTERS_A_TOKEN = 4.0  # a guess, used until the endpoint reports a real count


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars per million tokens; batches cost ``batch`` times as much."""

    input: float
    output: float
    batch: float = 0.5

    @property
    def batched(self) -> Prices:
        """The prices in batches."""
        return Prices(self.input * self.batch, self.output * self.batch, 1.0)

    def cost(self, usage: Usage) -> float:
        """The cost of the tokens used."""
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1e6


#: Dollars per million tokens in and out; longer names first. Indicative: OpenAI's list prices of 2025 from
#: memory, not checked since. The help of the price options says so.
LIST_PRICES = {
    "gpt-4o-mini": (0.15, 0.6),
    "gpt-4o": (2.5, 10.0),
    "gpt-4.1-nano": (0.1, 0.4),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4.1": (2.0, 8.0),
    "gpt-3.5-turbo": (0.5, 1.5),
}


def list_prices(model: str) -> Prices | None:
    """OpenAI's list prices of one of its models, if known."""
    return next((Prices(*each) for name, each in LIST_PRICES.items() if model.startswith(name)), None)


def total_cost(prices: Prices, probed: Usage, asked: Usage, batch: bool) -> float:
    """The cost of the probe, which is always live, and of all other queries."""
    return prices.cost(probed) + (prices.batched if batch else prices).cost(asked)
