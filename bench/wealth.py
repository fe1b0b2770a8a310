"""The wealth of an e-process for a whole stream whose items come in order, several times as fast.

Between two starting points the wealth of a bet is multiplied by the same factors wherever it began, so one
product per bet is enough. A test compares it with the library.
"""

from __future__ import annotations

import numpy as np

from blindcal.estimate.streams.alarms import start_shares, starting_points
from blindcal.estimate.streams.betting import Game, Observed
from blindcal.records import FloatArray

_BLOCK = 500  # observations whose factors fit into the cache


def wealth_path(game: Game, observed: Observed) -> FloatArray:
    """The wealth after each observation; infinite if it is far beyond any bar."""
    shares, size = np.log(game.shares), len(observed)
    starts = starting_points()
    begun = int(np.searchsorted(starts, size - 1, side="right"))
    ends = [*starts[1:begun], size]
    cash, first, path = 1.0, 0, np.empty(size)
    own = np.full(shares.size, -np.inf)
    for share, end in zip(start_shares(begun), ends, strict=True):
        own, cash = np.logaddexp(own, np.log(share) + shares), cash - share
        for block in range(first, end, _BLOCK):
            last = min(block + _BLOCK, end)
            grown = own + np.cumsum(game.logs(observed[block:last]), axis=0)
            with np.errstate(over="ignore"):
                path[block:last] = cash + np.exp(grown).sum(axis=1)
            own = grown[-1]
        first = end
    return path


def first_reached(path: FloatArray, bar: float) -> float:
    """After how many observations the wealth first reached the bar; infinite if never."""
    if np.isnan(path).any():
        raise ValueError("path: the wealth is not a number")
    reached = path >= bar
    return float(reached.argmax() + 1) if reached.any() else np.inf
