"""The registry of methods.

A method consists of a design (which queries each item gets), an estimator, what both need of the endpoint,
and the budgets that tables and plans compare. To add a method, add one entry to `METHODS`: audits,
simulations, reproductions, merges and plans all make their designs here, and their estimates in `evidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blindcal.choice_design import DrawnAnswersDesign, GivenAnswerDesign, more_than_plain
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
from blindcal.estimate.checks import ArrayLike, labels_array, whole
from blindcal.records import EstimatorName, IntArray, Semantics, Way

LEAST_REPEATED = 2
TOO_FEW_REPEATED = (
    f"repeated asks each item at least {LEAST_REPEATED} times: one answer per item cannot tell a model that "
    "wavers from one that is sure and often wrong"
)

_CONTROL_SHARE, _LEAST_CONTROLS, _MOST_CONTROLS = 0.03, 50, 200

AUTO, ASSUMED = "auto", "latent"
"""In place of a method: the best that the endpoint allows; and the one to assume until it is known."""
ESTIMATOR_CHOICES = ("own", "latent")
"""How answers can be read: by the method's own estimator, or by the likelihood of `latent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSpec:
    """The inputs of a design; ``members`` are the items that take part, ``None`` for all.

    ``choices`` is the number of answers of each item; ``None`` if there are two, as usual. ``summed`` says
    that threshold answers follow the sum of several spellings: they are drawn as at T = 1.
    """

    labels: IntArray
    queries: float
    bins: int
    seed: int
    members: IntArray | None = None
    choices: IntArray | None = None
    summed: bool = False


