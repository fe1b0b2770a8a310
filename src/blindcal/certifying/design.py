"""Which queries a certification asks: those that its candidates still need, and no others.

A round asks the items that no answer decides at the next candidate. Whatever else is asked, an item's
decision at a threshold is the same, so where to ask is a matter of cost alone: most items with the wrong
label lie beyond all candidates, and one answer at the last candidate decides them at all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from blindcal.design import make_round
from blindcal.estimate.certification import BoolArray, CandidateTest, KnownRange, Side, walk
from blindcal.records import INVALID, AnswerTable, FloatArray, IntArray, Round

Reuse: TypeAlias = Literal["all", "own", "none"]
"""Which answers may decide at other thresholds: all, those of the certification itself, or none."""
SENTINELS = 30
"""Items that are asked at the first candidate although the run's answers decide them: do they still hold?"""
_FEWER = 3  # without any reuse, every item is asked at every candidate: only each third one is tested


@dataclass(frozen=True)
class SideState:
    """How far a side is: its tests in order, and the shift of the candidate that needs more answers.

    ``certified`` is the last candidate that passed, with all items decided; ``None`` if there is none, or as
    long as some are not.
    """

    side: Side
    tests: tuple[CandidateTest, ...]
    pending: float | None
    certified: CandidateTest | None


@dataclass(frozen=True)
class CertifyDesign:
    """Asks what the candidates of one or two sides need, until each side has ended.

    ``labels`` are those of all items, of which ``items`` certify. ``before`` are the answers of the run.
    ``reuse`` is called before every round.
    """

    labels: IntArray
    items: IntArray
    sides: tuple[Side, ...]
    before: AnswerTable
    reuse: Callable[[], Reuse] = lambda: "all"

    def next_round(self, answered: AnswerTable) -> Round | None:
        """What the next candidate of each side needs; ``None`` if none needs anything."""
        reuse = self.reuse()
        places, shifts = np.empty(0, np.int64), np.empty(0)
        for state in self.states(answered, reuse):
            wanted, at = self._questions(state, answered, reuse)
            if reuse != "none":  # an answer for one side may decide the other
                new = ~np.isin(wanted, places)
                wanted, at = wanted[new], at[new]
            places, shifts = np.concatenate([places, wanted]), np.concatenate([shifts, at])
        return make_round(self.items[places], shifts) if places.size else None

    def states(self, answered: AnswerTable, reuse: Reuse) -> tuple[SideState, ...]:
        """How far each side is with these answers."""
        labels, found = self.labels[self.items], []
        for side in self.sides:
            tested = replace(side, shifts=self._shifts(side, reuse))

            def test(shift: float, side: Side = tested) -> CandidateTest | None:
                known, missing = self._known(answered, reuse, shift), self._missing(answered, reuse, shift)
                first = shift == side.shifts[0]
                if first and self._sentinels(side, answered, reuse).any():
                    return None
                # the first candidate is decided in full: its counts tell what went wrong if it fails
                return side.test(labels, known, missing, shift, whole=first)

            tests, pending = walk(tested, test)
            last = next((one for one in reversed(tests) if one.passed), None)
            if pending is None and last is not None:
                shift = last.shift
                known, missing = self._known(answered, reuse, shift), self._missing(answered, reuse, shift)
                last = tested.test(labels, known, missing, shift, whole=True)
                pending = shift if last is None else None
            found.append(SideState(tested, tests, pending, last))
        return tuple(found)

    def most_queries(self, reuse: Reuse) -> int:
        """The most queries that can be needed: each item once at each candidate that is open for it."""
        none, found = AnswerTable.empty(), 0
        for side in self.sides:
            found += int(self._sentinels(side, none, reuse).sum())
            for shift in self._shifts(side, reuse):
                found += int(self._known(none, reuse, shift).open(shift).sum())
        return found

    def first_queries(self, reuse: Reuse) -> int:
        """The number of queries of the first round."""
        asked = replace(self, reuse=lambda: reuse).next_round(AnswerTable.empty())
        return 0 if asked is None else len(asked)

    def reused(self, answered: AnswerTable, reuse: Reuse) -> int:
        """The number of the run's answers that a candidate which was tested has used."""
        if reuse != "all":
            return 0
        run, own = self._range(self.before), self._range(answered)
        used = np.zeros(self.items.size, bool)
        for state in self.states(answered, reuse):
            for test in state.tests:
                used |= own.open(test.shift) & ~run.open(test.shift)
        return int(used.sum())

    @staticmethod
    def _shifts(side: Side, reuse: Reuse) -> tuple[float, ...]:
        return side.shifts[::_FEWER] if reuse == "none" else side.shifts

    def _range(self, answered: AnswerTable) -> KnownRange:
        whole = KnownRange.of(self.labels.size, answered)
        return KnownRange(whole.low[self.items], whole.high[self.items])

    def _known(self, answered: AnswerTable, reuse: Reuse, shift: float) -> KnownRange:
        if reuse == "none":
            return self._range(answered.rows(answered.shifts == shift))
        own = self._range(answered)
        if reuse == "own":
            return own
        run = self._range(self.before)
        return KnownRange(np.maximum(run.low, own.low), np.minimum(run.high, own.high))

    def _missing(self, answered: AnswerTable, reuse: Reuse, shift: float) -> BoolArray:
        """The items that were asked and have no valid answer: they are not asked again."""
        void = answered.answers == INVALID
        if reuse == "none":
            void &= answered.shifts == shift
        return np.isin(self.items, answered.items[void])

    def _sentinels(self, side: Side, answered: AnswerTable, reuse: Reuse) -> BoolArray:
        """The sentinels that are still to be asked: those of the run's answers that decide by least."""
        found, shift = np.zeros(self.items.size, bool), side.shifts[0]
        if reuse == "all":
            run, at = self._range(self.before), -shift
            decided = np.flatnonzero(~run.open(shift))
            by = np.where(run.above(shift), run.low - at, at - run.high)[decided]
            found[decided[np.argsort(by, kind="stable")[:SENTINELS]]] = True
            found &= ~np.isin(self.items, answered.items)
        return found

    def _questions(
        self, state: SideState, answered: AnswerTable, reuse: Reuse
    ) -> tuple[IntArray, FloatArray]:
        """The places of the certifying items to ask for a side, and the shift to ask each at.

        Right decisions can only help a candidate, so that items that would be wrong ones are asked first.
        """
        side, pending = state.side, state.pending
        if pending is None:
            return np.empty(0, np.int64), np.empty(0)
        known, last = self._known(answered, reuse, pending), side.shifts[-1]
        asked = known.open(pending) & ~self._missing(answered, reuse, pending)
        wrong = self.labels[self.items] != side.right_label
        if reuse == "none":
            places = np.flatnonzero(asked)
            return places, np.full(places.size, pending)
        if state.tests and (asked & wrong).any():
            asked &= wrong
        elif not state.tests:
            asked |= self._sentinels(side, answered, reuse)
        places = np.flatnonzero(asked)
        return places, np.where((wrong & known.open(last))[places], last, pending)
