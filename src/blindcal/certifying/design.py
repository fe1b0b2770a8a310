"""Which items choose the candidates of a certification, which certify, and which queries that takes.

A round asks the items that no answer decides at the next candidate. Whatever else is asked, an item's
decision at a threshold is the same, so where to ask is a matter of cost alone: most items with the wrong
label lie beyond all candidates, and one answer at the last candidate decides them at all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from blindcal.certifying.decision_request import need_bias
from blindcal.design import make_round
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.certification import (
    BoolArray,
    CandidateTest,
    KnownRange,
    Side,
    SideName,
    choose_candidates,
    split_items,
)
from blindcal.estimate.latent.model import working_table
from blindcal.estimate.readings import read
from blindcal.methods import control_spacing
from blindcal.records import INVALID, AnswerTable, FloatArray, IntArray, Noise, Round
from blindcal.results.run import Run
from blindcal.text import printable

Reuse: TypeAlias = Literal["all", "own", "none"]
"""Which answers may decide at other thresholds: all, those of the certification itself, or none."""
LEAST_ITEMS = 40
SENTINELS = 30
"""Items that are asked at the first candidate although the run's answers decide them: do they still hold?"""
_FEWER = 3  # without any reuse, every item is asked at every candidate: only each third one is tested
_SEED = 0  # fixed: to certify with one seed after the other until one passes would certify nothing


