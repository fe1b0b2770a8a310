"""An e-process: the wealth of fixed bets against a claim, which grows if the claim is false.

If the claim holds, the chance that the wealth ever reaches 1/level is at most ``level`` (Ville's inequality),
however often one looks. Half of the wealth bets from the first observation on, the rest from later starting
points, so that a change after a long quiet time is noticed soon too; until then it is cash. Bets are products
over observations, so their order does not matter. A late one counts for the starting points before its place.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from blindcal.records import FloatArray, IntArray

SPACING = 500
"""Distance of the first starting points, in items."""
_EVEN_STARTS = 20  # starting points at even distances; later ones are a tenth farther than the one before
_GROWTH = 1.1
_MOST_STARTS = 200  # more than any stream has


def starting_points(spacing: int = SPACING) -> IntArray:
    """Places where a part of the wealth begins: 0, spacing, 2 spacing, ..., later farther apart."""
    even = spacing * np.arange(_EVEN_STARTS + 1.0)
    later = even[-1] * _GROWTH ** np.arange(1, _MOST_STARTS - _EVEN_STARTS)
    return np.asarray(np.ceil(np.concatenate([even, later[later < 2**53]])), np.int64)


def start_shares(count: int) -> FloatArray:
    """Shares of the wealth that begin at the first ``count`` points: 1/2, 1/4, 1/12, 1/24, ..."""
    later = np.arange(1, count)
    return np.concatenate([[0.5], 0.5 / (later * (later + 1.0))])[:count]


class EProcess:
    """The wealth of bets with these ``shares`` of the stakes, and the alarm that it raises at 1/``level``.

    ``log_evidence`` is the logarithm of the wealth now, ``strongest`` its highest value, and ``raised_at``
    the number of observations after which it first reached the bar.
    """

    def __init__(self, shares: FloatArray, level: float, spacing: int = SPACING) -> None:
        self._log_shares = np.log(shares)
        self.bar = -np.log(level)
        self._starts = starting_points(spacing)
        self._wealth = np.zeros((0, shares.size))  # logarithm, by starting point and bet
        self._path: list[FloatArray] = []
        self.observations = 0
        self.log_evidence = self.strongest = 0.0
        self.raised_at: int | None = None

    @property
    def path(self) -> FloatArray:
        """The logarithm of the wealth after each observation."""
        return np.concatenate([np.empty(0), *self._path])

    def add(self, log_factors: FloatArray, places: IntArray) -> FloatArray:
        """Add observations (rows) at any ``places`` of the stream; return the log-wealth after each one."""
        if not len(log_factors):
            return np.empty(0)
        starts = np.searchsorted(self._starts, places, side="right")
        missing = max(0, int(starts.max()) - len(self._wealth))
        self._wealth = np.concatenate([self._wealth, np.zeros((missing, self._log_shares.size))])
        # observations with the same starting points before them are multiplied together
        pieces = np.split(np.arange(len(places)), np.flatnonzero(np.diff(starts)) + 1)
        path = np.concatenate([self._add(log_factors[own], int(starts[own[0]])) for own in pieces])
        reached = np.flatnonzero(path >= self.bar)
        if self.raised_at is None and reached.size:
            self.raised_at = self.observations + int(reached[0]) + 1
        self.observations += path.size
        self.log_evidence = float(path[-1])
        self.strongest = max(self.strongest, float(path.max()))
        self._path.append(path)
        return path

    def _add(self, log_factors: FloatArray, begun: int) -> FloatArray:
        grown = np.cumsum(log_factors, axis=0)
        weighted = self._weighted
        cash = 1 - start_shares(len(weighted)).sum()
        counting = logsumexp(weighted[:begun], axis=0)
        others = logsumexp(np.append(weighted[begun:], np.log(cash)))
        self._wealth[:begun] += grown[-1]
        return np.asarray(np.logaddexp(logsumexp(grown + counting, axis=1), others))

    @property
    def _weighted(self) -> FloatArray:
        return self._wealth + np.log(start_shares(len(self._wealth)))[:, None] + self._log_shares

    @property
    def best_bet(self) -> int:
        """The bet that has won most, from its best starting point on."""
        return int(np.argmax(self._weighted)) % self._log_shares.size if len(self._wealth) else 0


def changed_since(log_factors: FloatArray, places: IntArray) -> int:
    """The place from which on a bet has won most: the likeliest start of a change."""
    order = np.argsort(places, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(log_factors[order])[:-1]])
    return int(places[order[np.argmin(before)]])


def discoveries(log_evidence: FloatArray, level: float) -> IntArray:
    """The e-values that stand out, at most a share ``level`` of them falsely (e-BH; Wang & Ramdas 2022)."""
    order = np.argsort(-log_evidence, kind="stable")
    count = log_evidence.size
    enough = log_evidence[order] >= np.log(count / (level * np.arange(1, count + 1)))
    passed = np.flatnonzero(enough)
    return order[: passed[-1] + 1] if passed.size else order[:0]
