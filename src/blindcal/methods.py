"""The registry of methods, and the path from a method's answers to the findings of a result.

A method consists of a design (which queries each item gets), an estimator, what both need of the endpoint,
and the budgets that tables and plans compare. To add a method, add one entry to `METHODS`: audits,
simulations, reproductions, merges and plans all make their designs and estimates here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blindcal.design import (
    TEMPERATURES,
    BlindDesign,
    Design,
    ExtractionDesign,
    LatentDesign,
    SampledDesign,
    StagedDesign,
)
from blindcal.errors import InputError
from blindcal.estimate.baselines import extracted, sampled_shares, stated
from blindcal.estimate.blind import blind
from blindcal.estimate.checks import ArrayLike, labels_array, whole
from blindcal.estimate.face_value import findings_at_face_value, half_gaps_at_face_value
from blindcal.estimate.findings import Findings, Part, no_findings, widened
from blindcal.estimate.latent import fit_table
from blindcal.estimate.latent_fit import LatentFit
from blindcal.estimate.noise import Noise
from blindcal.estimate.uncertainty import heterogeneity_pvalue
from blindcal.records import INVALID, AnswerTable, EstimatorName, FloatArray, IntArray, Semantics, Way

FEW_ITEMS, FEW_GROUPS = 100, 10
"""Estimates from fewer items or groups than this come with a warning."""
FEW_OF_A_LABEL = 10
LEAST_REPEATED = 2
TOO_FEW_REPEATED = (
    f"repeated asks each item at least {LEAST_REPEATED} times: one answer per item cannot tell a model that "
    "wavers from one that is sure and often wrong"
)
UNNAMED = "(none)"
"""The part of items that have no value in the field of the breakdown."""
_PART_RESAMPLES = 300  # refits for the intervals of each part, and for each plausible noise: limits the time

_CONTROL_SHARE, _LEAST_CONTROLS, _MOST_CONTROLS = 0.03, 50, 200

AUTO, ASSUMED = "auto", "latent"
"""In place of a method: the best that the endpoint allows; and the one to assume until it is known."""
ESTIMATOR_CHOICES = ("own", "latent")
"""How answers can be read: by the method's own estimator, or by the likelihood of `latent`."""


@dataclass(frozen=True, slots=True)
class DesignSpec:
    """The inputs of a design; ``members`` are the items that take part, ``None`` for all.

    ``choices`` is the number of answers of each item; ``None`` if there are two, as usual.
    """

    labels: IntArray
    queries: float
    bins: int
    seed: int
    adaptive: bool = True
    pilot: int | None = None
    members: IntArray | None = None
    choices: IntArray | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """One way to audit.

    Attributes
    ----------
    estimator : str
        The name of the estimator that reads its answers.
    queries : float
        The usual mean number of queries per item.
    answers : str
        A description of the answers; "K" stands for the number of queries per item.
    design : callable
        Makes the design.
    biased : bool
        Whether ``logit_bias`` is sent.
    sampled : bool
        Whether answers are drawn at T > 0.
    way : str
        What it needs of the endpoint.
    tempered : bool
        Whether a temperature is sent; if not, answers are drawn at the endpoint's own setting.
    budgets : tuple of int
        Queries per item that have a row in the table of ``blindcal reproduce``; empty if the method is not in
        it.
    plan_budgets : tuple of float
        Queries per item that a plan compares; empty if the method cannot be planned.
    """

    estimator: EstimatorName
    queries: float
    answers: str
    design: Callable[[DesignSpec], Design]
    biased: bool = True
    sampled: bool = False
    way: Way = "thresholds"
    tempered: bool = True
    budgets: tuple[int, ...] = tuple(range(1, 9))
    plan_budgets: tuple[float, ...] = ()

    @property
    def logprobs(self) -> bool:
        """Whether probabilities are read from logprobs, instead of answers."""
        return self.way == "logprobs"

    @property
    def fitted(self) -> bool:
        """Whether its estimator is a fit, which gives a curve, operating points and intervals."""
        return self.estimator == "latent"

    @property
    def free_text(self) -> bool:
        """Whether its answers may be sentences: it draws whole answers, and no bias acts on their tokens."""
        return self.sampled and not self.biased

    @property
    def simulable(self) -> bool:
        """Whether its answers follow from probabilities, unlike a confidence stated in words."""
        return self.estimator != "stated"

    @property
    def usual_semantics(self) -> Semantics:
        """The semantics by which tokens are chosen if none is asked for: logprobs show all spellings."""
        return "sum" if self.logprobs else "pair"

    def semantics(self, targets: Semantics) -> str:
        """The semantics that is measured if the tokens are chosen by ``targets`` (METHOD 1)."""
        if self.estimator == "stated":
            return "stated"
        if self.logprobs:
            return targets
        if not self.tempered:
            return "configured"
        # A sampled answer follows the summed probability of all possible spellings.
        return "sum" if not self.biased or (self.sampled and targets == "max") else targets


