"""Live audits at an endpoint that fails, killed in every phase; a test and a study share it.

One item in twenty is refused by a content filter, and one request in five fails in a way that is worth
another try: 503, 429 or a reset connection. The audit has two rounds.
"""

from __future__ import annotations

import contextlib
import csv
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

from blindcal.auditing.audit import audit
from blindcal.auditing.limits import Limits
from blindcal.endpoints import base
from blindcal.records import Item
from blindcal.results.answer_rows import ANSWERS_FILE
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.settings import Settings
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.simulation.replay_batches import error_response
from killing import (
    CONCURRENCY,
    CONTEXT,
    FAILING,
    PHASES,
    REFUSAL,
    REFUSED,
    ROUNDS,
    phase_on_disk,
    recorded,
    telling,
)
from misbehaving import Behaviour, Server

ITEMS = 100
IN_A_ROW = 3  # failures of one request; the probe tries six times
LENGTHS = {"probe": 0.4, "first round": 0.3, "later rounds": 0.3, "conclude": 0.3}  # seconds, about


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
            return HttpResponse(manner="reset") if status is None else error_response(status, "not now")
        self._failures[body] = 0
        response = super()._complete(body, chat=chat)
        if REFUSED in body:
            self.settled += 1
            refusal = error_response(400, REFUSAL)
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
        base.backoff = lambda *_: 0.005  # the waits of the probe

    stage, progress = telling(tell, ITEMS)
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
