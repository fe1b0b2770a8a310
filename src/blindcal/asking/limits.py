"""How fast to ask, and when to stop."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass, replace
from typing import Self

from blindcal.errors import InputError
from blindcal.prices import Prices

OTHER_FILES = 24
"""Files that an audit opens besides its connections: streams, run file, items, libraries."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a run ended before its design, in words, and the name of the limit if one ended it."""

    reason: str
    limit: str | None = None


INTERRUPTED = Stopped("interrupted")


@dataclass(frozen=True, slots=True)
class Limits:
    """How fast to ask, and when to stop.

    ``max_queries`` and ``max_cost`` (in dollars; needs prices) count every reply that was served, whatever
    was in it.
    ``attempts`` is the maximum number of tries per query; being told to slow down (429) does not count.
    The run stops after ``patience`` seconds without any answer, or if the server asks to wait longer than
    that. ``backoff`` is the first wait between tries in seconds; it doubles each time.
    """

    concurrency: int = 32
    rpm: float | None = None
    tpm: float | None = None
    max_queries: int | None = None
    max_cost: float | None = None
    attempts: int = 8
    patience: float = 300.0
    backoff: float = 0.5

    def __post_init__(self) -> None:
        if self.max_cost is not None and not (math.isfinite(self.max_cost) and self.max_cost > 0):
            raise InputError(f"max_cost: must be a number of dollars above 0, got {self.max_cost!r}")

    def within_open_files(self) -> Self:
        """With no more concurrent requests than this process may have connections.

        Raises
        ------
        InputError
            If it may not have a single one.
        """
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
    """Refuse a limit on the cost if it is not known what a query costs."""
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
