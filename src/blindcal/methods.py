"""The registry of methods, from which audits, simulations, reproductions, merges and plans make designs.

A method consists of a design (which queries each item gets), an estimator, what both need of the endpoint,
and the budgets that tables and plans compare. To add a method, add one entry to `METHODS`.
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
ONCE: tuple[Way, ...] = ("decisions", "logprobs", "stated confidence", "given")
"""Ways to audit that gain nothing from asking an item again."""
_CONTROL_SHARE, _LEAST_CONTROLS, _MOST_CONTROLS = 0.03, 50, 200  # control queries: share of n, and its range

AUTO, ASSUMED = "auto", "latent"
"""Instead of a method: the best that the endpoint allows, and the one assumed until that is known."""
ESTIMATOR_CHOICES = ("own", "latent")
"""Estimators that can read answers: the method's own, or the likelihood of `latent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSpec:
    """The inputs of a design."""

    labels: IntArray
    choices: IntArray  # number of answers of each item
    queries: float
    bins: int
    seed: int
    members: IntArray | None = None  # items that take part; None for all
    summed: bool = False  # threshold answers follow the sum of several spellings: drawn as at T = 1


@dataclass(frozen=True, slots=True)
class SeveralAnswers:
    """How a method audits items with more than two answers (METHOD 8)."""

    design: Callable[[DesignSpec], Design]
    queries: float  # usual mean number per item
    answers: str = ""  # as in `Method`; if empty, those of two answers


@dataclass(frozen=True, slots=True)
class Method:
    """One way to audit."""

    estimator: EstimatorName
    queries: float  # usual mean number per item
    answers: str  # description; "K" stands for the number of queries per item
    design: Callable[[DesignSpec], Design]
    biased: bool = True  # ``logit_bias`` is sent
    sampled: bool = False  # answers are drawn at T > 0
    way: Way = "thresholds"  # what it needs of the endpoint
    tempered: bool = True  # a temperature is sent; if not, the endpoint uses its own
    least: float = 0.0  # mean number per item
    budgets: tuple[int, ...] = tuple(range(1, 9))  # queries per item in the table of ``reproduce``
    several: SeveralAnswers | None = None  # None if it takes two answers only
    allowed: tuple[Callable[[float], bool], str] | None = None  # test of the queries, and its rule

    def check_queries(self, queries: float) -> None:
        """Raise `InputError` if the method cannot ask this number of queries per item."""
        if not (np.isfinite(queries) and queries > 0):
            raise InputError(f"queries: must be a positive number, got {queries!r}")
        if self.allowed is not None and not self.allowed[0](queries):
            raise InputError(f"queries: {self.allowed[1]}, got {queries:g}")

    def usual_queries(self, *, several: bool) -> float:
        return self.queries if not several or self.several is None else self.several.queries

    def nearest_queries(self, given: float | None, *, several: bool) -> float:
        """The mean number per item: the one given, as far as the method can ask it, or the usual one."""
        if given is None:
            return self.usual_queries(several=several)
        return min(given, 1.0) if self.way in ONCE else max(given, self.least)

    @property
    def logprobs(self) -> bool:
        """Whether probabilities are read from logprobs instead of answers."""
        return self.way == "logprobs"

    @property
    def shown(self) -> bool:
        """Whether probabilities are read that the endpoint shows or a file holds."""
        return self.way in ("decisions", "logprobs", "given")

    @property
    def given(self) -> bool:
        """Whether the probabilities are those of a file, so that nothing is asked."""
        return self.way == "given"

    @property
    def controlled(self) -> bool:
        """Whether control queries during a run can show that the endpoint changed."""
        return self.biased or self.shown

    @property
    def fitted(self) -> bool:
        """Whether its estimator is a fit, with a curve, operating points and intervals."""
        return self.estimator == "latent"

    @property
    def free_text(self) -> bool:
        """Whether its answers may be sentences: drawn whole, without a bias on their tokens."""
        return self.sampled and not self.biased

    @property
    def simulable(self) -> bool:
        """Whether its answers follow from probabilities, unlike a confidence stated in words.

        What a decision API shows or a file holds is simulated as logprobs are.
        """
        return self.estimator != "stated" and self.way not in ("decisions", "given")

    @property
    def usual_semantics(self) -> Semantics:
        """Default semantics for choosing tokens; logprobs show all spellings."""
        return "sum" if self.logprobs else "pair"

    def summed(self, targets: Semantics) -> bool:
        """Whether threshold answers follow the sum of several spellings (METHOD 8)."""
        return self.biased and not self.sampled and targets == "sum"

    def semantics(self, targets: Semantics) -> str:
        """The semantics that is measured if the tokens are chosen by ``targets`` (METHOD 1)."""
        if self.estimator == "stated":
            return "stated"
        if self.way == "decisions":
            return "shown"
        if self.given:
            return "given"
        if self.logprobs:
            return targets
        if not self.tempered:
            return "configured"
        # a sampled answer follows the summed probability of all spellings
        return "sum" if not self.biased or (self.sampled and targets == "max") else targets


def _shown(way: Way, answers: str, *, tempered: bool = False) -> Method:
    """The method that reads each item's probability once; its name is that of the way."""
    return Method(
        "latent",
        1.0,
        f"one reading per item of {answers}",
        lambda spec: SampledDesign(spec.labels.size, spec.queries, (0.0,), spec.seed),
        biased=False,
        way=way,
        tempered=tempered,
        budgets=(),  # the table compares methods with such probabilities
        several=SeveralAnswers(lambda spec: DrawnAnswersDesign(spec.choices, spec.queries, spec.seed), 1.0),
        allowed=(lambda queries: queries <= 1, f"{way} reads each item once at most"),
    )


