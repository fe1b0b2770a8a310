"""Which (shift, temperature) each item is asked, and when: pure, and reproducible from a seed.

A design hands out *rounds*. A round may depend on the answers to the rounds before it, and on
nothing else: the same seed and the same answers always give the same next round, so an interrupted
run can be taken up again from its answers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.special import logit

from blindcal.errors import InputError
from blindcal.estimate.baselines import flip_bounds
from blindcal.estimate.blind import blind_subsets
from blindcal.estimate.checks import ArrayLike, labels_array, whole
from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, MID_P, edge_of_threshold
from blindcal.estimate.model import working_table
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.estimate.truth import bin_edges
from blindcal.records import AnswerTable, Estimator, FloatArray, IntArray, Round, Semantics

#: Temperatures that together tell weak from strong preferences (METHOD 6); no API takes more than 2.
TEMPERATURES = (0.3, 0.6, 1.0, 2.0)

PILOT = 0.25  # share of a one-query design asked evenly, before the rest is asked where it tells more
LEAST_PILOT = 40  # first queries, below which there is none
_EVEN = 0.2  # share of the later thresholds that stay evenly spread, against a misleading pilot
_NEAR_BEST = 0.75  # a follow-up is drawn from thresholds that tell at least this much of what the best would
_CHUNK = 2048  # patterns looked at together, so that memory stays small


class Design(Protocol):
    """What to ask next, given everything answered so far; ``None`` when nothing more is to be asked."""

    def next_round(self, answered: AnswerTable) -> Round | None:
        """Return the next batch of queries."""
        ...


def shift_of(threshold: FloatArray) -> FloatArray:
    """The shift that tests ``f >= threshold``: b = -logit(t) (METHOD 2)."""
    return -logit(threshold)


def _round(items: IntArray, shifts: FloatArray, temperature: float | FloatArray = 0.0) -> Round:
    return Round(items.astype(np.int64), shifts, np.broadcast_to(np.float64(temperature), items.shape).copy())


def _spread(n: int, rng: np.random.Generator) -> FloatArray:
    """Systematic dither: n places evenly over (0, 1), in random order (METHOD 4.1)."""
    return (rng.permutation(n) + rng.uniform(1e-9, 1)) / n


@dataclass(frozen=True)
class SampledDesign:
    """Every item asked the same number of times at given temperatures and no shift, in one round.

    A fractional number of queries asks a random part of the items once more.
    """

    n: int
    queries: float
    temperatures: tuple[float, ...]
    seed: int

    def next_round(self, answered: AnswerTable) -> Round | None:
        """All queries at once."""
        if len(answered):
            return None
        rng = np.random.default_rng([self.seed, 1])
        rows = round(self.queries * self.n)
        order = rng.permutation(self.n)
        items = np.resize(order, rows)
        # consecutive passes over the items use different temperatures, so that K of them differ
        turn = rng.integers(len(self.temperatures), size=self.n)[items] + np.arange(rows) // self.n
        return _round(items, np.zeros(rows), np.array(self.temperatures)[turn % len(self.temperatures)])


@dataclass(frozen=True)
class BlindDesign:
    """The paper's design: M random subsets, subset m asked threshold t_m; t_1 = 0 is not asked (METHOD 3).

    With ``members`` only these of the ``n`` items are split.
    """

    n: int
    bins: int
    seed: int
    members: IntArray | None = None

    def thresholds(self) -> FloatArray:
        """The threshold of each item, 0 for the subset that is not asked; NaN for items that are left out."""
        members = np.arange(self.n) if self.members is None else self.members
        thresholds = np.full(self.n, np.nan)
        subsets = blind_subsets(members.size, self.bins, np.random.default_rng([self.seed, 2]))
        thresholds[members] = bin_edges(self.bins)[subsets]
        return thresholds

    def next_round(self, answered: AnswerTable) -> Round | None:
        """All queries at once."""
        thresholds = self.thresholds()
        asked = np.flatnonzero(thresholds > 0)
        if len(answered) or asked.size == 0:
            return None
        return _round(asked, shift_of(thresholds[asked]))


@dataclass(frozen=True)
class ExtractionDesign:
    """The paper's baseline: bisect each item's flip on [-15, 15] in K rounds (METHOD 3)."""

    n: int
    queries: int

    def next_round(self, answered: AnswerTable) -> Round | None:
        """The middle of what each item's own answers leave of the range."""
        if len(answered) >= self.queries * self.n:
            return None
        low, high = flip_bounds(self.n, answered.items, answered.shifts, answered.answers)
        return _round(np.arange(self.n), (low + high) / 2)


