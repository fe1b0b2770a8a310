"""Evidence: the answers of a method, and everything that follows from them.

Audits, simulations, reproductions and merges all make their estimates here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blindcal.choice_design import BlindChoiceDesign
from blindcal.design import BlindDesign, Design
from blindcal.errors import NotIdentifiedError
from blindcal.estimate.baselines import extracted, sampled_shares, stated
from blindcal.estimate.blind import blind
from blindcal.estimate.classwise import classwise_findings, fit_each_answer
from blindcal.estimate.excess import ExcessPosterior
from blindcal.estimate.face_value import findings_at_face_value, half_gaps_at_face_value
from blindcal.estimate.findings import NOTHING, AnswerPart, Findings, Part, finite, no_findings, widened
from blindcal.estimate.given_fit import GivenFit, fit_given
from blindcal.estimate.latent import fit_table
from blindcal.estimate.latent_fit import LatentFit
from blindcal.estimate.simultaneous import findings_beyond, holm, level_of_each, outlier_pvalues
from blindcal.estimate.top_label import GivenAnswers, given_answers
from blindcal.estimate.uncertainty import heterogeneity_pvalue
from blindcal.methods import METHODS, estimator_of, several_answers
from blindcal.records import INVALID, AnswerTable, Estimate, EstimatorName, FloatArray, IntArray, Noise

FEW_ITEMS, FEW_GROUPS = 100, 10
"""Estimates from fewer items or groups than this come with a warning."""
FEW_OF_A_LABEL = 10
UNNAMED = "(none)"
"""The part of items that have no value in the field of the breakdown."""
_PART_RESAMPLES = 300  # refits for the intervals of each part, and for each plausible noise: limits the time


@dataclass(frozen=True, slots=True)
class Evidence:
    """Answers and how to read them: the input of `estimate`.

    ``labels``, ``groups`` and ``parts`` have one entry per item; ``parts`` names each item's part in a
    breakdown. ``members`` are the items that take part, ``None`` for all. ``jitter`` is the endpoint's noise
    on the log-odds and ``flip_rate`` the share of its answers that are flipped; intervals also allow for the
    ``plausible`` other values of both. With ``resamples=0`` there are no intervals. ``choices`` is the number
    of answers of each item; ``None`` if there are two, as usual. ``given`` and ``excess`` follow from the
    answers: the answers given, and what they all say about the excess. ``simultaneous`` says that the
    intervals of all parts are to hold together; ``far_level`` follows from it: the level of each of them.
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
    jitter: float = 0.0
    resamples: int = 1000
    flip_rate: float = 0.0
    plausible: tuple[Noise, ...] = ()
    choices: IntArray | None = None
    given: GivenAnswers | None = None
    excess: ExcessPosterior | None = None
    simultaneous: bool = False
    far_level: float | None = None

    @property
    def estimator_name(self) -> EstimatorName:
        """The estimator that reads these answers."""
        return estimator_of(self.method, self.estimator)

    @property
    def items(self) -> IntArray:
        """The items that the estimates are about: those with an answer, valid or not.

        `blind` knows the answers of one subset without asking. In a stopped run, as large a part of that
        subset counts as was answered of the others.
        """
        answered = np.unique(self.answers.items)
        if self.estimator_name != "blind" or self.choices is not None:
            return answered
        assert isinstance(self.design, BlindDesign)
        thresholds = self.design.thresholds()
        known, asked = np.flatnonzero(thresholds == 0), np.count_nonzero(thresholds > 0)
        part = round(known.size * answered.size / asked) if asked else known.size
        spread = np.linspace(0, known.size, part, endpoint=False).astype(np.int64)
        return np.union1d(answered, known[spread])

    def group_count(self, items: IntArray) -> int | None:
        """The number of groups that some of the items are in; ``None`` without groups."""
        return None if self.groups is None else np.unique(self.groups[items]).size


def estimate(evidence: Evidence, *, brief: bool = False) -> Findings:
    """Estimate everything that a method's answers allow, also for each part if there are parts.

    ``brief`` leaves out curves, operating points, tests and parts. If no answer is valid, every quantity is
    ``None``.
    """
    if evidence.choices is not None and not METHODS[evidence.method].classwise:
        evidence = replace(evidence, given=given_answers(evidence.labels, evidence.answers, evidence.choices))
    whole = _read(evidence, brief)
    found = whole.findings
    if evidence.given is not None:
        evidence = replace(evidence, excess=whole.excess)
        found = replace(found, ece_if_invalid=_with_unanswered(found.ece_if_invalid, evidence))
    if brief:
        return found
    if evidence.given is not None:
        by_answer, confusion = _by_answer(evidence, evidence.given)
        found = replace(found, by_answer=by_answer, confusion=confusion)
    if evidence.parts is None:
        return found
    parts, pvalue = _by_part(evidence, evidence.parts)
    joint = evidence.simultaneous and any(part.ece.has_interval for part in parts)
    return replace(found, parts=parts, parts_pvalue=pvalue, parts_level=evidence.level if joint else None)


