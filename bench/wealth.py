"""The wealth of an e-process for a whole stream whose items come in order, several times as fast.

Between two starting points the wealth of a bet is multiplied by the same factors wherever it began, so one
product per bet is enough. A test compares it with the library.
"""

from __future__ import annotations

import numpy as np

from blindcal.estimate.streams.betting import Game
from blindcal.estimate.streams.e_process import SPACING, start_shares, starting_points
from blindcal.records import FloatArray, IntArray

_BLOCK = 500  # observations whose factors fit into the cache


def wealth_path(
    game: Game, cells: IntArray, places: IntArray | None = None, spacing: int = SPACING
) -> FloatArray:
    """The wealth after each observation, given its cell; ``places`` must not fall."""
    factors = np.exp(game.log_factors)
    places = np.arange(cells.size) if places is None else places
    starts = starting_points(spacing)
    begun = int(np.searchsorted(starts, places[-1], side="right"))
    ends = [*np.searchsorted(places, starts[1:begun]), cells.size]
    cash, first, path = 1.0, 0, np.empty(cells.size)
    own = np.zeros(game.shares.size)
    for share, end in zip(start_shares(begun), ends, strict=True):
        own, cash = own + share * game.shares, cash - share
        for block in range(first, end, _BLOCK):
            last = min(block + _BLOCK, end)
            with np.errstate(over="ignore", invalid="ignore"):  # far beyond any bar
                grown = np.cumprod(factors[cells[block:last]], axis=0)
                path[block:last] = cash + grown @ own
                own = own * grown[-1]
        first = end
    return np.nan_to_num(path, nan=np.inf, posinf=np.inf)


def first_reached(path: FloatArray, bar: float) -> float:
    """After how many observations the wealth first reached the bar; infinite if never."""
    reached = path >= bar
    return float(reached.argmax() + 1) if reached.any() else np.inf


def ever_named(evidence: FloatArray, level: float) -> FloatArray:
    """The row in which e-BH first names each column of e-values, infinite if never."""
    count = evidence.shape[1]
    bars = count / (level * np.arange(1, count + 1))
    ordered = -np.sort(-evidence, axis=1)
    passed = ordered >= bars
    named = np.where(passed.any(axis=1), count - passed[:, ::-1].argmax(axis=1), 0)
    enough = np.concatenate([[np.inf], bars])[named]
    hit = evidence >= enough[:, None]
    return np.where(hit.any(axis=0), hit.argmax(axis=0) + 1.0, np.inf)
