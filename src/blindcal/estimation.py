"""Estimates from the answers of a method, and words for what they measure.

Audits, simulations, reproductions and merges all make their estimates here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from blindcal.design import BlindDesign, Design
from blindcal.errors import NotIdentifiedError
from blindcal.estimate.findings import NOTHING, AnswerPart, Findings, Part, no_findings
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.problem import NoisePosterior, Problem
from blindcal.estimate.published import (
    blind,
    extracted,
    findings_at_face_value,
    half_gaps_at_face_value,
    sampled_shares,
    stated,
)
from blindcal.estimate.shown import classwise, exact_readings, fit_answers
from blindcal.estimate.uncertainty import heterogeneity_pvalue
from blindcal.methods import METHODS, estimator_of, several_answers
from blindcal.records import INVALID, AnswerTable, Estimate, EstimatorName, FloatArray, IntArray

FEW_ITEMS, FEW_GROUPS = 100, 10
"""Estimates from fewer items or groups than this come with a warning."""
FEW_OF_A_LABEL = 10
UNNAMED = "(none)"
"""The part of items that have no value in the field of the breakdown."""
_PART_RESAMPLES = 300  # refits for the intervals of each part: limits the time


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimationInput:
    """Answers and how to read them: the input of `estimate`.

    ``labels``, ``groups`` and ``parts`` (the part of a breakdown) have one entry per item. ``members`` are
    the items that take part, ``None`` for all. ``choices`` is the number of answers per item, ``None`` for
    two. With ``resamples=0`` there are no intervals.
    """

    method: str
    design: Design
    labels: IntArray
    answers: AnswerTable
    groups: IntArray | None = None
    parts: Sequence[str | None] | None = None
    members: IntArray | None = None
    estimator: str = "own"
    bins: int = 5
    level: float = 0.95
    noise: NoisePosterior = field(default_factory=NoisePosterior)
    resamples: int = 1000
    choices: IntArray | None = None

    @property
    def problem(self) -> Problem:
        return Problem.of_answers(
            self.labels, self.answers, self.groups, choices=self.choices, noise=self.noise
        )

    @property
    def estimator_name(self) -> EstimatorName:
        return estimator_of(self.method, self.estimator)

    @property
    def items(self) -> IntArray:
        """The items that the estimates are about: those with an answer, valid or not.

        `blind` needs no query for one subset. In a stopped run, the same part of it counts as of the others.
        """
        answered = np.unique(self.answers.items)
        if self.estimator_name != "blind":
            return answered
        assert isinstance(self.design, BlindDesign)
        thresholds = self.design.thresholds()
        known, asked = np.flatnonzero(thresholds == 0), np.count_nonzero(thresholds > 0)
        part = round(known.size * answered.size / asked) if asked else known.size
        spread = np.linspace(0, known.size, part, endpoint=False).astype(np.int64)
        return np.union1d(answered, known[spread])

    def group_count(self, items: IntArray) -> int | None:
        """Number of groups that these items are in; ``None`` without groups."""
        return None if self.groups is None else np.unique(self.groups[items]).size


def estimate(inputs: EstimationInput, *, brief: bool = False) -> Findings:
    """Estimate everything that a method's answers allow, also for each part if there are parts.

    ``brief`` leaves out curves, operating points, tests and parts. Without a valid answer all is ``None``.
    """
    problem = inputs.problem
    reading = _read(inputs, problem, brief)
    findings, problem = reading.findings, reading.problem
    if problem.given is not None:
        # items without a valid plain answer may hide anything
        asked = inputs.items.size
        missing = 1 - problem.items.size / asked if asked else 0.0
        low, high = ((1 - missing) * end for end in findings.ece_if_invalid)
        findings = replace(findings, ece_if_invalid=(max(0.0, low - missing), min(1.0, high + missing)))
    if brief:
        return findings
    if problem.given is not None:
        by_answer, confusion = _by_answer(inputs, problem, problem.given)
        mean, each = _classwise(inputs, problem)
        by_answer = tuple(replace(part, classwise=each[part.answer]) for part in by_answer)
        findings = replace(findings, classwise=mean, by_answer=by_answer, confusion=confusion)
    if inputs.parts is None:
        return findings
    parts, pvalue = _by_part(inputs, problem, inputs.parts)
    return replace(findings, parts=parts, parts_pvalue=pvalue)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Findings, what was read, and what parts are compared by: gaps below and above 1/2."""

    findings: Findings
    problem: Problem
    half_gaps: tuple[FloatArray, FloatArray] | None = None