def _with_unanswered(bounds: tuple[float, float], evidence: Evidence) -> tuple[float, float]:
    """Bounds of the ECE that hold for the items without a valid plain answer too, whatever they hide."""
    assert evidence.given is not None
    asked = evidence.items.size
    missing = 1 - evidence.given.items.size / asked if asked else 0.0
    low, high = ((1 - missing) * one for one in bounds)
    return max(0.0, low - missing), min(1.0, high + missing)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Findings, and the signed gaps below and above 1/2 with their covariance, for comparing parts.

    ``calibrated_pvalue`` is that of a part. ``excess`` is what all answers say about it, for the estimates of
    parts.
    """

    findings: Findings
    half_gaps: tuple[FloatArray, FloatArray] | None = None
    excess: ExcessPosterior | None = None
    calibrated_pvalue: float | None = None


def _read(evidence: Evidence, brief: bool, chosen: IntArray | None = None) -> _Reading:
    if chosen is not None:
        given = None if evidence.given is None else evidence.given.of(chosen)
        evidence = replace(evidence, answers=evidence.answers.of(chosen), members=chosen, given=given)
    if not (evidence.answers.answers != INVALID).any():
        return _Reading(no_findings(evidence.bins))
    reader = _READERS[evidence.estimator_name]
    if evidence.choices is None:
        return reader.read(evidence, brief)
    if evidence.given is None:
        return _read_classwise(evidence)
    if not evidence.given.items.size:
        return _Reading(no_findings(evidence.bins))
    assert reader.read_given is not None, "such a method has no design for several answers"
    try:
        return reader.read_given(evidence, evidence.given, brief)
    except NotIdentifiedError:
        return _Reading(no_findings(evidence.bins))


def _by_part(evidence: Evidence, names: Sequence[str | None]) -> tuple[tuple[Part, ...], float | None]:
    """The estimates for each part, and the p-value of "all parts are equally miscalibrated".

    Each part is estimated from its own answers alone. The test compares the signed gaps below and above 1/2
    of all parts with enough items. The p-value is ``None`` for fewer than two such parts, and if the method
    does not estimate its own noise. Parts with few items are not tested.
    """
    found, compared, calibrated = [], [], []
    of_item = np.array([UNNAMED if name is None else name for name in names], dtype=object)
    items = evidence.items
    fewer = _for_parts(evidence)
    if evidence.simultaneous:
        fewer = replace(fewer, far_level=level_of_each(evidence.level, np.unique(of_item[items]).size))
    labels = evidence.labels if evidence.given is None else evidence.given.right
    for name in sorted(set(of_item)):
        one = _read(fewer, True, np.flatnonzero(of_item == name))
        mine = items[of_item[items] == name]
        some, positive = one.findings, int(labels[mine].sum()) if evidence.method != "classwise" else 0
        groups = evidence.group_count(mine)
        few = mine.size < FEW_ITEMS or min(positive, mine.size - positive) < FEW_OF_A_LABEL
        few = few or (groups is not None and groups < FEW_GROUPS)
        found.append(
            Part(name, mine.size, positive, some.ece, some.accuracy, some.leaning, some.overconfidence, few)
        )
        calibrated.append(None if few else one.calibrated_pvalue)
        if not few:
            compared.append(one.half_gaps)
    parts = [replace(part, calibrated_pvalue=p) for part, p in zip(found, holm(calibrated), strict=True)]
    known = [one for one in compared if one is not None]
    if len(known) < 2 or len(known) < len(compared):
        return tuple(parts), None
    values, covariances = map(list, zip(*known, strict=True))
    each = iter(outlier_pvalues(values, covariances))
    parts = [part if part.few else replace(part, same_pvalue=next(each)) for part in parts]
    return tuple(parts), heterogeneity_pvalue(values, covariances)


def _for_parts(evidence: Evidence) -> Evidence:
    """The evidence for the estimates of parts, with fewer refits to save time."""
    return replace(evidence, resamples=min(evidence.resamples, _PART_RESAMPLES))


def _by_answer(
    evidence: Evidence, given: GivenAnswers
) -> tuple[tuple[AnswerPart, ...], tuple[tuple[int, ...], ...]]:
    """The estimates for the items to which each answer was given, and the counts of answers by label."""
    fewer, k = _for_parts(evidence), int(given.choices.max())
    confusion = np.zeros((k, k), np.int64)
    np.add.at(confusion, (evidence.labels[given.items], given.given[given.items]), 1)
    rows = []
    for answer in range(k):
        mine = np.flatnonzero(given.given == answer)
        some, right = _read(fewer, True, mine).findings, int(given.right[mine].sum())
        wrong = mine.size - right
        known = some.accuracy.value is not None and some.overconfidence.value is not None
        rows.append(
            AnswerPart(
                answer,
                int(confusion[answer].sum()),
                mine.size,
                right,
                some.ece,
                some.accuracy if mine.size else NOTHING,
                Estimate(float(some.accuracy) + float(some.overconfidence)) if known else NOTHING,
                some.overconfidence,
                mine.size < FEW_ITEMS or min(right, wrong) < FEW_OF_A_LABEL,
            )
        )
    return tuple(rows), tuple(tuple(row) for row in confusion.tolist())


def _read_classwise(evidence: Evidence) -> _Reading:
    assert evidence.choices is not None
    fits = fit_each_answer(
        evidence.labels,
        evidence.answers,
        evidence.choices,
        evidence.groups,
        noise=Noise(evidence.jitter, evidence.flip_rate),
        bins=evidence.bins,
        level=evidence.level,
        resamples=evidence.resamples,
    )
    labels = evidence.labels[np.unique(evidence.answers.items)]
    found = classwise_findings(fits, labels)
    if evidence.far_level is not None:
        far = {answer: fit.at(level=evidence.far_level) for answer, fit in fits.items()}
        found = findings_beyond(found, classwise_findings(far, labels))
    return _Reading(found)


def _read_given_latent(evidence: Evidence, given: GivenAnswers, brief: bool) -> _Reading:
    def fit(noise: Noise, resamples: int) -> GivenFit:
        return fit_given(
            given,
            evidence.groups,
            noise=noise,
            excess=evidence.excess,
            bins=evidence.bins,
            level=evidence.level,
            resamples=resamples,
        )

    return _read_fits(evidence, brief, fit)


def _read_given_blind(evidence: Evidence, given: GivenAnswers, brief: bool) -> _Reading:  # noqa: ARG001
    """The paper's estimate, as if the given answer were the positive of two, and a margin its log-odds."""
    design, rows = evidence.design, given.readings
    assert isinstance(design, BlindChoiceDesign)
    found = _blind_findings(design.binary, given.right, rows, given.items)
    return _Reading(_of_given(found, given))


