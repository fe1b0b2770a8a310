"""Certified thresholds: exact binomial bounds, and candidates tested in a fixed order (docs/certify.md).

A yes at temperature 0 is also a yes at lower thresholds, and a no is a no at higher ones; a probability that
is shown decides at all of them. Once every item of a sample is decided at a threshold, its right positive
decisions are binomial whatever the distribution of the confidence (Clopper and Pearson). An item without a
valid answer counts as wrong, which keeps every bound valid; where probabilities are shown, it is not decided.
Data that certify nothing fix the order of the candidates; each is tested at the full level up to the first
failure, so that one below the goal passes with probability at most 1 - level (Hsu and Berger, "Stepwise
confidence intervals without multiplicity adjustment", 1999).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import bdtr, betaincinv, expit
from scipy.stats import binom

from blindcal.estimate.grid import decided_positive, prevalence
from blindcal.estimate.latent.operating import GRID_SHIFTS
from blindcal.estimate.uncertainty import share_bounds
from blindcal.records import INVALID, POSITIVE, AnswerTable, BoolArray, FloatArray, IntArray

SideName: TypeAlias = Literal["accept", "reject"]

SHIFT_DIGITS = 4
"""Decimals of a shift that is certified or deployed: far finer than the cells of the fit, and short."""
CHOOSING = 0.25
"""Share of the items that choose the candidates; slightly better than 0.15 or 0.35 (bench/certified.py)."""
#: Chances of passing, by the fit, of the candidates after the first.
_CHANCES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
_AS_GOOD = 0.01  # a chance, or a bound's distance to 1, that is worse by this share is as good
_FAVOURABLE = 0.35  # quantile of the errors in a bound; certifies more than a half (bench/certified.py)
_INFORMED = 0.25  # information in one answer, relative to an item's label and confidence
_SURE = np.finfo(np.float64).max / 2  # log-odds of a probability of 1: finite, so that a number is above them
_QUANTILES = (np.arange(5) + 0.5) / 5
_NODES, _PARTS = (-np.sqrt(3), 0.0, np.sqrt(3)), (1 / 6, 2 / 3, 1 / 6)  # of a normal variable


def most_wrong(decided: IntArray, wanted: float, level: float) -> IntArray:
    """The highest number of wrong decisions that passes, per number decided; -1 if none passes."""
    alpha, size = 1 - level, np.maximum(decided, 1)
    most = np.where(decided > 0, binom.ppf(alpha, size, 1 - wanted), -1.0)
    passes = (most >= 0) & (bdtr(np.maximum(most, 0), size, 1 - wanted) <= alpha)
    return np.asarray(np.where(passes, most, most - (most >= 0)), np.int64)


@dataclass(frozen=True, slots=True)
class KnownRange:
    """Bounds on each item's log-odds from answers at temperature 0, or from what an answer shows.

    They are contradictory if ``low >= high``.
    """

    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, n: int, answered: AnswerTable) -> KnownRange:
        low, high = np.full(n, -np.inf), np.full(n, np.inf)
        if answered.bounds is not None:
            read = answered.rows(answered.answers != INVALID)
            low[read.items], high[read.items] = np.minimum(read.bounds_or_nan.T, _SURE)
            return cls(low, np.nextafter(high, np.inf))  # a reading at a threshold is above it
        sure = (answered.temperatures == 0) & (answered.answers != INVALID)
        yes = sure & (answered.answers == POSITIVE)
        no = sure & ~yes
        np.maximum.at(low, answered.items[yes], -answered.shifts[yes])
        np.minimum.at(high, answered.items[no], -answered.shifts[no])
        return cls(low, high)

    @property
    def contradictory(self) -> BoolArray:
        return np.asarray(self.low >= self.high)

    def above(self, shift: float) -> BoolArray:
        return np.asarray((self.low >= -shift) & ~self.contradictory)

    def below(self, shift: float) -> BoolArray:
        return np.asarray((self.high <= -shift) & ~self.contradictory)

    def open(self, shift: float) -> BoolArray:
        return ~(self.above(shift) | self.below(shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTest:
    """The test of one candidate: ``right`` of ``decided`` decisions were right, among ``items`` items.

    ``unknown`` of the decided items have no valid answer and count as wrong. A ``settled`` test ended early,
    and counts the worst that the open items allow if it passed, or the best if it failed.
    """

    shift: float
    right: int
    decided: int
    unknown: int
    items: int
    wanted: float
    level: float
    settled: bool = False

    @property
    def bound(self) -> float:
        """Lower bound of the precision if this were the only candidate."""
        return share_bounds(self.right, self.decided, 1 - self.level)[0]

    @property
    def passed(self) -> bool:
        return self.bound >= self.wanted

    @property
    def threshold(self) -> float:
        return float(expit(-self.shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a rule: ``accept`` decides positive from a threshold up, ``reject`` negative below one.

    ``shifts`` are the candidates in order of testing; ``chance`` is the estimated chance that the first
    passes.
    """

    name: SideName
    wanted: float
    level: float
    shifts: tuple[float, ...]
    chance: float = 0.0

    @property
    def first(self) -> float:
        return float(expit(-self.shifts[0]))

    @property
    def right_label(self) -> int:
        """The label that makes a decision on this side right."""
        return int(self.name == "accept")

    def test(
        self,
        labels: IntArray,
        known: KnownRange,
        missing: BoolArray | None,
        shift: float,
        *,
        whole: bool = False,
    ) -> CandidateTest | None:
        """Test a candidate; ``None`` if the open items could change the outcome.

        Open items that are ``missing`` get no valid answer; if that is ``None``, the rule abstains from all
        open ones. With ``whole``, every other item must be decided.
        """
        right = labels == self.right_label
        decided = known.above(shift) if self.name == "accept" else known.below(shift)
        unknown, still = np.zeros((2, labels.size), bool)
        if missing is not None:
            unknown, still = known.open(shift) & missing, known.open(shift) & ~missing
        if whole and still.any():
            return None
        sure, void = int((decided & right).sum()), int(unknown.sum())
        all_decided = int(decided.sum()) + void
        more_right, more_wrong = int((still & right).sum()), int((still & ~right).sum())
        worst = CandidateTest(
            shift=shift,
            right=sure,
            decided=all_decided + more_wrong,
            unknown=void,
            items=labels.size,
            wanted=self.wanted,
            level=self.level,
            settled=bool(still.any()),
        )
        best = replace(worst, right=sure + more_right, decided=all_decided + more_right)
        return worst if worst.passed or not worst.settled else best if not best.passed else None


