"""Designs for items with more than two answers: the plain answer, then queries about it (METHOD 8).

Half of these queries shift the given answer alone, which tests its margin over the strongest other one. The
other half adds Gumbel numbers to the other answers, which reads the log-odds against all of them, with noise.
The first kind is sharp; the second shows what the first one means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit

from blindcal.design import (
    LEAST_PILOT,
    PILOT,
    SampledDesign,
    best_splits,
    make_round,
    proportional_order,
    quantiles,
    ranked,
    spread_evenly,
    threshold_densities,
)
from blindcal.errors import InputError
from blindcal.estimate.grid import CELLS, EDGES_P, EDGES_S, HALF, MID_P, MID_S, edge_of_threshold
from blindcal.estimate.latent.excess import excess_of
from blindcal.estimate.latent.model import working_table
from blindcal.estimate.patterns import Patterns, axis_of, read
from blindcal.estimate.problem import Problem
from blindcal.records import PLAIN, AnswerTable, BoolArray, FloatArray, IntArray, Noise, Round

# Log-odds plus shift at which a Gumbel query is most informative: one in five repeats the given answer.
_TELLING = -float(np.log(-np.log(0.2)))
_EVEN = 0.1  # share of evenly spread Gumbel queries
_STEP = 0.5  # grid of the shifts of Gumbel queries, so that answers aggregate


def more_than_plain(queries: float) -> float:
    """Check that ``queries`` per item allow more than the plain answer."""
    if queries <= 1:
        raise InputError(
            "queries: with more than two answers the plain answer is the first query, and only further ones "
            f"tell about its confidence: more than 1 per item is needed, got {queries:g}",
            remedy="ask more, or use {method} if the endpoint shows them",
            options={"method": "logprobs"},
        )
    return queries


def gumbel_numbers(shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    return np.asarray(-np.log(-np.log(rng.uniform(1e-300, 1.0, shape))))


def _gumbel_shift(log_odds: FloatArray) -> FloatArray:
    return np.asarray(_STEP * np.round((_TELLING - log_odds) / _STEP))


def choice_round(
    items: IntArray,
    choices: IntArray | None,
    shifts: FloatArray | None = None,
    about: IntArray | None = None,
    numbers: FloatArray | None = None,
) -> Round:
    """A round of queries to items with several answers; they are plain without ``about``.

    ``choices`` is the number of answers of every item, ``None`` if all have two; ``numbers`` are added to the
    other answers.
    """
    shifts = np.zeros(items.size) if shifts is None else shifts
    if choices is None:
        return make_round(items, shifts)
    size, k = items.size, int(choices.max())
    biases = np.zeros((size, k)) if numbers is None else numbers.copy()
    if about is not None:
        biases[np.arange(size), about] = shifts
    biases[np.arange(k) >= choices[items][:, None]] = -np.inf
    about = np.full(size, PLAIN) if about is None else about
    return Round(
        items.astype(np.int64),
        shifts,
        np.zeros(size),
        about=about.astype(np.int64),
        biases=biases,
    )


@dataclass(frozen=True)
class GivenAnswerDesign:
    """The plain answer to every item, then queries about it where they are most informative.

    ``queries`` is the mean number per item, the plain answer included. A pilot of a quarter of the items gets
    evenly spread queries and shows where to ask the others. Further queries go to the least certain items.
    """

    labels: IntArray
    choices: IntArray
    queries: float
    seed: int

    def __post_init__(self) -> None:
        more_than_plain(self.queries)

    def next_round(self, answered: AnswerTable) -> Round | None:
        order = proportional_order(self.labels, self.seed)
        n, first = order.size, self._first
        plain = 0 if answered.about is None else int((answered.about == PLAIN).sum())
        asked = len(answered) - plain
        if plain == 0:
            return choice_round(order[:first], self.choices)
        known = Problem.of_answers(self.labels, answered, choices=self.choices)
        rng = np.random.default_rng([self.seed, 13, plain, asked])
        total = round((self.queries - 1) * n)
        there = order[:plain]
        there = there[np.isin(there, known.items)]
        if asked < (due := min(total, there.size)):
            return self._first_queries(known, there[asked:due], rng, even=asked == 0)
        if plain < n:
            return choice_round(order[plain:], self.choices)
        left = total - asked
        return None if left <= 0 or not there.size else self._follow_up(known, left, rng)

    @property
    def _first(self) -> int:
        n = self.labels.size
        return round(PILOT * n) if n >= LEAST_PILOT else n

    def _first_queries(
        self, known: Problem, items: IntArray, rng: np.random.Generator, *, even: bool
    ) -> Round:
        now = None if even else _Knowledge.of(known)
        shifts, gumbel = np.empty(items.size), np.zeros(items.size, bool)
        for right in (0, 1):
            mine = np.flatnonzero(known.labels[items] == right)
            gumbel[mine[right::2]] = True
            noisy, tested = mine[gumbel[mine]], mine[~gumbel[mine]]
            shifts[tested] = self._margin_shifts(now, right, tested.size, rng)
            shifts[noisy] = self._gumbel_shifts(now, right, self.choices[items[noisy]], rng)
        return self._about(known, items, shifts, gumbel, rng)

    def _about(
        self, known: Problem, items: IntArray, shifts: FloatArray, gumbel: BoolArray, rng: np.random.Generator
    ) -> Round:
        numbers = gumbel_numbers((items.size, int(self.choices.max())), rng) * gumbel[:, None]
        assert known.given is not None
        return choice_round(items, self.choices, shifts, known.given[items], numbers)

    def _margin_shifts(
        self, now: _Knowledge | None, right: int, size: int, rng: np.random.Generator
    ) -> FloatArray:
        place = spread_evenly(size, rng)
        t = (1 + place) / 2 if now is None else quantiles(now.margins[right], place)
        return -EDGES_S[np.maximum(edge_of_threshold(t), HALF + 1)]

    def _gumbel_shifts(
        self, now: _Knowledge | None, right: int, choices: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        place = spread_evenly(choices.size, rng)
        t = 1 / choices + (1 - 1 / choices) * place if now is None else quantiles(now.odds[right], place)
        return _gumbel_shift(logit(np.clip(t, 1e-9, 1 - 1e-9)))

    def _follow_up(self, known: Problem, left: int, rng: np.random.Generator) -> Round | None:
        items = known.items
        now = _Knowledge.of(known)
        of_item = now.patterns.of_item
        split = best_splits(now.patterns, now.table, now.confidence)
        if not (split.gain > 0).any():
            return None
        half = max(1, round(items.size / 2))
        size = min(left, half)
        tested, rest = np.split(ranked(split.gain[of_item], rng), [(size + 1) // 2])
        mean = now.mean_log_odds[of_item]
        noisy = rest[ranked(expit(mean[rest]) * expit(-mean[rest]), rng)][: size - tested.size]
        edge = split.edges(of_item[tested], rng)
        near = _gumbel_shift(mean[noisy] + rng.normal(0, 0.5, noisy.size))
        shifts = np.concatenate([-EDGES_S[np.maximum(edge, HALF + 1)], near])
        gumbel = np.repeat([False, True], [tested.size, noisy.size])
        return self._about(known, items[np.concatenate([tested, noisy])], shifts, gumbel, rng)


@dataclass(frozen=True, eq=False)
class _Knowledge:
    """A rough fit of the answers so far, good enough to choose the next queries."""

    patterns: Patterns
    table: FloatArray

    @classmethod
    def of(cls, known: Problem) -> _Knowledge:
        excess = excess_of(known, Noise(), roughly=True)
        patterns = read(known, Noise(), axis_of(known, None if excess is None else excess.best))
        return cls(patterns, working_table(patterns))

    @property
    def confidence(self) -> FloatArray:
        return expit(self.patterns.axis.calibrated)

    @property
    def margins(self) -> list[FloatArray]:
        """The most informative margins to test, as a density over the cells for each label."""
        inner = expit(np.interp(EDGES_S[1:-1], MID_S, self.patterns.axis.calibrated))
        edges = np.concatenate([[0.0], inner, [1.0]])
        edges[: HALF + 1] = edges[HALF]
        return threshold_densities(self.table, edges)

    @property
    def odds(self) -> list[FloatArray]:
        """Densities over the log-odds where Gumbel queries are most informative, for each label."""
        densities = []
        even = np.diff(EDGES_P)
        for cells in self.patterns.axis.to_log_odds(self.table).reshape(2, CELLS):
            telling = cells * np.sqrt(MID_P * (1 - MID_P))
            densities.append((1 - _EVEN) * telling / telling.sum() + _EVEN * even)
        return densities

    @property
    def mean_log_odds(self) -> FloatArray:
        """Mean log-odds of each pattern."""
        size = len(self.patterns)
        parts = [slice(first, min(first + 2048, size)) for first in range(0, size, 2048)]
        means = [self.patterns.posterior(self.table, part) @ self.patterns.axis.calibrated for part in parts]
        return np.concatenate(means)


@dataclass(frozen=True)
class DrawnAnswersDesign:
    """The plain answer to every item and answers drawn at T = 1, all in one round."""

    choices: IntArray
    queries: float  # mean number per item, the plain answer included
    seed: int
    greedy: bool = True  # if not, there is no plain answer: the first drawn one is the given answer

    def next_round(self, answered: AnswerTable) -> Round | None:
        asked = SampledDesign(self.choices.size, self.queries, (1.0,), self.seed).next_round(answered)
        if asked is None:
            return None
        plain = np.arange(len(asked)) < self.choices.size if self.greedy else np.zeros(len(asked), bool)
        return replace(choice_round(asked.items, self.choices), temperatures=np.where(plain, 0.0, 1.0))
