"""A problem: items with two labels, the readings about each of them, and the noise of the readings.

More than two answers become two labels (METHOD 8): the given answer is right or wrong, and further queries
are answered with it again or not. Then only the response curves differ:

- a shift on the given answer alone, at T = 0, tests its margin over the strongest other answer;
- with Gumbel numbers of our own on the others, P(same answer) = exp(-exp(-(s + b)));
- drawn at T = 1, P(same answer) = sigmoid(s); shown probabilities bound s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate import checks
from blindcal.estimate.checks import ArrayLike, per_item
from blindcal.records import (
    INVALID,
    NEGATIVE,
    PLAIN,
    POSITIVE,
    AnswerTable,
    BoolArray,
    FloatArray,
    IntArray,
    Noise,
)

_ACROSS = np.sqrt(
    3.0
)  # standard deviations from the mean of six points, two on each axis, with equal shares:
# mean, variance and kurtosis along each axis are then those of the normal distribution


@dataclass(frozen=True, slots=True)
class NoisePosterior:
    """The ``best`` value of the noise, and others that explain the answers about as well."""

    best: Noise = field(default_factory=Noise)
    plausible: tuple[Noise, ...] = ()

    @property
    def every(self) -> tuple[Noise, ...]:
        """All values, the best first."""
        return (self.best, *self.plausible)

    @classmethod
    def together(cls, each: Sequence[NoisePosterior]) -> NoisePosterior:
        """Combine several runs: the noisiest of their values, and all that any finds plausible."""
        if len(set(each)) == 1:
            return each[0]
        best = Noise(max(run.best.jitter for run in each), max(run.best.flip_rate for run in each))
        return cls(best, tuple(dict.fromkeys(noise for run in each for noise in run.plausible)))


@dataclass(frozen=True, slots=True)
class Excess:
    """The excess at each margin, and what it tells about being right.

    The log-odds of its mean over log(k - 1) are linear in margin / (1 + margin) around ``centre``. At one
    margin, the log-odds of being right fall by ``telling`` per unit of excess: by 1 in a calibrated model.
    """

    level: float
    slope: float
    telling: float = 1.0
    centre: float = field(default=0.5, kw_only=True)


@dataclass(frozen=True, eq=False)
class ExcessPosterior:
    """The posterior of the level, slope and telling of the excess: its mean and covariance.

    ``best`` is the point for the estimate.
    """

    mean: FloatArray
    covariance: FloatArray
    centre: float
    best: Excess

    @property
    def others(self) -> tuple[Excess, ...]:
        """Points that together stand for the posterior, each as likely."""
        variance, axes = np.linalg.eigh(self.covariance)
        off = _ACROSS * np.sqrt(variance) * axes
        return tuple(self._at(self.mean + sign * each) for each in off.T for sign in (-1, 1))

    def _at(self, point: FloatArray) -> Excess:
        return Excess(*point.tolist(), centre=self.centre)


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """All that a fit needs to know; arrays have one entry per item.

    With more than two answers, ``labels`` say whether the given answer is right, and ``readings`` are the
    queries about it: positive if the same answer came again.
    """

    labels: IntArray
    readings: AnswerTable
    units: IntArray | None = None  # the group of each item: intervals resample groups
    noise: NoisePosterior = field(default_factory=NoisePosterior)  # of answers at T = 0
    counts: IntArray | None = None  # of the items that each item stands for
    given: IntArray | None = None  # with more than two answers: the one given, `INVALID` if there is none
    choices: IntArray | None = None  # the number of answers, if there are more than two
    greedy: bool = True  # the given answers are the likeliest ones, not drawn
    excess: ExcessPosterior | None = None  # for a part of the items: that of all; by default it is estimated

    @classmethod
    def of_answers(
        cls,
        labels: IntArray,
        answered: AnswerTable,
        units: IntArray | None = None,
        *,
        choices: IntArray | None = None,
        noise: NoisePosterior | None = None,
    ) -> Problem:
        """The problem that a run's answers pose; with ``choices``, labels are numbers of answers."""
        noise = NoisePosterior() if noise is None else noise
        if choices is None:
            return cls(labels=labels, readings=answered, units=units, noise=noise)
        given, greedy, readings = _given_answers(answered, choices, labels.size)
        return cls(
            labels=(given == labels).astype(np.int64),
            readings=readings,
            units=units,
            noise=noise,
            given=given,
            choices=choices,
            greedy=greedy,
        )

    @classmethod
    def of_rows(
        cls,
        labels: ArrayLike,
        shifts: ArrayLike,
        answers: ArrayLike,
        temperatures: ArrayLike = 0.0,
        items: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        *,
        counts: ArrayLike | None = None,
        bounds: ArrayLike | None = None,
    ) -> Problem:
        """The problem that checked columns pose, with one row per query as for ``blindcal.latent``."""
        y = checks.labels_array(labels)
        rows = y.size
        readings = AnswerTable(
            np.arange(rows) if items is None else checks.codes(items, "items", rows),
            checks.reals(shifts, "shifts", rows, infinite=True),
            checks.reals(temperatures, "temperatures", rows, minimum=0.0),
            checks.answers_array(answers, rows),
            bounds=None if bounds is None else checks.bounds_array(bounds, rows),
        )
        owner = readings.items
        units = None if groups is None else per_item("groups", checks.codes(groups, "groups", rows), owner)
        behind = None if counts is None else per_item("counts", checks.wholes(counts, "counts", rows), owner)
        if behind is not None and units is not None:
            raise InputError(
                "counts: items that were counted together cannot belong to groups; give one of the two"
            )
        return cls(labels=per_item("labels", y, owner), readings=readings, units=units, counts=behind)

    @property
    def items(self) -> IntArray:
        """The items that the estimates are about: those with an answer, or with a given one."""
        return np.unique(self.readings.items) if self.given is None else np.flatnonzero(self.given != INVALID)

    @property
    def queries(self) -> int:
        """Number of readings, invalid ones included."""
        return int(self.stands_for.sum())

    @property
    def invalid(self) -> int:
        return int(self.stands_for[self.readings.answers == INVALID].sum())

    @property
    def stands_for(self) -> IntArray:
        """The number of items behind each reading."""
        rows = self.readings
        return np.ones(len(rows), np.int64) if self.counts is None else self.counts[rows.items]

    @property
    def hard(self) -> BoolArray:
        """Readings that test the margin of a given answer."""
        rows = self.readings
        if self.given is None:
            return np.zeros(len(rows), bool)
        shown = ~np.isnan(rows.bounds_or_nan).any(axis=1)
        assert rows.gumbel is not None
        return np.asarray((rows.temperatures == 0) & ~rows.gumbel & ~shown & (rows.answers != INVALID))

    def of(self, items: IntArray) -> Problem:
        """The same problem about some items only."""
        given = None
        if self.given is not None:
            given = np.full_like(self.given, INVALID)
            given[items] = self.given[items]
        return replace(self, given=given, readings=self.readings.of(items))


