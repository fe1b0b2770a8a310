"""Choose the method with the narrowest expected interval among those the endpoint allows.

At equal queries per item, logprobs are better than thresholds, and these than drawn answers. Forecasts decide
between temperature and repeated answers. Without a given number of queries, or with more than two answers
(which have no forecasts), the order of `METHOD_OF` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from blindcal.choice_design import more_than_plain
from blindcal.methods import LEAST_REPEATED, METHODS
from blindcal.planning.forecast import MAX_QUERIES, OVERCONFIDENT, half_width
from blindcal.probing.findings import Probe
from blindcal.records import Way
from blindcal.settings import DEFAULT_BINS, Settings

ONCE: tuple[Way, ...] = ("logprobs", "stated confidence")
"""Ways to audit that gain nothing from asking an item again."""
METHOD_OF: dict[Way, str] = {
    "logprobs": "logprobs",
    "thresholds": "latent",
    "temperature": "temperature",
    "repeated answers": "repeated",
    "stated confidence": "verbalized",
}
"""The best method of each way to audit, in the order of trying."""
_DRAWN: tuple[Way, ...] = ("temperature", "repeated answers")
_CLEARLY = 0.95  # an interval below this share of another one justifies more probe queries


@dataclass(frozen=True, kw_only=True)
class MethodOption:
    """A way to audit; ``trouble`` is why not: empty if it works, ``None`` if it was not tried."""

    way: Way
    queries: float
    forecast: Callable[[Way], float | None]
    trouble: str | None = None

    @property
    def method(self) -> str:
        return METHOD_OF[self.way]

    @property
    def half_width(self) -> float | None:
        """Expected half-width of the interval of the ECE, for an average model; ``None`` if unknown."""
        return self.forecast(self.way)

    @property
    def times(self) -> str:
        return "1 query per item" if self.queries == 1 else f"{self.queries:g} queries per item"

    @property
    def expected(self) -> str:
        """The expected width, in words."""
        if self.half_width is not None:
            return f"±{self.half_width:.3f} expected"
        return "no forecast" if METHODS[self.method].fitted else "no interval"


class MethodChoice:
    """Chooses the method for an audit of ``n`` items with these settings."""

    def __init__(self, settings: Settings, n: int) -> None:
        self._settings, self._n = settings, min(n, settings.design.sample or n)
        self._given, self._several = settings.design.queries, len(settings.answer_words) > 2
        if self._several and self._given is not None:
            more_than_plain(self._given)
        self.options = {
            way: MethodOption(way=way, queries=self._queries(way), forecast=self._half_width)
            for way in METHOD_OF
        }

    def _half_width(self, way: Way) -> float | None:
        if self._several or not METHODS[METHOD_OF[way]].fitted:
            return None
        queries, estimation = min(self._queries(way), MAX_QUERIES), self._settings.estimation
        bins, level = estimation.bins or DEFAULT_BINS, estimation.level
        return half_width(OVERCONFIDENT, METHOD_OF[way], self._n, queries, bins=bins, level=level)

    def _queries(self, way: Way) -> float:
        if self._given is None:
            return METHODS[METHOD_OF[way]].usual_queries(several=self._several)
        if way in ONCE:
            return min(self._given, 1.0)
        return max(self._given, LEAST_REPEATED) if way == "repeated answers" else self._given

    def enough(self, way: Way) -> bool:
        """Whether no later way could be clearly better, even if the endpoint allows it."""
        return self._given is None or way != "temperature" or not self._repeats_better()

    def best(self, probe: Probe) -> MethodOption | None:
        """The best option that the endpoint allows, if any."""
        usable = list(probe.usable)
        if set(_DRAWN) <= set(usable) and self._given is not None and self._repeats_better():
            usable.remove("temperature")
        return self.options[usable[0]] if usable else None

    def table(self, probe: Probe) -> tuple[MethodOption, ...]:
        """All options, with what the probe found about them."""
        return tuple(replace(option, trouble=probe.ways.get(way)) for way, option in self.options.items())

    def line(self, best: MethodOption, probe: Probe) -> str:
        """What was chosen, and what would be better, in one line."""
        ways = list(METHOD_OF)
        better = [
            f"{option.way} ({option.trouble})"
            for option in self.table(probe)
            if option.trouble and ways.index(option.way) < ways.index(best.way)
        ]
        would = f"; better would be {' or '.join(better)}" if better else ""
        return f"{best.method}, {best.times}{would}"

    def _repeats_better(self) -> bool:
        drawn, repeated = (self.options[way] for way in _DRAWN)
        if repeated.queries > drawn.queries:
            return False
        drawn_width, width = drawn.half_width or math.inf, repeated.half_width or math.inf
        return width < _CLEARLY * drawn_width
