"""A model in production that the tests of watches share: a reference audit, its server, and streams for it.

Reading a reference takes seconds, and every watch reads it anew. So the monitor of a reference is made once,
and each watch gets a copy of it as it was before the first answer.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blindcal.asking.run_context import Limits
from blindcal.records import FloatArray, IntArray
from blindcal.results.monitor import Monitor
from blindcal.results.run import Run
from blindcal.results.watch_result import WatchResult
from blindcal.store.run_store import RUN_FILE
from blindcal.store.watch_store import WatchStore
from blindcal.watching import watch as watch_module
from blindcal.watching.watch import watch
from deciding import audited, model, serving, write_items
from finished_runs import without_page
from misbehaving import Server

N = 400  # questions that the model knows; the first ones are those of the reference
REFERENCE = 160
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


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
class Clock:
    """A clock that shows what the test says."""

    time: datetime = NOON

    def __call__(self) -> datetime:
        """The time now."""
        return self.time


@dataclass
class Production:
    """A model, its answers' true probabilities and labels, and an audit of it."""

    server: Server
    run: Path
    labels: IntArray
    p: FloatArray
    looks: list[WatchResult] = field(default_factory=list)

    def record(self, k: int, *, labelled: bool = True, **more: Any) -> dict[str, Any]:
        """The record of question k."""
        label = {"label": int(self.labels[k])} if labelled else {}
        return {"id": f"q{k}", "n": k, **label, **more}

    def records(self, numbers: Iterable[int] = range(REFERENCE, N), **more: Any) -> list[dict[str, Any]]:
        """The records of questions."""
        return [self.record(k, **more) for k in numbers]

    def watch(self, stream: Path, out: Path, **more: Any) -> WatchResult:
        """Watch a stream; ``looks`` are what its looks show."""
        self.looks = []
        more = {"limits": Limits(concurrency=4), "clock": Clock(), "on_look": self.looks.append, **more}
        return watch(stream, self.run, out=out, **more)

    def asked(self, out: Path) -> dict[str, tuple[float, int]]:
        """The shift and the answer of every item that was asked."""
        with WatchStore.read(out / RUN_FILE) as store:
            table, names = store.answered(), [name for name, _ in store.names_between(0, 10**9)]
        rows = zip(table.items, table.shifts, table.answers, strict=True)
        return {names[item]: (float(shift), int(answer)) for item, shift, answer in rows}


@contextlib.contextmanager
def production(
    folder: Path,
    *,
    settings: dict[str, Any] | None = None,
    p: FloatArray | None = None,
    **behaviour: Any,
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
        file.writelines(json.dumps(one) + "\n" for one in records)
    return path


def without_times(result: WatchResult) -> dict[str, Any]:
    """What a result says, apart from where and when."""
    found: dict[str, Any] = msgspec.to_builtins(result)
    for name in ("folder", "started", "looked", "stream", "first_seen"):
        del found[name]
    return found
