"""``blindcal audit --batch`` killed at any moment: nothing is lost, and nothing is submitted twice."""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from batch_killing import ITEMS, Killer
from blindcal.auditing.audit import audit
from blindcal.auditing.batch_sender import Polling
from blindcal.items.files import load
from blindcal.records import Item
from blindcal.results.answer_rows import ANSWERS_FILE
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from hostile_batches import BatchBehaviour, HostileServer, Trouble
from killing import write_items

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")

ASKED = ITEMS // 2  # blind with two bins asks half of them
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["blindcal.cli.audit"])


def command(*arguments: str) -> None:
    """What a process does: the real command, which ends it."""
    from blindcal.cli import main

    sys.argv = ["blindcal", *arguments]
    main()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(11)
    path = tmp_path / "items.jsonl"
    with path.open("w") as out:
        for k in range(ITEMS):
            record = {"id": f"q{k}", "prompt": f"question {k}?", "label": int(rng.random() < 0.5)}
            out.write(json.dumps(record) + "\n")
    return path


@pytest.fixture
def items(file: Path) -> list[Item]:
    loaded = load(file)
    return list(loaded)


@contextlib.contextmanager
def serving(items: list[Item], looks: int = 2) -> Iterator[HostileServer]:
    """A server whose first batch expires with half of it answered."""
    p = np.random.default_rng(12).beta(0.5, 0.5, ITEMS)
    recording = Recording.from_probabilities([item.id for item in items], p)
    batches = BatchBehaviour(fates=("expired",), looks=looks)
    with running(HostileServer(recording, items, batches=batches)) as server:
        yield server


def begun(file: Path, server: HostileServer, folder: Path) -> BaseProcess:
    process = CONTEXT.Process(
        target=command,
        args=(
            *("audit", str(file), "--model", "replay", "--base-url", server.base_url, "--out", str(folder)),
            *("--method", "blind", "--bins", "2", "--batch", "--wait", "--poll", "0.005", "--quiet"),
        ),
    )
    process.start()
    return process


def finish(file: Path, server: HostileServer, folder: Path) -> AuditResult:
    """Go on with the command's run; without a process of its own and its drawing, which take longest."""
    settings = Settings(model="replay", base_url=server.base_url, method="blind", bins=2, batch=True)
    return audit(file, settings, out=folder, polling=Polling(every=0.005, settle=0.1))


def answers(folder: Path) -> list[tuple[str, ...]]:
    with (folder / ANSWERS_FILE).open(newline="") as table:
        return [tuple(row[name] for name in ("id", "threshold", "answer")) for row in csv.DictReader(table)]


@dataclass(frozen=True)
class Left:
    """What an audit that is left alone comes to."""

    result: AuditResult
    submitted: int
    billed: int


@pytest.fixture
def expected(file: Path, items: list[Item], tmp_path: Path) -> Left:
    """Half of the first batch expires unanswered, and goes into a second one."""
    with serving(items) as server:
        found = finish(file, server, tmp_path / "expected")
        desk = server.desk
        assert sum(desk.submitted.values()) > ASKED * 1.2
        assert len(desk.billed) >= ASKED
        left = Left(found, sum(desk.submitted.values()), sum(desk.billed.values()))
        check(server, found, left)
        return left


def check(server: HostileServer, found: AuditResult, expected: Left) -> None:
    """Each query answered and billed once; submitted once, and once more if it was left unanswered."""
    same = ("ece", "bins", "counts", "spend")
    assert found.complete
    assert [getattr(found, name) for name in same] == [getattr(expected.result, name) for name in same]
    assert set(server.desk.billed.values()) == {1}
    assert sum(server.desk.billed.values()) == expected.billed
    assert sum(server.desk.submitted.values()) == expected.submitted
    assert len(server.desk.batches) == 2


def test_killed_at_each_request(file: Path, items: list[Item], expected: Left, tmp_path: Path) -> None:
    """Killed while the n-th request about files or batches is carried out, for every n, an audit goes on."""
    number = 0
    while True:
        number += 1
        folder = tmp_path / f"run{number}"
        with serving(items) as server:
            pid: Future[int] = Future()

            def kill(_: str, server: HostileServer = server, pid: Future[int] = pid) -> Trouble | None:
                if len(server.desk.operations) == number:  # noqa: B023 - the loop waits for the process
                    os.kill(pid.result(), signal.SIGKILL)
                return None

            server.desk.trouble = kill
            process = begun(file, server, folder)
            assert process.pid is not None
            pid.set_result(process.pid)
            process.join()
            killed = process.exitcode == -signal.SIGKILL
            server.desk.trouble = lambda _: None
            check(server, finish(file, server, folder), expected)
            assert answers(folder) == answers(tmp_path / "expected")
        if not killed:
            break
    assert number > 8  # two checks, two uploads, two batches, looks and contents


def test_killed_in_every_phase_while_the_service_fails(tmp_path: Path) -> None:
    """With refused items and failing requests, kills at random moments change neither result nor bill."""
    write_items(tmp_path / "items.jsonl", ITEMS)
    killer = Killer(tmp_path / "items.jsonl", tmp_path, random.Random(7))
    killer.run(["probe", "first round", "create", "content", "later rounds", "conclude"])
    assert sum(killer.tally.kills.values()) >= 5  # one may come too late