@dataclass(frozen=True, slots=True)
class SeveralAnswers:
    """How a method audits items with more than two answers (METHOD 8): its design and usual queries per item.

    ``answers`` describes the answers as in `Method`; if empty, they are those of two answers.
    """

    design: Callable[[DesignSpec, IntArray], Design]
    queries: float
    answers: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to audit.

    ``estimator`` reads its answers, which ``answers`` describes ("K" stands for the number of queries per
    item), ``queries`` is the usual mean number of queries per item, and ``design`` makes the design.
    """

    estimator: EstimatorName
    queries: float
    answers: str
    design: Callable[[DesignSpec], Design]
    biased: bool = True  # ``logit_bias`` is sent
    sampled: bool = False  # answers are drawn at T > 0
    way: Way = "thresholds"  # what it needs of the endpoint
    tempered: bool = True  # a temperature is sent; if not, answers are drawn at the endpoint's own setting
    budgets: tuple[int, ...] = tuple(range(1, 9))  # queries per item in the table of ``reproduce``
    plan_budgets: tuple[float, ...] = ()  # queries per item that a plan for a half-width compares
    several: SeveralAnswers | None = None  # how it audits items with more than two answers, if it can
    allowed: tuple[Callable[[float], bool], str] | None = None  # numbers of queries per item, and the rule

    def check_queries(self, queries: float) -> None:
        """Raise `InputError` if the method cannot ask this number of queries per item."""
        if not (np.isfinite(queries) and queries > 0):
            raise InputError(f"queries: must be a positive number, got {queries!r}")
        if self.allowed is not None and not self.allowed[0](queries):
            raise InputError(f"queries: {self.allowed[1]}, got {queries:g}")

    def usual_queries(self, *, several: bool) -> float:
        """The usual mean number of queries per item, with two answers or with ``several``."""
        return self.queries if not several or self.several is None else self.several.queries

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
        lambda spec: SampledDesign(spec.labels.size, spec.queries, (0.0,), spec.seed),
        biased=False,
        way="logprobs",
        budgets=(),  # the table compares methods with these very probabilities
        plan_budgets=(1.0,),
        several=SeveralAnswers(
            lambda spec, choices: DrawnAnswersDesign(choices, spec.queries, spec.seed),
            1.0,
        ),
        allowed=(lambda queries: queries <= 1, "logprobs reads each item once at most"),
    ),
    "latent": Method(
        "latent",
        1.0,
        "K threshold answers per item (logit_bias, T = 0), asked where they tell most",
        lambda spec: LatentDesign(
            spec.labels,
            spec.queries,
            spec.seed,
            1.0 if spec.summed else 0.0,
        ),
        plan_budgets=(1.0, 1.5, 2.0, 3.0),
        several=SeveralAnswers(
            lambda spec, choices: GivenAnswerDesign(spec.labels, choices, spec.queries, spec.seed),
            2.0,
            "K answers per item (logit_bias, T = 0): the plain one, then those to queries about it, half of "
            "them with Gumbel numbers on the other answers",
        ),
    ),
    "blind": Method(
        "blind",
        1.0,
        "one threshold answer per item (logit_bias, T = 0), none for one subset: 1 - 1/bins queries",
        lambda spec: BlindDesign(spec.labels.size, whole(spec.bins, "bins"), spec.seed, spec.members),
        budgets=(1,),
    ),
    "sampling": Method(
        "shares",
        4.0,
        "K answers per item drawn at T = 1 (logit_bias)",
        lambda spec: SampledDesign(spec.labels.size, spec.queries, (1.0,), spec.seed),
        sampled=True,
        several=SeveralAnswers(
            lambda spec, choices: DrawnAnswersDesign(choices, more_than_plain(spec.queries), spec.seed),
            4.0,
            "K answers per item (logit_bias): the plain one, and others drawn at T = 1",
        ),
    ),
    "extraction": Method(
        "flips",
        6.0,
        "K threshold answers per item (logit_bias, T = 0) that bisect its log-odds on [-15, 15]",
        lambda spec: ExtractionDesign(spec.labels.size, int(spec.queries)),
        allowed=(
            lambda queries: queries == int(queries),
            "extraction asks a whole number of queries per item",
        ),
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
        several=SeveralAnswers(
            lambda spec, choices: DrawnAnswersDesign(choices, more_than_plain(spec.queries), spec.seed),
            4.0,
            "K answers per item without logit_bias: the plain one, and others drawn at T = 1",
        ),
    ),
    "repeated": Method(
        "latent",
        2.0,
        "K answers per item at the endpoint's own setting, without logit_bias or temperature",
        lambda spec: SampledDesign(spec.labels.size, spec.queries, (1.0,), spec.seed),
        biased=False,
        sampled=True,
        tempered=False,
        way="repeated answers",
        budgets=tuple(range(2, 9)),
        plan_budgets=(2.0, 3.0, 4.0),
        several=SeveralAnswers(
            lambda spec, choices: DrawnAnswersDesign(choices, spec.queries, spec.seed, greedy=False),
            3.0,
            "K answers per item at the endpoint's own setting, without logit_bias or temperature; the first "
            "one is the answer given",
        ),
        allowed=(lambda queries: queries >= LEAST_REPEATED, TOO_FEW_REPEATED),
    ),
    "verbalized": Method(
        "stated",
        1.0,
        "one answer per item in free text with a confidence in it (T = 0), without logit_bias",
        lambda spec: SampledDesign(spec.labels.size, spec.queries, (0.0,), spec.seed),
        biased=False,
        way="stated confidence",
        budgets=(1,),
        several=SeveralAnswers(
            lambda spec, choices: DrawnAnswersDesign(choices, spec.queries, spec.seed),
            1.0,
        ),
        allowed=(lambda queries: queries == 1, "verbalized asks each item once"),
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
    stages: Sequence[IntArray] | None = None,
    choices: IntArray | None = None,
    summed: bool = False,
) -> Design:
    """Make the design of a method.

    Parameters
    ----------
    method : str
        One of `METHODS`.
    labels : array_like of 0/1, or of answers if there are more than two
    queries : float
        Mean queries per item. ``blind`` always asks 1 - 1/bins, ``extraction`` a whole number and
        ``verbalized`` one.
    bins : int
        Number of subsets of ``blind``; the other designs do not depend on it.
    seed : int
    stages : sequence of arrays, optional
        Sorted item numbers of each stage. Only these items are asked, stage by stage, each stage with its own
        design.
    choices : array, optional
        Number of answers of each item, if there are more than two.
    summed : bool
        Whether threshold answers follow the sum of several spellings (METHOD 8).
    """
    y = labels_array(labels) if choices is None else np.asarray(labels, np.int64)
    method_of(method).check_queries(queries)
    make = METHODS[method].design
    if choices is not None:
        own = several_answers(method)

        def make(spec: DesignSpec) -> Design:
            assert spec.choices is not None
            return own.design(spec, spec.choices)

    spec = DesignSpec(labels=y, queries=queries, bins=bins, seed=seed, choices=choices, summed=summed)
    if stages is None:
        return make(spec)
    if method == "blind":
        if len(stages) > 1:
            raise InputError(
                "sample: blind splits all its items at once and cannot grow; choose another folder"
            )
        return make(replace(spec, members=stages[0]))
    designs = [
        make(
            replace(
                spec,
                labels=y[members],
                seed=seed + k * 2**32,
                choices=None if choices is None else choices[members],
            )
        )
        for k, members in enumerate(stages)
    ]
    return StagedDesign(tuple(stages), tuple(designs))


def several_answers(method: str) -> SeveralAnswers:
    """How a method audits items with more than two answers; raises `InputError` if it cannot."""
    several = method_of(method).several
    if several is None:
        others = ", ".join(name for name, other in METHODS.items() if other.several is not None)
        raise InputError(f"method: {method} audits two answers only; with more, use one of {others}")
    return several


def count_queries(method: str, n: int, queries: float, bins: int) -> int:
    """The number of queries that the design of a method asks for ``n`` items, if no limit stops it."""
    if method == "blind":  # one subset needs no query
        return n - len(range(0, n, bins))
    return max(1, round(queries * n))


def control_spacing(n: int) -> int:
    """The number of queries per control query, in an audit of ``n`` items that uses the bias.

    Control queries are 3% of one query per item, but at least 50 and at most 200, and at most every fourth
    query.
    """
    return max(4, int(n / min(max(_CONTROL_SHARE * n, _LEAST_CONTROLS), _MOST_CONTROLS)))


def count_controls(method: str, n: int, queries: int) -> int:
    """The number of control queries that an audit of ``n`` items asks beside its ``queries``."""
    return -(-queries // control_spacing(n)) if METHODS[method].biased else 0