@dataclass(frozen=True)
class LatentDesign:
    """Dithered thresholds within label; then, round by round, where an answer is expected to tell most.

    The first query of each item comes in two rounds: a quarter of the items evenly over (0, 1), the rest
    with density proportional to the standard deviation of the answer, as Neyman's allocation has it. With
    ``adaptive`` off all first queries are even and one round holds them: what a batch endpoint needs.
    Further queries go to the items whose probability is least certain, at thresholds that split what is
    left (METHOD 5), two rounds for each query an item, and end where no answer could tell anything more.
    ``pilot`` sets the size of the first round, where it was decided before ``queries`` was.
    """

    labels: IntArray
    queries: float
    seed: int
    adaptive: bool = True
    pilot: int | None = None
    sizes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        n = self.labels.size
        total = max(1, round(self.queries * n))
        first = min(n, total)
        pilot = round(PILOT * first) if self.adaptive and first >= LEAST_PILOT else first
        pilot = pilot if self.pilot is None else min(self.pilot, first)
        sizes = [pilot, first - pilot]
        left = total - first
        half = max(1, round(n / 2))
        while left > 0:
            # through batches a round may take a day: none for the odd one out
            last = not self.adaptive and left <= half + 1
            sizes.append(left if last else min(left, half))
            left -= sizes[-1]
        object.__setattr__(self, "sizes", tuple(size for size in sizes if size))

    def next_round(self, answered: AnswerTable) -> Round | None:
        """The next pilot, dithered or follow-up round."""
        ends = np.cumsum(self.sizes)
        index = int(np.searchsorted(ends, len(answered), side="right"))
        if index == ends.size:
            return None
        rng = np.random.default_rng([self.seed, 3, index])
        n = self.labels.size
        if ends[index] > min(n, int(ends[-1])):
            return self._follow_up(answered, int(ends[index]) - len(answered), rng)
        order = self._order()[len(answered) : int(ends[index])]
        density = np.diff(EDGES_P)
        by_label = [density, density]
        if index > 0:
            by_label = self._informative(answered)
        thresholds = np.empty(order.size)
        for y in (0, 1):
            mine = self.labels[order] == y
            thresholds[mine] = _quantiles(by_label[y], _spread(int(mine.sum()), rng))
        return _round(order, -EDGES_S[edge_of_threshold(thresholds)])

    def _order(self) -> IntArray:
        """Items in random order, such that every stretch holds both labels in their proportions."""
        rng = np.random.default_rng([self.seed, 4])
        place = np.empty(self.labels.size)
        for y in (0, 1):
            mine = np.flatnonzero(self.labels == y)
            place[mine] = _spread(mine.size, rng)
        return np.argsort(place, kind="stable")

    def _patterns(self, answered: AnswerTable) -> Patterns:
        return count_patterns(
            self.labels, answered.shifts, answered.temperatures, answered.answers, answered.items
        )

    def _informative(self, answered: AnswerTable) -> list[FloatArray]:
        """Density of thresholds over the cells for each label, after the pilot."""
        asked = np.unique(answered.items)
        place = np.searchsorted(asked, answered.items)
        patterns = count_patterns(
            self.labels[asked], answered.shifts, answered.temperatures, answered.answers, place
        )
        return threshold_densities(working_table(patterns))

    def _follow_up(self, answered: AnswerTable, size: int, rng: np.random.Generator) -> Round | None:
        patterns = self._patterns(answered)
        split = best_splits(patterns, working_table(patterns))
        if not (split.gain > 0).any():
            return None
        gain = split.gain[patterns.of_item] * rng.uniform(0.999, 1.0, self.labels.size)  # ties fall at random
        chosen = np.argsort(-gain, kind="stable")[:size]
        pattern = patterns.of_item[chosen]
        low, high = split.low[pattern], split.high[pattern]
        edge = low + np.floor(rng.uniform(size=chosen.size) * (high - low + 1)).astype(np.int64)
        return _round(chosen, -EDGES_S[edge])