def _of_given(found: Findings, given: GivenAnswers) -> Findings:
    """Findings about two labels as those about given answers: the label is whether an answer is right."""
    accuracy = Estimate(float(given.right[given.items].mean()))
    return replace(found, overconfidence=found.leaning, leaning=NOTHING, accuracy=accuracy)


def _given_at_face_value(
    probabilities: Callable[[Evidence, GivenAnswers], FloatArray],
) -> Callable[[Evidence, GivenAnswers, bool], _Reading]:
    def read(evidence: Evidence, given: GivenAnswers, brief: bool) -> _Reading:  # noqa: ARG001
        items = given.items
        labels, p = given.right[items], probabilities(evidence, given)[items]
        found = _of_given(findings_at_face_value(labels, p, evidence.bins), given)
        found = replace(found, operating=(), costs=())
        return _Reading(found, half_gaps_at_face_value(labels, p) if evidence.groups is None else None)

    return read


def _stated_of_given(evidence: Evidence, given: GivenAnswers) -> FloatArray:
    return stated(given.given.size, evidence.answers)


def _shares_of_given(evidence: Evidence, given: GivenAnswers) -> FloatArray:  # noqa: ARG001
    return sampled_shares(given.given.size, given.readings)


def _read_latent(evidence: Evidence, brief: bool) -> _Reading:
    def fit(noise: Noise, resamples: int) -> LatentFit:
        return fit_table(
            evidence.labels,
            evidence.answers,
            evidence.groups,
            jitter=noise.jitter,
            flip_rate=noise.flip_rate,
            bins=evidence.bins,
            level=evidence.level,
            resamples=resamples,
        )

    return _read_fits(evidence, brief, fit)


def _read_fits(evidence: Evidence, brief: bool, fit: Callable[[Noise, int], LatentFit]) -> _Reading:
    """The findings of a fit, with intervals that include those of fits for other plausible noise."""
    best = fit(Noise(evidence.jitter, evidence.flip_rate), evidence.resamples)
    fewer = min(evidence.resamples, _PART_RESAMPLES)
    others = [fit(noise, fewer) for noise in evidence.plausible if evidence.resamples]

    def findings(one: LatentFit) -> Findings:
        near = one.findings(brief=brief)
        if evidence.far_level is None:
            return near
        return findings_beyond(near, one.at(level=evidence.far_level).findings(brief=True))

    found = widened(findings(best), list(map(findings, others)))
    return _Reading(
        found,
        best.half_gaps if evidence.resamples else None,
        best.excess if isinstance(best, GivenFit) else None,
        finite(max(one.calibrated_pvalue for one in (best, *others)))
        if brief and evidence.resamples
        else None,
    )


