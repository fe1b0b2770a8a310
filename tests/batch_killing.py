"""Audits through the batches of a service that fails, killed in every phase; a test and a study share it.

One item in twenty is refused by a content filter, and a fifth of all requests and of all lines of a batch
fail in a way that is worth another try. Half of the first batch expires. The audit has two rounds.
"""

from __future__ import annotations

import contextlib
import csv
import os
import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from blindcal.auditing.audit import audit
from blindcal.auditing.batch_sender import Polling
from blindcal.auditing.limits import Limits
from blindcal.endpoints import base
from blindcal.errors import EndpointError
from blindcal.results.answer_rows import ANSWERS_FILE
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.settings import Settings
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from blindcal.simulation.replay import running
from blindcal.simulation.replay_batches import error_response
from blindcal.store.run_store import RUN_FILE, Store
from hostile_batches import OPERATIONS, BatchBehaviour, Fate, HostileServer, Trouble
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

ITEMS = 60
LENGTHS = {"probe": 0.6, "first round": 0.35, "later rounds": 0.3, "conclude": 0.5}  # seconds, about
REQUEST_LENGTH = 0.02
TROUBLES: tuple[Trouble, ...] = ("refused", "throttled", "busy", "dropped", "lost")


class FailingServer(HostileServer):
    """A service with a content filter that fails now and then, on every route.

    ``live`` counts its answers outside batches. ``reached`` is set by an ``awaited`` operation.
    """

    def __init__(self, *recorded: Any, failing: float, seed: int) -> None:
        fates: tuple[Fate, ...] = ("expired",) if failing else ()
        super().__init__(*recorded, batches=BatchBehaviour(fates=fates, looks=3, broken=failing))
        self.live = 0
        self.awaited: str | None = None
        self.reached = threading.Event()
        self._failing, self._luck = failing, random.Random(seed)
        self.desk.trouble = self._watched
        plain = self.desk.answer
        self.desk.answer = lambda body, chat: _filtered(body) or plain(body, chat)

    def _watched(self, operation: str) -> Trouble | None:
        if operation == self.awaited:
            self.reached.set()
        return self._trouble()

    def _trouble(self) -> Trouble | None:
        return self._luck.choice(TROUBLES) if self._luck.random() < self._failing else None

    def _handle(self, request: HttpRequest) -> HttpResponse:
        if "completions" not in request.path:
            return super()._handle(request)
        if (trouble := self._trouble()) in ("dropped", "lost"):  # nothing is answered: that would be paid
            return HttpResponse(manner="reset")
        if trouble is not None:
            return error_response(429 if trouble == "throttled" else 503, "not now")
        response = _filtered(request.body) or super()._handle(request)
        self.live += response.status == 200
        return response


def _filtered(body: bytes) -> HttpResponse | None:
    return error_response(400, REFUSAL) if REFUSED in body else None


@contextlib.contextmanager
def serving(path: Path, *, failing: float = FAILING, seed: int = 0) -> Iterator[FailingServer]:
    """A service that answers the questions of a file."""
    with running(FailingServer(*recorded(path), failing=failing, seed=seed)) as server:
        yield server


def run_audit(items: Path, base_url: str, out: Path, resubmit: bool, told: Connection | None) -> None:
    """Audit, and tell a parent process which phase begins and which error ends it."""
    if told is not None:  # in a process of its own
        base.backoff = lambda *_: 0.005  # the waits of the probe
    settings = Settings(
        model="replay", base_url=base_url, method="extraction", queries=ROUNDS, batch=True, resamples=20
    )
    tell = told.send if told is not None else lambda _: None

    stage, progress = telling(tell, ITEMS)
    try:
        audit(
            items,
            settings,
            out=out,
            limits=Limits(concurrency=CONCURRENCY, backoff=0.005),
            polling=Polling(every=0.002, longest=0.02, settle=0.05, resubmit=resubmit),
            progress=progress,
            stage=stage,
        )
    except EndpointError as error:
        tell(error)
        raise SystemExit(1) from None


@dataclass
class Tally:
    """What happened to the audits: kills by phase and by the last request, and what else ended a command."""

    kills: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    questions: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    lost_in_flight: int = 0