@dataclass(frozen=True)
class StagedDesign:
    """A part of the items after another, each with a design of its own; a later part waits for the earlier.

    ``members`` are the item numbers of each part, in order; its design counts them from 0.
    """

    members: tuple[IntArray, ...]
    designs: tuple[Design, ...]

    def next_round(self, answered: AnswerTable) -> Round | None:
        """The next round of the first part that has one."""
        for members, own in zip(self.members, self.designs, strict=True):
            mine = np.isin(answered.items, members)
            local = AnswerTable(
                np.searchsorted(members, answered.items[mine]),
                answered.shifts[mine],
                answered.temperatures[mine],
                answered.answers[mine],
            )
            asked = own.next_round(local)
            if asked is not None:
                return Round(members[asked.items], asked.shifts, asked.temperatures)
        return None


def threshold_densities(table: FloatArray) -> list[FloatArray]:
    """Where first queries tell most of a joint table: a density of thresholds over the cells for each label.

    Proportional to the standard deviation of the answer (Neyman's allocation), and a part of it even.
    """
    width = np.diff(EDGES_P)
    densities = []
    for y in (0, 1):
        cells = table[y * CELLS : (y + 1) * CELLS]
        below = (np.cumsum(cells) - cells / 2) / max(cells.sum(), 1e-300)
        spread = np.sqrt(np.clip(below * (1 - below), 0, None)) * width
        densities.append((1 - _EVEN) * spread / spread.sum() + _EVEN * width)
    return densities


def _quantiles(density: FloatArray, u: FloatArray) -> FloatArray:
    """Probabilities at the quantiles ``u`` of a density given per cell."""
    return np.interp(u, np.concatenate([[0.0], np.cumsum(density) / density.sum()]), EDGES_P)


@dataclass(frozen=True)
class Splits:
    """For each pattern: the range of edges worth asking next, and the variance of f an answer removes."""

    low: IntArray
    high: IntArray
    gain: FloatArray


