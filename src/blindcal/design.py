"""Designs: the item, shift and temperature of each query, in rounds.

A round depends only on the seed and on the answers to earlier rounds, so an interrupted run can be continued
from its answers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import logit

from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, MID_P, edge_of_threshold
from blindcal.estimate.latent.model import working_table
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.estimate.published import blind_subsets, flip_bounds
from blindcal.estimate.truth import bin_edges
from blindcal.records import AnswerTable, FloatArray, IntArray, Round

#: Temperatures that together distinguish weak from strong preferences (METHOD 6); no API accepts more than 2.
TEMPERATURES = (0.3, 0.6, 1.0, 2.0)

PILOT = 0.25  # share of the first queries, asked at evenly spread thresholds
LEAST_PILOT = 40  # there is no pilot with fewer first queries
_EVEN = 0.2  # share of the later thresholds that stay evenly spread, in case the pilot misleads
_NEAR_BEST = 0.75  # follow-up thresholds have at least this share of the best gain
_CHUNK = 2048  # patterns processed together, to limit memory


class Design(Protocol):
    """Chooses the next queries, given all answers so far."""

    def next_round(self, answered: AnswerTable) -> Round | None:
        """Return the next round, or ``None`` if the design is complete."""
        ...


def make_round(items: IntArray, shifts: FloatArray, temperature: float | FloatArray = 0.0) -> Round:
    return Round(items.astype(np.int64), shifts, np.broadcast_to(np.float64(temperature), items.shape).copy())


def proportional_order(labels: IntArray, seed: int) -> IntArray:
    """Items in random order, with the labels in proportion in every stretch."""
    rng = np.random.default_rng([seed, 4])
    place = np.empty(labels.size)
    for y in range(int(labels.max(initial=1)) + 1):
        mine = np.flatnonzero(labels == y)
        place[mine] = spread_evenly(mine.size, rng)
    return np.argsort(place, kind="stable")


def spread_evenly(n: int, rng: np.random.Generator) -> FloatArray:
    """Systematic dither: n evenly spaced numbers in (0, 1), in random order (METHOD 4, thresholds)."""
    return (rng.permutation(n) + rng.uniform(1e-9, 1)) / n


@dataclass(frozen=True)
class SampledDesign:
    """Asks all items equally often at the given temperatures, without a shift, in one round."""

    n: int
    queries: float  # if not whole, a random part of the items is asked once more than the others
    temperatures: tuple[float, ...]
    seed: int

    def next_round(self, answered: AnswerTable) -> Round | None:
        if len(answered):
            return None
        rng = np.random.default_rng([self.seed, 1])
        rows = max(1, round(self.queries * self.n))
        order = rng.permutation(self.n)
        items = np.resize(order, rows)
        # consecutive passes over the items use different temperatures
        turn = rng.integers(len(self.temperatures), size=self.n)[items] + np.arange(rows) // self.n
        return make_round(items, np.zeros(rows), np.array(self.temperatures)[turn % len(self.temperatures)])


@dataclass(frozen=True)
class BlindDesign:
    """The paper's design: M random subsets, subset m asked at threshold t_m, except t_1 = 0 (METHOD 3)."""

    n: int
    bins: int
    seed: int
    members: IntArray | None = None  # items that take part; None for all

    def thresholds(self) -> FloatArray:
        """Threshold of each item: 0 for the subset that is not asked, NaN for items left out."""
        members = np.arange(self.n) if self.members is None else self.members
        thresholds = np.full(self.n, np.nan)
        subsets = blind_subsets(members.size, self.bins, np.random.default_rng([self.seed, 2]))
        thresholds[members] = bin_edges(self.bins)[subsets]
        return thresholds

    def next_round(self, answered: AnswerTable) -> Round | None:
        thresholds = self.thresholds()
        asked = np.flatnonzero(thresholds > 0)
        if len(answered) or asked.size == 0:
            return None
        return make_round(asked, -logit(thresholds[asked]))


@dataclass(frozen=True)
class ExtractionDesign:
    """The paper's baseline: bisect each item's flip on [-15, 15] in K rounds (METHOD 3)."""

    n: int
    queries: int

    def next_round(self, answered: AnswerTable) -> Round | None:
        if len(answered) >= self.queries * self.n:
            return None
        low, high = flip_bounds(self.n, answered)
        return make_round(np.arange(self.n), (low + high) / 2)


