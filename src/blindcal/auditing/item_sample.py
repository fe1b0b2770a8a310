"""A stratified random sample of the items, which can grow.

The items are ordered so that every stretch holds each label (and part, if any) in proportion, and no group is
split. The first N are a stratified random sample with the shares of the file, so no weights are needed; a
larger sample adds the next items. Which items joined in which stage is noted before they are asked.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np

from blindcal.errors import InputError
from blindcal.items.question_files import Items
from blindcal.records import BoolArray, IntArray
from blindcal.settings import Settings
from blindcal.store.run_store import Store


def sample_stages(items: Items, settings: Settings, store: Store) -> list[IntArray] | None:
    """The items in the sample, by the stage in which they joined; ``None`` if all are asked at once."""
    n, wanted = len(items), settings.design.sample
    noted = store.note("stages")
    if noted is None and (wanted is None or wanted >= n):
        return None
    before = [np.flatnonzero(_unpacked(number, n)) for number in noted or ()]
    if noted is None and store.rounds():
        before = [np.arange(n)]  # the run was begun with all items
    seed = settings.design.seed
    stages = grown(before, wanted or n, items.labels, items.groups, items.parts, seed=seed)
    if len(stages) > len(before):
        if settings.design.method == "blind" and before:
            raise InputError(
                f"sample: this run asks {before[0].size:,} items by blind, which splits them all at once and "
                "cannot grow",
                remedy="choose another folder with {out}",
                options={"out": ...},
            )
        store.set_note("stages", [_packed(stage, n) for stage in stages])
    return list(stages)


def members_of(stages: list[IntArray] | None, n: int) -> IntArray:
    """The numbers of all items in the sample."""
    return np.arange(n) if stages is None else np.concatenate(stages)


def grown(
    taken: Sequence[IntArray],
    size: int,
    labels: IntArray,
    groups: IntArray | None = None,
    parts: Sequence[str | None] | None = None,
    *,
    seed: int = 0,
) -> tuple[IntArray, ...]:
    """The stages already taken and, if needed, one more, for ``size`` items in total.

    The last group is kept whole, which may add a few. Raises `InputError` if more were taken already.
    """
    asked = np.concatenate([np.empty(0, np.int64), *taken])
    have, size = asked.size, min(size, labels.size)
    if have > size and not _within_last_group(have - size, taken, groups):
        raise InputError(
            f"sample: this run already asks {have:,} items, and {size:,} are wanted now; a run can only grow",
            remedy="choose another folder with {out} for a smaller one",
            options={"out": ...},
        )
    if have >= size:
        return tuple(taken)
    unit = np.arange(labels.size) if groups is None else groups
    order = _order(unit, labels, parts, seed)
    order = order[~np.isin(order, asked)]
    last = unit[order[size - have - 1]]
    end = int(np.flatnonzero(unit[order] == last)[-1]) + 1
    return (*taken, np.sort(order[:end]))


def _within_last_group(over: int, taken: Sequence[IntArray], groups: IntArray | None) -> bool:
    return groups is not None and over < int(np.bincount(groups[taken[-1]]).max())


def _order(unit: IntArray, labels: IntArray, parts: Sequence[str | None] | None, seed: int) -> IntArray:
    rng = np.random.default_rng([seed, 7])
    _, first, of_item = np.unique(unit, return_index=True, return_inverse=True)
    answers = int(labels.max(initial=1)) + 1
    # a group counts under its commonest label, the first one in a tie
    pairs, times = np.unique(of_item * answers + labels, return_counts=True)
    pairs = pairs[np.lexsort((pairs, -times, pairs // answers))]
    label = pairs[np.unique(pairs // answers, return_index=True)[1]] % answers
    named = np.zeros(labels.size, np.int64)
    if parts is not None:
        named = np.unique([part or "" for part in parts], return_inverse=True)[1]
    stratum = named[first] * answers + label
    place = np.empty(first.size)
    for number in np.unique(stratum):
        mine = np.flatnonzero(stratum == number)
        place[mine] = (rng.permutation(mine.size) + rng.uniform(1e-9, 1)) / mine.size
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(place, kind="stable")] = np.arange(first.size)
    return np.argsort(rank[of_item], kind="stable").astype(np.int64)


def _packed(members: IntArray, n: int) -> str:
    return base64.b64encode(np.packbits(np.isin(np.arange(n), members)).tobytes()).decode()


def _unpacked(packed: str, n: int) -> BoolArray:
    return np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), count=n).astype(bool)
