"""Which method to use: of those that the endpoint allows, the one with the narrowest expected interval.

At the same number of queries per item, the ways to audit are in the order of `METHOD_OF`. If no number is
given, each method asks its usual one, and the order decides. If one is given, forecasts at that number do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from blindcal.auditing.session import ONCE
from blindcal.endpoints.probe_findings import Probe
from blindcal.methods import METHODS
from blindcal.planning.forecast import MAX_QUERIES, forecast
from blindcal.planning.shapes import DEFAULT, preset
from blindcal.records import Way
from blindcal.settings import DEFAULT_BINS, Settings

METHOD_OF: dict[Way, str] = {
    "logprobs": "logprobs",
    "thresholds": "latent",
    "temperature": "temperature",
    "repeated answers": "repeated",
    "stated confidence": "verbalized",
}
"""The method that makes the most of each way to audit, in the order in which they are tried."""
_CLEARLY = 0.95  # an interval narrower than this share of another one is worth more queries of the probe


@dataclass(frozen=True, slots=True)
class MethodOption:
    """A way to audit, its method, and what is expected of it.

    ``half_width`` is that of the interval of the ECE for an average model (see ``blindcal plan``), ``None``
    without an interval. ``trouble`` says why the endpoint does not allow it: empty if it does, ``None`` if
    that was not tried.
    """

    way: Way
    method: str
    queries: float
    half_width: float | None
    trouble: str | None = None

    @property
    def expected(self) -> str:
        """Its number of queries and the expected width, in words."""
        times = "1 query per item" if self.queries == 1 else f"{self.queries:g} queries per item"
        width = "no interval" if self.half_width is None else f"±{self.half_width:.3f} expected"
        return f"{times}, {width}"


class MethodChoice:
    """The choice of the method for an audit of ``n`` items with these settings."""

    def __init__(self, settings: Settings, n: int) -> None:
        self._settings = settings
        n = min(n, settings.design.sample or n)
        self.options = {way: self._option(way, n) for way in METHOD_OF}

    def _option(self, way: Way, n: int) -> MethodOption:
        method, settings = METHOD_OF[way], self._settings
        given, usual = settings.design.queries, METHODS[method].queries
        queries = usual if given is None or (way in ONCE and given > 1) else given
        if not METHODS[method].fitted:
            return MethodOption(way, method, queries, None)
        bins, level = settings.estimation.bins or DEFAULT_BINS, settings.estimation.level
        found = forecast(
            preset(DEFAULT),
            method,
            n,
            min(queries, MAX_QUERIES),
            bins=bins,
            level=level,
            with_power=False,
        )
        return MethodOption(way, method, queries, found.half_width)

    def enough(self, way: Way) -> bool:
        """Whether no way that comes later could be clearly better, even if the endpoint allows it."""
        ways = list(METHOD_OF)
        later = ways[ways.index(way) + 1 :]
        return all(self._rank(other) > _CLEARLY * self._rank(way) for other in later)

    def best(self, found: Probe) -> MethodOption | None:
        """The best of the options that the endpoint allows."""
        usable = [self.options[way] for way in found.usable]
        return min(usable, key=lambda option: self._rank(option.way), default=None)

    def table(self, found: Probe) -> tuple[MethodOption, ...]:
        """All options, with what the probe found about them."""
        return tuple(replace(one, trouble=found.ways.get(way)) for way, one in self.options.items())

    def line(self, found: Probe) -> str:
        """What was chosen, and what would be better, in one line."""
        best = self.best(found)
        if best is None:
            return f"no method fits: {found.reason}"
        better = [
            f"{one.way} (±{one.half_width:.3f}; {one.trouble})"
            for one in self.table(found)
            if one.trouble and one.half_width is not None and self._rank(one.way) < self._rank(best.way)
        ]
        would = f"; better would be {' or '.join(better)}" if better else ""
        return f"{best.method}: {best.expected}{would}"

    def _rank(self, way: Way) -> float:
        given = self._settings.design.queries is not None
        return self._width(way) if given else list(METHOD_OF).index(way)

    def _width(self, way: Way) -> float:
        width = self.options[way].half_width
        return math.inf if width is None else width