def _given_answers(answered: AnswerTable, choices: IntArray, n: int) -> tuple[IntArray, bool, AnswerTable]:
    """The given answer is the first plain one at T = 0, or the first drawn one if there is none."""
    if answered.about is None:
        answered = replace(answered, about=np.full(len(answered), PLAIN))
    assert answered.about is not None
    valid = (answered.answers >= 0) & (answered.answers < choices[answered.items])
    plain = np.flatnonzero((answered.about == PLAIN) & valid)
    greedy = bool((answered.temperatures[plain] == 0).any())
    first = plain[answered.temperatures[plain] == 0] if greedy else plain
    given, where = np.full(n, INVALID), np.full(n, -1)
    where[answered.items[first[::-1]]] = first[::-1]  # the first of several comes last and stays
    has = where >= 0
    given[has] = answered.answers[where[has]]
    owner = answered.items
    same = np.where(valid, np.where(answered.answers == given[owner], POSITIVE, NEGATIVE), INVALID)
    shown = ~np.isnan(answered.bounds_or_nan).any(axis=1)
    itself = np.arange(len(answered)) == where[owner]
    drawn = (answered.about == PLAIN) & (answered.temperatures > 0) & ~itself
    asked = (answered.about != PLAIN) & (answered.about == given[owner])
    use = (given[owner] != INVALID) & (drawn | asked | (itself & shown))
    gumbel = np.zeros(len(answered), bool) if answered.biases is None else _gumbel(answered)
    rows = replace(answered, answers=same, stated=None, about=None, biases=None, gumbel=gumbel)
    return given, greedy, rows.rows(use)


def _gumbel(answered: AnswerTable) -> BoolArray:
    assert answered.biases is not None
    assert answered.about is not None
    others = np.where(np.isfinite(answered.biases), answered.biases, 0.0)
    asked = np.flatnonzero(answered.about != PLAIN)
    others[asked, answered.about[asked]] = 0.0
    return np.asarray((others != 0).any(axis=1) & (answered.about != PLAIN))
