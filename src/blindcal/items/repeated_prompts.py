"""Items that share a prompt: their answers are alike, so the items are not independent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blindcal.records import IntArray


@dataclass(frozen=True, slots=True)
class RepeatedPrompts:
    """``items`` repeat an earlier prompt; ``conflicting`` ones share a prompt with different labels."""

    items: int
    conflicting: int


def repeated_prompts(prompts: IntArray, labels: IntArray) -> RepeatedPrompts | None:
    """Count repeated prompts, given as hashes; ``None`` if there are none."""
    codes = _in_order(prompts)
    size = np.bincount(codes)
    if size.size == codes.size:
        return None
    first = labels[np.unique(codes, return_index=True)[1]]
    mixed = np.bincount(codes, labels != first[codes]) > 0
    return RepeatedPrompts(codes.size - size.size, int(size[mixed].sum()))


def resampling_units(groups: IntArray | None, prompts: IntArray) -> IntArray | None:
    """The unit of each item, numbered in order of appearance; ``None`` if each item is its own.

    A unit is a group, merged with groups that share a prompt; without groups, the items with the same prompt.
    """
    codes = _in_order(prompts)
    distinct = np.unique(codes).size
    if groups is None:
        return None if distinct == codes.size else codes
    named = _in_order(groups)
    if distinct == codes.size:
        return named
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first = int(named.max()) + 1
    shape = (first + distinct,) * 2
    links = coo_array((np.ones(codes.size, np.int8), (named, first + codes)), shape=shape)
    _, unit = connected_components(links, directed=False)
    return _in_order(unit[named].astype(np.int64))


def _in_order(values: IntArray) -> IntArray:
    # Hashes differ between processes; the order of appearance does not.
    _, first, codes = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[codes]