#: All methods by name.
METHODS: Mapping[str, Method] = {
    "logprobs": Method(
        "latent",
        1.0,
        "one reading per item of the probabilities that the endpoint shows, without logit_bias",
        lambda spec: SampledDesign(spec.labels.size, at_most_once(spec.queries), (0.0,), spec.seed),
        biased=False,
        way="logprobs",
        budgets=(),  # the table compares methods with these very probabilities
        plan_budgets=(1.0,),
    ),
    "latent": Method(
        "latent",
        1.0,
        "K threshold answers per item (logit_bias, T = 0), asked where they tell most",
        lambda spec: LatentDesign(spec.labels, spec.queries, spec.seed, spec.adaptive, spec.pilot),
        plan_budgets=(1.0, 1.5, 2.0, 3.0),
    ),
    "blind": Method(
        "blind",
        1.0,
        "one threshold answer per item (logit_bias, T = 0), none for one subset: 1 - 1/bins queries",
        lambda spec: BlindDesign(spec.labels.size, whole(spec.bins, "bins"), spec.seed, spec.members),
        budgets=(1,),
        plan_budgets=(1.0,),
    ),
    "sampling": Method(
        "shares",
        4.0,
        "K answers per item drawn at T = 1 (logit_bias)",
        lambda spec: SampledDesign(spec.labels.size, spec.queries, (1.0,), spec.seed),
        sampled=True,
        plan_budgets=(2.0, 4.0, 8.0),
    ),
    "extraction": Method(
        "flips",
        6.0,
        "K threshold answers per item (logit_bias, T = 0) that bisect its log-odds on [-15, 15]",
        lambda spec: ExtractionDesign(spec.labels.size, whole_queries(spec.queries)),
        plan_budgets=(4.0, 6.0, 8.0),
    ),
    "temperature": Method(
        "latent",
        3.0,
        "K answers per item drawn at temperatures 0.3 to 2, without logit_bias",
        lambda spec: SampledDesign(spec.labels.size, spec.queries, TEMPERATURES, spec.seed),
        biased=False,
        sampled=True,
        way="temperature",
        budgets=tuple(range(2, 9)),
        plan_budgets=(2.0, 3.0, 4.0),
    ),
    "repeated": Method(
        "latent",
        2.0,
        "K answers per item at the endpoint's own setting, without logit_bias or temperature",
        lambda spec: SampledDesign(spec.labels.size, repeated_queries(spec.queries), (1.0,), spec.seed),
        biased=False,
        sampled=True,
        tempered=False,
        way="repeated answers",
        budgets=tuple(range(2, 9)),
        plan_budgets=(2.0, 3.0, 4.0),
    ),
    "verbalized": Method(
        "stated",
        1.0,
        "one answer per item in free text with a confidence in it (T = 0), without logit_bias",
        lambda spec: SampledDesign(spec.labels.size, _once(spec.queries), (0.0,), spec.seed),
        biased=False,
        way="stated confidence",
        budgets=(1,),
    ),
}

FITTED = tuple(name for name, method in METHODS.items() if method.fitted)
SIMULABLE = tuple(name for name, method in METHODS.items() if method.simulable)


