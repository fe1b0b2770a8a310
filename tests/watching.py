"""What the tests of watches share: a model in production with an audit of it, and simulated results.

Reading a reference takes seconds, and every watch reads it anew. So the monitor of a reference is made once,
and each watch gets a copy of it as it was before the first answer.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.asking.run_context import Limits
from blindcal.estimate.latent.estimator import latent
from blindcal.records import FloatArray, IntArray
from blindcal.results.run import Run
from blindcal.results.watch_result import WatchResult, WindowCurve
from blindcal.store.run_store import RUN_FILE
from blindcal.store.watch_store import WatchStore
from blindcal.watching import watch as watch_module
from blindcal.watching.monitor import Monitor
from blindcal.watching.watch import watch
from deciding import audited, model, serving, write_items
from finished_runs import without_page
from misbehaving import Server
from results import spend

N = 400  # questions that the model knows; the first ones are those of the reference
REFERENCE = 160
SIMULATED = 1500  # answers in a simulated stream


@contextlib.contextmanager
def copied_monitors(folder: Path) -> Iterator[None]:
    """Let watches have copies of monitors, which are kept in a folder."""

    def make(run: Run, **claims: Any) -> Any:
        kept = folder / f"monitor{'-'.join(map(str, claims.values()))}.pickle"
        if not kept.exists():
            kept.write_bytes(pickle.dumps(Monitor(run, **claims)))
        return pickle.loads(kept.read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "Monitor", make)
        yield


@dataclass
class Production:
    """A model, its answers' true probabilities and labels, and an audit of it."""

    server: Server
    run: Path
    labels: IntArray
    p: FloatArray
    looks: list[WatchResult] = field(default_factory=list)

    def records(
        self, numbers: Iterable[int] = range(REFERENCE, N), *, labelled: bool = True
    ) -> list[dict[str, Any]]:
        """The records of questions."""
        labels = [{"label": int(label)} if labelled else {} for label in self.labels]
        return [{"id": f"q{k}", "n": k, **labels[k]} for k in numbers]

    def watch(self, stream: Path, out: Path, **more: Any) -> WatchResult:
        """Watch a stream; ``looks`` are what its looks show."""
        self.looks = []
        more = {"limits": Limits(concurrency=4), "on_look": self.looks.append, **more}
        return watch(stream, self.run, out=out, **more)

    def asked(self, out: Path) -> dict[str, tuple[float, int]]:
        """The shift and the answer of every item that was asked."""
        with WatchStore.read(out / RUN_FILE) as store:
            table, ids = store.answered(), store.ids_between(0, 10**9)
        rows = zip(table.items, table.shifts, table.answers, strict=True)
        return {ids[item]: (float(shift), int(answer)) for item, shift, answer in rows}


@contextlib.contextmanager
def production(
    folder: Path, *, settings: dict[str, Any] | None = None, p: FloatArray | None = None, **behaviour: Any
) -> Iterator[Production]:
    """A model behind a server, and a finished audit of its first questions; ``p`` are its probabilities."""
    labels, usual = model(N, 5)
    p = usual if p is None else p
    everything = write_items(folder / "everything.jsonl", labels)
    first = write_items(folder / "questions.jsonl", labels[:REFERENCE])
    with serving(everything, p, **behaviour) as server:
        with without_page():
            about = {"method": "latent", "resamples": 20, **(settings or {})}
            run = audited(first, server, folder / "run", **about)
        with copied_monitors(folder):
            yield Production(server, run, labels, p)


def write(path: Path, records: Iterable[dict[str, Any]], mode: str = "w") -> Path:
    """Write records as JSON lines."""
    with path.open(mode) as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def overconfident_result(folder: Path) -> WatchResult:
    """What a watch knows after a simulated stream whose second half is overconfident."""
    rng, n = np.random.default_rng(1), SIMULATED
    f, t = rng.beta(0.6, 0.6, n), Monitor.thresholds(n, rng)
    fit = latent((rng.random(n) < f).astype(int), np.log((1 - t) / t), (f >= t).astype(int), resamples=20)
    monitor = Monitor(fit)
    monitor.expect_anchors(1, 30, 0, 30)
    late = np.arange(n) >= n // 2
    labels = (rng.random(n) < np.where(late, 0.6 * f, f)).astype(np.int64)
    t = monitor.thresholds(n, rng)
    answers = (f >= t).astype(np.int64)
    monitor.add_anchors(rng.integers(0, 2, 60), (rng.random(60) < 0.02).astype(np.int64))
    state = monitor.update(labels, t, answers)
    last = latent(labels[-500:], np.log((1 - t) / t)[-500:], answers[-500:], resamples=20)
    window = WindowCurve(
        items=500, curve=last.curve, ece=last.ece, reference=fit.curve, reference_ece=fit.ece
    )
    first = {alarm.name: "2026-11-14T08:30:00+00:00" for alarm in state.alarms if alarm.raised}
    return replace(quiet_result(folder), state=state, first_seen=first, window=window)


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
        answered=SIMULATED,
        invalid=12,
        waiting=28,
        labelled=SIMULATED,
        duplicates=3,
        conflicts=1,
        unreadable=2,
        labels_without_item=5,
        state=Monitor(max_ece=0.1).state(),
        facts=(),
        first_seen={},
        window=None,
        spend=spend(queries=1800, probe_queries=0, attempts=1805, cost=0.0412, control_queries=180),
        stopped=None,
    )