@dataclass
class Killer:
    """Kills audits of the questions in a file, and compares what they come to with one left alone."""

    items: Path
    folder: Path
    moments: random.Random
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        with serving(self.items, failing=0.0) as server:
            run_audit(self.items, server.base_url, self.folder / "expected", False, None)
        self.expected = AuditResult.load(self.folder / "expected" / RESULT_FILE)
        assert self.expected.counts.invalid == ROUNDS * ITEMS // 20

    def run(self, targets: list[str]) -> None:
        """Begin an audit, kill it in each of these phases or operations, have it finished, and check it."""
        out = self.folder / f"run{self.tally.runs}"
        with serving(self.items, seed=self.tally.runs) as server:
            ends = [self._go(server, out, target) for target in [*targets, None]]
            self._check(server, out, ends.count("probe"))
        self.tally.runs += 1

    def _go(self, server: FailingServer, out: Path, target: str | None) -> str:
        """Go on with the audit until it is killed or finished; returns the phase that it was killed in."""
        resubmit = False
        for _ in range(100):
            server.awaited = target
            server.reached.clear()
            ours, theirs = CONTEXT.Pipe()
            arguments = (self.items, server.base_url, out, resubmit, theirs)
            process = CONTEXT.Process(target=run_audit, args=arguments)
            process.start()
            theirs.close()
            error = self._until(server, ours, target)
            if target is not None and error is None:
                process.join(self.moments.uniform(0, LENGTHS.get(target, REQUEST_LENGTH)))
                if process.is_alive():
                    assert process.pid is not None
                    os.kill(process.pid, signal.SIGKILL)
                    process.join()
                    return self._note(server, out)
            error = error or self._until(server, ours, None)
            process.join()
            if error is None:
                assert process.exitcode == 0
                return "finished"
            resubmit = self._answer(server, error)
        raise AssertionError(f"it does not go on: {error}")

    def _until(self, server: FailingServer, ours: Connection, target: str | None) -> EndpointError | None:
        """Wait for a phase or operation to begin, or for the end; returns the error at the end, if any."""
        begun = PHASES[0]
        while target is None or target in OPERATIONS or PHASES.index(begun) < PHASES.index(target):
            if target in OPERATIONS and server.reached.wait(0.005):
                break
            try:
                if target not in OPERATIONS or ours.poll():
                    begun = ours.recv()
            except EOFError:
                break
            if isinstance(begun, EndpointError):
                return begun
        return None

    def _answer(self, server: FailingServer, error: EndpointError) -> bool:
        """Do what a user does: look for the batch that a run asks about; else just run the command again."""
        asked = re.search(r"not known whether .* metadata (\w{32}): if it is there", str(error))
        if asked is None:
            self.tally.errors[error.message] += 1
            return False
        self.tally.questions += 1
        return asked[1] not in _tokens(server)

    def _note(self, server: FailingServer, out: Path) -> str:
        phase = phase_on_disk(out)
        self.tally.kills[phase] += 1
        if phase in PHASES[1:3]:
            self.tally.requests[server.desk.operations[-1]] += 1
        return phase

    def _check(self, server: FailingServer, out: Path, probing: int) -> None:
        found = AuditResult.load(out / RESULT_FILE)
        assert found.complete
        for name in ("ece", "bins", "counts", "accuracy"):
            assert getattr(found, name) == getattr(self.expected, name), name
        assert _answers(out) == _answers(self.folder / "expected")
        tokens = _tokens(server)
        assert len(set(tokens)) == len(tokens)  # no batch was created twice
        controls = _control_bodies(server)
        assert all(times == 1 for body, times in server.desk.billed.items() if body not in controls)
        with Store.read(out / RUN_FILE) as store:
            lost = server.live - store.note("ready")["spent"]["queries"]
        assert 0 <= lost <= probing * CONCURRENCY, f"{lost} after {probing} kills, {self.tally.errors}"
        self.tally.lost_in_flight += lost


def _tokens(server: FailingServer) -> list[str]:
    return [held.shown["metadata"]["blindcal"] for held in server.desk.batches.values()]


def _control_bodies(server: FailingServer) -> set[bytes]:
    held = server.desk.batches.values()
    return {bytes(line.body) for one in held for line in one.lines if line.custom_id.startswith("canary")}


def _answers(out: Path) -> list[tuple[str, ...]]:
    with (out / ANSWERS_FILE).open(newline="") as table:
        return [tuple(row[name] for name in ("id", "threshold", "answer")) for row in csv.DictReader(table)]
