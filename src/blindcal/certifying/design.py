"""Choose the items and candidates of a certification, and the queries that it takes.

A round asks the items that no answer so far decides at the next candidate. An item's decision at a threshold
does not depend on where else it is asked, so where to ask is only a matter of cost: most items with the wrong
label lie beyond all candidates, and one answer at the last candidate decides them at all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from blindcal.certifying.decision_request import need_request
from blindcal.design import make_round
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.certification import (
    CandidateTest,
    KnownRange,
    Side,
    SideName,
    choose_candidates,
    level_of_attempt,
    split_items,
)
from blindcal.estimate.latent.model import working_table
from blindcal.estimate.patterns import read
from blindcal.methods import control_spacing
from blindcal.records import INVALID, AnswerTable, BoolArray, FloatArray, IntArray, Noise, Round
from blindcal.results.run import Run
from blindcal.text import printable

Reuse: TypeAlias = Literal["all", "own", "none"]
"""Answers that may decide at other thresholds: all, those of the certification itself, or none."""
LEAST_ITEMS = 40
SENTINELS = 30
"""Number of items asked at the first candidate to check that the answers of the run still hold."""
_FEWER = 3  # without reuse every item is asked at every candidate, so only every third one is tested
_SEED = 0  # fixed: trying seeds until one passes would certify nothing


@dataclass(frozen=True, slots=True)
class CertifyGoal:
    """The precision to certify of positive and, optionally, negative decisions; ``confidence`` is joint."""

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
        both: dict[SideName, float | None] = {"accept": self.precision, "reject": self.negative_precision}
        return {name: value for name, value in both.items() if value is not None}

    def check(self, run: Run) -> None:
        """Raise `NotIdentifiedError` if a run cannot be certified for a goal like this."""
        result = run.result
        if result.answers and not run.shown:
            raise NotIdentifiedError(
                f"{run.folder}: its items have more than two answers, and a decision among them can only be "
                "certified where the endpoint shows probabilities",
                remedy="audit with {method} where it does",
                options={"method": "logprobs"},
            )
        if result.answers and self.negative_precision is not None:
            raise InputError(
                "negative_precision: with more than two answers, the rule accepts the answer given or "
                "abstains, and no decision is negative; leave it out"
            )
        need_request(run)
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

    def serves(self, other: CertifyGoal) -> bool:
        """Whether a rule certified for this goal keeps what another one promises."""
        wanted = self.wanted
        as_high = all(wanted.get(name, 0) >= value for name, value in other.wanted.items())
        return as_high and len(wanted) == len(other.wanted) and self.confidence >= other.confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyPlan:
    """The items that certify and the candidates of each side; numbers of queries include controls."""

    choosing: int  # number of other items, which chose the candidates
    items: tuple[int, ...]
    sides: tuple[Side, ...]
    attempt: int  # number of this certification of the run, from 1 on
    reuse: Reuse  # answers that may decide at other thresholds than their own
    why: str  # why not all of them may; empty if all may
    first_queries: int = 0  # to test the first candidates
    most_queries: int = 0

    @property
    def control_every(self) -> int:
        """Number of queries per control query."""
        return control_spacing(len(self.items))

    @property
    def chance(self) -> float:
        """Chance that the first candidate of each side passes, estimated from the choosing items."""
        return min(side.chance for side in self.sides)


def plan_certification(run: Run, goal: CertifyGoal, attempt: int = 1) -> CertifyPlan:
    """Choose the items and the candidates, always the same ones, without asking anything.

    All attempts to certify the run hold together at the confidence of the goal. Raises `NotIdentifiedError`
    if the run cannot be certified.
    """
    goal.check(run)
    choosing, certifying = split_items(np.unique(run.answered.items), run.groups, _SEED)
    if certifying.size < LEAST_ITEMS:
        raise NotIdentifiedError(
            f"{run.folder}: {certifying.size} independent items are left to certify on, and the least are "
            f"{LEAST_ITEMS}",
            remedy="audit more items",
        )
    problem = run.problem
    answered = problem.readings
    shifts = answered.shifts[answered.temperatures == 0]
    if answered.bounds is not None:
        shifts = -answered.bounds[answered.answers != INVALID].mean(axis=1)
    sides = choose_candidates(
        working_table(read(problem.of(choosing), run.noise.best)),
        choosing.size,
        certifying.size,
        goal.wanted,
        level_of_attempt(goal.confidence, attempt),
        shifts,
    )
    reuse: Reuse = "all"
    why, again = "", "each item is asked at each threshold itself, as it will be when the rule is used"
    if not run.shown and run.noise.best != Noise():
        reuse, why = "none", f"the run found the endpoint's answers noisy, so {again}"
    elif not run.shown and KnownRange.of(run.labels.size, run.answered).contradictory.any():
        reuse, why = "none", f"some answers of the run contradict each other, so {again}"
    items = tuple(certifying.tolist())
    plan = CertifyPlan(
        choosing=choosing.size, items=items, sides=sides, attempt=attempt, reuse=reuse, why=why
    )
    design = CertifyDesign.of(run, plan)
    first = design.next_round(AnswerTable.empty())
    queries = 0 if first is None else len(first), design.most_queries(reuse)
    first_queries, most_queries = (count + -(-count // plan.control_every) for count in queries)
    return replace(plan, first_queries=first_queries, most_queries=most_queries)


@dataclass(frozen=True)
class SideState:
    """The state of one side of the rule."""

    side: Side
    tests: tuple[CandidateTest, ...]  # in order
    pending: float | None  # shift of the candidate that needs more answers
    certified: CandidateTest | None = None  # the last that passed, once all items are decided at it

    @property
    def passed(self) -> CandidateTest | None:
        """Last candidate that passed, even if some items are not decided at it."""
        return next((test for test in reversed(self.tests) if test.passed), None)


@dataclass(frozen=True, kw_only=True)
class CertifyDesign:
    """Asks what the candidates of one or two sides need, until each side has ended."""

    labels: IntArray  # of all items of the run; with more than two answers, whether the given one is right
    items: IntArray  # those that certify
    sides: tuple[Side, ...]
    before: AnswerTable  # answers of the run
    shown: bool = False  # these show probabilities, which decide everywhere: nothing is asked
    reuse: Callable[[], Reuse] = lambda: "all"  # called before every round

    @classmethod
    def of(cls, run: Run, plan: CertifyPlan, reuse: Callable[[], Reuse] | None = None) -> CertifyDesign:
        """The design of a plan; ``reuse`` defaults to the plan's."""
        problem = run.problem
        return cls(
            labels=problem.labels,
            items=np.array(plan.items, np.int64),
            sides=plan.sides,
            before=problem.readings,
            shown=run.shown,
            reuse=reuse or (lambda: plan.reuse),
        )

    def next_round(self, answered: AnswerTable) -> Round | None:
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
        return tuple(self._state(side, answered, reuse) for side in self.sides)

    def _state(self, side: Side, answered: AnswerTable, reuse: Reuse) -> SideState:
        side = replace(side, shifts=self._shifts(side, reuse))
        first, tests = side.shifts[0], list[CandidateTest]()

        def test(shift: float, *, whole: bool) -> CandidateTest | None:
            known = self._known(answered, reuse, shift)
            missing = None if self.shown else self._missing(answered, reuse, shift)
            return side.test(self.labels[self.items], known, missing, shift, whole=whole)

        if self._sentinels(side, answered, reuse).any():
            return SideState(side, (), first)
        for shift in side.shifts:
            # the first candidate is decided in full: if it fails, its counts show why
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
        """Maximum number of queries: each item once at each candidate that is open for it."""
        none, queries = AnswerTable.empty(), 0
        for side in () if self.shown else self.sides:
            queries += int(self._sentinels(side, none, reuse).sum())
            for shift in self._shifts(side, reuse):
                queries += int(self._known(none, reuse, shift).open(shift).sum())
        return queries

    def reused(self, answered: AnswerTable, reuse: Reuse) -> int:
        """Number of the run's answers that a tested candidate has used."""
        if reuse != "all":
            return 0
        run, own = self._range(self.before), self._range(answered)
        used = np.full(self.items.size, self.shown)
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
        # items without a valid answer are not asked again
        void = answered.answers == INVALID
        if reuse == "none":
            void &= answered.shifts == shift
        return np.isin(self.items, answered.items[void])

    def _sentinels(self, side: Side, answered: AnswerTable, reuse: Reuse) -> BoolArray:
        chosen, shift = np.zeros(self.items.size, bool), side.shifts[0]
        if reuse == "all" and not self.shown:
            run, at = self._range(self.before), -shift
            decided = np.flatnonzero(~run.open(shift))
            # sentinels are the items whose answers in the run decide most narrowly
            by = np.where(run.above(shift), run.low - at, at - run.high)[decided]
            chosen[decided[np.argsort(by, kind="stable")[:SENTINELS]]] = True
            chosen &= ~np.isin(self.items, answered.items)
        return chosen

    def _questions(
        self, state: SideState, answered: AnswerTable, reuse: Reuse
    ) -> tuple[IntArray, FloatArray]:
        side, pending = state.side, state.pending
        if pending is None:
            return np.empty(0, np.int64), np.empty(0)
        known, last = self._known(answered, reuse, pending), side.shifts[-1]
        asked = known.open(pending) & ~self._missing(answered, reuse, pending)
        wrong = self.labels[self.items] != side.right_label
        if reuse == "none":
            places = np.flatnonzero(asked)
            return places, np.full(places.size, pending)
        # right decisions can only help a candidate, so those that would be wrong are asked first
        if state.tests and (asked & wrong).any():
            asked &= wrong
        elif not state.tests:
            asked |= self._sentinels(side, answered, reuse)
        places = np.flatnonzero(asked)
        return places, np.where((wrong & known.open(last))[places], last, pending)
