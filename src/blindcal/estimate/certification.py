"""Certified thresholds: exact binomial bounds, and candidates tested in a fixed order (METHOD 10).

An answer at temperature 0 says on which side of a threshold an item's confidence is. So it decides the item
at other thresholds too: yes at t' >= t is yes at t, and no at t' <= t is no at t. Once every item of a sample
is decided at t, the share of right decisions among the positive ones has a binomial distribution, however
the confidence is distributed, and its bound is that of Clopper and Pearson.

Testing several thresholds is paid for by their order, which data that certify nothing have fixed: each is
tested at the full level, and the first failure ends the sequence. The probability that a threshold passes
whose precision is below the goal is then at most 1 - level. The bound that holds for all that passed is the
goal itself; only if every candidate of the list passes, it is the lowest of their bounds (Hsu and Berger,
"Stepwise confidence intervals without multiplicity adjustment", 1999).

What is not known counts against us: an item without a valid answer counts as decided, and wrong. That can
only lower the number of right decisions and raise that of wrong ones, so that every bound still holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, betaincinv, expit
from scipy.stats import binom

from blindcal.estimate.latent.functionals import decided_positive, prevalence
from blindcal.estimate.latent.operating import GRID_SHIFTS
from blindcal.estimate.uncertainty import share_bounds
from blindcal.records import INVALID, POSITIVE, AnswerTable, FloatArray, IntArray

SideName: TypeAlias = Literal["accept", "reject"]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

SHIFT_DIGITS = 4
"""Decimals of a candidate's shift: those of the request that is deployed, so that it is the one certified."""
CHOOSING = 0.25
"""Share of the items that choose the candidates; the others certify.

Of 0.15, 0.25 and 0.35 it kept most recall, by little (bench/certified.py with another share).
"""
#: Chances of passing, by the fit, at which candidates stand after the first one.
_CHANCES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
_AS_GOOD = 0.01  # a chance lower by this share is as good, if the threshold keeps more
_INFORMED = 0.25  # of an item's label and confidence, what its one answer tells about a share
_QUANTILES = (np.arange(5) + 0.5) / 5
_NODES, _PARTS = (-np.sqrt(3), 0.0, np.sqrt(3)), (1 / 6, 2 / 3, 1 / 6)  # of a normal variable


def most_wrong(decided: IntArray, wanted: float, level: float) -> IntArray:
    """The highest numbers of wrong decisions with which these pass; -1 if even none would fail."""
    alpha, size = 1 - level, np.maximum(decided, 1)
    most = np.where(decided > 0, binom.ppf(alpha, size, 1 - wanted), -1.0)
    passes = (most >= 0) & (bdtr(np.maximum(most, 0), size, 1 - wanted) <= alpha)
    return np.asarray(np.where(passes, most, most - (most >= 0)), np.int64)


@dataclass(frozen=True, slots=True)
class KnownRange:
    """What answers at temperature 0 say of each item: its log-odds are at least ``low`` and below ``high``.

    An item with contradictory answers has ``low >= high``.
    """

    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, n: int, answered: AnswerTable) -> KnownRange:
        """From the valid answers at temperature 0 to ``n`` items."""
        low, high = np.full(n, -np.inf), np.full(n, np.inf)
        sure = (answered.temperatures == 0) & (answered.answers != INVALID)
        yes = sure & (answered.answers == POSITIVE)
        no = sure & ~yes
        np.maximum.at(low, answered.items[yes], -answered.shifts[yes])
        np.minimum.at(high, answered.items[no], -answered.shifts[no])
        return cls(low, high)

    @property
    def contradictory(self) -> BoolArray:
        """The items whose answers contradict each other, as only noise explains."""
        return np.asarray(self.low >= self.high)

    def above(self, shift: float) -> BoolArray:
        """The items that are known to answer yes to this shift."""
        return np.asarray((self.low >= -shift) & ~self.contradictory)

    def below(self, shift: float) -> BoolArray:
        """The items that are known to answer no to this shift."""
        return np.asarray((self.high <= -shift) & ~self.contradictory)

    def open(self, shift: float) -> BoolArray:
        """The items whose answer to this shift is not known."""
        return ~(self.above(shift) | self.below(shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTest:
    """The test of one candidate: ``right`` of ``decided`` decisions were right, out of ``items`` items.

    ``unknown`` of the decided ones have no valid answer and count as wrong. A test that was settled before
    every item was decided (``settled``) has the counts that settled it: for one that passed, the worst that
    the open items could make of it; for one that failed, the best.
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
        """The lower bound of the precision, if this candidate were the only one."""
        return share_bounds(self.right, self.decided, 1 - self.level)[0]

    @property
    def passed(self) -> bool:
        """Whether the bound reaches what is wanted."""
        return self.bound >= self.wanted

    @property
    def threshold(self) -> float:
        """The threshold that the shift asks about."""
        return float(expit(-self.shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a rule, and the shifts of its candidates in the order in which they are tested.

    ``accept`` decides positive from a threshold up, ``reject`` negative below one. ``chance`` is the chance
    that the first candidate passes, as the choosing items see it.
    """

    name: SideName
    wanted: float
    level: float
    shifts: tuple[float, ...]
    chance: float = 0.0

    @property
    def first(self) -> float:
        """The threshold of the first candidate."""
        return float(expit(-self.shifts[0]))

    @property
    def right_label(self) -> int:
        """The label with which a decision on this side is right."""
        return int(self.name == "accept")

    def test(
        self, labels: IntArray, known: KnownRange, missing: BoolArray, shift: float, *, whole: bool = False
    ) -> CandidateTest | None:
        """Test a candidate; ``None`` if the items that are still open could change the outcome.

        Items that are open and ``missing`` will get no valid answer. With ``whole``, every other item must be
        decided.
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
    """The bound that holds for every candidate of a side that passed; ``tests`` are all tests in order."""
    if len(tests) == len(side.shifts) and all(test.passed for test in tests):
        return min(test.bound for test in tests)
    return side.wanted


def split_items(
    asked: IntArray, units: IntArray | None, seed: int, share: float = CHOOSING
) -> tuple[IntArray, IntArray]:
    """Split items at random into those that choose the candidates and those that certify.

    With ``units`` (the unit of every item), whole units are split, and one random item of each certifying
    unit is taken: items of a unit are not independent.
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
    """The chance that each threshold of the grid passes on this number of items, by a joint table.

    The share of wrong decisions is not known exactly: it counts as if it had been seen in the decisions about
    ``weight`` items.
    """
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
    """Choose the candidates of each side by the joint table of ``choosing`` items, for a test on ``items``.

    The first one is the threshold most likely to pass: its precision must be clearly above the goal, and its
    decisions many. The next ones keep ever more items, at ever lower chances. With two sides, each has half
    of 1 - level, and a middle that neither goes beyond keeps them apart.
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
    """The number of items on which this test passes with probability ``power``, if its shares are true.

    ``None`` if no number would: the share of right decisions is not above what is wanted.
    """
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
