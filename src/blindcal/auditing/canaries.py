"""Whether ``logit_bias`` acts in batches as the probe saw it act live, from queries whose answer is known.

The probe is live, and a provider's batches may be served by other machines with other settings. If the bias
did nothing there, every threshold would get the plain answer, which looks just like a model that is never
in doubt: a wrong figure that nothing betrays. So with the first batch go a few items asked with as large a
shift as the endpoint takes, once each way. Where the bias acts, one is positive and the other negative,
whatever the model thinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from blindcal.endpoints.query_format import QuestionFormat
from blindcal.records import NEGATIVE, POSITIVE, Reply

ITEMS = 6


@dataclass(frozen=True, slots=True)
class Canary:
    """One query with a known answer."""

    name: str
    item: int
    shift: float


@dataclass(frozen=True, slots=True)
class Canaries:
    """Some items, each asked with a shift both ways."""

    items: tuple[int, ...]
    shift: float

    @classmethod
    def among(cls, n: int, shift: float) -> Canaries:
        """A few of ``n`` items, always the same ones."""
        return cls(tuple(np.random.default_rng(n).permutation(n)[:ITEMS].tolist()), shift)

    def __iter__(self) -> Iterator[Canary]:
        for item in self.items:
            yield Canary(f"canary{item}+", item, self.shift)
            yield Canary(f"canary{item}-", item, -self.shift)

    def __len__(self) -> int:
        return 2 * len(self.items)

    def act(self, replies: Mapping[str, Reply], question: QuestionFormat) -> bool | None:
        """Whether the bias decided at least half of the items; ``None`` if none has both replies."""
        pairs = [
            (question.answer(replies[f"canary{item}+"].text), question.answer(replies[f"canary{item}-"].text))
            for item in self.items
            if f"canary{item}+" in replies and f"canary{item}-" in replies
        ]
        return 2 * pairs.count((POSITIVE, NEGATIVE)) >= len(pairs) if pairs else None
