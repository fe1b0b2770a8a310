"""Limits on the rate, the queries and the cost of a run."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, replace
from typing import Annotated, Self

from blindcal.errors import InputError
from blindcal.field_rules import FromOne, Positive, check_fields
from blindcal.prices import Prices

OTHER_FILES = 24
"""Open files besides connections: streams, the run file, items, libraries."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a run ended early, in words, and the name of the limit if one ended it."""

    reason: str
    limit: str | None = None

    def __str__(self) -> str:
        return self.reason


INTERRUPTED = Stopped("interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How fast to ask, and when to stop.

    Every reply that was served counts, usable or not. The run also stops if the server asks to wait longer
    than ``patience``. Rate-limit responses (429) do not count as ``attempts``.
    """

    concurrency: Annotated[FromOne, "Maximum number of concurrent requests."] = 32
    rpm: Annotated[Positive | None, "Maximum number of requests per minute."] = None
    tpm: Annotated[Positive | None, "Maximum number of tokens per minute."] = None
    max_queries: Annotated[
        FromOne | None, "Maximum number of queries, those of a probe or a check included."
    ] = None
    max_cost: Annotated[Positive | None, "Maximum cost in dollars; requires prices."] = None
    attempts: Annotated[FromOne, "Maximum number of tries per query."] = 8
    patience: Annotated[Positive, "Seconds without any answer after which the run stops."] = 300.0
    backoff: Annotated[Positive, "Seconds of the first wait between tries; it doubles each time."] = 0.5

    def __post_init__(self) -> None:
        check_fields(self)

    def within_open_files(self) -> Self:
        """Lower the concurrency to the connections this process may open; raises `InputError` if none."""
        most = _most_open_files()
        room = most - OTHER_FILES
        if room < 1:
            raise InputError(
                f"this process may have only {most} open files, and an audit needs {OTHER_FILES + 1:.0f}",
                remedy="raise the limit (ulimit -n 256)",
            )
        if self.concurrency <= room:
            return self
        warnings.warn(
            f"the concurrency is {room} instead of {self.concurrency}, because this process may have only "
            f"{most} open files; ulimit -n raises that limit",
            stacklevel=2,
        )
        return replace(self, concurrency=int(room))


def check_cost_known(limits: Limits | None, prices: Prices | None) -> None:
    """Raise `InputError` if the cost is limited but there are no prices."""
    if limits is not None and limits.max_cost is not None and prices is None:
        raise InputError(
            "{max_cost} limits nothing if it is not known what a query costs",
            remedy="give {prices} too",
            options={"max_cost": limits.max_cost, "prices": ...},
        )


def _most_open_files() -> float:
    if sys.platform == "win32":
        return math.inf
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if most == resource.RLIM_INFINITY else most
