"""Fits to simulated answers, and the numbers in their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

import blindcal as bc
from blindcal.methods import make_design, method_of
from blindcal.records import AnswerTable, Estimate, FloatArray, IntArray
from blindcal.simulation.simulate import ask

SCALARS = (
    "ece",
    "tce",
    "accuracy",
    "auroc",
    "brier",
    "log_loss",
    "mean_confidence",
    "overconfidence",
    "leaning",
)
"""Quantities of a fit that are one number with an interval."""


def asked(
    labels: IntArray,
    p: FloatArray,
    queries: float = 1.0,
    method: str = "latent",
    seed: int = 0,
    jitter: float = 0.0,
) -> AnswerTable:
    design = make_design(method, labels, queries=queries, seed=seed)
    return ask(design, p, seed=seed, jitter=jitter, logprobs=method_of(method).logprobs)


def fitted(labels: IntArray, answered: AnswerTable, **options: Any) -> bc.LatentFit:
    rows = labels[answered.items]
    options.setdefault("resamples", 300)
    return bc.latent(
        rows,
        answered.shifts,
        answered.answers,
        answered.temperatures,
        answered.items,
        bounds=answered.bounds,
        **options,
    )


def ends(estimate: Estimate) -> tuple[float, float]:
    """The interval of an estimate that has one."""
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def parts_of(value: object) -> Iterator[object]:
    """A value, and everything inside it, however deep."""
    yield value
    inside: Iterable[object] = ()
    if isinstance(value, (tuple, np.ndarray)):
        inside = value
    elif is_dataclass(value):
        inside = (getattr(value, field.name) for field in fields(value))
    for part in inside:
        yield from parts_of(part)


def estimates_in(value: object) -> list[Estimate]:
    return [part for part in parts_of(value) if isinstance(part, Estimate)]


def columns(answered: AnswerTable) -> tuple[Any, ...]:
    return answered.items, answered.shifts, answered.temperatures, answered.answers


def alike_models(n: int, seed: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Labels, and the confidences of two models whose errors go together, the second twice as sure."""
    rng = np.random.default_rng([seed, 4])
    labels = (rng.random(n) < 0.4).astype(np.int64)
    shared = 1.3 * (2 * labels - 1) + 1.5 * rng.standard_normal(n)
    first, second = (shared + 0.5 * rng.standard_normal(n) for _ in range(2))
    return labels, np.asarray(1 / (1 + np.exp(-first))), np.asarray(1 / (1 + np.exp(-2 * second)))
