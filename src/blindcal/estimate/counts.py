"""Counts of items per pattern of answers, which are all that the estimators need.

Items with the same label and the same answers to the same queries are equivalent, so a table of distinct
*patterns* with counts represents any number of items. Counts of disjoint items add up, whether they come from
a shard, a machine or a SQL ``GROUP BY``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from blindcal.errors import InputError
from blindcal.estimate.checks import ArrayLike
from blindcal.estimate.grid import CELLS, EDGES_S, cells_between
from blindcal.estimate.latent.estimator import latent
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.problem import Problem
from blindcal.estimate.published import BlindResult, blind
from blindcal.estimate.readings import packed
from blindcal.records import AnswerTable, FloatArray, IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Counts:
    """Distinct patterns of answers in canonical order, and the number of items with each.

    Attributes
    ----------
    count, label : arrays of shape (patterns,)
        Number of items with the pattern, and their label.
    pattern : array of shape (answers,)
        The pattern of each answer.
    shift, temperature, answer : arrays of shape (answers,)
        The query and its answer: 1, 0, or -1 for an invalid answer.
    low, high : arrays of shape (answers,)
        Bounds that the answer sets on the log-odds, rounded to the grid of all fits; NaN if it sets none.

    Examples
    --------
    >>> shard = Counts.of([1, 0, 1], [0.0, 0.0, 0.0], [1, 1, 1])
    >>> both = shard + Counts.of([0, 0], [0.0, 0.0], [1, 0])
    >>> both.items, both.count.tolist(), both.label.tolist()
    (5, [1, 2, 2], [0, 0, 1])
    """

    count: IntArray
    label: IntArray
    pattern: IntArray
    shift: FloatArray
    temperature: FloatArray
    answer: IntArray
    low: FloatArray
    high: FloatArray

    @classmethod
    def of(
        cls,
        labels: ArrayLike,
        shifts: ArrayLike,
        answers: ArrayLike,
        temperatures: ArrayLike = 0.0,
        items: ArrayLike | None = None,
        counts: ArrayLike | None = None,
        *,
        bounds: ArrayLike | None = None,
    ) -> Counts:
        """Count answers, one row per query as for ``blindcal.latent``, with ``counts`` items per row."""
        return _counted(
            Problem.of_rows(labels, shifts, answers, temperatures, items, counts=counts, bounds=bounds)
        )

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """Add the counts of disjoint sets of items."""
        each = list(parts)
        if not each:
            raise InputError("counts: nothing to add up")
        firsts = np.cumsum([0, *(part.count.size for part in each)])
        column = {name: np.concatenate([getattr(part, name) for part in each]) for name in vars(each[0])}
        firsts = np.cumsum([0, *(part.count.size for part in each[:-1])])
        patterns = [part.pattern + first for part, first in zip(each, firsts, strict=True)]
        return _counted(_problem(Counts(**{**column, "pattern": np.concatenate(patterns)})))

    def __add__(self, other: Counts) -> Counts:
        return Counts.total([self, other])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Counts):
            return NotImplemented
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return all(np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]  # compared by content, and arrays have no hash

    def __repr__(self) -> str:
        return f"Counts({self.items:,} items, {self.queries:,} queries, {self.count.size:,} patterns)"

    @property
    def items(self) -> int:
        """Number of items."""
        return int(self.count.sum())

    @property
    def queries(self) -> int:
        """Number of answers, invalid ones included."""
        return int(self.count[self.pattern].sum())

    def latent(
        self, *, jitter: float = 0.0, bins: int = 5, level: float = 0.95, resamples: int = 1000, seed: int = 0
    ) -> LatentFit:
        """Fit as ``blindcal.latent`` fits the single answers, identical to the last digit.

        Counts do not keep groups: intervals treat the items as independent.
        """
        return latent(
            self.label[self.pattern],
            self.shift,
            self.answer,
            self.temperature,
            self.pattern,
            counts=self.count[self.pattern],
            bounds=np.column_stack([self.low, self.high]),
            jitter=jitter,
            bins=bins,
            level=level,
            resamples=resamples,
            seed=seed,
        )

    def blind(self, bins: int = 5) -> BlindResult:
        """`ECE_blind` of items with one threshold each; an infinite shift marks the subset not asked."""
        if self.pattern.size != self.count.size or self.temperature.any():
            raise InputError("counts: blind needs one threshold per item, and some here were asked otherwise")
        return blind(self.label, expit(-self.shift), self.answer, bins, counts=self.count)


def _problem(counts: Counts) -> Problem:
    bounds = np.column_stack([counts.low, counts.high])
    rows = AnswerTable(counts.pattern, counts.shift, counts.temperature, counts.answer, bounds=bounds)
    return Problem(labels=counts.label, readings=rows, counts=counts.count)


def _counted(problem: Problem) -> Counts:
    rows, labels = problem.readings, problem.labels
    shift_values, shift = np.unique(rows.shifts + 0.0, return_inverse=True)  # + 0.0: -0.0 becomes 0.0
    heat_values, heat = np.unique(rows.temperatures + 0.0, return_inverse=True)
    cell_values, cells = np.unique(_cells(rows.bounds_or_nan), return_inverse=True)
    kind = ((shift * heat_values.size + heat) * cell_values.size + cells) * 3 + rows.answers + 1
    kind_values, kind = np.unique(kind, return_inverse=True)
    sets = packed(kind, rows.items, labels)
    example, length = sets.example, sets.size[sets.example]
    places = np.repeat(sets.begin[example] - np.cumsum(length) + length, length) + np.arange(length.sum())
    rest, answer = np.divmod(kind_values[sets.kinds[places]], 3)
    rest, at_cells = np.divmod(rest, cell_values.size)
    at_shift, at_heat = np.divmod(rest, heat_values.size)
    first, last = np.divmod(cell_values[at_cells], CELLS + 1)
    shown = cell_values[at_cells] > 0
    count = np.zeros(example.size, np.int64)
    np.add.at(count, sets.number, 1 if problem.counts is None else problem.counts)
    return Counts(
        count=count,
        label=labels[example],
        pattern=np.repeat(np.arange(example.size), length),
        shift=shift_values[at_shift],
        temperature=heat_values[at_heat],
        answer=answer - 1,
        low=np.where(shown, EDGES_S[first], np.nan),
        high=np.where(shown, EDGES_S[last], np.nan),
    )


def _cells(bounds: FloatArray) -> IntArray:
    codes = np.zeros(len(bounds), np.int64)
    shown = ~np.isnan(bounds).any(axis=1)
    first, last = cells_between(*bounds[shown].T)
    codes[shown] = first * (CELLS + 1) + last
    return codes
