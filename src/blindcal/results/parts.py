"""A result broken down by a field of the items, with a guard against reading noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import gammaincc

from blindcal.records import AnswerTable, FloatArray, IntArray
from blindcal.results.figures import Estimation, Figures, figures
from blindcal.results.result import FEW, Part

UNNAMED = "(none)"
"""What the part of items that name none is called."""
LEAST = 10
"""Of each label, below which a part counts as few."""
_RESAMPLES = 300  # refits behind each part's intervals: many parts must not take forever


def break_down(
    how: Estimation,
    labels: IntArray,
    groups: IntArray | None,
    parts: Sequence[str | None],
    answered: AnswerTable,
    members: IntArray | None = None,
) -> tuple[tuple[Part, ...], float | None]:
    """The figures of every part, and the p-value of "all parts are miscalibrated alike".

    Each part is estimated from its own answers alone. The test compares the signed gaps below and above 1/2
    between the parts that are not few (Cochran's Q); it is ``None`` with fewer than two of these, and where
    the method does not know its own noise. With ``members`` only these items count.
    """
    names = sorted({UNNAMED if part is None else part for part in parts})
    number = {name: k for k, name in enumerate(names)}
    of_item = np.array([number[UNNAMED if part is None else part] for part in parts])
    if members is not None:
        of_item[np.isin(np.arange(of_item.size), members, invert=True)] = -1
    how = replace(how, resamples=min(how.resamples, _RESAMPLES))
    found, compared = [], []
    for k, name in enumerate(names):
        chosen = np.flatnonzero(of_item == k)
        some = figures(how, labels, groups, answered, chosen, brief=True)
        positive = int(labels[chosen].sum())
        few = chosen.size < FEW or min(positive, chosen.size - positive) < LEAST
        found.append(
            Part(name, chosen.size, positive, some.ece, some.accuracy, some.leaning, some.overconfidence, few)
        )
        if not few:
            compared.append(some)
    return tuple(found), _heterogeneity(compared)


def _heterogeneity(parts: Sequence[Figures]) -> float | None:
    """Cochran's Q of the parts' signed gaps around their precision-weighted mean."""
    known: list[tuple[FloatArray, FloatArray]] = [
        (part.halves, part.halves_covariance)
        for part in parts
        if part.halves is not None and part.halves_covariance is not None
    ]
    if len(known) < 2 or len(known) < len(parts):
        return None
    floor = 1e-9 * np.eye(2)  # a half that no item reaches has no noise, and says nothing
    precisions = [np.linalg.inv(covariance + floor) for _, covariance in known]
    total = sum(precisions, np.zeros((2, 2)))
    weighted = sum((p @ x for p, (x, _) in zip(precisions, known, strict=True)), np.zeros(2))
    mean = np.linalg.solve(total, weighted)
    q = sum(float((x - mean) @ p @ (x - mean)) for p, (x, _) in zip(precisions, known, strict=True))
    return float(gammaincc(len(known) - 1, q / 2))  # chi-square with 2 (parts - 1) degrees of freedom
