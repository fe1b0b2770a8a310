"""How fast to ask, and when to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from blindcal.errors import InputError


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
