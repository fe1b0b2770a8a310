"""A sample of the items that stands for all of them, and can grow.

Items are put into one order, such that every stretch of it holds each label (and each part, where items name
one) in its proportion, and no group is torn. The first N of that order are a stratified random sample whose
shares are those of the file, so that no weights are needed; asking more takes the next ones and keeps what
was asked. Which items take part since when is noted in the run before they are asked.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from blindcal.errors import ConfigError
from blindcal.items.files import Items
from blindcal.records import IntArray
from blindcal.settings import Settings
from blindcal.store.run_store import Store

_NOTE = "stages"


def sample_stages(items: Items, settings: Settings, store: Store) -> list[IntArray] | None:
    """The items that take part, stage by stage as they joined; ``None`` for all at once."""
    n, wanted = len(items), settings.design.sample
    noted = store.note(_NOTE)
    if noted is None and (wanted is None or wanted >= n):
        return None
    before = [np.flatnonzero(_unpacked(one, n)) for one in noted or ()]
    if noted is None and store.rounds():
        before = [np.arange(n)]  # begun with all of them
    seed = settings.design.seed
    stages = grown(before, wanted or n, items.labels, items.groups, items.parts, seed=seed)
    if len(stages) > len(before):
        if settings.design.method == "blind" and before:
            raise ConfigError(
                f"sample: this run asks {before[0].size:,} items by blind, which splits them all at once and "
                "cannot grow",
                remedy="choose another folder with {out}",
                options={"out": ...},
            )
        if settings.design.queries is None and before:
            raise ConfigError(
                "sample: a run whose queries a budget decides cannot grow",
                remedy="raise {max_cost}",
                options={"max_cost": ...},
            )
        store.set_note(_NOTE, [_packed(stage, n) for stage in stages])
    return list(stages)


def members_of(stages: list[IntArray] | None, n: int) -> IntArray:
    """The numbers of all items that take part."""
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
    """Stages that together hold ``size`` items: those already taken and, if they are too few, one more.

    With groups it may be a few more, because the last group comes whole. `ConfigError` is raised if fewer are
    wanted than were taken: what was asked stays asked.
    """
    asked = np.concatenate([np.empty(0, np.int64), *taken])
    have, size = asked.size, min(size, labels.size)
    if have > size and not _within_last_group(have - size, taken, groups):
        raise ConfigError(
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
    """Whether the items that are too many can be the rest of the group that came last."""
    return groups is not None and over < int(np.bincount(groups[taken[-1]]).max())


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


def _packed(members: IntArray, n: int) -> str:
    return base64.b64encode(np.packbits(np.isin(np.arange(n), members)).tobytes()).decode()


def _unpacked(packed: str, n: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), count=n).astype(bool)
