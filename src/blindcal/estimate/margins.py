"""Whether a model gives each of several answers as often as it is right (METHOD 8).

The table of labels and answers given has two margins. If the options of each question were shown in a random
order, the labels are spread evenly over the positions, and answers that are not show that the position itself
matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc

from blindcal.records import FloatArray


@dataclass(frozen=True, slots=True)
class AnswerMargins:
    """The share of items that each answer was ``given`` to, and that it is the label of (``labelled``).

    ``moved`` is the share of answers that would have to be another one for the shares to agree. ``pvalue`` is
    that of "each answer is given as often as it is right" (the test of Stuart and Maxwell); ``None`` if the
    items are in groups, or if no answer is wrong.
    """

    given: tuple[float, ...]
    labelled: tuple[float, ...]
    moved: float
    pvalue: float | None

    @classmethod
    def of(cls, confusion: Sequence[Sequence[int]], *, grouped: bool = False) -> AnswerMargins | None:
        """From a table with a row per label and a column per answer; ``None`` if it is empty.

        Examples
        --------
        >>> AnswerMargins.of([[30, 0], [15, 15]]).moved
        0.25
        """
        table = np.array(confusion, np.float64)
        total = table.sum()
        if not total:
            return None
        labelled, given = table.sum(axis=1) / total, table.sum(axis=0) / total
        moved = float(np.abs(given - labelled).sum() / 2)
        pvalue = None if grouped else _homogeneity(table)
        return cls(tuple(given.tolist()), tuple(labelled.tolist()), moved, pvalue)


def _homogeneity(table: FloatArray) -> float | None:
    """The p-value of equal margins of a square table of pairs (Stuart 1955, Maxwell 1970)."""
    off = table.sum(axis=1) - table.sum(axis=0)
    spread = np.diag(table.sum(axis=1) + table.sum(axis=0)) - table - table.T
    # an answer that is never confused with others adds nothing, and the differences sum to zero
    rank = int(np.linalg.matrix_rank(spread))
    if not rank:
        return None
    statistic = off @ np.linalg.pinv(spread, hermitian=True) @ off
    return float(chdtrc(rank, statistic))
