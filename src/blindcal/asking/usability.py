"""Whether asking on is useless, judged by which queries had a reply that could be used.

That single items have none is everyday: content filters refuse some prompts, and such an outcome is final.
Asking on is useless only if *no* item has a usable reply any more. To tell, outcomes are judged in the order
of asking. This order is random and the same whenever a run is continued, so it matters neither how often a
run was stopped nor in which order replies arrive, and outcomes of earlier calls count like new ones. After
`HOPELESS` unusable ones in a row the endpoint is in doubt. Then an item is asked again that had a usable
reply: if it has one now, it is the items that are refused, and the run goes on. If not, or if no item had
one ever, the run ends, and the outcomes of the last streak are discarded: these queries are asked again once
the cause is mended.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blindcal.records import IntArray

HOPELESS = 20
"""Queries in a row without a usable reply, after which a run may give up."""
_OPEN, _USABLE, _UNUSABLE, _SKIPPED = range(4)  # what has become of a query


class Usability:
    """What has become of the queries of a round, given in the order of asking.

    ``answered`` says which have an outcome so far, and ``unusable`` lists those without a usable reply.
    """

    def __init__(self, order: IntArray, answered: npt.NDArray[np.bool_], unusable: IntArray) -> None:
        self._order, self._first = order, int(order.min()) if order.size else 0
        self._places = np.argsort(order)
        become = np.where(answered, _USABLE, _OPEN)
        become[np.isin(order, unusable)] = _UNUSABLE
        self._become = bytearray(become.astype(np.uint8))
        self._judged = 0  # everything before this place has an outcome
        self._streak = 0  # unusable outcomes in a row before it
        self._advance()

    def note(self, query: int, usable: bool | None) -> bool:
        """Note an outcome, ``None`` for a query left open; returns whether the endpoint is in doubt now."""
        become = _SKIPPED if usable is None else _USABLE if usable else _UNUSABLE
        self._become[self._places[query - self._first]] = become
        self._advance()
        return usable is False and self._streak >= HOPELESS

    def clear(self) -> None:
        """End the streak: the endpoint works."""
        self._streak = 0

    @property
    def usable(self) -> int | None:
        """A query that had a usable reply, on disk or not."""
        place = self._become.find(_USABLE)
        return None if place < 0 else int(self._order[place])

    @property
    def streak_begins(self) -> int:
        """The place at which the last streak of unusable outcomes begins."""
        place = self._judged
        for _ in range(self._streak):
            place = self._become.rindex(_UNUSABLE, 0, place)
        return place

    def unusable_from(self, place: int) -> list[int]:
        """The queries without a usable reply, from a place on."""
        become = np.frombuffer(self._become, np.uint8)[place:]
        return [int(query) for query in self._order[place:][become == _UNUSABLE]]

    def _advance(self) -> None:
        while self._judged < len(self._become) and (become := self._become[self._judged]) != _OPEN:
            self._judged += 1
            if become != _SKIPPED:
                self._streak = self._streak + 1 if become == _UNUSABLE else 0
