"""Prices of queries, and the assumed length of a token."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from blindcal.field_rules import NotNegative, check_fields
from blindcal.records import Usage

CHARACTERS_A_TOKEN = 4.0  # a guess, used until the endpoint reports a real count


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars per million tokens; ``listed`` is the date of those in ``prices.csv``."""

    input: Annotated[NotNegative, "Price per million input tokens."]
    output: Annotated[NotNegative, "Price per million output tokens."]
    listed: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def cost(self, usage: Usage) -> float:
        """Cost in dollars."""
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1e6


def list_prices(model: str) -> Prices | None:
    """OpenAI's list prices of one of its models; ``None`` if ``prices.csv`` lacks it."""
    return _listed().get(model)


@functools.cache
def _listed() -> dict[str, Prices]:
    with Path(__file__).with_name("prices.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {
            row["model"]: Prices(float(row["input"]), float(row["output"]), listed=row["checked"])
            for row in rows
        }
