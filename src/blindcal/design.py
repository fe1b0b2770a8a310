"""Which (shift, temperature) each item is asked, and when: pure, and reproducible from a seed.

A design hands out *rounds*. A round may depend on the answers to the rounds before it, and on
nothing else: the same seed and the same answers always give the same next round, so an interrupted
run can be taken up again from its answers alone.
"""

from __future__ import annotations

from typing import Protocol

from blindcal.records import Answered, Round


class Design(Protocol):
    """What to ask next, given everything answered so far; ``None`` when nothing more is to be asked."""

    def next_round(self, answered: Answered) -> Round | None:
        """Return the next batch of queries."""
        ...