def _read(inputs: EstimationInput, problem: Problem, brief: bool) -> _Reading:
    nothing = _Reading(no_findings(inputs.bins), problem)
    if not (inputs.answers.answers != INVALID).any() or not problem.items.size:
        return nothing
    try:
        if inputs.estimator_name == "latent":
            fit = fit_answers(problem, bins=inputs.bins, level=inputs.level, resamples=inputs.resamples)
            gaps = fit.half_gaps if inputs.resamples else None
            read = fit.problem if isinstance(fit, LatentFit) else problem  # with its excess
            return _Reading(fit.findings(brief=brief), read, gaps)
        if inputs.estimator_name == "blind":
            return _Reading(_blind(inputs), problem)
        return _at_face_value(inputs, problem)
    except NotIdentifiedError:
        if problem.given is None:
            raise
        return nothing


def _read_some(inputs: EstimationInput, problem: Problem, chosen: IntArray) -> _Reading:
    fewer = min(inputs.resamples, _PART_RESAMPLES)
    some = replace(inputs, answers=inputs.answers.of(chosen), members=chosen, resamples=fewer)
    return _read(some, problem.of(chosen), True)


def _are_few(items: int, positive: int) -> bool:
    return items < FEW_ITEMS or min(positive, items - positive) < FEW_OF_A_LABEL


def _by_part(
    inputs: EstimationInput, problem: Problem, names: Sequence[str | None]
) -> tuple[tuple[Part, ...], float | None]:
    parts, compared = [], []
    of_item = np.array([UNNAMED if name is None else name for name in names], dtype=object)
    items = inputs.items
    for name in sorted(set(of_item)):
        reading = _read_some(inputs, problem, np.flatnonzero(of_item == name))
        mine = items[of_item[items] == name]
        some, positive = reading.findings, int(problem.labels[mine].sum())
        groups = inputs.group_count(mine)
        few = _are_few(mine.size, positive) or (groups is not None and groups < FEW_GROUPS)
        parts.append(
            Part(name, mine.size, positive, some.ece, some.accuracy, some.leaning, some.overconfidence, few)
        )
        if not few:
            compared.append(reading.half_gaps)
    # no p-value if a method does not estimate its own noise
    known = [gaps for gaps in compared if gaps is not None]
    if len(known) < 2 or len(known) < len(compared):
        return tuple(parts), None
    values, covariances = map(list, zip(*known, strict=True))
    return tuple(parts), heterogeneity_pvalue(values, covariances)


def _by_answer(
    inputs: EstimationInput, problem: Problem, given: IntArray
) -> tuple[tuple[AnswerPart, ...], tuple[tuple[int, ...], ...]]:
    assert problem.choices is not None
    k, items = int(problem.choices.max()), problem.items
    confusion = np.zeros((k, k), np.int64)
    np.add.at(confusion, (inputs.labels[items], given[items]), 1)
    rows = []
    for answer in range(k):
        mine = np.flatnonzero(given == answer)
        some = _read_some(inputs, problem, mine).findings
        right = int(problem.labels[mine].sum())
        known = some.accuracy.value is not None and some.overconfidence.value is not None
        rows.append(
            AnswerPart(
                answer=answer,
                labelled=int(confusion[answer].sum()),
                given=mine.size,
                right=right,
                ece=some.ece,
                accuracy=some.accuracy if mine.size else NOTHING,
                confidence=Estimate(float(some.accuracy) + float(some.overconfidence)) if known else NOTHING,
                overconfidence=some.overconfidence,
                few=_are_few(mine.size, right),
            )
        )
    return tuple(rows), tuple(tuple(row) for row in confusion.tolist())


def _classwise(inputs: EstimationInput, problem: Problem) -> tuple[Estimate, Sequence[Estimate]]:
    """The mean and each of the `classwise` errors, if all probabilities of the same answers are shown."""
    assert problem.choices is not None
    rows, choices = problem.readings, np.unique(problem.choices)
    if rows.shown is None or choices.size > 1 or exact_readings(problem) is None:
        return NOTHING, [NOTHING] * int(choices.max())
    units = None if problem.units is None else problem.units[rows.items]
    how = {"bins": inputs.bins, "resamples": inputs.resamples}
    return classwise(inputs.labels[rows.items], rows.shown, units, level=inputs.level, **how)


