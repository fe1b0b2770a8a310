"""Fits to simulated answers, and what every fit must hold to, for the tests of `latent`."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

import blindcal as bc
from blindcal import design
from blindcal.errors import NotIdentifiedError
from blindcal.records import AnswerTable, FloatArray, IntArray
from blindcal.simulation.simulate import ask

QUANTITIES = ("ece", "tce", "accuracy", "auroc", "brier", "reliability", "log_loss", "mean_confidence")


def asked(
    labels: IntArray,
    p: FloatArray,
    queries: float = 1.0,
    method: str = "latent",
    seed: int = 0,
    jitter: float = 0.0,
) -> AnswerTable:
    plan = design.make(method, labels, queries=queries, seed=seed)
    return ask(plan, labels, p, seed=seed, jitter=jitter)


def fitted(labels: IntArray, answered: AnswerTable, **options: Any) -> bc.LatentFit:
    rows = labels[answered.items]
    options.setdefault("resamples", 300)
    return bc.latent(
        rows, answered.shifts, answered.answers, answered.temperatures, answered.items, **options
    )


def drawn(n: int, seed: int, share: float | FloatArray, p: float | FloatArray) -> tuple[IntArray, FloatArray]:
    """Labels with the given chances, and probabilities."""
    rng = np.random.default_rng(seed)
    return (rng.random(n) < share).astype(np.int64), np.broadcast_to(np.float64(p), (n,)).copy()


def numbers_in(value: object) -> list[float]:
    """Every number a result holds, however deep."""
    if isinstance(value, (int, float)):
        return [float(value)]
    if isinstance(value, np.ndarray):
        return [float(one) for one in value.reshape(-1)]
    if is_dataclass(value):
        return [number for field in fields(value) for number in numbers_in(getattr(value, field.name))]
    return []


def everything(fit: bc.LatentFit) -> dict[str, object]:
    """All that a fit can be asked for; what it refuses is left out."""
    calls: dict[str, Any] = {
        "ece": fit.ece,
        "top-label ece": lambda: fit.ece(top_label=True),
        "gaps": lambda: fit.gaps(7),
        "gap intervals": fit.gap_intervals,
        "tce": fit.tce,
        "curve": fit.curve,
        "pvalue": fit.calibrated_pvalue,
        "accuracy": fit.accuracy,
        "auroc": fit.auroc,
        "brier": fit.brier,
        "log loss": fit.log_loss,
        "confidence": fit.confidence,
        "mean confidence": fit.mean_confidence,
        "recall": lambda: fit.operating_point(recall=0.9),
        "cost": lambda: fit.operating_point(cost_fp=1, cost_fn=2),
        "invalid bound": fit.invalid_bound,
        **{f"{name} interval": lambda name=name: fit.interval(name) for name in QUANTITIES},
    }
    found = {}
    for name, call in calls.items():
        with suppress(NotIdentifiedError):
            found[name] = call()
    return found


def check_sound(fit: bc.LatentFit) -> None:
    """No NaN anywhere, every number in its range, every interval in order and around something."""
    for name, value in everything(fit).items():
        for number in numbers_in(value):
            assert not math.isnan(number), name
    for name in ("ece", "tce", "accuracy", "brier", "mean_confidence"):
        low, high = fit.interval(name)
        assert 0 <= low <= high <= 1, name
    assert 0 <= fit.ece() <= 1
    assert 0 <= fit.calibrated_pvalue() <= 1


def columns(answered: AnswerTable) -> tuple[Any, ...]:
    return answered.items, answered.shifts, answered.temperatures, answered.answers
