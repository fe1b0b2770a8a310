"""The wealth of an e-process for a whole stream whose items come in order, several times as fast.

Between two starting points the wealth of a bet is multiplied by the same factors wherever it began, so one
product per bet is enough. A test compares it with the library.
"""

from __future__ import annotations

import numpy as np

from blindcal.estimate.streams.alarms import start_shares, starting_points
from blindcal.estimate.streams.betting import Game
from blindcal.records import FloatArray, IntArray

_BLOCK = 500  # observations whose factors fit into the cache


def wealth_path(game: Game, cells: IntArray) -> FloatArray:
    """The wealth after each observation, given its cell."""
    factors = np.exp(game.log_factors)
    starts = starting_points()
    begun = int(np.searchsorted(starts, cells.size - 1, side="right"))
    ends = [*starts[1:begun], cells.size]
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