@dataclass(frozen=True)
class LatentDesign:
    """Dithered thresholds within each label, then follow-ups where an answer should be most informative.

    A pilot of a quarter of the items is asked at thresholds spread evenly over (0, 1), the rest with a
    density proportional to the standard deviation of the answer (Neyman allocation). Further queries split
    the remaining range of the least certain items (METHOD 5), in two rounds per query per item. The design
    ends early once no answer would be informative.
    """

    labels: IntArray
    queries: float
    seed: int
    temperature: float = 0.0  # above 0, answers at a threshold are noisy

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of queries of each round."""
        n = self.labels.size
        total = max(1, round(self.queries * n))
        first = min(n, total)
        pilot = round(PILOT * first) if first >= LEAST_PILOT else first
        sizes = [pilot, first - pilot]
        left = total - first
        half = max(1, round(n / 2))
        while left > 0:
            sizes.append(min(left, half))
            left -= sizes[-1]
        return tuple(size for size in sizes if size)

    def next_round(self, answered: AnswerTable) -> Round | None:
        ends = np.cumsum(self.sizes)
        index = int(np.searchsorted(ends, len(answered), side="right"))
        if index == ends.size:
            return None
        rng = np.random.default_rng([self.seed, 3, index])
        n = self.labels.size
        if ends[index] > min(n, int(ends[-1])):
            return self._follow_up(answered, int(ends[index]) - len(answered), rng)
        order = proportional_order(self.labels, self.seed)[len(answered) : int(ends[index])]
        by_label = [np.diff(EDGES_P)] * 2
        if index > 0:
            asked, place = np.unique(answered.items, return_inverse=True)
            so_far = count_patterns(self.labels[asked], replace(answered, items=place))
            by_label = threshold_densities(working_table(so_far))
        edges = np.empty(order.size, np.int64)
        for y in (0, 1):
            mine = self.labels[order] == y
            u = spread_evenly(int(mine.sum()), rng)
            edges[mine] = edge_of_threshold(quantiles(by_label[y], u))
        return make_round(order, -EDGES_S[edges], self.temperature)

    def _follow_up(self, answered: AnswerTable, size: int, rng: np.random.Generator) -> Round | None:
        patterns = count_patterns(self.labels, answered)
        split = best_splits(patterns, working_table(patterns))
        if not (split.gain > 0).any():
            return None
        chosen = ranked(split.gain[patterns.of_item], rng)[:size]
        return make_round(chosen, -EDGES_S[split.edges(patterns.of_item[chosen], rng)], self.temperature)


@dataclass(frozen=True)
class StagedDesign:
    """Stages of items, each with its own design; a stage starts when the earlier ones are complete."""

    members: tuple[IntArray, ...]  # sorted item numbers of each stage; its design numbers them from 0
    designs: tuple[Design, ...]

    def next_round(self, answered: AnswerTable) -> Round | None:
        for members, own in zip(self.members, self.designs, strict=True):
            mine = answered.of(members)
            asked = own.next_round(replace(mine, items=np.searchsorted(members, mine.items)))
            if asked is not None:
                return replace(asked, items=members[asked.items])
        return None


def threshold_densities(table: FloatArray, edges: FloatArray = EDGES_P) -> list[FloatArray]:
    """Most informative thresholds for a joint table, as a density over the cells for each label.

    It is proportional to the standard deviation of the answer (Neyman allocation), plus an even part.
    ``edges`` are the confidences at the edges of the cells.
    """
    width = np.diff(edges)
    densities = []
    for y in (0, 1):
        cells = table[y * CELLS : (y + 1) * CELLS]
        below = (np.cumsum(cells) - cells / 2) / max(cells.sum(), 1e-300)
        spread = np.sqrt(np.clip(below * (1 - below), 0, None)) * width
        densities.append((1 - _EVEN) * spread / spread.sum() + _EVEN * width / width.sum())
    return densities


def quantiles(density: FloatArray, u: FloatArray) -> FloatArray:
    """Probabilities at the quantiles ``u`` of a density over the cells."""
    return np.interp(u, np.concatenate([[0.0], np.cumsum(density) / density.sum()]), EDGES_P)


@dataclass(frozen=True)
class Splits:
    """Per pattern, the range of the best edges to ask next and the variance of f that they explain."""

    low: IntArray
    high: IntArray
    gain: FloatArray

    def edges(self, pattern: IntArray, rng: np.random.Generator) -> IntArray:
        """A random one of the best edges for each of these patterns."""
        low, high = self.low[pattern], self.high[pattern]
        return np.asarray(low + np.floor(rng.uniform(size=pattern.size) * (high - low + 1)).astype(np.int64))


def ranked(gain: FloatArray, rng: np.random.Generator) -> IntArray:
    """Places by decreasing gain, ties in random order."""
    return np.argsort(-gain * rng.uniform(0.999, 1.0, gain.size), kind="stable")


def best_splits(patterns: Patterns, table: FloatArray, confidence: FloatArray = MID_P) -> Splits:
    """Edges whose answers would explain most of the variance of f (``confidence``) within each pattern."""
    size = len(patterns)
    low, high, gain = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size)
    inner = np.arange(1, CELLS)
    for first in range(0, size, _CHUNK):
        part = slice(first, min(first + _CHUNK, size))
        weights = patterns.posterior(table, part)
        below = np.cumsum(weights, axis=1)[:, :-1]
        mean_below = np.cumsum(weights * confidence, axis=1)
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


def answer_design(design: Design, answer: Callable[[Round, int], IntArray]) -> AnswerTable:
    """Run a design to its end; ``answer`` gets each round and the number of its first query."""
    answered = AnswerTable.empty()
    while (asked := design.next_round(answered)) is not None:
        answered = answered.with_round(asked, answer(asked, len(answered)))
    return answered
