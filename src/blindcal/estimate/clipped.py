"""Patterns with both kinds of answers: a curve over the cells, cut to an interval of them.

Many items share a curve, and many an interval, but few share both. Their probabilities are differences of
running sums of the joint table times each distinct curve, so the cost does not grow with the number of items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from blindcal.estimate.grid import CELLS
from blindcal.records import FloatArray, IntArray

_NARROW = 8  # cells of an interval that are summed one by one
_BLOCK = 8_000_000  # numbers that are held at a time
_FEW = 8  # tables, or patterns per curve, up to which a product with all curves is faster than running sums


@dataclass(frozen=True)
class ClippedCurves:
    """Curves cut to intervals of cells.

    Attributes
    ----------
    labels, kinds, first, last : arrays of shape (patterns,)
        The label, the number of the curve, and the half-open interval of cells.
    curves : array of shape (2, curves, CELLS - origin)
        P(answers | cell) for each label, from the cell ``origin`` on; no pattern reaches below it.
    """

    labels: IntArray
    kinds: IntArray
    first: IntArray
    last: IntArray
    curves: FloatArray

    def __len__(self) -> int:
        return self.labels.size

    @property
    def _origin(self) -> int:
        return CELLS - int(self.curves.shape[2])

    def _dense(self, tables: int) -> bool:
        """Whether a product with all curves is faster for so many tables."""
        return tables < _FEW or len(self) <= _FEW * self.curves.shape[1]

    def relabelled(self) -> ClippedCurves:
        """The same answers from items with the other label."""
        return replace(self, labels=1 - self.labels)

    def mass(self, table: FloatArray) -> FloatArray:
        """As `Patterns.mass`."""
        flat = table.reshape(-1, 2, CELLS)[..., self._origin :]
        if self._dense(len(flat)):
            found = self.sums(table.reshape(-1, 2 * CELLS).T).T
            return np.asarray(found.reshape(*table.shape[:-1], len(self)))
        out = np.empty((len(flat), len(self)))
        for part in self._parts:
            curves = self.curves[part.label]
            for block in self._blocks(len(flat)):
                total = np.zeros((flat[block].shape[0], curves.shape[0], curves.shape[1] + 1))
                np.cumsum(flat[block, part.label, None, :] * curves, axis=-1, out=total[..., 1:])
                running = total.reshape(len(total), -1)
                out[block, part.wide] = running[:, part.stop] - running[:, part.start]
            out[:, part.narrow] = (part.cells @ flat[:, part.label].T).T
        return out.reshape(*table.shape[:-1], len(self))

    def sums(self, values: FloatArray) -> FloatArray:
        """As `Patterns.sums`."""
        out = np.empty((len(self), values.shape[1]))
        for part in self._parts:
            here = values[part.label * CELLS + self._origin : (part.label + 1) * CELLS]
            for mine, rows in part.dense:
                out[mine] = rows @ here
        return out

    def spread(self, weights: FloatArray) -> FloatArray:
        """Adjoint of :meth:`mass`, from shape (resamples, patterns) to (resamples, 2 * CELLS)."""
        out = np.zeros((len(weights), 2, CELLS))
        inner = out[..., self._origin :]
        for part in self._parts:
            if self._dense(len(weights)):
                for mine, rows in part.dense:
                    inner[:, part.label] += weights[:, mine] @ rows
                continue
            curves = self.curves[part.label]
            for block in self._blocks(len(weights)):
                marked = part.marks @ weights[block][:, part.wide].T
                running = np.cumsum(marked.reshape(curves.shape[0], curves.shape[1] + 1, -1), axis=1)
                inner[block, part.label] = np.einsum("scr,sc->rc", running[:, :-1], curves)
            inner[:, part.label] += (part.cells.T @ weights[:, part.narrow].T).T
        return out.reshape(len(weights), 2 * CELLS)

    def rows(self, which: IntArray) -> FloatArray:
        """The curves of these patterns, over all cells."""
        found = np.zeros((which.size, CELLS))
        found[:, self._origin :] = self._cut(which)
        return found

    def _cut(self, which: IntArray) -> FloatArray:
        cell = np.arange(self._origin, CELLS)
        inside = (cell >= self.first[which, None]) & (cell < self.last[which, None])
        return np.where(inside, self.curves[self.labels[which], self.kinds[which]], 0.0)

    def _blocks(self, size: int) -> Iterator[slice]:
        step = max(1, _BLOCK // (self.curves.shape[1] * (self.curves.shape[2] + 1)))
        return (slice(begin, begin + step) for begin in range(0, size, step))

    @cached_property
    def _parts(self) -> tuple[_OneLabel, ...]:
        return tuple(_OneLabel(self, y) for y in (0, 1) if (self.labels == y).any())


class _OneLabel:
    """The patterns of one label.

    Intervals of few cells are ``narrow``: their probability may be far below the rounding error of a running
    sum, so their ``cells`` are summed one by one. For the others, ``start`` and ``stop`` are the places of
    their ends in the running sums of all curves, and ``marks`` has +1 and -1 there.
    """

    def __init__(self, clipped: ClippedCurves, label: int) -> None:
        self.label, self._clipped = label, clipped
        self._mine = mine = np.flatnonzero(clipped.labels == label)
        few = clipped.last[mine] - clipped.first[mine] <= _NARROW
        self.narrow, self.wide = mine[few], mine[~few]
        origin, curves = CELLS - clipped.curves.shape[2], clipped.curves[label]
        width = (clipped.last - clipped.first)[self.narrow]
        rows = np.repeat(np.arange(self.narrow.size), width)
        before = np.repeat(np.cumsum(width) - width, width)
        cells = clipped.first[self.narrow][rows] + np.arange(rows.size) - before - origin
        values = curves[clipped.kinds[self.narrow][rows], cells]
        self.cells = csr_array((values, (rows, cells)), shape=(self.narrow.size, curves.shape[1]))
        offset = clipped.kinds[self.wide] * (curves.shape[1] + 1) - origin
        self.start, self.stop = offset + clipped.first[self.wide], offset + clipped.last[self.wide]

    @cached_property
    def marks(self) -> csr_array:
        curves, size = self._clipped.curves[self.label], self.wide.size
        places = np.concatenate([self.start, self.stop]), np.tile(np.arange(size), 2)
        return csr_array(
            (np.repeat([1.0, -1.0], size), places), shape=(curves.shape[0] * (curves.shape[1] + 1), size)
        )

    @cached_property
    def dense(self) -> tuple[tuple[IntArray, FloatArray], ...]:
        """The curves themselves, for few tables at a time."""
        step = max(1, _BLOCK // self._clipped.curves.shape[2])
        parts = (self._mine[begin : begin + step] for begin in range(0, self._mine.size, step))
        return tuple((mine, self._clipped._cut(mine)) for mine in parts)
