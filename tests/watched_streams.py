"""Results of watches, made from simulated streams by a real monitor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from blindcal.estimate.latent.fitting import latent
from blindcal.results.monitor import Monitor
from blindcal.results.watch_result import WatchResult, WindowCurve
from results import spend

N = 1500


def watch_result(
    folder: Path, *, overconfident: bool = False, swapped: bool = False, window: bool = False
) -> WatchResult:
    """What a watch knows after a stream whose second half may be overconfident, or from another model."""
    rng = np.random.default_rng(1)
    f, t = rng.beta(0.6, 0.6, N), Monitor.thresholds(N, rng)
    fit = latent((rng.random(N) < f).astype(int), np.log((1 - t) / t), (f >= t).astype(int), resamples=20)
    monitor = Monitor(fit)
    monitor.expect_anchors(1, 30, 0, 30)
    late = np.arange(N) >= N // 2
    labels = (rng.random(N) < np.where(late & overconfident, 0.6 * f, f)).astype(np.int64)
    t = monitor.thresholds(N, rng)
    answers = (f >= t).astype(np.int64)
    wrong = rng.random(60) < np.where((np.arange(60) > 25) & swapped, 0.9, 0.02)
    monitor.add_anchors(rng.integers(0, 2, 60), wrong.astype(np.int64))
    topics = [("law", "physics", "history")[k % 3] for k in range(N)]
    state = monitor.update(labels, t, answers, topics)
    last = None
    if window:
        shown = latent(labels[-500:], np.log((1 - t) / t)[-500:], answers[-500:], resamples=20)
        assert shown.curve is not None
        last = WindowCurve(
            items=500, curve=shown.curve, ece=shown.ece, reference=fit.curve, reference_ece=fit.ece
        )
    first = {alarm.name: "2026-11-14T08:30:00+00:00" for alarm in state.alarms if alarm.raised}
    return replace(quiet_result(folder), state=state, first_seen=first, window=last)


def quiet_result(folder: Path) -> WatchResult:
    """A watch that has just begun: nothing labelled, nothing raised."""
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
        state=Monitor(max_ece=0.1).state(),
        facts=(),
        first_seen={},
        window=None,
        spend=spend(
            queries=1800,
            probe_queries=0,
            attempts=1805,
            prompt_tokens=84000,
            cost=0.0412,
            control_queries=180,
        ),
        cost_today=0.0061,
        max_cost_per_day=0.05,
        stopped=None,
    )
