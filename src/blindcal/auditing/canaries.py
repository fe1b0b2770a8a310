"""Whether ``logit_bias`` acts in batches as the probe saw it act live, from queries whose answer is known.

The probe is live, and a provider's batches may be served by other machines with other settings. If the bias
did nothing there, every threshold would get the plain answer, which looks just like a model that is never
in doubt: a wrong figure that nothing betrays. So with the first batch go a few items asked with as large a
shift as the endpoint takes, once each way. Where the bias acts, one is positive and the other negative,
whatever the model thinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from blindcal.auditing.job import Job
from blindcal.errors import EndpointError
from blindcal.records import NEGATIVE, POSITIVE, Reply, Request, Usage

ITEMS = 6


class Canaries:
    """A few items, always the same ones, each asked with a shift both ways; none if not ``wanted``."""

    def __init__(self, job: Job, *, wanted: bool) -> None:
        n = len(job.items) if wanted else 0
        self._job = job
        self._items: list[int] = np.random.default_rng(n).permutation(n)[:ITEMS].tolist()
        # by batch: whether the bias acts, and what the queries cost
        self._heard: dict[str, Any] = job.store.note("canaries") or {}

    def __len__(self) -> int:
        return 2 * len(self._items)

    @property
    def usage(self) -> Usage:
        """What they have cost."""
        return sum((Usage(**one["usage"]) for one in self._heard.values()), Usage())

    def requests(self) -> dict[str, Request]:
        """What is to go along with a batch, by name: nothing once it is known that the bias acts."""
        if any(one["act"] for one in self._heard.values()):
            return {}
        job = self._job
        return {
            f"canary{item}{sign}": job.question.request(job.items[item].messages, shift, 0.0)
            for item in self._items
            for sign, shift in (("+", job.max_shift), ("-", -job.max_shift))
        }

    def listen(self, batch: int, replies: Mapping[str, Reply]) -> None:
        """Note what the replies of a batch say; raise if the bias decided less than half of the items."""
        names = [f"canary{item}{sign}" for item in self._items for sign in "+-"]
        heard = {name: self._job.read(0, replies[name], 1) for name in names if name in replies}
        pairs = [
            (heard[up].answer, heard[down].answer)
            for up, down in zip(names[::2], names[1::2], strict=True)
            if up in heard and down in heard
        ]
        act = 2 * pairs.count((POSITIVE, NEGATIVE)) >= len(pairs) if pairs else None
        if heard:
            usage = sum((one.usage for one in heard.values()), Usage())
            self._heard[str(batch)] = {"act": act, "usage": asdict(usage)}
            self._job.store.set_note("canaries", self._heard)
        if act is False:
            raise EndpointError(
                "logit_bias acts live but not in this endpoint's batches, so their answers measure nothing",
                remedy="leave {batch} out, and choose another folder with {out}",
                options={"batch": True, "out": ...},
            )