def best_splits(patterns: Patterns, table: FloatArray) -> Splits:
    """How much of the variance of f within each pattern a threshold at each edge would explain."""
    size = len(patterns)
    low, high, gain = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size)
    inner = np.arange(1, CELLS)
    for first in range(0, size, _CHUNK):
        part = slice(first, min(first + _CHUNK, size))
        weights = patterns.posterior(table, part)
        below = np.cumsum(weights, axis=1)[:, :-1]
        mean_below = np.cumsum(weights * MID_P, axis=1)
        mean = mean_below[:, -1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            explained = (mean_below[:, :-1] - below * mean) ** 2 / (below * (1 - below))
        explained = np.where((below > 1e-9) & (below < 1 - 1e-9), explained, 0.0)
        best = explained.max(axis=1, keepdims=True)
        near = explained >= np.maximum(_NEAR_BEST * best, 1e-300)
        some = near.any(axis=1)
        gain[part] = best[:, 0]
        low[part] = np.where(some, inner[np.argmax(near, axis=1)], CELLS // 2)
        high[part] = np.where(some, inner[CELLS - 2 - np.argmax(near[:, ::-1], axis=1)], CELLS // 2)
    return Splits(low, high, gain)


@dataclass(frozen=True, slots=True)
class DesignSpec:
    """What a method's design is made for."""

    labels: IntArray
    queries: float
    bins: int
    seed: int
    adaptive: bool
    pilot: int | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """One way to audit: what is asked, and which estimator reads the answers.

    ``queries`` is the usual mean number an item. ``answers`` says in words what is asked for. ``biased``
    says whether ``logit_bias`` is sent, ``sampled`` whether answers are drawn at T > 0.
    """

    queries: float
    design: Callable[[DesignSpec], Design]
    reads: Estimator
    answers: str
    biased: bool = True
    sampled: bool = False

    def semantics(self, targets: Semantics) -> str:
        """What is measured where the tokens are chosen under ``targets`` (METHOD 1)."""
        if self.reads == "stated":
            return "stated"
        # A drawn answer follows the summed probability of all spellings that can be said.
        return "sum" if not self.biased or (self.sampled and targets == "max") else targets


#: Every method by its name. This is the one place that lists them.
METHODS: Mapping[str, Method] = {
    "latent": Method(
        1.0,
        lambda t: LatentDesign(t.labels, t.queries, t.seed, t.adaptive, t.pilot),
        "latent",
        "K threshold answers an item (logit_bias, T = 0), asked where they tell most",
    ),
    "blind": Method(
        1.0,
        lambda t: BlindDesign(t.labels.size, whole(t.bins, "bins"), t.seed),
        "blind",
        "one threshold answer an item (logit_bias, T = 0), none for one subset: 1 - 1/bins queries",
    ),
    "sampling": Method(
        4.0,
        lambda t: SampledDesign(t.labels.size, t.queries, (1.0,), t.seed),
        "shares",
        "K answers an item drawn at T = 1 (logit_bias)",
        sampled=True,
    ),
    "extraction": Method(
        6.0,
        lambda t: ExtractionDesign(t.labels.size, _whole_queries(t.queries)),
        "flips",
        "K threshold answers an item (logit_bias, T = 0) that bisect its log-odds on [-15, 15]",
    ),
    "temperature": Method(
        3.0,
        lambda t: SampledDesign(t.labels.size, t.queries, TEMPERATURES, t.seed),
        "latent",
        "K answers an item drawn at temperatures 0.3 to 2, without logit_bias",
        biased=False,
        sampled=True,
    ),
    "verbalized": Method(
        1.0,
        lambda t: SampledDesign(t.labels.size, _once(t.queries), (0.0,), t.seed),
        "stated",
        "one answer an item in free text with a confidence in it (T = 0), without logit_bias",
        biased=False,
    ),
}

#: How answers may be read: by the method's own estimator, or by the likelihood that takes any answers.
ESTIMATORS = ("own", "latent")


def method_of(name: str) -> Method:
    """The method of a name."""
    if name not in METHODS:
        raise InputError(f"method: must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]


def read_by(method: str, estimator: str = "own") -> Estimator:
    """Which estimator reads a method's answers; ``latent`` can be asked to read those of most others.

    Threshold and sampled answers are all readings of the hidden log-odds (METHOD 2), so one likelihood
    takes them, whoever designed the asking. What is stated in words is no such reading.
    """
    own = method_of(method).reads
    if estimator not in ESTIMATORS:
        raise InputError(f"estimator: must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")
    if estimator == "own":
        return own
    if own == "stated":
        raise InputError("estimator: latent reads answers of one word, and verbalized gets free text")
    return "latent"


def make(
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
    """The design of a method by name.

    Parameters
    ----------
    method : str
        One of `METHODS`.
    labels : array_like of 0/1
    queries : float
        Mean queries an item. ``blind`` always asks 1 - 1/bins, ``extraction`` a whole number,
        ``verbalized`` one.
    bins : int
        Subsets of ``blind``; the other designs do not depend on it.
    seed : int
    adaptive : bool
        Let later rounds of ``latent`` depend on earlier answers; off, one query an item is one round.
    stages : sequence of arrays, optional
        Only these items, sorted, one stage after the other, each as if it were alone.
    pilot : int, optional
        Items of the first round of ``latent``.
    """
    y = labels_array(labels)
    if not (np.isfinite(queries) and queries > 0):
        raise InputError(f"queries: must be a positive number, got {queries!r}")
    if stages is None:
        return method_of(method).design(DesignSpec(y, queries, bins, seed, adaptive, pilot))
    if method == "blind":
        if len(stages) > 1:
            raise InputError(
                "items: blind splits all its items at once and cannot grow; choose another folder"
            )
        return BlindDesign(y.size, whole(bins, "bins"), seed, stages[0])
    designs = [
        method_of(method).design(DesignSpec(y[members], queries, bins, seed + k * 2**32, adaptive, pilot))
        for k, members in enumerate(stages)
    ]
    return StagedDesign(tuple(stages), tuple(designs))


def count(method: str, n: int, queries: float, bins: int) -> int:
    """How many queries the design of a method asks of ``n`` items, if nothing stops it."""
    if method == "blind":  # one subset needs no query
        return n - len(range(0, n, bins))
    return max(1, round(queries * n))


def _whole_queries(queries: float) -> int:
    if queries != int(queries):
        raise InputError(f"queries: extraction asks a whole number of queries an item, got {queries!r}")
    return int(queries)


def _once(queries: float) -> float:
    if queries != 1:
        raise InputError(f"queries: verbalized asks each item once, got {queries!r}")
    return queries
