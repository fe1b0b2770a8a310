"""The Pareto front: the points that no other point beats at the same or a lower cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def pareto_front(
    points: Iterable[T], *, cost: Callable[[T], float], error: Callable[[T], float]
) -> tuple[T, ...]:
    """The points with a smaller error than every other point of the same or a lower cost, cheapest first.

    Examples
    --------
    >>> pareto_front([(1, 9), (2, 9), (3, 4)], cost=lambda point: point[0], error=lambda point: point[1])
    ((1, 9), (3, 4))
    """
    front: list[T] = []
    for point in sorted(points, key=lambda point: (cost(point), error(point))):
        if not front or error(point) < error(front[-1]):
            front.append(point)
    return tuple(front)
