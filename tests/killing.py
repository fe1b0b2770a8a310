"""Audits at an endpoint that fails, killed in every phase; a test and a study share it.

One item in twenty is refused by a content filter, and one request in five fails in a way that is worth
another try: 503, 429 or a reset connection. The audit has two rounds.
"""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from blindcal.asking import governor
from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.errors import StoreError
from blindcal.items.question_files import load
from blindcal.records import Item, Progress
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.results.tables import ANSWERS_FILE
from blindcal.settings import Settings
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import error, running
from blindcal.store.run_store import RUN_FILE, UNASKED, Store
from misbehaving import Behaviour, Reset, Server

ROUNDS = 2
CONCURRENCY = 4
FAILING = 0.2
PHASES = ("probe", "first round", "later rounds", "conclude")
REFUSED = b"about weapons"
REFUSAL = "blocked by the content filter"
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["blindcal.auditing.audit", "blindcal.report.page"])
ITEMS = 100
IN_A_ROW = 3  # failures of one request; the probe tries six times
LENGTHS = {"probe": 0.4, "first round": 0.3, "later rounds": 0.3, "conclude": 0.3}  # seconds, about


def write_items(path: Path, n: int) -> None:
    """Write questions to a file; the filter refuses one in twenty."""
    rng = np.random.default_rng(11)
    with path.open("w") as file:
        for k in range(n):
            prompt = f"question {k} about {'weapons' if k % 20 == 7 else 'numbers'}?"
            file.write(json.dumps({"id": f"q{k}", "prompt": prompt, "label": int(rng.random() < 0.5)}) + "\n")


def recorded(path: Path) -> tuple[Recording, list[Item]]:
    """A model that has an answer to each of the questions in a file, and these."""
    loaded = load(path)
    items = list(loaded)
    p = np.random.default_rng(12).beta(0.5, 0.5, len(items))
    return Recording.from_probabilities([item.id for item in items], p), items


def phase_on_disk(out: Path) -> str:
    """The phase in which an audit was killed, by what it left on disk."""
    try:
        with Store.read(out / RUN_FILE) as store:
            sizes = [len(one) for one in store.rounds()]
            if store.note("ready") is None or not sizes:
                return "probe"
            done = UNASKED not in store.answers(0, sum(sizes))
    except StoreError:  # there is no file yet, or an empty one
        return "probe"
    return "first round" if len(sizes) < ROUNDS else "conclude" if done else "later rounds"


class FailingServer(Server):
    """A service with a content filter that fails now and then.

    ``settled`` counts the requests that it answered or refused for good: what must not be asked again.
    """

    def __init__(self, recording: Recording, items: Sequence[Item], *, failing: float, seed: int) -> None:
        super().__init__(recording, items, Behaviour(latency=0.002))
        self.settled = 0
        self._failing, self._luck = failing, random.Random(seed)
        self._failures: Counter[bytes] = Counter()

    def _complete(self, body: bytes, *, chat: bool) -> HttpResponse:
        if self._luck.random() < self._failing and self._failures[body] < IN_A_ROW:
            self._failures[body] += 1
            status = self._luck.choice((503, 429, None))
            return Reset() if status is None else error(status, "not now", None)
        self._failures[body] = 0
        response = super()._complete(body, chat=chat)
        if REFUSED in body:
            self.settled += 1
            refusal = error(400, REFUSAL, None)
            return replace(response, status=refusal.status, body=refusal.body)
        self.settled += response.status == 200
        return response


@contextlib.contextmanager
def serving(path: Path, *, failing: float = FAILING, seed: int = 0) -> Iterator[FailingServer]:
    """A service that answers the questions of a file."""
    with running(FailingServer(*recorded(path), failing=failing, seed=seed)) as server:
        yield server


def run_audit(items: Path, base_url: str, out: Path, told: Connection | None) -> None:
    """Audit, and tell a parent process which phase begins."""
    tell = told.send if told is not None else lambda _: None
    if told is not None:  # in a process of its own
        governor.backoff = lambda *_: 0.005  # the waits of the probe

    def stage(text: str) -> None:
        if text == "asking":
            tell("first round")
        elif text.startswith("estimating"):
            tell("conclude")

    def progress(so_far: Progress) -> None:
        if not so_far.probing and so_far.done >= ITEMS:
            tell("later rounds")

    # The second round follows from the answers to the first.
    settings = Settings(model="replay", base_url=base_url, method="extraction", queries=ROUNDS, resamples=20)
    limits = Limits(concurrency=CONCURRENCY, backoff=0.005)
    audit(items, settings, out=out, limits=limits, progress=progress, stage=stage)


@dataclass
class Killer:
    """Kills audits of the questions in a file, and compares what they come to with one left alone.

    ``kills`` counts the kills by phase, and ``again`` the requests that had to be made again after them.
    """

    items: Path
    folder: Path
    moments: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    again: int = 0

    def __post_init__(self) -> None:
        with serving(self.items, failing=0.0) as server:
            run_audit(self.items, server.base_url, self.folder / "expected", None)
            self.settled = server.settled
        self.expected = AuditResult.load(self.folder / "expected" / RESULT_FILE)
        assert self.expected.counts.invalid == ROUNDS * ITEMS // 20

    def run(self, targets: list[str]) -> None:
        """Begin an audit, kill it in each of these phases, have it finished, and check what it came to."""
        out = self.folder / f"run{self.runs}"
        with serving(self.items, seed=self.runs) as server:
            killed = sum(self._go(server, out, target) for target in [*targets, None])
            again = server.settled - self.settled
        assert 0 <= again <= killed * CONCURRENCY
        self.runs, self.again = self.runs + 1, self.again + again
        found, expected = AuditResult.load(out / RESULT_FILE), self.expected
        assert found.complete
        for name in ("ece", "bins", "accuracy", "counts", "invalid_reasons"):
            assert getattr(found, name) == getattr(expected, name), name
        assert found.spend.queries == expected.spend.queries
        assert _answers(out) == _answers(self.folder / "expected")

    def _go(self, server: FailingServer, out: Path, target: str | None) -> bool:
        """Go on with the audit; returns whether it was killed, and otherwise it is finished."""
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=run_audit, args=(self.items, server.base_url, out, theirs))
        process.start()
        theirs.close()
        begun = PHASES[0]
        with contextlib.suppress(EOFError):
            while target is None or PHASES.index(begun) < PHASES.index(target):
                begun = ours.recv()
        process.join(None if target is None else self.moments.uniform(0, LENGTHS[target]))
        if not process.is_alive():
            assert process.exitcode == 0
            return False
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        self.kills[phase_on_disk(out)] += 1
        return True


def _answers(out: Path) -> list[tuple[str, ...]]:
    with (out / ANSWERS_FILE).open(newline="") as file:
        return [
            tuple(value for name, value in row.items() if name != "seconds") for row in csv.DictReader(file)
        ]
