"""Numbers on a page, each tied to the place in result.json or watch.json that it comes from.

A number is named by a *path* such as ``bins.3.gap.low``; ``1-path`` and ``path+path`` also work. It is
written as a ``<data>`` element with the path and the full value, so that readers can check it against the
file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from markupsafe import Markup

from blindcal.records import level_percent
from blindcal.results.result import AuditResult
from blindcal.results.watch_result import WatchResult

UNKNOWN = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True, slots=True)
class Number:
    """A number to show: its path, and its format in `FORMS`."""

    path: str
    form: str = "percent"


def percent(value: float) -> str:
    """A share in per cent: one decimal, two below one per cent."""
    digits = 1 if abs(value) >= 0.00995 or value == 0 else 2
    if 0 < abs(value) < 0.00005:
        return "below 0.01%"
    return f"{abs(value):.{digits}%}"


def signed(value: float) -> str:
    """A difference in percentage points, with its sign."""
    points = round(value * 100, 1)
    return f"{MINUS if points < 0 else '+' if points > 0 else ''}{abs(points):.1f}"


def pvalue(value: float) -> str:
    """A p-value, down to "below 0.001"."""
    return "below 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def duration(value: float) -> str:
    """Seconds in the unit that a person would use."""
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def decimal(value: float, digits: int) -> str:
    """A plain number with a typographic minus sign, and none before zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", MINUS)


FORMS: dict[str, Callable[[Any], str]] = {
    "percent": percent,
    "whole": lambda value: f"{value:.0%}",
    "level": level_percent,
    "signed": signed,
    "pvalue": pvalue,
    "count": lambda value: f"{value:,}",
    "dollars": lambda value: f"${value:,.4f}",
    "seconds": duration,
    "two": lambda value: decimal(value, 2),
    "three": lambda value: decimal(value, 3),
    "four": lambda value: decimal(value, 4),
    "points": lambda value: decimal(100 * value, 1),
    "short": lambda value: f"{value:g}".replace("-", MINUS),
    "mean": lambda value: f"{value:.3g}",
    "digits": str,
}


class Numbers:
    """The numbers of one result, by path."""

    def __init__(self, result: AuditResult | WatchResult) -> None:
        self._tree = msgspec.to_builtins(result)

    def value(self, path: str) -> Any:
        """The value at a path; ``None`` if the result has none."""
        name, _, key = path.partition(".")
        if isinstance(named := self._tree.get(name), dict) and key in named:
            return named[key]  # the key may be any text
        if "+" in path:
            return sum(self.value(one) for one in path.split("+"))
        if path.startswith("1-"):
            found = self.value(path[2:])
            return None if found is None else 1 - found
        here = self._tree
        for step in path.split("."):
            if here is None:
                return None
            here = here[int(step)] if isinstance(here, list | tuple) else here.get(step)
        return here

    def show(self, path: str, form: str = "percent") -> Markup:
        """One number as an HTML element, or a dash if it is unknown."""
        value = self.value(path)
        if value is None:
            return Markup('<span class="none" title="unknown">{}</span>').format(UNKNOWN)
        return Markup('<data value="{}" data-path="{}" data-form="{}">{}</data>').format(
            repr(value), path, form, FORMS[form](value)
        )

    def between(self, path: str, form: str = "percent") -> Markup:
        """The interval of an estimate, in parentheses; empty if it has none."""
        low, high = f"{path}.low", f"{path}.high"
        if self.value(low) is None or self.value(high) is None:
            return Markup("")
        return Markup('<span class="between">({} to {})</span>').format(
            self.show(low, form), self.show(high, form)
        )

    def estimate(self, path: str, form: str = "percent") -> Markup:
        """An estimate with its interval."""
        shown = self.show(f"{path}.value", form)
        between = self.between(path, form)
        return shown + Markup(" ") + between if between else shown