def _read_blind(evidence: Evidence, brief: bool) -> _Reading:  # noqa: ARG001 - it has nothing to leave out
    assert isinstance(evidence.design, BlindDesign)
    members = np.arange(evidence.labels.size) if evidence.members is None else evidence.members
    return _Reading(_blind_findings(evidence.design, evidence.labels, evidence.answers, members))


def _blind_findings(design: BlindDesign, labels: IntArray, asked: AnswerTable, members: IntArray) -> Findings:
    """Estimate from the items asked so far and the subset that needs no query (its indicator is 1)."""
    thresholds = design.thresholds()
    answers = np.full(labels.size, INVALID)
    answers[asked.items] = asked.answers
    reached = thresholds == 0
    reached[asked.items] = True
    reached &= np.isin(np.arange(labels.size), members)
    return blind(labels[reached], thresholds[reached], answers[reached], design.bins).findings()


def _at_face_value(
    probabilities: Callable[[int, AnswerTable], FloatArray], *, deployable: bool = True
) -> Callable[[Evidence, bool], _Reading]:
    """Make a reader that takes answers for probabilities; no shift can deploy a threshold on stated ones."""

    def read(evidence: Evidence, brief: bool) -> _Reading:  # noqa: ARG001 - nothing here is slow
        asked = np.unique(evidence.answers.items)
        labels, p = evidence.labels[asked], probabilities(evidence.labels.size, evidence.answers)[asked]
        found = findings_at_face_value(labels, p, evidence.bins)
        if not deployable:
            found = replace(found, operating=(), costs=())
        return _Reading(found, half_gaps_at_face_value(labels, p) if evidence.groups is None else None)

    return read


@dataclass(frozen=True, slots=True)
class _Reader:
    """How an estimator reads answers, and a description of what it gives.

    ``read_given`` is for more than two answers, if it can read them.
    """

    read: Callable[[Evidence, bool], _Reading]
    words: str
    read_given: Callable[[Evidence, GivenAnswers, bool], _Reading] | None = None


_READERS: Mapping[EstimatorName, _Reader] = {
    "latent": _Reader(_read_latent, "read by maximum likelihood, with intervals", _read_given_latent),
    "blind": _Reader(
        _read_blind,
        "read as published: the gap of each bin, whose midpoint stands for the confidence in it; no "
        "intervals, no accuracy",
        _read_given_blind,
    ),
    "shares": _Reader(
        _at_face_value(sampled_shares),
        "read as the share of positive ones: the noise of few draws adds to the error; no intervals",
        _given_at_face_value(_shares_of_given),
    ),
    "flips": _Reader(
        _at_face_value(extracted),
        "read as the middle of what bisection leaves, coarse below five queries; no intervals",
    ),
    "stated": _Reader(
        _at_face_value(stated, deployable=False),
        "taken at its word; no intervals, and no shift deploys a threshold on it",
        _given_at_face_value(_stated_of_given),
    ),
}

_QUANTITIES = {
    "pair": "one spelling of the positive answer against one of the negative",
    "max": "the likeliest spelling of the positive answer against that of the negative",
    "sum": "all spellings of the positive answer against all of the negative",
    "configured": "how often this endpoint, as it is configured, gives the positive answer rather than the "
    "negative one",
    "stated": "the confidence that the model states in words, which need not be its probability",
}


_SEVERAL_QUANTITIES = {
    "pair": "one spelling of the answer given against one of each other answer",
    "max": "the likeliest spelling of the answer given against those of the other answers",
    "sum": "all spellings of the answer given against all of the other answers",
    "configured": "how often this endpoint, as it is configured, repeats the answer that it gave first",
    "stated": "the confidence that the model states in words, which need not be its probability",
}
_CLASSWISE_QUANTITY = "one spelling of each answer in turn against one of each other answer"


def measures(
    method: str, semantics: str, estimator: EstimatorName, queries: float, *, several: bool = False
) -> str:
    """A sentence on what an audit measures, from which answers, and what its estimator cannot give.

    ``several`` says that there are more than two answers.
    """
    made = METHODS[method]
    answers, quantity, words = made.answers, _QUANTITIES[semantics], _READERS[estimator].words
    if several:
        answers = several_answers(method).answers or answers
        quantity = _CLASSWISE_QUANTITY if made.classwise else _SEVERAL_QUANTITIES[semantics]
        words = words.replace("share of positive ones", "share that repeat it").replace(", no accuracy", "")
    # The descriptions say K; for a run the number is known.
    answers = re.sub(r"^K ((?:\w+ )?)answers", r"one \1answer", answers) if queries == 1 else answers
    answers = re.sub(r"^K ", f"{queries:.3g} ", answers)
    return f"{quantity}; from {answers}; {words}"
