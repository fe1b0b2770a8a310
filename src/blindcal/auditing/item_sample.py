"""A part of the items that stands for all of them, and can grow.

Items are put into one order, such that every stretch of it holds each label (and each part, where items name
one) in its proportion, and no group is torn. The first N of that order are a stratified random sample whose
shares are those of the file, so that no weights are needed; asking more takes the next ones and keeps what
was asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blindcal.errors import ConfigError
from blindcal.records import IntArray


def grown(
    taken: Sequence[IntArray],
    size: int,
    labels: IntArray,
    groups: IntArray | None = None,
    parts: Sequence[str | None] | None = None,
    *,
    seed: int = 0,
) -> tuple[IntArray, ...]:
    """Stages that together hold ``size`` items: those already taken and, if they are too few, one more.

    With groups it may be a few more, because the last group comes whole.

    Parameters
    ----------
    taken : sequence of arrays
        The item numbers of each earlier stage.
    size : int
        Wanted in all; no more than there are.
    labels, groups, parts : arrays, shape (items,)
    seed : int

    Raises
    ------
    ConfigError
        If fewer are wanted than were taken: what was asked stays asked.
    """
    n = labels.size
    have = sum(stage.size for stage in taken)
    size = min(size, n)
    if have > size and not _whole_group_over(taken, size, groups):
        raise ConfigError(
            f"items: this run already asks {have:,} items, and {size:,} are wanted now: a run can only grow; "
            "choose another folder for a smaller one"
        )
    if have >= size:
        return tuple(taken)
    free = np.ones(n, bool)
    for stage in taken:
        free[stage] = False
    unit = np.arange(n) if groups is None else groups
    order = _order(unit, labels, parts, seed)
    order = order[free[order]]
    last = unit[order[size - have - 1]]
    end = int(np.flatnonzero(unit[order] == last)[-1]) + 1
    return (*taken, np.sort(order[:end]))


def _whole_group_over(taken: Sequence[IntArray], size: int, groups: IntArray | None) -> bool:
    """Whether the items beyond ``size`` are only the rest of the group that reached it."""
    if groups is None or not taken:
        return False
    have = sum(stage.size for stage in taken)
    return have - size < int(np.bincount(groups[taken[-1]]).max())


def _order(unit: IntArray, labels: IntArray, parts: Sequence[str | None] | None, seed: int) -> IntArray:
    """All items, units whole, every stratum spread evenly over the whole order."""
    rng = np.random.default_rng([seed, 7])
    _, first, of_item, sizes = np.unique(unit, return_index=True, return_inverse=True, return_counts=True)
    # a unit of several items has no one label: it counts by whether most of its labels are positive
    share = np.bincount(of_item, labels) / sizes
    named = np.zeros(labels.size, np.int64)
    if parts is not None:
        named = np.unique([part or "" for part in parts], return_inverse=True)[1]
    stratum = named[first] * 2 + (share > 0.5)
    place = np.empty(first.size)
    for one in np.unique(stratum):
        mine = np.flatnonzero(stratum == one)
        place[mine] = (rng.permutation(mine.size) + rng.uniform(1e-9, 1)) / mine.size
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(place, kind="stable")] = np.arange(first.size)
    return np.argsort(rank[of_item], kind="stable").astype(np.int64)
