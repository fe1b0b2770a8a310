"""What queries cost, and how many tokens a text is as long as nobody has counted them."""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.records import Usage

CHARACTERS_A_TOKEN = 4.0  # a guess that serves until the endpoint has told a real count


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars per million tokens; through batches, ``batch`` times as much."""

    input: float
    output: float
    batch: float = 0.5

    @property
    def batched(self) -> Prices:
        """What it costs through batches."""
        return Prices(self.input * self.batch, self.output * self.batch, 1.0)

    def cost(self, usage: Usage) -> float:
        """What this many tokens cost."""
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1e6


#: Dollars per million tokens in and out; longer names first. Indicative: OpenAI's list prices as remembered
#: from 2025, not checked since. The command line says so where prices can be given.
LIST_PRICES = {
    "gpt-4o-mini": (0.15, 0.6),
    "gpt-4o": (2.5, 10.0),
    "gpt-4.1-nano": (0.1, 0.4),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4.1": (2.0, 8.0),
    "gpt-3.5-turbo": (0.5, 1.5),
}


def list_prices(model: str) -> Prices | None:
    """OpenAI's list prices of one of its own models."""
    return next((Prices(*each) for name, each in LIST_PRICES.items() if model.startswith(name)), None)


def total_cost(prices: Prices, probed: Usage, asked: Usage, batch: bool) -> float:
    """What the probe, which is always live, and the rest cost."""
    return prices.cost(probed) + (prices.batched if batch else prices).cost(asked)
