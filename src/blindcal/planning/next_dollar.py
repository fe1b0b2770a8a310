"""What one more dollar would gain in an audit."""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.estimate.latent import fit_problem
from blindcal.evidence import Evidence
from blindcal.planning.forecast import forecast
from blindcal.planning.shapes import Shape
from blindcal.prices import Prices
from blindcal.records import Estimate, Usage

MOST_QUERIES = 4.0  # queries per item; beyond this only the noise of the labels is left


@dataclass(frozen=True, slots=True)
class NextDollar:
    """What one more dollar would buy: a number of queries, and roughly the ECE's half-width after them."""

    queries: int
    half_width: float


def next_dollar(ece: Estimate, evidence: Evidence, n: int, usage: Usage, prices: Prices) -> NextDollar | None:
    """What one more dollar would gain in an audit of at most ``n`` items.

    The half-width is scaled by the ratio of its forecasts with and without the dollar, for the shape that the
    audit found. New items are asked first, then further queries. ``None`` if there is no interval, if queries
    cost nothing, or if nothing is left to ask.
    """
    answers, each = evidence.answers, prices.cost(usage) / max(1, usage.queries)
    if not ece.has_interval or each <= 0:
        return None
    bare = fit_problem(evidence.problem, resamples=0)
    shape, asked = Shape("as found", bare.population), bare.items
    items = min(n, asked + int(1 / each))
    total = min(len(answers) + int(1 / each), round(MOST_QUERIES * items))
    if total <= len(answers):
        return None

    def expected(items: int, total: int) -> float:
        queries = max(1.0, total / items)
        found = forecast(
            shape, "latent", items, queries, bins=evidence.bins, level=evidence.level, with_power=False
        )
        assert found.half_width is not None
        return found.half_width

    narrower = min(1.0, expected(items, total) / expected(asked, len(answers)))
    return NextDollar(total - len(answers), ece.half_width * narrower)
