"""Fits to simulated answers, and what every fit must hold to, for the tests of `latent`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

import blindcal as bc
from blindcal.errors import NotIdentifiedError
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

NEED_BOTH_LABELS = {"auroc", "curve", "operating", "costs", "next precision", "cheapest", "recall"}
NEED_MANY_ITEMS = {"recall"}


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


def drawn(n: int, seed: int, share: float | FloatArray, p: float | FloatArray) -> tuple[IntArray, FloatArray]:
    """Labels with the given chances, and probabilities."""
    rng = np.random.default_rng(seed)
    return (rng.random(n) < share).astype(np.int64), np.broadcast_to(np.float64(p), (n,)).copy()


def ends(estimate: Estimate) -> tuple[float, float]:
    """The interval of an estimate that has one."""
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def numbers_in(value: object) -> Iterator[float]:
    """Every number a result holds, however deep."""
    if isinstance(value, (int, float)):
        yield float(value)
    elif isinstance(value, np.ndarray):
        yield from (float(one) for one in value.reshape(-1))
    elif isinstance(value, tuple):
        for one in value:
            yield from numbers_in(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from numbers_in(getattr(value, field.name))


def estimates_in(value: object) -> Iterator[Estimate]:
    """Every estimate a result holds, however deep."""
    if isinstance(value, Estimate):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from estimates_in(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from estimates_in(getattr(value, field.name))


def everything(fit: bc.LatentFit) -> dict[str, object]:
    """All that a fit can be asked for; what it refuses is left out, and only some may be refused."""
    calls: dict[str, Any] = {
        "gaps": lambda: fit.at(bins=7).gaps,
        "bins": lambda: fit.bins,
        "curve": lambda: fit.curve,
        "pvalue": lambda: fit.calibrated_pvalue,
        "confidence": lambda: fit.confidence,
        "operating": lambda: fit.operating,
        "costs": lambda: fit.costs,
        "recall": lambda: fit.choose_threshold(recall=0.9),
        "cheapest": lambda: fit.choose_threshold(cost_fp=1, cost_fn=2),
        "next precision": lambda: fit.next_precision(0.5, 20),
        "invalid bound": lambda: fit.invalid_bound,
        **{name: lambda name=name: getattr(fit, name) for name in SCALARS},
    }
    found = {}
    refused = set()
    for name, call in calls.items():
        try:
            found[name] = call()
        except NotIdentifiedError:
            refused.add(name)
    both = np.unique(fit.patterns.labels).size == 2
    assert refused <= NEED_MANY_ITEMS if both else refused == NEED_BOTH_LABELS
    return found


def check_sound(fit: bc.LatentFit) -> None:
    """No NaN anywhere, every number in its range, every interval in order and around something."""
    for name, value in everything(fit).items():
        for number in numbers_in(value):
            assert not math.isnan(number), name
        for one in estimates_in(value):
            assert (one.low is None) == (one.high is None), name
            if one.low is not None and one.high is not None:
                assert one.low <= one.high, name
                assert one.level == fit.level, name
    for name in ("ece", "tce", "accuracy", "brier", "mean_confidence"):
        low, high = ends(getattr(fit, name))
        assert 0 <= low <= high <= 1, name
    assert 0 <= float(fit.ece) <= 1
    assert sum(abs(float(one.gap)) for one in fit.bins) == pytest.approx(float(fit.ece))
    assert 0 <= fit.calibrated_pvalue <= 1


def columns(answered: AnswerTable) -> tuple[Any, ...]:
    return answered.items, answered.shifts, answered.temperatures, answered.answers


def alike_models(n: int, seed: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Labels, and the confidences of two models whose errors go together, the second twice as sure."""
    rng = np.random.default_rng([seed, 4])
    labels = (rng.random(n) < 0.4).astype(np.int64)
    shared = 1.3 * (2 * labels - 1) + 1.5 * rng.standard_normal(n)
    first, second = (shared + 0.5 * rng.standard_normal(n) for _ in range(2))
    return labels, np.asarray(1 / (1 + np.exp(-first))), np.asarray(1 / (1 + np.exp(-2 * second)))