def method_of(name: str) -> Method:
    """The method with this name."""
    if name not in METHODS:
        raise InputError(f"method: must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]


def estimator_of(method: str, estimator: str = "own") -> EstimatorName:
    """The name of the estimator that reads a method's answers; ``latent`` can read most other methods' too.

    Threshold and sampled answers of any design are readings of the hidden log-odds (METHOD 2), so one
    likelihood fits them all. A confidence stated in words is not such a reading.
    """
    own = method_of(method).estimator
    if estimator not in ESTIMATOR_CHOICES:
        raise InputError(f"estimator: must be one of {', '.join(ESTIMATOR_CHOICES)}, got {estimator!r}")
    if estimator == "own":
        return own
    if own == "stated":
        raise InputError("estimator: latent reads answers of one word, and verbalized gets free text")
    return "latent"


# Designs


def make_design(
    method: str,
    labels: ArrayLike,
    *,
    queries: float = 1.0,
    bins: int = 5,
    seed: int = 0,
    adaptive: bool = True,
    stages: Sequence[IntArray] | None = None,
    pilot: int | None = None,
) -> Design:
    """Make the design of a method.

    Parameters
    ----------
    method : str
        One of `METHODS`.
    labels : array_like of 0/1
    queries : float
        Mean queries per item. ``blind`` always asks 1 - 1/bins, ``extraction`` a whole number and
        ``verbalized`` one.
    bins : int
        Number of subsets of ``blind``; the other designs do not depend on it.
    seed : int
    adaptive : bool
        Whether ``latent`` starts with a pilot; if not, the first queries of all items are one round.
    stages : sequence of arrays, optional
        Sorted item numbers of each stage. Only these items are asked, stage by stage, each stage with its own
        design.
    pilot : int, optional
        Number of items in the first round of ``latent``.
    """
    y = labels_array(labels)
    if not (np.isfinite(queries) and queries > 0):
        raise InputError(f"queries: must be a positive number, got {queries!r}")
    make = method_of(method).design
    if stages is None:
        return make(DesignSpec(y, queries, bins, seed, adaptive, pilot))
    if method == "blind":
        if len(stages) > 1:
            raise InputError(
                "sample: blind splits all its items at once and cannot grow; choose another folder"
            )
        return make(DesignSpec(y, queries, bins, seed, members=stages[0]))
    designs = [
        make(DesignSpec(y[members], queries, bins, seed + k * 2**32, adaptive, pilot))
        for k, members in enumerate(stages)
    ]
    return StagedDesign(tuple(stages), tuple(designs))


def count_queries(method: str, n: int, queries: float, bins: int) -> int:
    """How many queries the design of a method asks for ``n`` items, if no limit stops it."""
    if method == "blind":  # one subset needs no query
        return n - len(range(0, n, bins))
    return max(1, round(queries * n))


def control_spacing(n: int) -> int:
    """Of how many queries one carries a control query, in a live audit of ``n`` items that uses the bias.

    That is 3% of one query per item, but at least 50 and at most 200, and never more than every fourth query.
    """
    return max(4, int(n / min(max(_CONTROL_SHARE * n, _LEAST_CONTROLS), _MOST_CONTROLS)))


def count_controls(method: str, n: int, queries: int) -> int:
    """How many control queries a live audit of ``n`` items asks beside so many queries."""
    return -(-queries // control_spacing(n)) if METHODS[method].biased else 0


def whole_queries(queries: float) -> int:
    """The queries per item of ``extraction``, which must be a whole number."""
    if queries != int(queries):
        raise InputError(f"queries: extraction asks a whole number of queries per item, got {queries!r}")
    return int(queries)


def at_most_once(queries: float) -> float:
    """The queries per item of ``logprobs``: a second reading would show the same."""
    if queries > 1:
        raise InputError(f"queries: logprobs reads each item once at most, got {queries!r}")
    return queries


def _once(queries: float) -> float:
    if queries != 1:
        raise InputError(f"queries: verbalized asks each item once, got {queries!r}")
    return queries


def repeated_queries(queries: float) -> float:
    """The queries per item of ``repeated``, at least two."""
    if queries < LEAST_REPEATED:
        raise InputError(f"queries: {TOO_FEW_REPEATED}, got {queries:g}")
    return queries


# Estimates


@dataclass(frozen=True, slots=True)
class Evidence:
    """Answers and how to read them: the input of `estimate`.

    ``labels``, ``groups`` and ``parts`` have one entry per item; ``parts`` names each item's part in a
    breakdown. ``members`` are the items that take part, ``None`` for all. ``jitter`` is the endpoint's noise
    on the log-odds and ``flip_rate`` the share of its answers that are flipped; intervals also allow for the
    ``plausible`` other values of both. With ``resamples=0`` there are no intervals. ``choices`` is the number
    of answers of each item; ``None`` if there are two, as usual.
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
        if self.estimator_name != "blind":
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
    found = _read(evidence, brief).findings
    if brief or evidence.parts is None:
        return found
    parts, pvalue = _by_part(evidence, evidence.parts)
    return replace(found, parts=parts, parts_pvalue=pvalue)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Findings, and the signed gaps below and above 1/2 with their covariance, for comparing parts."""

    findings: Findings
    half_gaps: tuple[FloatArray, FloatArray] | None = None


def _read(evidence: Evidence, brief: bool, chosen: IntArray | None = None) -> _Reading:
    if chosen is not None:
        evidence = replace(evidence, answers=evidence.answers.of(chosen), members=chosen)
    if not (evidence.answers.answers != INVALID).any():
        return _Reading(no_findings(evidence.bins))
    return _READERS[evidence.estimator_name].read(evidence, brief)


def _by_part(evidence: Evidence, names: Sequence[str | None]) -> tuple[tuple[Part, ...], float | None]:
    """The estimates for each part, and the p-value of "all parts are equally miscalibrated".

    Each part is estimated from its own answers alone. The test compares the signed gaps below and above 1/2
    of all parts with enough items. The p-value is ``None`` for fewer than two such parts, and if the method
    does not estimate its own noise.
    """
    found, compared = [], []
    of_item = np.array([UNNAMED if name is None else name for name in names], dtype=object)
    items = evidence.items
    fewer = replace(evidence, resamples=min(evidence.resamples, _PART_RESAMPLES))
    for name in sorted(set(of_item)):
        one = _read(fewer, True, np.flatnonzero(of_item == name))
        mine = items[of_item[items] == name]
        some, positive = one.findings, int(evidence.labels[mine].sum())
        groups = evidence.group_count(mine)
        few = mine.size < FEW_ITEMS or min(positive, mine.size - positive) < FEW_OF_A_LABEL
        few = few or (groups is not None and groups < FEW_GROUPS)
        found.append(
            Part(name, mine.size, positive, some.ece, some.accuracy, some.leaning, some.overconfidence, few)
        )
        if not few:
            compared.append(one.half_gaps)
    known = [one for one in compared if one is not None]
    if len(known) < 2 or len(known) < len(compared):
        return tuple(found), None
    return tuple(found), heterogeneity_pvalue(*map(list, zip(*known, strict=True)))


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

    best = fit(Noise(evidence.jitter, evidence.flip_rate), evidence.resamples)
    fewer = min(evidence.resamples, _PART_RESAMPLES)
    others = [fit(noise, fewer).findings(brief=brief) for noise in evidence.plausible if evidence.resamples]
    return _Reading(
        widened(best.findings(brief=brief), others), best.half_gaps if evidence.resamples else None
    )


def _read_blind(evidence: Evidence, brief: bool) -> _Reading:  # noqa: ARG001 - it has nothing to leave out
    """Estimate from the items asked so far and the subset that needs no query (its indicator is 1)."""
    design, asked = evidence.design, evidence.answers
    assert isinstance(design, BlindDesign)
    thresholds = design.thresholds()
    answers = np.full(evidence.labels.size, INVALID)
    answers[asked.items] = asked.answers
    reached = thresholds == 0
    reached[asked.items] = True
    if evidence.members is not None:
        reached &= np.isin(np.arange(evidence.labels.size), evidence.members)
    found = blind(evidence.labels[reached], thresholds[reached], answers[reached], design.bins)
    return _Reading(found.findings())


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
    """How an estimator reads answers, and a description of what it gives."""

    read: Callable[[Evidence, bool], _Reading]
    words: str


_READERS: Mapping[EstimatorName, _Reader] = {
    "latent": _Reader(_read_latent, "read by maximum likelihood, with intervals"),
    "blind": _Reader(
        _read_blind,
        "read as published: the gap of each bin, whose midpoint stands for the confidence in it; no "
        "intervals, no accuracy",
    ),
    "shares": _Reader(
        _at_face_value(sampled_shares),
        "read as the share of positive ones: the noise of few draws adds to the error; no intervals",
    ),
    "flips": _Reader(
        _at_face_value(extracted),
        "read as the middle of what bisection leaves, coarse below five queries; no intervals",
    ),
    "stated": _Reader(
        _at_face_value(stated, deployable=False),
        "taken at its word; no intervals, and no shift deploys a threshold on it",
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


def measures(method: str, semantics: str, estimator: EstimatorName, queries: float) -> str:
    """A sentence on what an audit measures, from which answers, and what its estimator cannot give."""
    answers = METHODS[method].answers
    # The descriptions say K; for a run the number is known.
    answers = re.sub(r"^K ((?:\w+ )?)answers", r"one \1answer", answers) if queries == 1 else answers
    answers = re.sub(r"^K ", f"{queries:.3g} ", answers)
    return f"{_QUANTITIES[semantics]}; from {answers}; {_READERS[estimator].words}"
