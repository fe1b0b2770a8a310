"""Control queries, which show whether ``logit_bias`` acts in batches as it does live.

The probe is live, and a provider may serve batches on other machines with other settings. If the bias did
nothing there, every query would get the unbiased answer, which looks just like a model that is never in
doubt: a wrong estimate without any warning. So the first batches include a few items asked at the largest
usable shift in both directions. If the bias acts, one answer is positive and the other negative, whatever
the model thinks. With more than two answers, two of the item's answers are forced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from blindcal.auditing.job import Job
from blindcal.errors import EndpointError
from blindcal.records import Reply, Request, Usage
from blindcal.store.run_store import usage_of

ITEMS = 6


class Canaries:
    """A few fixed items, each asked at the largest shift in both directions; none if not ``wanted``."""

    def __init__(self, job: Job, *, wanted: bool) -> None:
        n = len(job.items) if wanted else 0
        self._job = job
        self._items: list[int] = np.random.default_rng(n).permutation(n)[:ITEMS].tolist()
        # per batch: whether the bias acts, and what the control queries cost
        self._heard: dict[str, Any] = job.store.note("canaries") or {}

    def __len__(self) -> int:
        return 2 * len(self._items)

    @property
    def usage(self) -> Usage:
        """What the control queries have cost."""
        return sum((Usage(**one["usage"]) for one in self._heard.values()), Usage())

    def requests(self) -> dict[str, Request]:
        """The requests to add to a batch, by name; none once the bias is known to act."""
        if any(one["act"] for one in self._heard.values()):
            return {}
        return {
            name: self._job.forced(item, answer)
            for item in self._items
            for name, answer in self._wanted(item).items()
        }

    def _wanted(self, item: int) -> dict[str, int]:
        """The names of an item's two control queries, and the answers that they force."""
        choices = self._job.items[item].choices
        first = 0 if choices == 2 else item % choices
        return {f"canary{item}+": (first + 1) % choices, f"canary{item}-": first}

    def listen(self, batch: int, replies: Mapping[str, Reply]) -> None:
        """Note what the replies of a batch show; raises if the bias decided less than half of the items."""
        wanted = [self._wanted(item) for item in self._items]
        names = [name for pair in wanted for name in pair]
        heard = {name: self._job.read(0, replies[name], 1) for name in names if name in replies}
        decided = [
            all(heard[name].answer == answer for name, answer in pair.items())
            for pair in wanted
            if pair.keys() <= heard.keys()
        ]
        act = 2 * sum(decided) >= len(decided) if decided else None
        if heard:
            usage = usage_of(list(heard.values()))
            self._heard[str(batch)] = {"act": act, "usage": asdict(usage)}
            self._job.store.set_note("canaries", self._heard)
        if act is False:
            raise EndpointError(
                "logit_bias acts live but not in this endpoint's batches, so their answers measure nothing",
                remedy="leave {batch} out, and choose another folder with {out}",
                options={"batch": True, "out": ...},
            )
