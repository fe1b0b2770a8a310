"""Types of option values that click does not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_origin

import click

from blindcal.errors import InputError
from blindcal.field_rules import FieldRule
from blindcal.prices import Prices
from blindcal.text import printable

T = TypeVar("T")
MOST_BUDGET = 8
_METAVARS: dict[Any, str] = {int: "N", float: "NUMBER", tuple: "TEXT,TEXT", Mapping: "JSON"}


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
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class Parsed(_ParamType[T]):
    """A type whose values ``parse`` reads from text; the help shows ``name`` for it."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Parse the text of the option; a default may already be parsed."""
        try:
            return self.parse(value) if isinstance(value, str) else value
        except InputError as error:
            self.fail(str(error), param, ctx)


class FieldType(Parsed[Any]):
    """The type of a field of a record."""

    def __init__(self, rule: FieldRule) -> None:
        name = _METAVARS.get(get_origin(rule.kind) or rule.kind, "TEXT")
        super().__init__(name, lambda text: field_value(rule, text))


def field_value(rule: FieldRule, text: str) -> Any:
    """The value of a field; a shell passes ``\\n`` and ``\\t`` in a prompt as two characters each."""
    if rule.name in ("template", "system", "instruction"):
        text = text.replace("\\n", "\n").replace("\\t", "\t")
    return rule.parse(text)


def _budgets(text: str) -> tuple[int, ...]:
    """Numbers of queries per item: 1-8, or 1,2,4."""
    try:
        low, dash, high = text.partition("-")
        budgets = set(range(int(low), int(high) + 1) if dash else map(int, text.split(",")))
    except ValueError:
        budgets = set()
    if not budgets or not all(1 <= k <= MOST_BUDGET for k in budgets):
        raise InputError(
            f"{printable(text, 40)!r} is neither a range such as 1-8 nor a list such as 1,2,4, "
            f"from 1 to {MOST_BUDGET}"
        )
    return tuple(sorted(budgets))


def _prices(text: str) -> Prices:
    """Dollars per million input and output tokens: 0.15,0.6."""
    try:
        price_in, price_out = map(float, text.split(","))
        return Prices(price_in, price_out)
    except ValueError:
        raise InputError(f"{printable(text, 40)!r} is not two prices such as 0.15,0.6") from None


BUDGETS = Parsed("K-K|K,K", _budgets)
PRICES = Parsed("IN,OUT", _prices)