@dataclass(frozen=True, slots=True)
class CertifyGoal:
    """The precision of positive decisions to certify and, with two thresholds, that of negative ones.

    ``confidence`` is about both.
    """

    precision: float
    negative_precision: float | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("precision", "negative_precision"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise InputError(f"{name}: must be between 0 and 1, got {value!r}")
        if not 0.5 <= self.confidence < 1:
            raise InputError(f"confidence: must be at least 0.5 and below 1, got {self.confidence!r}")

    @property
    def wanted(self) -> dict[SideName, float]:
        """The precision of each side."""
        both: dict[SideName, float | None] = {"accept": self.precision, "reject": self.negative_precision}
        return {name: value for name, value in both.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CertifyPlan:
    """The items that certify, after ``choosing`` others chose the candidates of each side.

    ``reuse`` says which answers may decide at other thresholds than their own, and ``why`` why not all.
    """

    choosing: int
    items: tuple[int, ...]
    sides: tuple[Side, ...]
    reuse: Reuse
    why: str

    def __repr__(self) -> str:
        return f"CertifyPlan({len(self.items):,} items, {len(self.sides)} sides)"

    @property
    def control_every(self) -> int:
        """The number of queries per control query."""
        return control_spacing(len(self.items))

    @property
    def chance(self) -> float:
        """The chance that the first candidate of each side passes, as the choosing items see it."""
        return min(side.chance for side in self.sides)

    def with_controls(self, queries: int) -> int:
        """The number of queries with their control queries."""
        return queries + -(-queries // self.control_every)


def plan_certification(run: Run, goal: CertifyGoal) -> CertifyPlan:
    """Choose the items and the candidates; asks nothing, and always chooses the same.

    Raises `NotIdentifiedError` if the run cannot be certified.
    """
    check_certifiable(run)
    choosing, certifying = split_items(np.unique(run.answered.items), run.groups, _SEED)
    if certifying.size < LEAST_ITEMS:
        raise NotIdentifiedError(
            f"{run.folder}: {certifying.size} independent items are left to certify on, and the least are "
            f"{LEAST_ITEMS}",
            remedy="audit more items",
        )
    sides = choose_candidates(
        working_table(read(run.problem.of(choosing), run.noise.best)),
        choosing.size,
        certifying.size,
        goal.wanted,
        goal.confidence,
        max_shift=run.max_shift,
    )
    reuse: Reuse = "all"
    why, again = "", "each item is asked at each threshold itself, as it will be when the rule is used"
    if run.noise.best != Noise():
        reuse, why = "none", f"the run found the endpoint's answers noisy, so {again}"
    elif KnownRange.of(run.labels.size, run.answered).contradictory.any():
        reuse, why = "none", f"some answers of the run contradict each other, so {again}"
    items = tuple(certifying.tolist())
    return CertifyPlan(choosing=choosing.size, items=items, sides=sides, reuse=reuse, why=why)


def check_certifiable(run: Run) -> None:
    """Raise `NotIdentifiedError` if a run cannot be certified, whatever the goal."""
    result = run.result
    if result.answers or run.choices is not None:
        raise NotIdentifiedError(
            f"{run.folder}: its items have more than two answers, and only a decision between two can be "
            "certified: no single query decides by the probability of one of several"
        )
    need_bias(run)
    if result.objection is not None:
        raise NotIdentifiedError(
            f"{run.folder}: the audit was forced although its probe found the endpoint unfit "
            f"({printable(result.objection)}), so that a certified shift may do nothing there"
        )
    if result.warnings:
        raise NotIdentifiedError(
            f"{run.folder}: the endpoint was not steady: {printable(result.warnings[0], 400)}",
            remedy="audit again in another folder, and certify that run",
        )


@dataclass(frozen=True)
class SideState:
    """How far a side is: its tests in order, and the shift of the candidate that needs more answers.

    ``certified`` is the last candidate that passed, with all items decided; ``None`` if there is none, or as
    long as some are not.
    """

    side: Side
    tests: tuple[CandidateTest, ...]
    pending: float | None
    certified: CandidateTest | None = None

    @property
    def passed(self) -> CandidateTest | None:
        """The last candidate that passed, whether all items are decided or not."""
        return next((test for test in reversed(self.tests) if test.passed), None)


@dataclass(frozen=True, kw_only=True)
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

    @classmethod
    def of(cls, run: Run, plan: CertifyPlan, reuse: Callable[[], Reuse] | None = None) -> CertifyDesign:
        """The design of a plan; without ``reuse``, what it begins with stays so."""
        items = np.array(plan.items, np.int64)
        return cls(
            labels=run.labels,
            items=items,
            sides=plan.sides,
            before=run.answered,
            reuse=reuse or (lambda: plan.reuse),
        )

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
        return tuple(self._state(side, answered, reuse) for side in self.sides)

    def _state(self, side: Side, answered: AnswerTable, reuse: Reuse) -> SideState:
        side = replace(side, shifts=self._shifts(side, reuse))
        first, tests = side.shifts[0], list[CandidateTest]()

        def test(shift: float, *, whole: bool) -> CandidateTest | None:
            known, missing = self._known(answered, reuse, shift), self._missing(answered, reuse, shift)
            return side.test(self.labels[self.items], known, missing, shift, whole=whole)

        if self._sentinels(side, answered, reuse).any():
            return SideState(side, (), first)
        for shift in side.shifts:
            # the first candidate is decided in full: its counts tell what went wrong if it fails
            candidate = test(shift, whole=shift == first)
            if candidate is None:
                return SideState(side, tuple(tests), shift)
            tests.append(candidate)
            if not candidate.passed:
                break
        state = SideState(side, tuple(tests), None)
        if state.passed is None:
            return state
        last = test(state.passed.shift, whole=True)
        return replace(state, certified=last, pending=state.passed.shift if last is None else None)

    def most_queries(self, reuse: Reuse) -> int:
        """The most queries that can be needed: each item once at each candidate that is open for it."""
        none, queries = AnswerTable.empty(), 0
        for side in self.sides:
            queries += int(self._sentinels(side, none, reuse).sum())
            for shift in self._shifts(side, reuse):
                queries += int(self._known(none, reuse, shift).open(shift).sum())
        return queries

    def first_queries(self) -> int:
        """The number of queries of the first round."""
        asked = self.next_round(AnswerTable.empty())
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
        chosen, shift = np.zeros(self.items.size, bool), side.shifts[0]
        if reuse == "all":
            run, at = self._range(self.before), -shift
            decided = np.flatnonzero(~run.open(shift))
            by = np.where(run.above(shift), run.low - at, at - run.high)[decided]
            chosen[decided[np.argsort(by, kind="stable")[:SENTINELS]]] = True
            chosen &= ~np.isin(self.items, answered.items)
        return chosen

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
