"""Which items of a file take part in a run, and since when: noted in the run before they are asked."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from blindcal.auditing.item_sample import grown
from blindcal.errors import ConfigError
from blindcal.items.files import Items
from blindcal.records import IntArray
from blindcal.settings import Settings
from blindcal.store.run_store import Store

_NOTE = "stages"


def taken(items: Items, settings: Settings, store: Store) -> list[IntArray] | None:
    """The items that take part, as they came in; ``None`` for all at once."""
    n = len(items)
    noted = store.note(_NOTE)
    if noted is None and (settings.subset is None or settings.subset >= n):
        return None
    before = [np.flatnonzero(_unpacked(one, n)) for one in noted or ()]
    if noted is None and store.rounds():
        before = [np.arange(n)]  # begun with all of them
    stages = grown(before, settings.subset or n, items.labels, items.groups, items.parts, seed=settings.seed)
    if len(stages) > len(before):
        if settings.method == "blind" and before:
            raise ConfigError(
                f"items: this run asks {before[0].size:,} by blind, which splits all its items at once and "
                "cannot grow: choose another folder"
            )
        if settings.queries is None and before:
            raise ConfigError("items: a run whose queries a budget decides cannot grow; raise --max-cost")
        store.set_note(_NOTE, [_packed(stage, n) for stage in stages])
    return list(stages)


def _packed(members: IntArray, n: int) -> str:
    return base64.b64encode(np.packbits(np.isin(np.arange(n), members)).tobytes()).decode()


def _unpacked(packed: str, n: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), count=n).astype(bool)