def certified_bound(side: Side, tests: Sequence[CandidateTest]) -> float:
    """The bound for all candidates that passed: the goal, or the lowest bound if every one did."""
    if len(tests) == len(side.shifts) and all(test.passed for test in tests):
        return min(test.bound for test in tests)
    return side.wanted


def split_items(
    asked: IntArray, units: IntArray | None, seed: int, share: float = CHOOSING
) -> tuple[IntArray, IntArray]:
    """Split items at random into those that choose the candidates and those that certify.

    With ``units`` (the unit of every item), whole units are split, and one random item of each certifying
    unit is kept: items of a unit are not independent.
    """
    rng = np.random.default_rng([seed, 10])
    of_item = asked if units is None else units[asked]
    order = rng.permutation(np.unique(of_item))
    choosing = np.isin(of_item, order[: round(share * order.size)])
    rest = rng.permutation(asked[~choosing])
    if units is not None:
        rest = rest[np.unique(units[rest], return_index=True)[1]]
    return asked[choosing], np.sort(rest)


def level_of_attempt(level: float, attempt: int) -> float:
    """Level of one of many certifications of a growing run, from 1 on, which hold together at ``level``.

    Each spends two thirds of the error that those before it have left.
    """
    return 1 - 2 * (1 - level) * 3.0**-attempt


@dataclass(frozen=True)
class Forecast:
    """What tests on ``items`` items may show at each threshold, if ``weight`` items inform the error rate."""

    wrong: FloatArray
    right: FloatArray
    items: int
    weight: float

    @classmethod
    def of(cls, table: FloatArray, name: SideName, items: int, weight: float) -> Forecast:
        wrong, right = (shares[1:] for shares in decided_positive(table))
        if name == "reject":
            positive = float(prevalence(table))
            wrong, right = positive - right, 1 - positive - wrong
        return cls(np.clip(wrong, 0, 1), np.clip(right, 0, 1), items, weight)

    @property
    def _rate(self) -> FloatArray:
        return np.clip(self.right + self.wrong, 1e-12, 1.0)

    @property
    def _counts(self) -> tuple[FloatArray, FloatArray]:
        """Numbers of wrong and right decisions that inform the error rate."""
        return self.weight * self.wrong + 0.5, self.weight * self.right + 0.5

    def bounds(self, level: float) -> FloatArray:
        """Lower bounds of the precision that tests exceed with a chance of 35%."""
        wrong, right = self._counts
        decided = self.items * self._rate
        share = decided / (wrong + right + 1 + decided)  # of the variance of an error rate that is uncertain
        errors = betaincinv(share * wrong, share * right, _FAVOURABLE)
        return np.asarray(
            betaincinv(np.maximum(decided * (1 - errors), 1e-9), decided * errors + 1, 1 - level)
        )

    def chances(self, wanted: float, level: float) -> FloatArray:
        """Chances to pass."""
        rate, chance = self._rate, np.zeros(self.wrong.size)
        errors = betaincinv(*self._counts, _QUANTILES[:, None])
        spread = np.sqrt(self.items * rate * (1 - rate))
        most = most_wrong(np.arange(self.items + 1), wanted, level)
        for node, part in zip(_NODES, _PARTS, strict=True):
            decided = np.clip(np.rint(self.items * rate + node * spread), 0, self.items).astype(np.int64)
            allowed = most[decided]
            passes = bdtr(np.maximum(allowed, 0.0), np.maximum(decided, 1), errors).mean(axis=0)
            chance += part * np.where(allowed >= 0, passes, 0.0)
        return chance