#: All methods by name.
METHODS: Mapping[str, Method] = {
    "decisions": _shown("decisions", "the probabilities that a decision API shows"),
    "logprobs": _shown(
        "logprobs", "the probabilities that the endpoint shows, without logit_bias", tempered=True
    ),
    "given": _shown("given", "the confidences in a file, without an endpoint"),
    "latent": Method(
        "latent",
        1.0,
        "K threshold answers per item (logit_bias, T = 0), asked where they tell most",
        lambda spec: LatentDesign(spec.labels, spec.queries, spec.seed, 1.0 if spec.summed else 0.0),
        several=SeveralAnswers(
            lambda spec: GivenAnswerDesign(spec.labels, spec.choices, spec.queries, spec.seed),
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
        allowed=(
            lambda queries: queries == 1,
            "blind always asks 1 - 1/bins per item; leave it out, or choose a method that can ask more",
        ),
    ),
    "sampling": Method(
        "shares",
        4.0,
        "K answers per item drawn at T = 1 (logit_bias)",
        lambda spec: SampledDesign(spec.labels.size, spec.queries, (1.0,), spec.seed),
        sampled=True,
        several=SeveralAnswers(
            lambda spec: DrawnAnswersDesign(spec.choices, more_than_plain(spec.queries), spec.seed),
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
        several=SeveralAnswers(
            lambda spec: DrawnAnswersDesign(spec.choices, more_than_plain(spec.queries), spec.seed),
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
        least=LEAST_REPEATED,
        budgets=tuple(range(2, 9)),
        several=SeveralAnswers(
            lambda spec: DrawnAnswersDesign(spec.choices, spec.queries, spec.seed, greedy=False),
            3.0,
            "K answers per item at the endpoint's own setting, without logit_bias or temperature; the first "
            "one is the answer given",
        ),
        allowed=(
            lambda queries: queries >= LEAST_REPEATED,
            f"repeated asks each item at least {LEAST_REPEATED} times: one answer per item cannot tell a "
            "model that wavers from one that is sure and often wrong",
        ),
    ),
    "verbalized": Method(
        "stated",
        1.0,
        "one answer per item in free text with a confidence in it (T = 0), without logit_bias",
        lambda spec: SampledDesign(spec.labels.size, spec.queries, (0.0,), spec.seed),
        biased=False,
        way="stated confidence",
        budgets=(1,),
        several=SeveralAnswers(lambda spec: DrawnAnswersDesign(spec.choices, spec.queries, spec.seed), 1.0),
        allowed=(lambda queries: queries == 1, "verbalized asks each item once"),
    ),
}

METHOD_OF: Mapping[Way, str] = {
    "decisions": "decisions",
    "logprobs": "logprobs",
    "thresholds": "latent",
    "temperature": "temperature",
    "repeated answers": "repeated",
    "stated confidence": "verbalized",
}
"""The best method of each way to audit an endpoint, in the order of trying."""
FITTED = tuple(name for name, method in METHODS.items() if method.fitted)
SIMULABLE = tuple(name for name, method in METHODS.items() if method.simulable)


def method_of(name: str) -> Method:
    """The method with this name; raises `InputError` if there is none."""
    if name not in METHODS:
        raise InputError(f"method: must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]


def estimator_of(method: str, estimator: str = "own") -> EstimatorName:
    """Name of the estimator that reads a method's answers.

    Threshold and sampled answers of any design are readings of the hidden log-odds (METHOD 2), so `latent`
    fits them all. A confidence stated in words is not such a reading.
    """
    own = method_of(method).estimator
    if estimator not in ESTIMATOR_CHOICES:
        raise InputError(f"estimator: must be one of {', '.join(ESTIMATOR_CHOICES)}, got {estimator!r}")
    if estimator == "own":
        return own
    if own == "stated":
        raise InputError("estimator: latent reads answers of one word, and verbalized gets free text")
    return "latent"


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
    """Make the design of a method, with this mean number of queries per item.

    ``bins`` is the number of subsets of ``blind``. With ``stages``, sorted item numbers, only these items are
    asked, each stage with its own design. ``choices`` is the number of answers of each item, if
    some have more than two, and ``summed`` as in `DesignSpec`.
    """
    several = choices is not None
    y = np.asarray(labels, np.int64) if several else labels_array(labels)
    method_of(method).check_queries(queries)
    make = several_answers(method).design if several else METHODS[method].design
    choices = np.full(y.size, 2) if choices is None else choices
    spec = DesignSpec(labels=y, choices=choices, queries=queries, bins=bins, seed=seed, summed=summed)
    if stages is None:
        return make(spec)
    if method == "blind":
        if len(stages) > 1:
            raise InputError(
                "sample: blind splits all its items at once and cannot grow; choose another folder"
            )
        return make(replace(spec, members=stages[0]))
    designs = [
        make(replace(spec, labels=y[members], choices=choices[members], seed=seed + k * 2**32))
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
    """Number of queries of a design for ``n`` items, if no limit stops it."""
    if method == "blind":  # one subset needs no query
        return n - len(range(0, n, bins))
    return max(1, round(queries * n))


def control_spacing(n: int) -> int:
    """Number of queries per control query in an audit of ``n`` items that uses the bias."""
    return max(4, int(n / min(max(_CONTROL_SHARE * n, _LEAST_CONTROLS), _MOST_CONTROLS)))


def expected_controls(method: str, n: int, queries: int) -> int:
    """Number of control queries beside ``queries`` in an audit of ``n`` items."""
    return -(-queries // control_spacing(n)) if METHODS[method].controlled else 0