def _blind(inputs: EstimationInput) -> Findings:
    """Read the items asked so far and the subset that needs no query (its indicator is 1)."""
    assert isinstance(inputs.design, BlindDesign)
    labels, asked, thresholds = inputs.labels, inputs.answers, inputs.design.thresholds()
    answers = np.full(labels.size, INVALID)
    answers[asked.items] = asked.answers
    used = thresholds == 0
    used[asked.items] = True
    if inputs.members is not None:
        used &= np.isin(np.arange(labels.size), inputs.members)
    return blind(labels[used], thresholds[used], answers[used], inputs.design.bins).findings()


def _at_face_value(inputs: EstimationInput, problem: Problem) -> _Reading:
    items, n, estimator = problem.items, problem.labels.size, inputs.estimator_name
    if estimator == "stated":
        p = stated(n, inputs.answers)
    else:
        p = (sampled_shares if estimator == "shares" else extracted)(n, problem.readings)
    labels, p = problem.labels[items], p[items]
    findings = findings_at_face_value(labels, p, inputs.bins)
    if estimator == "stated" or problem.given is not None:
        findings = replace(findings, operating=(), costs=())
    if problem.given is not None:
        right = Estimate(float(labels.mean()))
        findings = replace(findings, overconfidence=findings.leaning, leaning=NOTHING, accuracy=right)
    return _Reading(findings, problem, half_gaps_at_face_value(labels, p) if inputs.groups is None else None)


#: What each estimator makes of the answers.
_READINGS: Mapping[EstimatorName, str] = {
    "latent": "read by maximum likelihood, with intervals",
    "blind": "read as published: the gap of each bin, whose midpoint stands for the confidence in it; no "
    "intervals, no accuracy",
    "shares": "read as the share of positive ones: the noise of few draws adds to the error; no intervals",
    "flips": "read as the middle of what bisection leaves, coarse below five queries; no intervals",
    "stated": "taken at its word; no intervals, and no shift deploys a threshold on it",
}
_QUANTITIES = {
    "pair": "one spelling of the positive answer against one of the negative",
    "max": "the likeliest spelling of the positive answer against that of the negative",
    "sum": "all spellings of the positive answer against all of the negative",
    "configured": "how often this endpoint, as it is configured, gives the positive answer rather than the "
    "negative one",
    "shown": "the probability that the endpoint shows for the positive answer",
    "given": "the confidence in the positive answer that the file gives",
    "stated": "the confidence that the model states in words, which need not be its probability",
}
_SEVERAL_QUANTITIES = _QUANTITIES | {
    "pair": "one spelling of the answer given against one of each other answer",
    "max": "the likeliest spelling of the answer given against those of the other answers",
    "sum": "all spellings of the answer given against all of the other answers",
    "shown": "the probability that the endpoint shows for the answer it finds likeliest",
    "given": "the confidence in the answer given, as in the file",
    "configured": "how often this endpoint, as it is configured, repeats the answer that it gave first",
}


def measures(
    method: str, semantics: str, estimator: EstimatorName, queries: float, *, several: bool = False
) -> str:
    """Say what an audit measures, from which answers; ``several`` if there are more than two answers."""
    answers, quantity, words = METHODS[method].answers, _QUANTITIES[semantics], _READINGS[estimator]
    if METHODS[method].given:
        words = "taken as they are, with intervals"
    elif METHODS[method].logprobs:
        words = "taken as they are, with intervals; those known only within bounds by maximum likelihood"
    if several:
        answers = several_answers(method).answers or answers
        quantity = _SEVERAL_QUANTITIES[semantics]
        words = words.replace("share of positive ones", "share that repeat it")
    # The descriptions say K; for a run the number is known.
    answers = re.sub(r"^K ((?:\w+ )?)answers", r"one \1answer", answers) if queries == 1 else answers
    answers = re.sub(r"^K ", f"{queries:.3g} ", answers)
    return f"{quantity}; from {answers}; {words}"
