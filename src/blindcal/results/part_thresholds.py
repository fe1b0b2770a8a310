"""The threshold to deploy for each part of an audit, with promises that hold for all parts together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blindcal.errors import NotIdentifiedError
from blindcal.estimate.latent.operating import ChosenThreshold
from blindcal.estimate.simultaneous import level_of_each
from blindcal.results.run import Run, opened

_BEYOND = 3  # refits that must lie beyond a bound for it to be one that the refits show


@dataclass(frozen=True, slots=True)
class PartThreshold:
    """The threshold of a part; ``chosen`` is ``None`` if there is none, and ``why`` says why."""

    part: str
    items: int
    chosen: ChosenThreshold | None
    why: str | None = None


def part_thresholds(
    run: Run | str | Path,
    *,
    precision: float | None = None,
    recall: float | None = None,
    cost_fp: float | None = None,
    cost_fn: float | None = None,
    confidence: float | None = 0.95,
    simultaneous: bool = False,
    level: float = 0.95,
    resamples: int = 1000,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> tuple[PartThreshold, ...]:
    """Choose a threshold for each part, from the answers of that part alone.

    Parameters
    ----------
    run : Run or path
        A run that is broken down into parts, or its folder.
    precision, recall, cost_fp, cost_fn, confidence
        As in `LatentFit.choose_threshold`.
    simultaneous : bool
        Whether ``confidence`` is that of all promises together: then the promise of each part has a higher
        one (Bonferroni), and is based on more refits if that needs them.
    level : float
        Confidence level of the intervals, of each by itself.
    resamples : int
        Number of refits of each part.
    progress : callable
        Called with the number of parts that are done and that of all parts.
    """
    read = opened(run)
    names = read.part_names
    each = confidence
    if simultaneous and confidence is not None:
        each = level_of_each(confidence, len(names))
        resamples = max(resamples, math.ceil(_BEYOND / (1 - each)))
    goal = {"precision": precision, "recall": recall, "cost_fp": cost_fp, "cost_fn": cost_fn}
    found = []
    for done, part in enumerate(names):
        progress(done, len(names))
        found.append(_chosen(read, part, each, level, resamples, goal))
    progress(len(names), len(names))
    return tuple(found)


def _chosen(
    read: Run,
    part: str,
    confidence: float | None,
    level: float,
    resamples: int,
    goal: dict[str, float | None],
) -> PartThreshold:
    items = int(read.members(part).size)
    try:
        fit = read.fit(part=part, level=level, resamples=resamples)
        items = fit.items
        chosen = fit.deployable.choose_threshold(**goal, confidence=confidence, max_shift=read.max_shift)
        return PartThreshold(part, items, chosen)
    except NotIdentifiedError as error:
        if read.result.estimator != "latent":  # no part has a fit
            raise
        return PartThreshold(part, items, None, str(error))
