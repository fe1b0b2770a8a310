"""Decide whether asking on is useless, by which queries had a usable reply.

Content filters refuse single prompts, so an unusable reply is normal and final. Outcomes are judged in the
order of asking, which is random and the same whenever a run is continued. After `HOPELESS` unusable ones in a
row, an item that had a usable reply is asked again. If it has one now, the run goes on. If not, or if there
is no such item, the run ends and discards the streak, whose queries are asked again later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blindcal.records import IntArray

HOPELESS = 20
"""Unusable replies in a row that put the endpoint in doubt."""
_OPEN, _USABLE, _UNUSABLE, _SKIPPED = range(4)  # what has become of a query


class Usability:
    """What has become of a round's queries, in the order of asking."""

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
        """Note an outcome (``None``: left open); returns whether the endpoint is in doubt now."""
        become = _SKIPPED if usable is None else _USABLE if usable else _UNUSABLE
        self._become[self._places[query - self._first]] = become
        self._advance()
        return usable is False and self._streak >= HOPELESS

    def clear(self) -> None:
        self._streak = 0

    @property
    def usable(self) -> int | None:
        """A query that had a usable reply, on disk or not; ``None`` if there is none."""
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
