"""The ways to audit, best first, of which an audit without a named method takes the first that works.

Logprobs show each probability, and intervals about them need no smoothness. At equal queries per item,
thresholds give narrower intervals than answers drawn at several temperatures, and these than answers repeated
at the endpoint's own setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blindcal.choice_design import more_than_plain
from blindcal.methods import METHOD_OF, METHODS
from blindcal.planning.forecast import MAX_QUERIES, OVERCONFIDENT, half_width
from blindcal.records import Way
from blindcal.settings import DEFAULT_BINS, Settings

UNREASONED = "with reasoning_effort='none' logprobs are shown: 1 query per item and 1 output token each"


@dataclass(frozen=True, kw_only=True)
class MethodOption:
    """A way to audit; ``trouble`` is why not: empty if it works, ``None`` if it was not tried."""

    way: Way
    queries: float
    forecast: Callable[[], float | None]
    trouble: str | None = None

    @property
    def method(self) -> str:
        return METHOD_OF[self.way]

    @property
    def times(self) -> str:
        return "1 query per item" if self.queries == 1 else f"{self.queries:g} queries per item"

    @property
    def expected(self) -> str:
        """The half-width of the interval of the ECE expected for an average model, in words."""
        if (width := self.forecast()) is not None:
            return f"±{width:.3f} expected"
        return "no forecast" if METHODS[self.method].fitted else "no interval"


def method_options(settings: Settings, n: int) -> tuple[MethodOption, ...]:
    """The options of an audit of ``n`` items with these settings, before any was tried."""
    given, several = settings.design.queries, len(settings.answer_words) > 2
    if several and given is not None and settings.auto:
        more_than_plain(given)

    def option(way: Way) -> MethodOption:
        method = METHODS[METHOD_OF[way]]
        queries = method.nearest_queries(given, several=several)

        def forecast() -> float | None:
            if several or not method.fitted:
                return None
            bins, level = settings.estimation.bins or DEFAULT_BINS, settings.estimation.level
            asked, items = min(queries, MAX_QUERIES), min(n, settings.design.sample or n)
            return half_width(OVERCONFIDENT, METHOD_OF[way], items, asked, bins=bins, level=level)

        return MethodOption(way=way, queries=queries, forecast=forecast)

    return tuple(map(option, settings.ways))


def best_option(options: Sequence[MethodOption]) -> MethodOption | None:
    """The best of the options that were tried and work."""
    return next((option for option in options if option.trouble == ""), None)


def choice_line(
    best: MethodOption, options: Sequence[MethodOption], cost: str = "", *, unreasoned: bool = False
) -> str:
    """What was chosen, what it costs, and what would be better, in one line."""
    before = options[: options.index(best)]
    missing = [f"{option.way} ({option.trouble})" for option in before if option.trouble]
    would = f"; not available: {', '.join(missing)}" if missing else ""
    return f"{best.method}, {best.times}{cost}{would}{f'; {UNREASONED}' if unreasoned else ''}"
