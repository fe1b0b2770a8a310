"""Types of option values that click does not have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from blindcal.text import printable

MOST_BUDGET = 8


class FiniteRange(click.FloatRange):
    """A number in a range; not ``nan``, which is in every range, and not ``inf``."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the text of the option."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number.", param, ctx)
        return found


class JsonObject(click.ParamType[Mapping[str, Any]]):
    """A JSON object."""

    name = "JSON"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Mapping[str, Any]:
        """Parse the text of the option."""
        if isinstance(value, dict):
            return value
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except msgspec.DecodeError as error:
            self.fail(f"is not a JSON object: {error}", param, ctx)


class TokenIds(click.ParamType[tuple[int, ...]]):
    """Token ids, separated by commas."""

    name = "ID,ID..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Parse the text of the option."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{printable(value)!r} is not a list of token ids such as 9642,10035", param, ctx)


class Budgets(click.ParamType[tuple[int, ...]]):
    """Numbers of queries per item: 1-8, or 1,2,4."""

    name = "K-K|K,K"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Parse the text of the option."""
        if isinstance(value, tuple):
            return value
        try:
            low, dash, high = value.partition("-")
            found = tuple(range(int(low), int(high) + 1)) if dash else tuple(map(int, value.split(",")))
        except ValueError:
            found = ()
        if not found or not all(1 <= k <= MOST_BUDGET for k in found):
            self.fail(
                f"{printable(value, 40)!r} is neither a range such as 1-8 nor a list such as 1,2,4, "
                f"from 1 to {MOST_BUDGET}",
                param,
                ctx,
            )
        return tuple(sorted(set(found)))
