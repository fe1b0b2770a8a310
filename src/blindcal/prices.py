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


def total_cost(prices: Prices, probed: Usage, asked: Usage, batch: bool) -> float:
    """What the probe, which is always live, and the rest cost."""
    return prices.cost(probed) + (prices.batched if batch else prices).cost(asked)
