"""Results of watches, made from simulated streams by a real monitor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.fitting import latent
from blindcal.estimate.streams.alarms import MonitorState
from blindcal.records import FloatArray
from blindcal.results.monitor import Monitor
from blindcal.results.watch_result import WatchResult, WindowCurve
from results import spend

N = 1500
TOPICS = ("law", "physics", "history")


@cache
def reference_fit(seed: int = 0, n: int = 1500) -> LatentFit:
    """A fit of a well calibrated model."""
    rng = np.random.default_rng(seed)
    f = rng.beta(0.6, 0.6, n)
    t = rng.uniform(size=n)
    return latent((rng.random(n) < f).astype(int), np.log((1 - t) / t), (f >= t).astype(int), resamples=40)


def monitored(
    *, overconfident: bool = False, shifted: bool = False, swapped: bool = False, seed: int = 1, n: int = N
) -> tuple[MonitorState, tuple[FloatArray, FloatArray, FloatArray]]:
    """The state after a stream, and the stream's labels, thresholds and answers.

    Its second half may be overconfident, about other questions, or from another model.
    """
    rng = np.random.default_rng(seed)
    monitor = Monitor(reference_fit())
    monitor.expect_anchors(1, 30, 0, 30)
    late = np.arange(n) >= n // 2
    f = np.where(late & shifted, rng.beta(3, 0.8, n), rng.beta(0.6, 0.6, n))
    truth = np.where(late & overconfident, 0.6 * f, f)
    labels = (rng.random(n) < truth).astype(np.int64)
    t = monitor.thresholds(n, rng)
    answers = (f >= t).astype(np.int64)
    wrong = rng.random(60) < np.where((np.arange(60) > 25) & swapped, 0.9, 0.02)
    monitor.add_anchors(rng.integers(0, 2, 60), wrong.astype(np.int64))
    parts = [TOPICS[k % 3] for k in range(n)]
    return monitor.update(labels, t, answers, parts), (labels.astype(float), t, answers.astype(float))


def watch_result(
    folder: Path, *, facts: tuple[str, ...] = (), window: bool = False, **stream: Any
) -> WatchResult:
    """What a watch knows after such a stream."""
    state, columns = monitored(**stream)
    first = {one.name: "2026-11-14T08:30:00+00:00" for one in state.alarms if one.raised}
    last = _window(*(column[-500:] for column in columns)) if window else None
    return replace(quiet_result(folder), state=state, first_seen=first, facts=facts, window=last)


def quiet_result(folder: Path) -> WatchResult:
    """A watch that has just begun: nothing asked, nothing raised."""
    state = Monitor(max_ece=0.1).state()
    return WatchResult(
        folder=str(folder),
        model="gpt-4o-mini",
        reference="runs/questions-gpt-4o-mini",
        stream="traffic.jsonl",
        started="2026-11-10T06:00:00+00:00",
        looked="2026-11-16T12:30:00+00:00",
        look=7,
        records=1612,
        chosen=1540,
        answered=N,
        invalid=12,
        waiting=28,
        labelled=N,
        duplicates=3,
        conflicts=1,
        unreadable=2,
        labels_without_item=5,
        state=state,
        facts=(),
        first_seen={},
        window=None,
        spend=spend(
            queries=1800,
            probe_queries=120,
            attempts=1805,
            prompt_tokens=84000,
            cost=0.0412,
            control_queries=180,
        ),
        cost_today=0.0061,
        max_cost_per_day=0.05,
        stopped=None,
    )


def _window(labels: FloatArray, t: FloatArray, answers: FloatArray) -> WindowCurve:
    fit, known = latent(labels, np.log((1 - t) / t), answers, resamples=40), reference_fit()
    assert fit.curve is not None
    return WindowCurve(
        items=len(labels),
        curve=fit.curve,
        ece=fit.ece,
        reference=known.curve,
        reference_ece=known.ece,
    )