def choose_candidates(
    table: FloatArray,
    choosing: int,
    items: int,
    wanted: Mapping[SideName, float],
    level: float,
    shifts: FloatArray,
) -> tuple[Side, ...]:
    """Choose the candidates of each side from the joint table of ``choosing`` items.

    All lie between the lowest and the highest of the ``shifts`` that were asked, or shown. The first has the
    highest bound to be expected, whatever the goal, so that a run that passes for one goal passes for all
    lower ones. The next keep ever more items at ever lower chances to pass. Two sides have half of 1 - level
    each, and a middle that neither crosses.
    """
    own = 1 - (1 - level) / len(wanted)
    places = np.flatnonzero((shifts.min() <= GRID_SHIFTS) & (shifts.max() >= GRID_SHIFTS))
    if not places.size:
        places = np.array([np.argmin(np.abs(GRID_SHIFTS - shifts.min()))])
    forecasts = {name: Forecast.of(table, name, items, _INFORMED * choosing) for name in wanted}
    bounds = {name: forecast.bounds(own)[places] for name, forecast in forecasts.items()}
    chances = {name: forecasts[name].chances(goal, own)[places] for name, goal in wanted.items()}
    # from the threshold that keeps most to the one that keeps least
    all_ = np.arange(places.size)
    orders: dict[SideName, IntArray] = {"accept": all_, "reject": all_[::-1]}
    if len(wanted) == 2:
        total = _best_from(bounds["accept"]) + _best_to(bounds["reject"])
        orders = _apart(orders, _middle(total >= total.max() - 1e-9))
    first = {}
    for name in wanted:
        loss = 1 - bounds[name][orders[name]]
        first[name] = int(orders[name][np.argmax(loss <= (1 + _AS_GOOD) * loss.min())])
    if len(wanted) == 2:
        both = np.minimum(_best_from(chances["accept"]), _best_to(chances["reject"]))
        both = both[first["reject"] : first["accept"] + 1]
        orders = _apart(orders, first["reject"] + _middle(both >= (1 - _AS_GOOD) * both.max()))
    sides = []
    for name, goal in wanted.items():
        order = orders[name][: 1 + int(np.argmax(orders[name] == first[name]))]
        sides.append(_side(name, goal, own, GRID_SHIFTS[places[order]], chances[name][order]))
    return tuple(sides)


def _apart(orders: Mapping[SideName, IntArray], middle: int) -> dict[SideName, IntArray]:
    accept, reject = orders["accept"], orders["reject"]
    return {"accept": accept[accept >= middle], "reject": reject[reject <= middle]}


def _best_from(values: FloatArray) -> FloatArray:
    return np.asarray(np.maximum.accumulate(values[::-1])[::-1])


def _best_to(values: FloatArray) -> FloatArray:
    return np.asarray(np.maximum.accumulate(values))


def _middle(chosen: BoolArray) -> int:
    return int(np.median(np.flatnonzero(chosen)))


def _side(name: SideName, wanted: float, level: float, shifts: FloatArray, chance: FloatArray) -> Side:
    """The side whose first candidate is the last of ``shifts``; the first of these keeps most."""
    places = [chance.size - 1]
    for step in _CHANCES:
        # the threshold that keeps most, before the places so far, from which on the chance stays this high
        enough = chance[: places[-1]] >= step
        place = enough.size - int(np.argmin(np.append(enough[::-1], False)))
        if place < places[-1]:
            places.append(place)
    candidates = np.round(shifts[places], SHIFT_DIGITS)
    return Side(
        name=name,
        wanted=wanted,
        level=level,
        shifts=tuple(candidates.tolist()),
        chance=float(chance[-1]),
    )


def items_needed(test: CandidateTest, power: float = 0.8) -> int | None:
    """Number of items for this test to pass with probability ``power``; ``None`` if none would do."""
    # no wrong decision seen does not mean that there are none
    wrong = max(test.decided - test.right, 0.5) / max(test.decided, 1)
    if not test.decided or wrong >= 1 - test.wanted:
        return None
    decided = np.unique(np.geomspace(1, 1e8, 2000).astype(np.int64))
    allowed = most_wrong(decided, test.wanted, test.level)
    enough = (allowed >= 0) & (bdtr(np.maximum(allowed, 0), decided, wrong) >= power)
    if not enough.any():
        return None
    return int(np.ceil(decided[np.argmax(enough)] * test.items / test.decided))
