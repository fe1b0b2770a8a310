"""Certified thresholds: exact binomial bounds, and candidates tested in a fixed order (docs/certify.md).

A yes at temperature 0 is also a yes at lower thresholds, and a no is a no at higher ones. Once every item of
a sample is decided at a threshold, its right positive decisions are binomial whatever the distribution of the
confidence (Clopper and Pearson). An item without a valid answer counts as wrong, which keeps every bound
valid. Data that certify nothing fix the order of the candidates; each is tested at the full level up to the
first failure, so that one below the goal passes with probability at most 1 - level (Hsu and Berger, "Stepwise
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
_AS_GOOD = 0.01  # a chance lower by this share is as good, if the threshold keeps more
_INFORMED = 0.25  # information in one answer, relative to an item's label and confidence
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
    """Bounds on each item's log-odds from answers at temperature 0; ``low >= high`` if contradictory."""

    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, n: int, answered: AnswerTable) -> KnownRange:
        low, high = np.full(n, -np.inf), np.full(n, np.inf)
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
        self, labels: IntArray, known: KnownRange, missing: BoolArray, shift: float, *, whole: bool = False
    ) -> CandidateTest | None:
        """Test a candidate; ``None`` if the open items could change the outcome.

        Open items that are ``missing`` get no valid answer. With ``whole``, every other item must be decided.
        """
        right = labels == self.right_label
        decided = known.above(shift) if self.name == "accept" else known.below(shift)
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


def chances(
    table: FloatArray, items: int, name: SideName, wanted: float, level: float, weight: float
) -> FloatArray:
    """Chance that each threshold passes on ``items`` items, if ``weight`` items inform the error rate."""
    wrong, right = (shares[1:] for shares in decided_positive(table))
    if name == "reject":
        positive = float(prevalence(table))
        wrong, right = positive - right, 1 - positive - wrong
    wrong, right = np.clip(wrong, 0, 1), np.clip(right, 0, 1)
    rate = np.clip(right + wrong, 1e-12, 1.0)
    shares = betaincinv(weight * wrong + 0.5, weight * right + 0.5, _QUANTILES[:, None])
    spread = np.sqrt(items * rate * (1 - rate))
    most, chance = most_wrong(np.arange(items + 1), wanted, level), np.zeros(rate.size)
    for node, part in zip(_NODES, _PARTS, strict=True):
        decided = np.clip(np.rint(items * rate + node * spread), 0, items).astype(np.int64)
        allowed = most[decided]
        passes = bdtr(np.maximum(allowed, 0.0), np.maximum(decided, 1), shares).mean(axis=0)
        chance += part * np.where(allowed >= 0, passes, 0.0)
    return chance


def choose_candidates(
    table: FloatArray,
    choosing: int,
    items: int,
    wanted: Mapping[SideName, float],
    level: float,
    *,
    max_shift: float = np.inf,
) -> tuple[Side, ...]:
    """Choose the candidates of each side from the joint table of ``choosing`` items.

    The first is the threshold most likely to pass a test on ``items`` items; the next keep ever more items at
    lower chances. Two sides have half of 1 - level each, and a middle that neither crosses keeps them apart.
    """
    own = 1 - (1 - level) / len(wanted)
    usable = np.abs(GRID_SHIFTS) <= max_shift
    chance = {
        name: np.where(usable, chances(table, items, name, goal, own, _INFORMED * choosing), -1.0)
        for name, goal in wanted.items()
    }
    within = dict.fromkeys(wanted, usable)
    if len(chance) == 2:
        best_from = np.maximum.accumulate(chance["accept"][::-1])[::-1]
        best_to = np.maximum.accumulate(chance["reject"])
        both = np.minimum(best_from, best_to)
        middle = int(np.median(np.flatnonzero(both >= (1 - _AS_GOOD) * both.max())))
        places = np.arange(GRID_SHIFTS.size)
        within = {"accept": usable & (places >= middle), "reject": usable & (places <= middle)}
    return tuple(
        _side(name, goal, own, np.where(within[name], chance[name], -1.0)) for name, goal in wanted.items()
    )


def _side(name: SideName, wanted: float, level: float, chance: FloatArray) -> Side:
    order = np.arange(chance.size) if name == "accept" else np.arange(chance.size)[::-1]
    along = chance[order]  # from the threshold that keeps most to the one that keeps least
    first = int(np.argmax(along >= (1 - _AS_GOOD) * along.max()))
    places = [first]
    for step in _CHANCES:
        # the threshold that keeps most, before the places so far, from which on the chance stays this high
        enough = along[: places[-1]] >= step
        place = enough.size - int(np.argmin(np.append(enough[::-1], False)))
        if place < places[-1]:
            places.append(place)
    shifts = np.round(GRID_SHIFTS[order[places]], SHIFT_DIGITS)
    chance_of_first = float(along[first])
    return Side(name=name, wanted=wanted, level=level, shifts=tuple(shifts.tolist()), chance=chance_of_first)


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
