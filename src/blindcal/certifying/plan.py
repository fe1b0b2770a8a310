"""What a certification will do: which items choose, which certify, and which candidates are tested."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from blindcal.certifying.decision_request import need_bias
from blindcal.certifying.design import CertifyDesign, Reuse
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.certification import KnownRange, Side, SideName, choose_candidates, split_items
from blindcal.estimate.latent.model import working_table
from blindcal.estimate.readings import read
from blindcal.methods import control_spacing
from blindcal.records import IntArray, Noise
from blindcal.results.run import Run
from blindcal.text import printable

LEAST_ITEMS = 40
_SEED = 0  # fixed: to certify with one seed after the other until one passes would certify nothing


@dataclass(frozen=True, slots=True)
class CertifyGoal:
    """What is to be certified: the precision of positive decisions.

    With two thresholds, ``negative_precision`` is that of negative ones, and ``confidence`` is about both.
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


@dataclass(frozen=True, slots=True, repr=False)
class CertifyPlan:
    """What a certification will do: the items that choose and certify, and the candidates of each side.

    ``first_queries`` are asked for the first candidates, ``most_queries`` if every candidate passes and every
    answer leaves as much open as it can; control queries come on top. ``reuse`` says whether answers may
    decide at other thresholds than their own, and ``why`` why not all do.
    """

    choosing: int
    items: IntArray
    sides: tuple[Side, ...]
    first_queries: int
    most_queries: int
    control_every: int
    reuse: Reuse
    why: str

    def __repr__(self) -> str:
        return (
            f"CertifyPlan({self.items.size:,} items, {self.first_queries:,} to {self.most_queries:,} queries)"
        )

    def with_controls(self, queries: int) -> int:
        """So many queries, and the control queries among them."""
        return queries + -(-queries // self.control_every)

    def note(self) -> dict[str, Any]:
        """What the run file of a certification notes of it."""
        about = {"choosing": self.choosing, "items": self.items.tolist(), "control_every": self.control_every}
        sides = [msgspec.to_builtins(side) for side in self.sides]
        return {**about, "sides": sides, "reuse": self.reuse, "why": self.why}


def goal_of(
    precision: float, abstain: bool, negative_precision: float | None, confidence: float
) -> CertifyGoal:
    """The goal that the options of a certification describe."""
    if negative_precision is not None and not abstain:
        raise InputError("negative_precision: is for two thresholds, with abstain")
    negative = (negative_precision or precision) if abstain else None
    return CertifyGoal(precision, negative, confidence)


def check_certifiable(run: Run) -> None:
    """Raise an error that says why a run cannot be certified, if it cannot."""
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


def plan_certification(run: Run, goal: CertifyGoal) -> CertifyPlan:
    """Choose the items and the candidates; asks nothing, and always chooses the same."""
    choosing, certifying = split_items(np.unique(run.answered.items), run.groups, _SEED)
    if certifying.size < LEAST_ITEMS:
        raise NotIdentifiedError(
            f"{run.folder}: {certifying.size} independent items are left to certify on, too few to tell "
            f"anything; the least are {LEAST_ITEMS}",
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
    reuse, why = _reusable(run)
    every = control_spacing(certifying.size)
    return _with_counts(run, CertifyPlan(choosing.size, certifying, sides, 0, 0, every, reuse, why))


def noted_plan(run: Run, noted: dict[str, Any]) -> CertifyPlan:
    """The plan that a certification was begun with."""
    sides = msgspec.convert(noted["sides"], tuple[Side, ...])
    items = np.array(noted["items"], np.int64)
    rest = noted["control_every"], noted["reuse"], noted["why"]
    return _with_counts(run, CertifyPlan(noted["choosing"], items, sides, 0, 0, *rest))


def _with_counts(run: Run, plan: CertifyPlan) -> CertifyPlan:
    design = CertifyDesign(run.labels, plan.items, plan.sides, run.answered)
    return replace(
        plan, first_queries=design.first_queries(plan.reuse), most_queries=design.most_queries(plan.reuse)
    )


def _reusable(run: Run) -> tuple[Reuse, str]:
    """Which answers may decide at other thresholds, and why not all."""
    again = "each item is asked at each threshold itself, as it will be when the rule is used"
    if run.noise.best != Noise():
        return "none", f"the run found the endpoint's answers noisy, so {again}"
    if KnownRange.of(run.labels.size, run.answered).contradictory.any():
        return "none", f"some answers of the run contradict each other, so {again}"
    return "all", ""
