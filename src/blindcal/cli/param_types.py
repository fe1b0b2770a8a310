"""Types of option values that click does not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
import msgspec

from blindcal.text import printable
from blindcal.untrusted_json import JsonError, read_json

T = TypeVar("T")
MOST_BUDGET = 8
_OBJECT = msgspec.json.Decoder(dict[str, Any])


if TYPE_CHECKING:
    from click import ParamType as _ParamType
else:  # before 8.4, click's own takes no type

    class _ParamType(click.ParamType, Generic[T]):
        pass


class FiniteRange(click.FloatRange):
    """A number in a range; neither ``nan``, which passes every range check, nor ``inf``."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the text of the option."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number.", param, ctx)
        return found


class Parsed(_ParamType[T]):
    """A type whose values ``parse`` reads from text; the help shows ``name`` for it."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:  # noqa: ARG002
        """Parse the text of the option; a default may already be parsed."""
        return self.parse(value) if isinstance(value, str) else value


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        return read_json(text.encode(errors="surrogateescape"), _OBJECT)
    except JsonError as error:
        raise click.BadParameter(f"is not a JSON object: {error}") from None


def _token_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{printable(text)!r} is not a list of token ids such as 9642,10035"
        ) from None


def _budgets(text: str) -> tuple[int, ...]:
    """Numbers of queries per item: 1-8, or 1,2,4."""
    try:
        low, dash, high = text.partition("-")
        found = set(range(int(low), int(high) + 1) if dash else map(int, text.split(",")))
    except ValueError:
        found = set()
    if not found or not all(1 <= k <= MOST_BUDGET for k in found):
        raise click.BadParameter(
            f"{printable(text, 40)!r} is neither a range such as 1-8 nor a list such as 1,2,4, "
            f"from 1 to {MOST_BUDGET}"
        )
    return tuple(sorted(found))


JSON_OBJECT = Parsed("JSON", _json_object)
TOKEN_IDS = Parsed("ID,ID...", _token_ids)
BUDGETS = Parsed("K-K|K,K", _budgets)
